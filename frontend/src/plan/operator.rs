//! Operators: comparisons, arithmetic, patterns, AND, OR, NOT, IN.
//!
//! *Source*: PostgreSQL 15, section 10.2, for the types of operands.
//!
//! *Not here*: what the operators compute (`expression`), and ANY and ALL of arrays (`array`).

use std::rc::Rc;

use sqlparser::ast::{self, BinaryOperator, Expr, UnaryOperator};

use crate::error::SqlError;
use crate::expression::arithmetic::Operator;
use crate::expression::datetime::Interval;
use crate::expression::function::Function;
use crate::expression::pattern::{Kept, Syntax};
use crate::expression::set::KeptId;
use crate::expression::{Comparison, Expression, Match};
use crate::plan::array::ordered;
use crate::plan::bind::{Binder, Typed, folded, number};
use crate::plan::scope::Scope;
use crate::plan::types;
use crate::value::{DataType, Value};

/// Splits signs before a power: the base with the signs, the operator, and the exponent.
fn signed_base(sign: UnaryOperator, operand: &Expr) -> Option<(Expr, &BinaryOperator, &Expr)> {
    let (base, power, exponent) = match operand {
        Expr::BinaryOp { left, op: op @ BinaryOperator::PGExp, right } => {
            (gannet_syntax::copy(left), op, right.as_ref())
        }
        Expr::UnaryOp { op: inner @ (UnaryOperator::Minus | UnaryOperator::Plus), expr } => {
            signed_base(*inner, expr)?
        }
        _ => return None,
    };
    Some((Expr::UnaryOp { op: sign, expr: Box::new(base) }, power, exponent))
}

impl Binder {
    pub(super) fn unary(
        &mut self,
        operator: UnaryOperator,
        operand: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        match operator {
            UnaryOperator::Not => {
                let condition = self.condition(operand, scope, "NOT")?;
                return Ok(negated_condition(Typed::boolean(condition)));
            }
            // The parser binds a sign less tightly than a power does, but PostgreSQL's -2^2 is (-2)^2.
            UnaryOperator::Minus | UnaryOperator::Plus
                if let Some((signed, power, exponent)) = signed_base(operator, operand) =>
            {
                return self.binary(&signed, power, exponent, scope);
            }
            UnaryOperator::Minus => {
                // The smallest BIGINT without its sign is no BIGINT.
                if let Expr::Value(value) = operand
                    && let ast::Value::Number(digits, _) = &value.value
                {
                    return number(&format!("-{digits}"));
                }
            }
            UnaryOperator::Plus | UnaryOperator::BitwiseNot => {}
            other => return Err(SqlError::unsupported(format_args!("operator {other}"))),
        }
        let typed = self.expression(operand, scope)?;
        let data_type = typed.data_type.unwrap_or(DataType::Double);
        let defined = match operator {
            UnaryOperator::BitwiseNot => data_type.is_integer(),
            _ => data_type.is_number(),
        };
        if !defined {
            let message = format!("operator does not exist: {operator} {}", data_type.name());
            return Err(SqlError::new("42883", message));
        }
        let operand = self.coerced(typed, data_type, false)?;
        let function = match operator {
            UnaryOperator::Plus => return Ok(Typed::new(operand, data_type)),
            UnaryOperator::BitwiseNot => Function::BitNot,
            _ => Function::Negate,
        };
        Ok(Typed::new(Expression::Call(function, data_type, vec![operand]), data_type))
    }

