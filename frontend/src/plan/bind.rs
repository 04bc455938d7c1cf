//! Binding of expressions: names become column numbers, and every operand gets a type.
//!
//! A string literal, NULL or parameter has no type of its own: it takes the type of the operand beside it.
//!
//! *Source*: PostgreSQL 15, section 10.2.
//!
//! *Not here*: operators (`operator`), calls, casts and subqueries (`call`), arrays (`array`).

use std::rc::Rc;
use std::sync::Arc;

use sqlparser::ast::{self, Expr, Ident, ObjectName, ObjectNamePart, Spanned};
use sqlparser::tokenizer::Span;

use crate::catalog::Catalog;
use crate::error::{Failure, SqlError};
use crate::expression::aggregate::Aggregate;
use crate::expression::evaluate::{AsideJob, Environment, evaluate};
use crate::expression::function::Facts;
use crate::expression::pattern::{Compiled, Syntax};
use crate::expression::set::{KeptId, SetKey, ValueSet};
use crate::expression::{Cast, Comparison, Expression, SubqueryUse, cast};
use crate::plan::operator::{escape, negated_condition, shown};
use crate::plan::query::CommonTable;
use crate::plan::scope::{Level, Scope};
use crate::plan::types;
use crate::value::{DataType, Value};

/// Binds the parts of a statement.
pub(super) struct Binder {
    pub(super) catalog: Arc<Catalog>,
    /// The types of `$1`, `$2`, ..., as far as they are known.
    pub(super) parameters: Vec<Option<DataType>>,
    /// The queries around the present one.
    pub(super) levels: Vec<Level>,
    /// Aggregates of the present query; None where aggregates are not allowed.
    pub(super) aggregates: Option<Vec<Aggregate>>,
    /// WITH queries in scope.
    pub(super) common_tables: Vec<Rc<CommonTable>>,
    /// How many uses of WITH queries were planned.
    pub(super) common_uses: usize,
    /// For each line of the statement, the characters before it.
    line_starts: Vec<usize>,
}

/// An expression and its type; None for a literal, NULL or parameter without one yet.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    pub(super) expression: Expression,
    pub(super) data_type: Option<DataType>,
}

impl Typed {
    pub(super) fn new(expression: Expression, data_type: DataType) -> Self {
        Self { expression, data_type: Some(data_type) }
    }

    pub(super) fn boolean(expression: Expression) -> Self {
        Self::new(expression, DataType::Boolean)
    }
}

/// A name in lower case, unless it is quoted.
pub(crate) fn name_of(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    }
}

/// A name for an output column.
///
/// # Errors
/// SQLSTATE 42601 for a name in single quotes, which mark constants.
pub(super) fn alias_of(ident: &Ident) -> Result<String, SqlError> {
    if ident.quote_style == Some('\'') {
        let message = format!("syntax error at or near \"{ident}\"");
        return Err(SqlError::new("42601", message).with_hint("write the name in double quotes"));
    }
    Ok(name_of(ident))
}

/// The parts of a name.
///
/// # Errors
/// SQLSTATE 0A000 for names that are computed.
pub(crate) fn names_of(name: &ObjectName) -> Result<Vec<String>, SqlError> {
    let part = |part: &ObjectNamePart| match part {
        ObjectNamePart::Identifier(ident) => Ok(name_of(ident)),
        ObjectNamePart::Function(_) => Err(SqlError::unsupported("a computed name")),
    };
    name.0.iter().map(part).collect()
}

/// The environment of constants, which depend on nothing.
struct Nothing;

