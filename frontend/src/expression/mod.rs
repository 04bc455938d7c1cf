//! Expressions after planning: names are column numbers, and every type is known.
//!
//! *Invariants*: both sides of a comparison have values of one kind, because the planner inserts casts. The depth is bounded
//! (`plan::DEPTH_MAX`), because evaluation recurses on a coroutine's stack.
//!
//! *Not here*: names and types (`plan`), and evaluation (`evaluate`).

pub(crate) mod aggregate;
pub(crate) mod arithmetic;
pub(crate) mod array;
pub(crate) mod cast;
pub(crate) mod datetime;
pub(crate) mod evaluate;
pub(crate) mod function;
mod numeric_function;
pub(crate) mod pattern;
pub(crate) mod set;
pub(crate) mod signature;

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::SqlError;
use crate::expression::arithmetic::Operator;
use crate::expression::datetime::Interval;
use crate::expression::function::Function;
use crate::expression::set::KeptId;
use crate::plan::Subquery;
use crate::value::{DataType, Value};

/// Stack of a subquery, in levels of expressions.
const SUBQUERY_LEVELS: usize = 8;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    Constant(Value),
    /// A column of the current row.
    Column(usize),
    /// An argument of this subquery, from the enclosing query.
    Outer(usize),
    /// `$1` is number 0.
    Parameter(usize),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Not(Box<Expression>),
    IsNull(Box<Expression>),
    /// IS TRUE, IS FALSE.
    Is(Box<Expression>, bool),
    Compare(Comparison, Box<Expression>, Box<Expression>),
    /// IS NOT DISTINCT FROM.
    Same(Box<Expression>, Box<Expression>),
    Arithmetic(Operator, DataType, Box<Expression>, Box<Expression>),
    /// The sum of a date or timestamp and an interval.
    AddInterval(Box<Expression>, Interval),
    Match(Box<Match>),
    /// `= ANY` of some values.
    In(Box<Expression>, Vec<Expression>, KeptId),
    /// Pairs of condition and result, and the ELSE result.
    Case(Vec<(Expression, Expression)>, Box<Expression>),
    Coalesce(Vec<Expression>),
    Cast(Box<Cast>),
    Call(Function, DataType, Vec<Expression>),
    /// The next value of a counter.
    NextValue(u32),
    /// What became of the transaction under a token, which the question decides.
    TokenOutcome(Box<Expression>),
    Subquery(Box<SubqueryUse>),
    /// A long computation on constants: computed when a statement first needs it, and cached until the statement ends.
    Once(KeptId, Box<Expression>),
    /// An aggregate's result, by its number; the planner replaces it by a column.
    Aggregate(usize),
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A pattern match: LIKE, `~` and similar operators.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Match {
    pub(crate) value: Expression,
    pub(crate) pattern: Expression,
    pub(crate) syntax: pattern::Syntax,
    pub(crate) ignore_case: bool,
    /// The compiled pattern, if the pattern is a constant and has been needed.
    pub(crate) kept: pattern::Kept,
}

/// A cast.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cast {
    pub(crate) operand: Expression,
    pub(crate) from: DataType,
    pub(crate) to: DataType,
    /// Whether the user has written the cast; such a cast may cut texts.
    pub(crate) explicit: bool,
}

/// A subquery in an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SubqueryUse {
    pub(crate) subquery: Arc<Subquery>,
    /// The values of its `Outer` expressions, as expressions on the enclosing row.
    pub(crate) arguments: Vec<Expression>,
    pub(crate) kind: SubqueryKind,
}

/// How the rows of a subquery become a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SubqueryKind {
    Scalar,
    Exists,
    /// `value op ANY (...)`. IN is `= ANY`; ALL is the negation of ANY with the opposite operator.
    Any(Expression, Comparison),
}

impl Comparison {
    /// Whether the comparison holds for two values in that order.
    pub(crate) fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }

    /// The comparison with both sides exchanged.
    pub(crate) fn flipped(self) -> Self {
        match self {
            Self::Equal => Self::Equal,
            Self::NotEqual => Self::NotEqual,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }

    /// The comparison that holds where this one does not.
    pub(crate) fn negated(self) -> Self {
        match self {
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Greater => Self::LessOrEqual,
            Self::GreaterOrEqual => Self::Less,
        }
    }

    /// The operator in SQL.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// The order of two values of one kind; NULLs are equal and last, NaN is the largest number.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Boolean(a), Value::Boolean(b)) => a.cmp(b),
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => compare_floats(*a, *b),
        (Value::Numeric(a), Value::Numeric(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Bytea(a), Value::Bytea(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        _ => kind(a).cmp(&kind(b)),
    }
}

fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Boolean(_) => 0,
        Value::Integer(_) => 1,
        Value::Float(_) => 2,
        Value::Numeric(_) => 3,
        Value::Text(_) => 4,
        Value::Bytea(_) => 5,
        Value::Date(_) => 6,
        Value::Timestamp(_) => 7,
        Value::Uuid(_) => 8,
        Value::Null => 9,
    }
}

impl Expression {
    /// The conjuncts of a condition.
    pub(crate) fn into_conjuncts(self) -> Vec<Self> {
        match self {
            Self::And(parts) => parts.into_iter().flat_map(Self::into_conjuncts).collect(),
            Self::Constant(Value::Boolean(true)) => Vec::new(),
            other => vec![other],
        }
    }

    /// The conjunction of conditions; None if there are none.
    pub(crate) fn all(mut conjuncts: Vec<Self>) -> Option<Self> {
        match conjuncts.len() {
            0 | 1 => conjuncts.pop(),
            _ => Some(Self::And(conjuncts)),
        }
    }