    pub(super) fn binary(
        &mut self,
        left: &Expr,
        operator: &BinaryOperator,
        right: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        if let BinaryOperator::PGCustomBinaryOperator(parts) = operator {
            let symbol = parts.last().map_or("", String::as_str);
            let known = standard_operator(symbol)
                .ok_or_else(|| SqlError::unsupported(format_args!("operator {symbol}")))?;
            return self.binary(left, &known, right, scope);
        }
        if matches!(operator, BinaryOperator::And | BinaryOperator::Or) {
            return self.junction(left, operator, right, scope);
        }
        if let Some(comparison) = comparison_of(operator) {
            if let (Expr::Tuple(left), Expr::Tuple(right)) = (left, right) {
                return self.compare_rows(left, comparison, right, scope);
            }
            let left = self.expression(left, scope)?;
            let right = self.expression(right, scope)?;
            return self.compare(left, comparison, right);
        }
        if let Some((syntax, ignore_case, negated)) = match_of(operator) {
            return self.matching(left, right, syntax, ignore_case, negated, scope);
        }
        let Some(arithmetic) = arithmetic_of(operator) else {
            return Err(SqlError::unsupported(format_args!("operator {operator}")));
        };
        let is_sum = arithmetic == Operator::Add;
        if (is_sum || arithmetic == Operator::Subtract)
            && let Some(interval) = interval_of(right).transpose()?
        {
            let interval = if is_sum { interval } else { interval.negated() };
            let left = self.expression(left, scope)?;
            return self.add_interval(left, interval);
        }
        if is_sum && let Some(interval) = interval_of(left).transpose()? {
            let right = self.expression(right, scope)?;
            return self.add_interval(right, interval);
        }
        let left = self.expression(left, scope)?;
        let right = self.expression(right, scope)?;
        if is_sum && let Some(interval) = interval_beside(&left, &right).transpose()? {
            return self.add_interval(left, interval);
        }
        if is_sum && let Some(interval) = interval_beside(&right, &left).transpose()? {
            return self.add_interval(right, interval);
        }
        self.arithmetic(arithmetic, left, right)
    }

    fn arithmetic(
        &mut self,
        operator: Operator,
        left: Typed,
        right: Typed,
    ) -> Result<Typed, SqlError> {
        let otherwise = |other: Option<DataType>| match (operator, other) {
            (Operator::Concatenate, Some(DataType::Bytea)) => DataType::Bytea,
            (Operator::Concatenate, _) => DataType::Text,
            (_, other) => other.unwrap_or(DataType::Integer),
        };
        let left_type = left.data_type.unwrap_or_else(|| otherwise(right.data_type));
        let right_type = right.data_type.unwrap_or_else(|| otherwise(left.data_type));
        let Some((left_to, right_to, result)) = types::operation(operator, left_type, right_type)
        else {
            return Err(no_operator(operator.symbol(), left_type, right_type));
        };
        let left = self.coerced(left, left_to, false)?;
        let right = self.coerced(right, right_to, false)?;
        let expression = Expression::Arithmetic(operator, result, Box::new(left), Box::new(right));
        Ok(Typed::new(expression, result))
    }

    fn add_interval(&mut self, typed: Typed, interval: Interval) -> Result<Typed, SqlError> {
        let data_type = typed.data_type.unwrap_or(DataType::Timestamp);
        if !data_type.is_time() {
            let name = data_type.name();
            let message = format!("operator does not exist: {name} + interval");
            return Err(SqlError::new("42883", message));
        }
        let operand = self.coerced(typed, data_type, false)?;
        let sum = Expression::AddInterval(Box::new(operand), interval);
        let result = match data_type {
            DataType::Date => DataType::Timestamp,
            other => other,
        };
        Ok(Typed::new(sum, result))
    }

    /// AND and OR. A chain becomes one list, so it is not deep.
    fn junction(
        &mut self,
        left: &Expr,
        operator: &BinaryOperator,
        right: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let mut operands = vec![right];
        let mut rest = left;
        while let Expr::BinaryOp { left, op, right } = rest
            && op == operator
        {
            operands.push(right);
            rest = left;
        }
        operands.push(rest);
        let is_and = *operator == BinaryOperator::And;
        let clause = if is_and { "AND" } else { "OR" };
        let mut parts = Vec::with_capacity(operands.len());
        for operand in operands.into_iter().rev() {
            parts.push(self.condition(operand, scope, clause)?);
        }
        let junction = if is_and { Expression::And(parts) } else { Expression::Or(parts) };
        Ok(Typed::boolean(junction))
    }

    /// A comparison; both sides are cast to one type.
    pub(super) fn compare(
        &mut self,
        left: Typed,
        comparison: Comparison,
        right: Typed,
    ) -> Result<Typed, SqlError> {
        if !matches!(comparison, Comparison::Equal | Comparison::NotEqual) {
            left.data_type.into_iter().chain(right.data_type).try_for_each(ordered)?;
        }
        let (left, right) = self.same_type(left, right, comparison.symbol())?;
        let compared = Expression::Compare(comparison, Box::new(left), Box::new(right));
        Ok(Typed::boolean(folded(compared)))
    }

    fn same_type(
        &mut self,
        left: Typed,
        right: Typed,
        symbol: &str,
    ) -> Result<(Expression, Expression), SqlError> {
        let data_type = match (left.data_type, right.data_type) {
            (None, None) => DataType::Text,
            (Some(data_type), None) | (None, Some(data_type)) => unbounded(data_type),
            (Some(a), Some(b)) => types::common(a, b).ok_or_else(|| no_operator(symbol, a, b))?,
        };
        Ok((self.coerced(left, data_type, false)?, self.coerced(right, data_type, false)?))
    }