impl Environment for Nothing {
    fn parameter(&self, _: usize) -> Result<Value, SqlError> {
        Ok(Value::Null)
    }
    fn outer(&self, _: usize) -> Value {
        Value::Null
    }
    fn subquery(&mut self, _: &SubqueryUse, _: &[Value]) -> Result<Value, Failure> {
        Err(SqlError::unsupported("a subquery in a constant").into())
    }
    fn next_value(&mut self, _: u32) -> Result<i64, Failure> {
        Err(SqlError::unsupported("a sequence in a constant").into())
    }
    fn token_outcome(&mut self, _: &str) -> Result<&'static str, Failure> {
        Err(SqlError::unsupported("the outcome of a token in a constant").into())
    }
    fn facts(&self) -> Option<&Facts> {
        None
    }
    fn check(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    fn compiled(&mut self, _: &str, _: Syntax, _: bool) -> Result<Arc<Compiled>, Failure> {
        Err(SqlError::unsupported("a pattern in a constant").into())
    }
    fn set(&mut self, _: SetKey) -> Option<Arc<ValueSet>> {
        None
    }
    fn keep_set(&mut self, _: SetKey, _: Arc<ValueSet>) {}
    fn kept_once(&mut self, _: KeptId) -> Option<Value> {
        None
    }
    fn keep_once(&mut self, _: KeptId, _: &Value) -> Result<(), Failure> {
        Ok(())
    }
    fn aside(&mut self, _: AsideJob) -> Result<Value, Failure> {
        Err(SqlError::unsupported("a large value in a constant").into())
    }
}

/// Bytes of constants that are computed during planning.
const FOLDED_BYTES_MAX: usize = 4 << 10;

/// Computes constant expressions during planning if that takes almost no time, because other statements wait for the planner.
/// Others are computed once when the statement runs. Errors are also left until then, because they may be in a branch that is
/// not taken.
pub(super) fn folded(expression: Expression) -> Expression {
    let parts = expression.parts();
    let (mut bytes, mut is_cheap) = (0, true);
    let is_known = |part: &&Expression| match part {
        Expression::Constant(value) => {
            bytes += value.memory_bytes();
            true
        }
        Expression::Once(..) => {
            is_cheap = false;
            true
        }
        _ => false,
    };
    if parts.is_empty() || !parts.iter().all(is_known) || !expression.is_fixed() {
        return expression;
    }
    let takes_facts = matches!(expression, Expression::Call(..));
    let is_match = matches!(expression, Expression::Match(_));
    if !is_cheap || bytes > FOLDED_BYTES_MAX || is_match || takes_facts {
        return expression.once();
    }
    match evaluate(&expression, &[], &mut Nothing) {
        Ok(value) => Expression::Constant(value),
        Err(_) => expression,
    }
}

impl Binder {
    pub(super) fn new(catalog: Arc<Catalog>, sql: &str, parameters: Vec<Option<DataType>>) -> Self {
        let mut line_starts = vec![0];
        let breaks = sql.chars().enumerate().filter(|(_, character)| *character == '\n');
        line_starts.extend(breaks.map(|(number, _)| number + 1));
        Self {
            catalog,
            parameters,
            levels: Vec::new(),
            aggregates: None,
            common_tables: Vec::new(),
            common_uses: 0,
            line_starts,
        }
    }

    /// The number of a span's first character, counted from 1.
    pub(super) fn position(&self, span: Span) -> Option<usize> {
        let line = usize::try_from(span.start.line).ok()?.checked_sub(1)?;
        Some(self.line_starts.get(line)? + usize::try_from(span.start.column).ok()?)
    }

    /// An expression of a required type; a literal without a type is read as that type.
    pub(super) fn coerced(
        &mut self,
        typed: Typed,
        to: DataType,
        explicit: bool,
    ) -> Result<Expression, SqlError> {
        let Some(from) = typed.data_type else { return self.with_type(typed.expression, to) };
        let Typed { expression, .. } = match (from, to) {
            (DataType::Char(Some(_)), DataType::Padded) => {
                return Ok(folded(shown(typed).expression));
            }
            _ => typed,
        };
        let typed = Typed::new(expression, from);
        if types::is_same_form(from, to) {
            return Ok(typed.expression);
        }
        if !cast::exists(from, to, explicit) {
            let (from, to) = (from.name(), to.name());
            return Err(SqlError::new("42846", format!("cannot cast type {from} to {to}")));
        }
        let operand = typed.expression;
        Ok(folded(Expression::Cast(Box::new(Cast { operand, from, to, explicit }))))
    }