    /// The direct parts of the expression.
    pub(crate) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Constant(_)
            | Self::Column(_)
            | Self::Outer(_)
            | Self::Parameter(_)
            | Self::NextValue(_)
            | Self::Aggregate(_) => Vec::new(),
            Self::And(parts) | Self::Or(parts) | Self::Coalesce(parts) => parts.iter().collect(),
            Self::Call(_, _, parts) => parts.iter().collect(),
            Self::Not(part) | Self::IsNull(part) | Self::Is(part, _) => vec![part],
            Self::TokenOutcome(part) => vec![part],
            Self::AddInterval(part, _) | Self::Once(_, part) => vec![part],
            Self::Compare(_, a, b) | Self::Same(a, b) | Self::Arithmetic(_, _, a, b) => vec![a, b],
            Self::Match(matching) => vec![&matching.value, &matching.pattern],
            Self::In(value, list, _) => std::iter::once(&**value).chain(list).collect(),
            Self::Case(branches, otherwise) => {
                let branches = branches.iter().flat_map(|(when, then)| [when, then]);
                branches.chain(std::iter::once(&**otherwise)).collect()
            }
            Self::Cast(cast) => vec![&cast.operand],
            Self::Subquery(query) => {
                let value = match &query.kind {
                    SubqueryKind::Any(value, _) => Some(value),
                    SubqueryKind::Scalar | SubqueryKind::Exists => None,
                };
                query.arguments.iter().chain(value).collect()
            }
        }
    }

    /// The same expression, computed each time.
    pub(crate) fn each_time(self) -> Self {
        match self {
            Self::Once(_, part) => *part,
            other => other,
        }
    }

    /// The same expression, computed once with all of its parts.
    pub(crate) fn once(mut self) -> Self {
        for part in self.parts_mut() {
            let own = std::mem::replace(part, Self::Constant(Value::Null));
            *part = own.each_time();
        }
        Self::Once(KeptId::new(), Box::new(self))
    }

    fn parts_mut(&mut self) -> Vec<&mut Self> {
        match self {
            Self::Constant(_)
            | Self::Column(_)
            | Self::Outer(_)
            | Self::Parameter(_)
            | Self::NextValue(_)
            | Self::Aggregate(_) => Vec::new(),
            Self::And(parts) | Self::Or(parts) | Self::Coalesce(parts) => {
                parts.iter_mut().collect()
            }
            Self::Call(_, _, parts) => parts.iter_mut().collect(),
            Self::Not(part) | Self::IsNull(part) | Self::Is(part, _) => vec![part],
            Self::TokenOutcome(part) => vec![part],
            Self::AddInterval(part, _) | Self::Once(_, part) => vec![part],
            Self::Compare(_, a, b) | Self::Same(a, b) | Self::Arithmetic(_, _, a, b) => vec![a, b],
            Self::Match(matching) => vec![&mut matching.value, &mut matching.pattern],
            Self::In(value, list, _) => std::iter::once(&mut **value).chain(list).collect(),
            Self::Case(branches, otherwise) => {
                let branches = branches.iter_mut().flat_map(|(when, then)| [when, then]);
                branches.chain(std::iter::once(&mut **otherwise)).collect()
            }
            Self::Cast(cast) => vec![&mut cast.operand],
            Self::Subquery(query) => {
                let value = match &mut query.kind {
                    SubqueryKind::Any(value, _) => Some(value),
                    SubqueryKind::Scalar | SubqueryKind::Exists => None,
                };
                query.arguments.iter_mut().chain(value).collect()
            }
        }
    }

    /// Replaces expressions, outermost first. Replacements are not searched.
    ///
    /// # Errors
    /// Those of `replace`.
    pub(crate) fn rewrite(
        &mut self,
        replace: &mut impl FnMut(&Self) -> Result<Option<Self>, SqlError>,
    ) -> Result<(), SqlError> {
        if let Some(new) = replace(self)? {
            *self = new;
            return Ok(());
        }
        self.parts_mut().into_iter().try_for_each(|part| part.rewrite(replace))
    }

    /// The same expression for rows with other column numbers.
    pub(crate) fn renumbered(mut self, number: &impl Fn(usize) -> usize) -> Self {
        let replaced = self.rewrite(&mut |expression| {
            Ok(match expression {
                Self::Column(column) => Some(Self::Column(number(*column))),
                _ => None,
            })
        });
        replaced.expect("renumbering has no errors");
        self
    }

    /// Whether the expression or a part of it satisfies a condition.
    pub(crate) fn any(&self, condition: &impl Fn(&Self) -> bool) -> bool {
        condition(self) || self.parts().into_iter().any(|part| part.any(condition))
    }

    /// Calls `see` with the number of every column in the expression.
    pub(crate) fn for_each_column(&self, see: &mut impl FnMut(usize)) {
        if let Self::Column(column) = self {
            see(*column);
        }
        self.parts().into_iter().for_each(|part| part.for_each_column(see));
    }

    /// Whether the value is the same on every row of one statement.
    pub(crate) fn is_fixed(&self) -> bool {
        !self.any(&|part| {
            part.changes()
                || matches!(part, Self::Column(_) | Self::Aggregate(_) | Self::Subquery(_))
        })
    }

    /// Whether the expression itself, regardless of its parts, may have another value each time.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Self::NextValue(_) | Self::TokenOutcome(_) => true,
            Self::Call(function, _, _) => function.is_volatile(),
            _ => false,
        }
    }

    /// Levels of evaluation, with those of subqueries.
    pub(crate) fn depth(&self) -> usize {
        let below = self.parts().into_iter().map(Self::depth).max().unwrap_or(0);
        match self {
            Self::Subquery(query) => SUBQUERY_LEVELS + below.max(query.subquery.depth),
            _ => 1 + below,
        }
    }
}