    fn compare_rows(
        &mut self,
        left: &[Expr],
        comparison: Comparison,
        right: &[Expr],
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        if left.len() != right.len() {
            return Err(SqlError::new("42601", "unequal number of entries in row expressions"));
        }
        if comparison != Comparison::Equal {
            return Err(SqlError::unsupported("a comparison of rows other than ="));
        }
        let mut parts = Vec::with_capacity(left.len());
        for (left, right) in left.iter().zip(right) {
            let left = self.expression(left, scope)?;
            let right = self.expression(right, scope)?;
            parts.push(self.compare(left, comparison, right)?.expression);
        }
        Ok(Typed::boolean(Expression::And(parts)))
    }

    pub(super) fn is_null(
        &mut self,
        operand: &Expr,
        negated: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let (operand, _) = self.value(operand, scope)?;
        let found = Typed::boolean(Expression::IsNull(Box::new(operand)));
        Ok(if negated { negated_condition(found) } else { found })
    }

    pub(super) fn is_boolean(
        &mut self,
        operand: &Expr,
        expected: bool,
        negated: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let operand = self.condition(operand, scope, "IS")?;
        let found = Typed::boolean(Expression::Is(Box::new(operand), expected));
        Ok(if negated { negated_condition(found) } else { found })
    }

    pub(super) fn distinct(
        &mut self,
        left: &Expr,
        right: &Expr,
        negated: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let left = self.expression(left, scope)?;
        let right = self.expression(right, scope)?;
        let (left, right) = self.same_type(left, right, "=")?;
        let found = Typed::boolean(Expression::Same(Box::new(left), Box::new(right)));
        Ok(if negated { negated_condition(found) } else { found })
    }

    pub(super) fn between(
        &mut self,
        operand: &Expr,
        low: &Expr,
        high: &Expr,
        negated: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let value = self.expression(operand, scope)?;
        let low = self.expression(low, scope)?;
        let high = self.expression(high, scope)?;
        let above = self.compare(value.clone(), Comparison::GreaterOrEqual, low)?;
        let below = self.compare(value, Comparison::LessOrEqual, high)?;
        let found =
            Typed::boolean(folded(Expression::And(vec![above.expression, below.expression])));
        Ok(if negated { negated_condition(found) } else { found })
    }

    /// IN with a list; all members are cast to one type.
    pub(super) fn in_list(
        &mut self,
        operand: &Expr,
        list: &[&Expr],
        negated: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        if let Expr::Tuple(left) = operand {
            let mut rows = Vec::with_capacity(list.len());
            for member in list {
                let Expr::Tuple(right) = member else {
                    return Err(SqlError::new("42883", "a row is compared with a value"));
                };
                rows.push(self.compare_rows(left, Comparison::Equal, right, scope)?.expression);
            }
            let found = Typed::boolean(Expression::Or(rows));
            return Ok(if negated { negated_condition(found) } else { found });
        }
        let value = self.expression(operand, scope)?;
        let (mut columns, mut constants) = (Vec::new(), Vec::with_capacity(list.len()));
        for member in list {
            let member = self.expression(member, scope)?;
            let of_row = member.expression.any(&is_of_row);
            if of_row { &mut columns } else { &mut constants }.push(member);
        }
        if constants.len() == 1 {
            columns.append(&mut constants);
        }
        let mut found = Vec::with_capacity(columns.len() + 1);
        if !constants.is_empty() {
            found.push(self.in_constants(value.clone(), constants)?.expression);
        }
        for column in columns {
            found.push(self.compare(value.clone(), Comparison::Equal, column)?.expression);
        }
        let found = match found.len() {
            1 => found.remove(0),
            _ => folded(Expression::Or(found)),
        };
        let found = Typed::boolean(found);
        Ok(if negated { negated_condition(found) } else { found })
    }

    /// IN with a list of constants. As in PostgreSQL they form an array, whose type also depends on the value. Members that
    /// depend on the row are compared by themselves.
    fn in_constants(&mut self, value: Typed, constants: Vec<Typed>) -> Result<Typed, SqlError> {
        let known = std::iter::once(&value).chain(&constants).filter_map(|typed| typed.data_type);
        let element = known.map(Some).reduce(|a, b| types::branch(a?, b?)).flatten();
        let Some(element) = element.filter(|element| element.is_text()) else {
            return self.in_values(value, constants);
        };
        let mut members = Vec::with_capacity(constants.len());
        for constant in constants {
            members.push(match constant.data_type {
                Some(_) => Typed::new(self.coerced(constant, element, false)?, element),
                None => constant,
            });
        }
        self.in_values(value, members)
    }