    /// Gives a literal or parameter its type.
    fn with_type(&mut self, expression: Expression, to: DataType) -> Result<Expression, SqlError> {
        match expression {
            Expression::Constant(Value::Text(text)) => {
                if text.len() <= FOLDED_BYTES_MAX || to.is_text() {
                    return Value::from_text(&text, to).map(Expression::Constant);
                }
                let (operand, from) = (Expression::Constant(Value::Text(text)), DataType::Text);
                Ok(folded(Expression::Cast(Box::new(Cast { operand, from, to, explicit: false }))))
            }
            Expression::Parameter(number) => {
                let known = *self.parameters[number].get_or_insert(types::of_keys(to));
                self.coerced(Typed::new(Expression::Parameter(number), known), to, true)
            }
            other => Ok(other),
        }
    }

    /// A condition of type BOOLEAN.
    pub(super) fn condition(
        &mut self,
        expr: &Expr,
        scope: &Rc<Scope>,
        clause: &str,
    ) -> Result<Expression, SqlError> {
        let typed = self.expression(expr, scope)?;
        match typed.data_type {
            None | Some(DataType::Boolean) => self.coerced(typed, DataType::Boolean, false),
            Some(other) => {
                let name = other.name();
                let message = format!("argument of {clause} must be type boolean, not type {name}");
                let position = self.position(expr.span());
                Err(SqlError::new("42804", message).with_position(position))
            }
        }
    }

