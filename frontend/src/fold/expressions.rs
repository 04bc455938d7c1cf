//! Expressions as bytes: steps in the order of evaluation, each of which takes the results of steps before it.
//!
//! *Invariants*: what is the same on every row is computed before it is sent. An expression that was read has a bounded depth, and
//! columns that its rows have.

use serde::{Deserialize, Serialize};

use crate::encoding::row;
use crate::expression::arithmetic::Operator;
use crate::expression::datetime::Interval;
use crate::expression::function::Function;
use crate::expression::pattern::{Kept, Syntax};
use crate::expression::set::KeptId;
use crate::expression::{Cast, Comparison, Expression, Match};
use crate::plan::DEPTH_MAX;
use crate::value::{DataType, Value};

/// A part of an expression, behind the parts that it is made of.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Step {
    /// A row of one value.
    Constant(Vec<u8>),
    Column(usize),
    And(usize),
    Or(usize),
    Not,
    IsNull,
    Is(bool),
    Compare(Comparison),
    Same,
    Arithmetic(Operator, DataType),
    AddInterval(Interval),
    Match {
        syntax: Syntax,
        ignore_case: bool,
    },
    /// How many members.
    In(usize),
    /// How many branches.
    Case(usize),
    Coalesce(usize),
    Cast {
        from: DataType,
        to: DataType,
        explicit: bool,
    },
    Call(Function, DataType, usize),
}

/// Whether the expression can be computed where the rows are.
pub(crate) fn is_portable(expression: &Expression) -> bool {
    let is_supported = |part: &Expression| match part {
        Expression::NextValue(_)
        | Expression::TokenOutcome(_)
        | Expression::Subquery(_)
        | Expression::Aggregate(_) => false,
        // A text may become very long, and a pattern that is no constant is compiled for each row.
        Expression::Arithmetic(Operator::Concatenate, ..) => part.is_fixed(),
        Expression::Match(matching) => {
            part.is_fixed() || (matching.pattern.is_fixed() && matching.syntax != Syntax::Regular)
        }
        Expression::Call(function, _, parts) => {
            part.is_fixed() || is_portable_call(*function, parts)
        }
        _ => true,
    };
    !expression.any(&|part| !is_supported(part))
}

/// Whether a function needs nothing but its arguments, and makes nothing that is longer.
fn is_portable_call(function: Function, parts: &[Expression]) -> bool {
    use Function as F;
    let is_of_numbers = matches!(
        function,
        F::Abs | F::Negate | F::BitNot | F::Ceil | F::Floor | F::Round | F::Truncate | F::Remainder
    ) || matches!(
        function,
        F::Sign | F::SquareRoot | F::Greatest | F::Least | F::NullIf
    );
    let is_of_texts =
        matches!(
            function,
            F::Length | F::OctetLength | F::Lower | F::Upper | F::Substring | F::Left | F::Right
        ) || matches!(function, F::Trim | F::TrimLeft | F::TrimRight | F::Position | F::Shown)
            || function == F::StartsWith;
    let is_of_times = matches!(function, F::DatePart(_) | F::Extract(_) | F::DateTruncate);
    let has_two = matches!(function, F::NullIf | F::Remainder | F::DateTruncate)
        || matches!(function, F::DatePart(_) | F::Extract(_));
    parts.len() > usize::from(has_two) && (is_of_numbers || is_of_texts || is_of_times)
}

/// The steps of an expression, with `value` for what is the same on every row; `None` if that has no value.
pub(super) fn steps_of(
    expression: &Expression,
    value: &mut impl FnMut(&Expression) -> Option<Value>,
) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    push(expression, value, &mut steps)?;
    Some(steps)
}

fn push(
    expression: &Expression,
    value: &mut impl FnMut(&Expression) -> Option<Value>,
    steps: &mut Vec<Step>,
) -> Option<()> {
    if expression.is_fixed() {
        steps.push(Step::Constant(row::encode(&[value(expression)?])));
        return Some(());
    }
    for part in expression.parts() {
        push(part, value, steps)?;
    }
    steps.push(match expression {
        Expression::Column(column) => Step::Column(*column),
        Expression::And(parts) => Step::And(parts.len()),
        Expression::Or(parts) => Step::Or(parts.len()),
        Expression::Not(_) => Step::Not,
        Expression::IsNull(_) => Step::IsNull,
        Expression::Is(_, expected) => Step::Is(*expected),
        Expression::Compare(comparison, ..) => Step::Compare(*comparison),
        Expression::Same(..) => Step::Same,
        Expression::Arithmetic(operator, data_type, ..) => Step::Arithmetic(*operator, *data_type),
        Expression::AddInterval(_, interval) => Step::AddInterval(*interval),
        Expression::Match(matching) => {
            Step::Match { syntax: matching.syntax, ignore_case: matching.ignore_case }
        }
        Expression::In(_, members, _) => Step::In(members.len()),
        Expression::Case(branches, _) => Step::Case(branches.len()),
        Expression::Coalesce(parts) => Step::Coalesce(parts.len()),
        Expression::Cast(cast) => {
            Step::Cast { from: cast.from, to: cast.to, explicit: cast.explicit }
        }
        Expression::Call(function, data_type, parts) => {
            Step::Call(*function, *data_type, parts.len())
        }
        Expression::Constant(_)
        | Expression::Outer(_)
        | Expression::Parameter(_)
        | Expression::NextValue(_)
        | Expression::TokenOutcome(_)
        | Expression::Subquery(_)
        | Expression::Once(..)
        | Expression::Aggregate(_) => return None,
    });
    Some(())
}