    fn in_values(&mut self, value: Typed, members: Vec<Typed>) -> Result<Typed, SqlError> {
        let mut data_type = value.data_type;
        for member in &members {
            data_type = match (data_type, member.data_type) {
                (None, other) | (other, None) => other,
                (Some(a), Some(b)) => {
                    Some(types::common(a, b).ok_or_else(|| no_operator("=", a, b))?)
                }
            };
        }
        let data_type = unbounded(data_type.unwrap_or(DataType::Text));
        let value = self.coerced(value, data_type, false)?;
        let members: Result<Vec<Expression>, SqlError> =
            members.into_iter().map(|member| self.coerced(member, data_type, false)).collect();
        Ok(Typed::boolean(folded(Expression::In(Box::new(value), members?, KeptId::new()))))
    }

    /// `= ANY (...)` of bound values.
    pub(super) fn any_of(&mut self, value: Typed, members: Vec<Typed>) -> Result<Typed, SqlError> {
        self.in_values(value, members)
    }

    pub(super) fn matching(
        &mut self,
        operand: &Expr,
        pattern: &Expr,
        syntax: Syntax,
        ignore_case: bool,
        negated: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let value = self.expression(operand, scope)?;
        let pattern = self.expression(pattern, scope)?;
        for side in [&value, &pattern] {
            if let Some(data_type) = side.data_type.filter(|data_type| !data_type.is_text()) {
                let symbol = if matches!(syntax, Syntax::Like(_)) { "~~" } else { "~" };
                return Err(no_operator(symbol, data_type, DataType::Text));
            }
        }
        let value = self.coerced(shown(value), DataType::Text, false)?;
        let pattern = self.coerced(pattern, DataType::Text, false)?;
        let kept = Kept::default();
        let matching = Match { value, pattern, syntax, ignore_case, kept };
        let found = Typed::boolean(Expression::Match(Box::new(matching)));
        Ok(if negated { negated_condition(found) } else { found })
    }
}

/// The text of a value in results, where it differs from a cast to text: a CHAR has its blanks, TRUE is `t`.
pub(super) fn shown(typed: Typed) -> Typed {
    let from = match typed.data_type {
        Some(from @ (DataType::Char(Some(_)) | DataType::Boolean)) => from,
        Some(DataType::Padded) => return Typed::new(typed.expression, DataType::Text),
        _ => return typed,
    };
    Typed::new(Expression::Call(Function::Shown, from, vec![typed.expression]), DataType::Text)
}

/// Whether the expression itself depends on the row.
fn is_of_row(part: &Expression) -> bool {
    matches!(part, Expression::Column(_) | Expression::Aggregate(_) | Expression::Subquery(_))
}

/// NOT.
pub(super) fn negated_condition(condition: Typed) -> Typed {
    Typed::boolean(Expression::Not(Box::new(condition.expression)))
}

/// The type in which constants are compared with values of a type.
pub(super) fn unbounded(data_type: DataType) -> DataType {
    match data_type {
        DataType::Numeric(_) => DataType::Numeric(None),
        DataType::Char(_) | DataType::Padded => DataType::Char(None),
        data_type if data_type.is_text() => DataType::Text,
        other => other,
    }
}

pub(super) fn no_operator(symbol: &str, left: DataType, right: DataType) -> SqlError {
    let (left, right) = (left.base_name(), right.base_name());
    SqlError::new("42883", format!("operator does not exist: {left} {symbol} {right}")).with_hint(
        "No operator matches the given name and argument types. You might need to add explicit \
         type casts.",
    )
}

/// The escape character of LIKE.
pub(super) fn escape(written: Option<&Expr>) -> Result<Option<char>, SqlError> {
    let Some(written) = written else { return Ok(Some('\\')) };
    if let Expr::Value(value) = written
        && let ast::Value::SingleQuotedString(text) = &value.value
    {
        let mut characters = text.chars();
        let first = characters.next();
        if characters.next().is_none() {
            return Ok(first);
        }
    }
    Err(SqlError::new("22019", "invalid escape string")
        .with_hint("Escape string must be empty or one character."))
}