    /// An expression with its type; a literal without one becomes text.
    pub(super) fn value(
        &mut self,
        expr: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<(Expression, DataType), SqlError> {
        let typed = self.expression(expr, scope)?;
        self.settled(typed)
    }

    /// An expression whose type is text if it has none.
    pub(super) fn settled(&mut self, typed: Typed) -> Result<(Expression, DataType), SqlError> {
        let data_type = match (&typed.expression, typed.data_type) {
            (_, Some(data_type)) => data_type,
            (Expression::Parameter(number), None) => {
                self.parameters[*number].unwrap_or(DataType::Text)
            }
            (_, None) => DataType::Text,
        };
        Ok((self.coerced(typed, data_type, false)?, data_type))
    }

    /// Any expression.
    pub(super) fn expression(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        let bound = self.bind(expr, scope).map_err(|error| {
            let position = self.position(expr.span());
            error.with_position(position)
        })?;
        Ok(Typed { expression: folded(bound.expression), data_type: bound.data_type })
    }

    fn bind(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        match expr {
            Expr::Identifier(ident) => self.identifier(ident, scope),
            Expr::CompoundIdentifier(idents) => self.compound(idents, scope),
            Expr::Value(value) => self.literal(&value.value),
            Expr::Nested(inner) => self.expression(inner, scope),
            Expr::BinaryOp { left, op, right } => self.binary(left, op, right, scope),
            Expr::UnaryOp { op, expr } => self.unary(*op, expr, scope),
            Expr::IsNull(inner) => self.is_null(inner, false, scope),
            Expr::IsNotNull(inner) => self.is_null(inner, true, scope),
            Expr::IsTrue(inner) => self.is_boolean(inner, true, false, scope),
            Expr::IsNotTrue(inner) => self.is_boolean(inner, true, true, scope),
            Expr::IsFalse(inner) => self.is_boolean(inner, false, false, scope),
            Expr::IsNotFalse(inner) => self.is_boolean(inner, false, true, scope),
            Expr::IsUnknown(inner) => self.is_null(inner, false, scope),
            Expr::IsNotUnknown(inner) => self.is_null(inner, true, scope),
            Expr::IsDistinctFrom(left, right) => self.distinct(left, right, true, scope),
            Expr::IsNotDistinctFrom(left, right) => self.distinct(left, right, false, scope),
            Expr::InList { expr, list, negated } => {
                let members: Vec<&Expr> = list.iter().collect();
                self.in_list(expr, &members, *negated, scope)
            }
            Expr::InSubquery { expr, subquery, negated } => {
                let found = self.any_subquery(expr, Comparison::Equal, subquery, scope)?;
                Ok(if *negated { negated_condition(found) } else { found })
            }
            Expr::Exists { subquery, negated } => {
                let found = self.exists(subquery, scope)?;
                Ok(if *negated { negated_condition(found) } else { found })
            }
            Expr::Subquery(query) => self.scalar_subquery(query, scope),
            Expr::Between { expr, negated, low, high } => {
                self.between(expr, low, high, *negated, scope)
            }
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                let syntax = Syntax::Like(escape(escape_char.as_deref())?);
                self.matching(expr, pattern, syntax, false, *negated, scope)
            }
            Expr::ILike { negated, any: false, expr, pattern, escape_char } => {
                let syntax = Syntax::Like(escape(escape_char.as_deref())?);
                self.matching(expr, pattern, syntax, true, *negated, scope)
            }
            Expr::Cast { kind, expr, data_type, format: None } => {
                use ast::CastKind;
                if !matches!(kind, CastKind::Cast | CastKind::DoubleColon) {
                    return Err(SqlError::unsupported("TRY_CAST"));
                }
                self.explicit_cast(expr, data_type, scope)
            }
            Expr::TypedString(string) => {
                let ast::Value::SingleQuotedString(text) = &string.value.value else {
                    return Err(SqlError::unsupported(expr));
                };
                let data_type = types::from_written(&string.data_type)?;
                let value = Value::from_text(text, data_type)?;
                Ok(Typed::new(Expression::Constant(value), data_type))
            }
            Expr::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), scope)
            }
            Expr::Collate { expr, .. } => self.expression(expr, scope),
            Expr::AnyOp { left, compare_op, right, .. } => {
                self.quantified(left, compare_op, right, true, scope)
            }
            Expr::AllOp { left, compare_op, right } => {
                self.quantified(left, compare_op, right, false, scope)
            }
            _ => self.call_like(expr, scope),
        }
    }

    fn literal(&mut self, value: &ast::Value) -> Result<Typed, SqlError> {
        let unknown =
            |value| Ok(Typed { expression: Expression::Constant(value), data_type: None });
        match value {
            ast::Value::Number(digits, _) => number(digits),
            ast::Value::SingleQuotedString(text)
            | ast::Value::EscapedStringLiteral(text)
            | ast::Value::UnicodeStringLiteral(text) => unknown(Value::Text(text.clone())),
            ast::Value::DollarQuotedString(text) => unknown(Value::Text(text.value.clone())),
            ast::Value::Boolean(value) => {
                Ok(Typed::boolean(Expression::Constant(Value::Boolean(*value))))
            }
            ast::Value::Null => unknown(Value::Null),
            ast::Value::Placeholder(name) => self.parameter(name),
            other => Err(SqlError::unsupported(format_args!("the literal {other}"))),
        }
    }

    fn parameter(&mut self, name: &str) -> Result<Typed, SqlError> {
        let number = name.strip_prefix('$').and_then(|digits| digits.parse::<u16>().ok());
        let Some(number) = number.filter(|number| *number > 0) else {
            return Err(SqlError::new("42P02", format!("there is no parameter {name}")));
        };
        let number = usize::from(number) - 1;
        if self.parameters.len() <= number {
            self.parameters.resize(number + 1, None);
        }
        let data_type = self.parameters[number];
        Ok(Typed { expression: Expression::Parameter(number), data_type })
    }

    fn identifier(&mut self, ident: &Ident, scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        let name = name_of(ident);
        if ident.quote_style.is_none()
            && matches!(
                name.as_str(),
                "current_date"
                    | "current_timestamp"
                    | "current_user"
                    | "session_user"
                    | "user"
                    | "current_catalog"
                    | "current_schema"
                    | "localtimestamp"
                    | "current_role"
            )
            && scope.find(None, &name)?.is_none()
        {
            return self.named_call(&name, Vec::new());
        }
        self.column(None, &name, scope)
    }

    fn compound(&mut self, idents: &[Ident], scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        let names: Vec<String> = idents.iter().map(name_of).collect();
        match names.as_slice() {
            [table, column] | [_, table, column] => self.column(Some(table), column, scope),
            _ => Err(SqlError::unsupported("a name of more than three parts")),
        }
    }

    /// The column that a name denotes, in this query or in one around it.
    pub(super) fn column(
        &mut self,
        table: Option<&str>,
        name: &str,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        if let Some(number) = scope.find(table, name)? {
            return Ok(Typed::new(Expression::Column(number), scope.columns[number].data_type));
        }
        for level in (0..self.levels.len()).rev() {
            if let Some(number) = self.levels[level].scope.find(table, name)? {
                let data_type = self.levels[level].scope.columns[number].data_type;
                let mut expression = Expression::Column(number);
                for level in &mut self.levels[level..] {
                    expression = level.capture(expression);
                }
                return Ok(Typed::new(expression, data_type));
            }
        }
        Err(scope.unknown(table, name))
    }

    fn case(
        &mut self,
        operand: Option<&Expr>,
        whens: &[ast::CaseWhen],
        otherwise: Option<&Expr>,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let operand = operand.map(|operand| self.expression(operand, scope)).transpose()?;
        let mut conditions = Vec::with_capacity(whens.len());
        let mut results = Vec::with_capacity(whens.len() + 1);
        for when in whens {
            conditions.push(match &operand {
                None => self.condition(&when.condition, scope, "CASE/WHEN")?,
                Some(operand) => {
                    let candidate = self.expression(&when.condition, scope)?;
                    self.compare(operand.clone(), Comparison::Equal, candidate)?.expression
                }
            });
            results.push(self.expression(&when.result, scope)?);
        }
        let otherwise = match otherwise {
            Some(otherwise) => self.expression(otherwise, scope)?,
            None => Typed { expression: Expression::Constant(Value::Null), data_type: None },
        };
        // As in PostgreSQL, ELSE comes first where the first branch decides on the type.
        results.insert(0, otherwise);
        let (mut results, data_type) = self.one_type(results, "CASE")?;
        let branches = conditions.into_iter().zip(results.split_off(1)).collect();
        let otherwise = results.pop().expect("ELSE was put there");
        Ok(Typed { expression: Expression::Case(branches, Box::new(otherwise)), data_type })
    }

    /// Casts expressions to one type, which is text if none of them has a type.
    pub(super) fn one_type(
        &mut self,
        parts: Vec<Typed>,
        construct: &str,
    ) -> Result<(Vec<Expression>, Option<DataType>), SqlError> {
        let mut data_type: Option<DataType> = None;
        for part in &parts {
            data_type = match (data_type, part.data_type) {
                (None, other) | (other, None) => other,
                (Some(a), Some(b)) => Some(types::branch(a, b).ok_or_else(|| {
                    let (a, b) = (a.name(), b.name());
                    let message = format!("{construct} types {a} and {b} cannot be matched");
                    SqlError::new("42804", message)
                })?),
            };
        }
        let is_null = |part: &Typed| part.expression == Expression::Constant(Value::Null);
        let has_constant = parts.iter().any(|part| part.data_type.is_none() && !is_null(part));
        let to = match data_type.unwrap_or(DataType::Text) {
            data_type if has_constant => types::with_constants(data_type),
            data_type => data_type,
        };
        let parts: Result<Vec<Expression>, SqlError> =
            parts.into_iter().map(|part| self.coerced(part, to, false)).collect();
        Ok((parts?, Some(to)))
    }
}

