//! Function calls, casts and subqueries in expressions.
//!
//! *Invariants*: a binder has `aggregates` only where aggregates may be, and not inside one. Equal aggregates are
//! computed once. A subquery is planned with the scope around it as a level, and gets what it uses of the outer row as
//! arguments. A call without a matching signature is an error of planning.
//!
//! *Source*: PostgreSQL 15, sections 4.2.6 to 4.2.11, and 10.3.
//!
//! *Not here*: which functions exist (`expression/signature`), and what they compute (`expression`).

use std::rc::Rc;
use std::sync::Arc;

use sqlparser::ast::{
    self, DuplicateTreatment, Expr, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArguments, Spanned,
};

use crate::error::SqlError;
use crate::expression::aggregate::{Aggregate, Kind};
use crate::expression::function::Function;
use crate::expression::{Comparison, Expression, SubqueryKind, SubqueryUse, signature};
use crate::plan::array::ordered;
use crate::plan::bind::{Binder, Typed, names_of};
use crate::plan::operator::{no_operator, shown, unbounded};
use crate::plan::query::{Planned, is_regclass, sort_options};
use crate::plan::scope::{Level, Scope};
use crate::plan::{SortKey, Subquery, types};
use crate::value::{DataType, Value};

impl Binder {
    /// Calls with a syntax of their own, such as EXTRACT or SUBSTRING.
    pub(super) fn call_like(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        match expr {
            Expr::Function(call) => self.call(call, scope),
            Expr::Extract { field, expr, .. } => {
                let field = text(&field.to_string().to_lowercase());
                let operand = self.expression(expr, scope)?;
                self.named_call("extract", vec![field, operand])
            }
            Expr::Ceil { expr, .. } => self.call_with("ceil", &[expr], scope),
            Expr::Floor { expr, .. } => self.call_with("floor", &[expr], scope),
            Expr::Position { expr, r#in } => self.call_with("position", &[r#in, expr], scope),
            Expr::Substring { expr, substring_from, substring_for, .. } => {
                let mut arguments = vec![self.expression(expr, scope)?];
                arguments.push(match substring_from {
                    Some(from) => self.expression(from, scope)?,
                    None => Typed::new(Expression::Constant(Value::Integer(1)), DataType::Integer),
                });
                if let Some(length) = substring_for {
                    arguments.push(self.expression(length, scope)?);
                }
                self.named_call("substring", arguments)
            }
            Expr::Trim { trim_where, trim_what, expr, trim_characters } => {
                use ast::TrimWhereField;
                let name = match trim_where {
                    None | Some(TrimWhereField::Both) => "btrim",
                    Some(TrimWhereField::Leading) => "ltrim",
                    Some(TrimWhereField::Trailing) => "rtrim",
                };
                let mut arguments = vec![self.expression(expr, scope)?];
                if let Some(what) = trim_what {
                    arguments.push(self.expression(what, scope)?);
                }
                for what in trim_characters.iter().flatten() {
                    arguments.push(self.expression(what, scope)?);
                }
                self.named_call(name, arguments)
            }
            Expr::CompoundFieldAccess { root, access_chain } => {
                self.field(root, access_chain, scope)
            }
            Expr::AtTimeZone { timestamp, time_zone } => {
                self.call_with("timezone", &[time_zone, timestamp], scope)
            }
            Expr::Tuple(_) => Err(SqlError::unsupported("a row as a value")),
            Expr::Array(array) => self.array(&array.elem, scope),
            Expr::Interval(_) => Err(SqlError::unsupported("an interval as a value")),
            other => Err(SqlError::unsupported(format_args!("the expression {other}"))),
        }
    }

    fn call_with(
        &mut self,
        name: &str,
        arguments: &[&Expr],
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let bound: Result<Vec<Typed>, SqlError> =
            arguments.iter().map(|argument| self.expression(argument, scope)).collect();
        self.named_call(name, bound?)
    }

    fn call(&mut self, call: &ast::Function, scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        if call.over.is_some() {
            return Err(SqlError::unsupported("a window function"));
        }
        if !call.within_group.is_empty() || call.null_treatment.is_some() {
            return Err(SqlError::unsupported(format_args!("the call {call}")));
        }
        let mut names = names_of(&call.name)?;
        let name = names.pop().unwrap_or_default();
        if let Some(schema) = names.pop().filter(|schema| schema != "pg_catalog") {
            return Err(SqlError::new("3F000", format!("schema \"{schema}\" does not exist")));
        }
        if let FunctionArguments::Subquery(query) = &call.args {
            if name == "array" {
                return self.array_subquery(query, scope);
            }
            return Err(SqlError::unsupported(format_args!("the call {call}")));
        }
        if let Some(kind) = Kind::of(&name) {
            return self.aggregate(kind, &name, call, scope);
        }
        if call.filter.is_some() {
            let message = format!("FILTER specified, but {name} is not an aggregate function");
            return Err(SqlError::new("42809", message));
        }
        let arguments: Result<Vec<Typed>, SqlError> = argument_list(call)?
            .into_iter()
            .map(|argument| match argument {
                Some(expr) => self.expression(expr, scope),
                None => Err(SqlError::new("42809", format!("{name}(*) is not an aggregate"))),
            })
            .collect();
        self.named_call(&name, arguments?)
    }

    /// A function by its name, with bound arguments.
    pub(super) fn named_call(
        &mut self,
        name: &str,
        arguments: Vec<Typed>,
    ) -> Result<Typed, SqlError> {
        match (name, arguments.len()) {
            ("coalesce", 1..) => {
                let (parts, data_type) = self.one_type(arguments, "COALESCE")?;
                return Ok(Typed { expression: Expression::Coalesce(parts), data_type });
            }
            ("greatest" | "least", 1..) => {
                let (parts, data_type) = self.one_type(arguments, &name.to_uppercase())?;
                let function =
                    if name == "greatest" { Function::Greatest } else { Function::Least };
                let data_type = data_type.unwrap_or(DataType::Text);
                return Ok(Typed::new(Expression::Call(function, data_type, parts), data_type));
            }
            ("nullif", 2) => {
                return self.null_if(arguments);
            }
            ("nextval", 1) => return self.next_value(&arguments[0]),
            ("gannet_outcome", 1) => return self.token_outcome(arguments),
            ("row", _) => return Err(SqlError::unsupported("a row as a value")),
            ("generate_series", 2 | 3) => {
                return Err(SqlError::unsupported("generate_series outside FROM")
                    .with_hint("write SELECT ... FROM generate_series(...) AS series (number)"));
            }
            ("pg_typeof", 1) => {
                let name = match arguments[0].data_type {
                    None => "unknown",
                    Some(data_type) => data_type.base_name(),
                };
                let name = Value::Text(name.to_owned());
                return Ok(Typed::new(Expression::Constant(name), DataType::Text));
            }
            _ => {}
        }
        let argument_types: Vec<Option<DataType>> =
            arguments.iter().map(|argument| argument.data_type).collect();
        let signature = signature::find(name, &argument_types)?;
        let mut parts = Vec::with_capacity(arguments.len());
        for (argument, to) in arguments.into_iter().zip(&signature.arguments) {
            // Parameters of any type are taken as text.
            let castable = matches!(
                signature.function,
                Function::Concat | Function::ConcatWithSeparator | Function::QuoteLiteral
            ) || matches!(signature.function, Function::System(_));
            let fits = argument
                .data_type
                .is_none_or(|from| from.is_text() == to.is_text() || castable || !to.is_text());
            if !fits {
                return Err(signature::unknown(name, &argument_types));
            }
            // These functions take the text of results, not that of a cast.
            let takes_shown = matches!(
                signature.function,
                Function::Concat | Function::ConcatWithSeparator | Function::OctetLength
            );
            let argument = if takes_shown { shown(argument) } else { argument };
            let part = self.coerced(argument, *to, false).map_err(|error| match error.code {
                "42846" => signature::unknown(name, &argument_types),
                _ => error,
            })?;
            parts.push(part);
        }
        let call = Expression::Call(signature.function, signature.result, parts);
        Ok(Typed::new(call, signature.result))
    }

    /// NULLIF. Its type is that of the left operand of its `=`.
    fn null_if(&mut self, arguments: Vec<Typed>) -> Result<Typed, SqlError> {
        use DataType::{Char, Double, Padded, Real};
        let types = (arguments[0].data_type, arguments[1].data_type);
        let common = match types {
            (Some(a), Some(b)) => types::common(a, b).ok_or_else(|| no_operator("=", a, b))?,
            (None, None) => DataType::Text,
            (Some(known), None) | (None, Some(known)) => unbounded(known),
        };
        let [left, right] = &arguments[..] else { unreachable!("NULLIF has two arguments") };
        let is_kept = matches!(
            left.expression,
            Expression::Constant(_) | Expression::Column(_) | Expression::Parameter(_)
        );
        if is_kept && matches!(common, Char(_)) && !matches!(left.data_type, Some(Char(_))) {
            // The comparison ignores the blanks, and the result has them.
            let equal = self.compare(left.clone(), Comparison::Equal, right.clone())?.expression;
            let kept = self.coerced(left.clone(), Padded, false)?;
            let null = Expression::Constant(Value::Null);
            return Ok(Typed::new(Expression::Case(vec![(equal, null)], Box::new(kept)), Padded));
        }
        let mut parts = Vec::with_capacity(arguments.len());
        for argument in arguments {
            parts.push(self.coerced(argument, common, false)?);
        }
        // For these types PostgreSQL does not cast the left operand.
        let kept = match types {
            (Some(a), Some(b)) if a.is_integer() && b.is_integer() => Some(a),
            (Some(a @ (Real | Double)), Some(Real | Double)) => Some(a),
            (Some(a), Some(b)) if a.is_time() && b.is_time() => Some(a),
            // A CHAR that is compared as a CHAR keeps its length.
            (Some(a @ (Char(_) | Padded)), _) if common == Char(None) => Some(types::of_keys(a)),
            _ => None,
        };
        let call = Typed::new(Expression::Call(Function::NullIf, common, parts), common);
        let Some(kept) = kept.filter(|kept| *kept != common) else { return Ok(call) };
        Ok(Typed::new(self.coerced(call, kept, true)?, kept))
    }

    /// The outcome of the transaction under a token.
    fn token_outcome(&mut self, mut arguments: Vec<Typed>) -> Result<Typed, SqlError> {
        let token = arguments.pop().expect("the function has one argument");
        let is_text = token.data_type.is_none_or(DataType::is_text);
        if !is_text {
            return Err(signature::unknown("gannet_outcome", &[token.data_type]));
        }
        let token = self.coerced(token, DataType::Text, false)?;
        Ok(Typed::new(Expression::TokenOutcome(Box::new(token)), DataType::Text))
    }

    fn next_value(&mut self, sequence: &Typed) -> Result<Typed, SqlError> {
        let Expression::Constant(Value::Text(name)) = &sequence.expression else {
            return Err(SqlError::unsupported("nextval of a name that is no constant"));
        };
        let bare = name.trim_start_matches("public.").trim_matches('"');
        let counter = self
            .catalog
            .counter(bare)
            .ok_or_else(|| SqlError::new("42P01", format!("relation \"{name}\" does not exist")))?;
        Ok(Typed::new(Expression::NextValue(counter), DataType::BigInt))
    }

    fn aggregate(
        &mut self,
        kind: Kind,
        name: &str,
        call: &ast::Function,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let Some(found) = self.aggregates.take() else {
            let message = format!(
                "aggregate functions such as {name} are not allowed here, nor inside one another"
            );
            let place = self.position(call.name.span());
            return Err(SqlError::new("42803", message).with_position(place));
        };
        let aggregate = self.bind_aggregate(kind, name, call, scope);
        let found = self.aggregates.insert(found);
        let aggregate = aggregate?;
        let data_type = aggregate.data_type;
        let number = found.iter().position(|other| *other == aggregate).unwrap_or_else(|| {
            found.push(aggregate);
            found.len() - 1
        });
        Ok(Typed::new(Expression::Aggregate(number), data_type))
    }

    fn bind_aggregate(
        &mut self,
        kind: Kind,
        name: &str,
        call: &ast::Function,
        scope: &Rc<Scope>,
    ) -> Result<Aggregate, SqlError> {
        let (distinct, order) = match &call.args {
            FunctionArguments::List(list) => {
                let order = self.aggregate_order(call, &list.clauses, scope)?;
                (list.duplicate_treatment == Some(DuplicateTreatment::Distinct), order)
            }
            _ => (false, Vec::new()),
        };
        // Other aggregates do not depend on the order.
        let takes_order = matches!(kind, Kind::Join | Kind::Collect);
        let mut order = if takes_order { order } else { Vec::new() };
        if !order.is_empty() {
            let expression = Expression::Constant(Value::Null);
            order.insert(0, SortKey { expression, descending: false, nulls_first: false });
        }
        let filter = match &call.filter {
            Some(filter) => Some(self.condition(filter, scope, "FILTER")?),
            None => None,
        };
        let arguments = argument_list(call)?;
        let expected = if kind == Kind::Join { 2 } else { 1 };
        let star = arguments.first().is_some_and(Option::is_none);
        if arguments.len() != expected || (star && kind != Kind::Count) {
            let message = format!("function {name} takes {expected} argument(s)");
            return Err(SqlError::new("42883", message));
        }
        let data_type = DataType::BigInt;
        let Some(argument) = arguments[0] else {
            return Ok(Aggregate {
                kind,
                argument: None,
                separator: None,
                order,
                distinct,
                filter,
                data_type,
            });
        };
        let (argument, from) = self.value(argument, scope)?;
        let (argument, from) = (types::as_key(argument, from), types::of_keys(from));
        let (to, data_type) = kind.types(from).ok_or_else(|| {
            let from = from.name();
            SqlError::new("42883", format!("function {name}({from}) does not exist"))
        })?;
        let argument = self.coerced(Typed::new(argument, from), to, false)?;
        let separator = match arguments.get(1).copied().flatten() {
            Some(separator) => {
                let typed = self.expression(separator, scope)?;
                Some(self.coerced(typed, DataType::Text, false)?)
            }
            None => None,
        };
        let argument = Some(argument);
        Ok(Aggregate { kind, argument, separator, order, distinct, filter, data_type })
    }

    /// ORDER BY inside the call of an aggregate.
    fn aggregate_order(
        &mut self,
        call: &ast::Function,
        clauses: &[FunctionArgumentClause],
        scope: &Rc<Scope>,
    ) -> Result<Vec<SortKey>, SqlError> {
        let mut keys = Vec::new();
        for clause in clauses {
            let FunctionArgumentClause::OrderBy(order_by) = clause else {
                return Err(SqlError::unsupported(format_args!("the call {call}")));
            };
            for key in order_by {
                let (descending, nulls_first) = sort_options(key)?;
                let (expression, data_type) = self.value(&key.expr, scope)?;
                ordered(data_type)?;
                let expression = types::as_key(expression, data_type);
                keys.push(SortKey { expression, descending, nulls_first });
            }
        }
        Ok(keys)
    }

    /// CAST and `::`.
    pub(super) fn explicit_cast(
        &mut self,
        operand: &Expr,
        written: &ast::DataType,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let name = written.to_string().to_lowercase();
        let bare = name.trim_start_matches("pg_catalog.").replace('"', "");
        let typed = self.expression(operand, scope)?;
        if bare == "regclass" {
            let is_number = typed.data_type.is_some_and(DataType::is_integer);
            let name = if is_number { "pg_relation_name" } else { "pg_relation_number" };
            return self.named_call(name, vec![typed]);
        }
        if matches!(bare.as_str(), "regtype" | "regproc" | "regnamespace" | "regrole") {
            let expression = self.coerced(typed, DataType::Text, true)?;
            return Ok(Typed::new(expression, DataType::Text));
        }
        let data_type = types::from_written(written)?;
        if data_type.is_text()
            && is_regclass(operand)
            && typed.data_type.is_some_and(DataType::is_integer)
        {
            let name = self.named_call("pg_relation_name", vec![typed])?;
            return Ok(Typed::new(self.coerced(name, data_type, true)?, data_type));
        }
        let literal = match (&typed.expression, typed.data_type) {
            // An explicit cast cuts a text: '  7 '::varchar(3).
            (Expression::Constant(_), None) if data_type.is_text() => {
                Typed { data_type: Some(DataType::Text), ..typed }
            }
            _ => typed,
        };
        Ok(Typed::new(self.coerced(literal, data_type, true)?, data_type))
    }

    /// A subquery as a value.
    pub(super) fn scalar_subquery(
        &mut self,
        query: &ast::Query,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let (planned, arguments) = self.nested(query, scope)?;
        let data_type = planned.only_column()?;
        Ok(Typed::new(subquery(planned, arguments, SubqueryKind::Scalar), data_type))
    }

    /// EXISTS.
    pub(super) fn exists(
        &mut self,
        query: &ast::Query,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let (planned, arguments) = self.nested(query, scope)?;
        Ok(Typed::boolean(subquery(planned, arguments, SubqueryKind::Exists)))
    }

    /// IN and `op ANY` of a subquery.
    pub(super) fn any_subquery(
        &mut self,
        left: &Expr,
        comparison: Comparison,
        query: &ast::Query,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        if matches!(left, Expr::Tuple(_)) {
            return Err(SqlError::unsupported("a row compared with a subquery"));
        }
        let value = self.expression(left, scope)?;
        let (mut planned, arguments) = self.nested(query, scope)?;
        let column = planned.only_column()?;
        let common = match value.data_type {
            None => types::of_keys(column),
            Some(data_type) => types::common(data_type, column).ok_or_else(|| {
                let (a, b) = (data_type.name(), column.name());
                SqlError::new("42883", format!("operator does not exist: {a} = {b}"))
            })?,
        };
        let value = self.coerced(value, common, false)?;
        planned.cast_to(self, &[common])?;
        Ok(Typed::boolean(subquery(planned, arguments, SubqueryKind::Any(value, comparison))))
    }

    /// A subquery, and the expressions that it takes from the row around it.
    fn nested(
        &mut self,
        query: &ast::Query,
        scope: &Rc<Scope>,
    ) -> Result<(Planned, Vec<Expression>), SqlError> {
        self.levels.push(Level { scope: Rc::clone(scope), captured: Vec::new() });
        let aggregates = self.aggregates.take();
        let planned = self.query(query);
        self.aggregates = aggregates;
        let level = self.levels.pop().expect("the level was pushed above");
        Ok((planned?, level.captured))
    }
}

fn subquery(planned: Planned, arguments: Vec<Expression>, kind: SubqueryKind) -> Expression {
    let depth = planned.node.depth();
    let subquery = Arc::new(Subquery { node: planned.node, depth });
    Expression::Subquery(Box::new(SubqueryUse { subquery, arguments, kind }))
}

fn text(text: &str) -> Typed {
    Typed { expression: Expression::Constant(Value::Text(text.to_owned())), data_type: None }
}

/// The arguments of a call; None is `*`.
fn argument_list(call: &ast::Function) -> Result<Vec<Option<&Expr>>, SqlError> {
    let FunctionArguments::List(list) = &call.args else { return Ok(Vec::new()) };
    fn argument<'e>(
        argument: &'e FunctionArg,
        call: &ast::Function,
    ) -> Result<Option<&'e Expr>, SqlError> {
        match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Ok(Some(expr)),
            FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => Ok(None),
            _ => Err(SqlError::unsupported(format_args!("the call {call}"))),
        }
    }
    list.args.iter().map(|given| argument(given, call)).collect()
}