/// The comparison of an operator.
pub(super) fn comparison_of(operator: &BinaryOperator) -> Option<Comparison> {
    Some(match operator {
        BinaryOperator::Eq => Comparison::Equal,
        BinaryOperator::NotEq => Comparison::NotEqual,
        BinaryOperator::Lt => Comparison::Less,
        BinaryOperator::LtEq => Comparison::LessOrEqual,
        BinaryOperator::Gt => Comparison::Greater,
        BinaryOperator::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

/// The syntax, whether case is ignored, whether the match is negated.
fn match_of(operator: &BinaryOperator) -> Option<(Syntax, bool, bool)> {
    let like = Syntax::Like(Some('\\'));
    Some(match operator {
        BinaryOperator::PGRegexMatch => (Syntax::Regular, false, false),
        BinaryOperator::PGRegexIMatch => (Syntax::Regular, true, false),
        BinaryOperator::PGRegexNotMatch => (Syntax::Regular, false, true),
        BinaryOperator::PGRegexNotIMatch => (Syntax::Regular, true, true),
        BinaryOperator::PGLikeMatch => (like, false, false),
        BinaryOperator::PGILikeMatch => (like, true, false),
        BinaryOperator::PGNotLikeMatch => (like, false, true),
        BinaryOperator::PGNotILikeMatch => (like, true, true),
        _ => return None,
    })
}

fn arithmetic_of(operator: &BinaryOperator) -> Option<Operator> {
    Some(match operator {
        BinaryOperator::Plus => Operator::Add,
        BinaryOperator::Minus => Operator::Subtract,
        BinaryOperator::Multiply => Operator::Multiply,
        BinaryOperator::Divide => Operator::Divide,
        BinaryOperator::Modulo => Operator::Remainder,
        BinaryOperator::StringConcat => Operator::Concatenate,
        BinaryOperator::PGExp => Operator::Power,
        BinaryOperator::BitwiseAnd => Operator::BitAnd,
        BinaryOperator::BitwiseOr => Operator::BitOr,
        BinaryOperator::PGBitwiseXor => Operator::BitXor,
        BinaryOperator::PGBitwiseShiftLeft => Operator::ShiftLeft,
        BinaryOperator::PGBitwiseShiftRight => Operator::ShiftRight,
        _ => return None,
    })
}

/// The operator in `OPERATOR(pg_catalog.symbol)`.
fn standard_operator(symbol: &str) -> Option<BinaryOperator> {
    Some(match symbol {
        "=" => BinaryOperator::Eq,
        "<>" => BinaryOperator::NotEq,
        "<" => BinaryOperator::Lt,
        "<=" => BinaryOperator::LtEq,
        ">" => BinaryOperator::Gt,
        ">=" => BinaryOperator::GtEq,
        "~" => BinaryOperator::PGRegexMatch,
        "~*" => BinaryOperator::PGRegexIMatch,
        "!~" => BinaryOperator::PGRegexNotMatch,
        "!~*" => BinaryOperator::PGRegexNotIMatch,
        "~~" => BinaryOperator::PGLikeMatch,
        "!~~" => BinaryOperator::PGNotLikeMatch,
        _ => return None,
    })
}

/// The interval in a literal, or in a text that is cast to an interval. None for an expression of another type.
fn interval_of(expr: &Expr) -> Option<Result<Interval, SqlError>> {
    let (value, unit) = match expr {
        Expr::Nested(inner) => return interval_of(inner),
        Expr::Interval(interval) => (&*interval.value, interval.leading_field.as_ref()),
        Expr::Cast {
            expr,
            data_type: ast::DataType::Interval { fields: None, precision: None },
            ..
        } => (&**expr, None),
        _ => return None,
    };
    if let Expr::Value(value) = value
        && let ast::Value::SingleQuotedString(text) = &value.value
    {
        let unit = unit.map(|field| field.to_string().to_lowercase());
        return Some(Interval::parse(text, unit.as_deref()));
    }
    Some(Err(SqlError::unsupported("an interval that is no literal")))
}

/// The interval in an untyped text that is added to a timestamp.
fn interval_beside(time: &Typed, text: &Typed) -> Option<Result<Interval, SqlError>> {
    match (time.data_type?, text.data_type, &text.expression) {
        (
            DataType::Timestamp | DataType::TimestampTz,
            None,
            Expression::Constant(Value::Text(text)),
        ) => Some(Interval::parse(text, None)),
        _ => None,
    }
}