impl Level {
    /// The argument number under which the inner query sees an expression of this level.
    fn capture(&mut self, expression: Expression) -> Expression {
        let known = self.captured.iter().position(|captured| *captured == expression);
        Expression::Outer(known.unwrap_or_else(|| {
            self.captured.push(expression);
            self.captured.len() - 1
        }))
    }
}

/// A numeric literal: the first of INTEGER, BIGINT, NUMERIC and DOUBLE PRECISION that holds the value.
pub(super) fn number(digits: &str) -> Result<Typed, SqlError> {
    if let Ok(number) = digits.parse::<i64>() {
        let narrow = i32::try_from(number).is_ok();
        let data_type = if narrow { DataType::Integer } else { DataType::BigInt };
        return Ok(Typed::new(Expression::Constant(Value::Integer(number)), data_type));
    }
    if let Some(number) = crate::text::numeric_from_text(digits) {
        let constant = Expression::Constant(Value::Numeric(number));
        return Ok(Typed::new(constant, DataType::Numeric(None)));
    }
    // Without an exponent, all digits are significant.
    if !digits.contains(['e', 'E']) {
        return Err(crate::text::too_many_digits());
    }
    // A value out of DOUBLE PRECISION's range would become infinite, or lose all of its digits.
    match digits.parse::<f64>() {
        Ok(number) if number.is_normal() => {
            Ok(Typed::new(Expression::Constant(Value::Float(number)), DataType::Double))
        }
        _ => Err(SqlError::new("22003", format!("the number {digits} is out of range"))),
    }
}