/// The expression of some steps on rows of so many columns; `None` if they are none, or too deep for the evaluation.
pub(super) fn expression_of(steps: Vec<Step>, columns: usize) -> Option<Expression> {
    let mut parts = Parts::default();
    for step in steps {
        parts.deepest = 0;
        let expression = parts.made_of(step, columns)?;
        let depth = 1 + parts.deepest;
        parts.stack.push((expression, depth));
        if depth > DEPTH_MAX {
            return None;
        }
    }
    let (expression, _) = parts.stack.pop()?;
    parts.stack.is_empty().then_some(expression)
}

/// Expressions that no step has taken yet.
#[derive(Default)]
struct Parts {
    /// With their depths.
    stack: Vec<(Expression, usize)>,
    /// The greatest depth of those that the present step has taken.
    deepest: usize,
}

impl Parts {
    fn take(&mut self, count: usize) -> Option<Vec<Expression>> {
        let first = self.stack.len().checked_sub(count)?;
        let taken = self.stack.drain(first..);
        let deepest = &mut self.deepest;
        Some(
            taken
                .map(|(part, depth)| {
                    *deepest = depth.max(*deepest);
                    part
                })
                .collect(),
        )
    }

    fn one(&mut self) -> Option<Box<Expression>> {
        self.take(1)?.pop().map(Box::new)
    }

    fn two(&mut self) -> Option<[Box<Expression>; 2]> {
        let second = self.one()?;
        Some([self.one()?, second])
    }

    fn made_of(&mut self, step: Step, columns: usize) -> Option<Expression> {
        Some(match step {
            Step::Constant(bytes) => {
                let [value] = row::decode_whole(&bytes).ok()?.try_into().ok()?;
                Expression::Constant(value)
            }
            Step::Column(column) => Expression::Column(Some(column).filter(|it| *it < columns)?),
            Step::And(parts) => Expression::And(self.take(parts)?),
            Step::Or(parts) => Expression::Or(self.take(parts)?),
            Step::Not => Expression::Not(self.one()?),
            Step::IsNull => Expression::IsNull(self.one()?),
            Step::Is(expected) => Expression::Is(self.one()?, expected),
            Step::Compare(comparison) => {
                let [left, right] = self.two()?;
                Expression::Compare(comparison, left, right)
            }
            Step::Same => {
                let [left, right] = self.two()?;
                Expression::Same(left, right)
            }
            Step::Arithmetic(operator, data_type) => {
                let [left, right] = self.two()?;
                Expression::Arithmetic(operator, data_type, left, right)
            }
            Step::AddInterval(interval) => Expression::AddInterval(self.one()?, interval),
            Step::Match { syntax, ignore_case } => {
                let [value, pattern] = self.two()?.map(|part| *part);
                let kept = Kept::default();
                Expression::Match(Box::new(Match { value, pattern, syntax, ignore_case, kept }))
            }
            Step::In(members) => {
                let members = self.take(members)?;
                Expression::In(self.one()?, members, KeptId::new())
            }
            Step::Case(branches) => {
                let otherwise = self.one()?;
                let mut parts = self.take(branches.checked_mul(2)?)?.into_iter();
                let branches = std::iter::from_fn(|| parts.next().zip(parts.next()));
                Expression::Case(branches.collect(), otherwise)
            }
            Step::Coalesce(parts) => Expression::Coalesce(self.take(parts)?),
            Step::Cast { from, to, explicit } => {
                let operand = *self.one()?;
                Expression::Cast(Box::new(Cast { operand, from, to, explicit }))
            }
            Step::Call(function, data_type, parts) => {
                let parts = self.take(parts)?;
                let is_portable = is_portable_call(function, &parts);
                Expression::Call(is_portable.then_some(function)?, data_type, parts)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(number: usize) -> Box<Expression> {
        Box::new(Expression::Column(number))
    }

    fn constant(number: i64) -> Expression {
        Expression::Constant(Value::Integer(number))
    }

    fn sent(expression: &Expression, columns: usize) -> Option<Expression> {
        let mut value = |part: &Expression| match part {
            Expression::Constant(value) => Some(value.clone()),
            Expression::Parameter(_) => Some(Value::Integer(7)),
            _ => None,
        };
        let bytes = postcard::to_stdvec(&steps_of(expression, &mut value)?).unwrap();
        expression_of(postcard::from_bytes(&bytes).unwrap(), columns)
    }

    /// One of each kind that is computed on rows.
    fn samples() -> Vec<Expression> {
        let is_even = Expression::Compare(
            Comparison::Equal,
            Box::new(Expression::Call(
                Function::Remainder,
                DataType::BigInt,
                vec![*column(0), constant(2)],
            )),
            Box::new(constant(0)),
        );
        let sum = Expression::Arithmetic(Operator::Add, DataType::BigInt, column(0), column(1));
        let value = Expression::Cast(Box::new(Cast {
            operand: *column(1),
            from: DataType::Integer,
            to: DataType::Text,
            explicit: true,
        }));
        let pattern = Expression::Constant(Value::Text("1%".to_owned()));
        let (syntax, kept) = (Syntax::Like(Some('\\')), Kept::default());
        let matches = Match { value, pattern, syntax, ignore_case: true, kept };
        let interval = Interval { months: 1, days: 2, micros: 3 };
        vec![
            Expression::And(vec![is_even.clone(), Expression::Not(Box::new(is_even.clone()))]),
            Expression::Or(vec![Expression::IsNull(column(0)), Expression::Is(column(1), true)]),
            Expression::Same(column(0), Box::new(sum.clone())),
            Expression::Match(Box::new(matches)),
            Expression::AddInterval(column(1), interval),
            Expression::In(column(0), vec![constant(1), sum.clone()], KeptId::new()),
            Expression::Case(vec![(is_even, sum.clone())], column(1)),
            Expression::Coalesce(vec![*column(0), *column(1), constant(3)]),
        ]
    }

    #[test]
    fn what_is_sent_is_read() {
        for expression in samples() {
            assert!(is_portable(&expression));
            assert_eq!(sent(&expression, 2).as_ref(), Some(&expression));
            assert_eq!(sent(&expression, 0), None, "there are no such columns");
        }
        assert_eq!(sent(&Expression::Parameter(0), 0), Some(constant(7)));
        assert_eq!(sent(&Expression::Outer(0), 0), None, "it has no value");
        let text = || Box::new(Expression::Constant(Value::Text("a".to_owned())));
        let joined =
            Expression::Arithmetic(Operator::Concatenate, DataType::Text, column(0), text());
        let matches = |pattern, syntax| {
            let (value, kept) = (*column(0), Kept::default());
            Expression::Match(Box::new(Match { value, pattern, syntax, ignore_case: false, kept }))
        };
        assert!(!is_portable(&joined));
        assert!(!is_portable(&matches(*column(1), Syntax::Like(None))));
        assert!(!is_portable(&matches(*text(), Syntax::Regular)));
        let random = Expression::Call(Function::Random, DataType::Double, Vec::new());
        assert!(!is_portable(&random));
        assert_eq!(sent(&random, 0), None);
    }

    #[test]
    fn malformed_steps_are_no_expression() {
        for expression in samples() {
            let mut value = |part: &Expression| match part {
                Expression::Constant(value) => Some(value.clone()),
                _ => None,
            };
            let count = steps_of(&expression, &mut value).unwrap().len();
            for cut in 0..count {
                let mut steps = steps_of(&expression, &mut value).unwrap();
                steps.remove(cut);
                // What is left may be another expression, with fewer parts. It does not panic.
                let _ = expression_of(steps, 2);
                let mut steps = steps_of(&expression, &mut value).unwrap();
                steps.truncate(cut);
                assert_ne!(expression_of(steps, 2).as_ref(), Some(&expression));
            }
        }
        let deep = |levels| {
            let steps = std::iter::once(Step::Column(0));
            expression_of(steps.chain((1..levels).map(|_| Step::Not)).collect(), 1)
        };
        assert!(deep(DEPTH_MAX).is_some());
        assert!(deep(DEPTH_MAX + 1).is_none());
        assert!(expression_of(vec![Step::Case(usize::MAX)], 1).is_none());
        let remainder = Step::Call(Function::Remainder, DataType::BigInt, 1);
        assert!(expression_of(vec![Step::Column(0), remainder], 1).is_none());
    }
}
