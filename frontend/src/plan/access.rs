//! The access to a table's rows, chosen by the conditions on its keys.
//!
//! In order of preference: points (every column of the primary key or of a unique index has a value, or one of a list), the
//! range with the most leading columns, the whole table.
//!
//! *Invariants*: a condition is removed from the filter only if the access fulfils it exactly.
//!
//! *Not here*: statistics: there are none.

use crate::catalog::Table;
use crate::expression::set::KeptId;
use crate::expression::{Comparison, Expression};
use crate::plan::{Access, IndexChoice, IndexRange, SortKey};
use crate::value::Value;

/// Points of one access, unless the statement itself names more values; a filter finds more rows than that.
const POINTS_MAX: usize = 10_000;

/// An access, and the remaining conditions.
pub(super) struct Chosen {
    pub(super) access: Access,
    pub(super) rest: Vec<Expression>,
    /// Larger is better; 0 is the whole table.
    pub(super) score: usize,
    /// Whether the rows come in the requested order.
    pub(super) is_ordered: bool,
}

/// The conditions on one column.
#[derive(Default)]
struct Known {
    /// The condition's number, and the values that the column may equal.
    equal: Option<(usize, Vec<Expression>)>,
    lower: Option<(usize, Expression, bool)>,
    upper: Option<(usize, Expression, bool)>,
}

/// Chooses the access to a table.
///
/// `is_own` maps a column number to the table's own column, if it is one. Other columns have known values if `outside` says
/// so.
pub(super) fn choose(
    table: &Table,
    conditions: Vec<Expression>,
    is_own: &impl Fn(usize) -> Option<usize>,
    outside: &impl Fn(usize) -> bool,
    order: &[SortKey],
) -> Chosen {
    let conditions: Vec<Expression> =
        conditions.into_iter().map(|condition| as_list(condition, is_own)).collect();
    let known = known_columns(table, &conditions, is_own, outside);
    let ready = (0..table.indexes.len()).filter(|number| table.indexes[*number].ready);
    let secondary = ready.map(IndexChoice::Secondary);
    let indexes = table.primary_key.iter().map(|_| IndexChoice::Primary).chain(secondary);
    let mut best: Option<(usize, bool, IndexChoice)> = None;
    for index in indexes {
        let score = score(table, index, &known);
        let ordered = score < usize::MAX && order_of(table, index, &known, order, is_own).is_some();
        let useful = score > 0 || (ordered && !order.is_empty());
        // The order breaks ties between equal scores; then the first index, the primary one, wins.
        if useful
            && best.is_none_or(|(other, was_ordered, _)| (score, ordered) > (other, was_ordered))
        {
            best = Some((score, ordered, index));
        }
    }
    let Some((score, _, index)) = best else {
        let access = Access::Full;
        return Chosen { access, rest: conditions, score: 0, is_ordered: false };
    };
    if score == usize::MAX {
        return points(table, index, known, conditions);
    }
    let descending = order_of(table, index, &known, order, is_own);
    let mut chosen = range(table, index, known, conditions, descending.unwrap_or(false));
    chosen.score = score;
    chosen.is_ordered = descending.is_some() && !order.is_empty();
    chosen
}

/// `a = 1 OR a = b` as `a IN (1, b)`, where `a` is a column of the table itself. A list that becomes an access is evaluated as a whole, so its values
/// are columns or fixed: what is computed of a row might fail where the first value already holds.
fn as_list(condition: Expression, is_own: &impl Fn(usize) -> Option<usize>) -> Expression {
    let Expression::Or(parts) = &condition else { return condition };
    let Some(Expression::Compare(_, left, right)) = parts.first() else { return condition };
    let is_own = |side: &Expression| match side {
        Expression::Column(column) => is_own(*column).is_some(),
        _ => false,
    };
    let list = [left, right].into_iter().filter(|side| is_own(side)).find_map(|column| {
        let value = |part: &Expression| match part {
            Expression::Compare(Comparison::Equal, left, right) if left == column => {
                Some((**right).clone())
            }
            Expression::Compare(Comparison::Equal, left, right) if right == column => {
                Some((**left).clone())
            }
            _ => None,
        };
        let is_plain = |value: &Expression| {
            matches!(value, Expression::Column(_) | Expression::Outer(_)) || value.is_fixed()
        };
        let value = |part| value(part).filter(is_plain);
        let values = parts.iter().map(value).collect::<Option<Vec<_>>>()?;
        Some(Expression::In(column.clone(), values, KeptId::new()))
    });
    list.unwrap_or(condition)
}

fn known_columns(
    table: &Table,
    conditions: &[Expression],
    is_own: &impl Fn(usize) -> Option<usize>,
    outside: &impl Fn(usize) -> bool,
) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    known.resize_with(table.columns.len(), Known::default);
    let own = |expression: &Expression| match expression {
        Expression::Column(column) => is_own(*column),
        _ => None,
    };
    let is_known = |expression: &Expression| {
        let mut known = true;
        expression
            .for_each_column(&mut |column| known &= is_own(column).is_none() && outside(column));
        known && !expression.any(&is_unsteady)
    };
    for (number, condition) in conditions.iter().enumerate() {
        match condition {
            Expression::Compare(comparison, left, right) => {
                if let Some(column) = own(left).filter(|_| is_known(right)) {
                    known[column].learn(number, *comparison, right);
                } else if let Some(column) = own(right).filter(|_| is_known(left)) {
                    known[column].learn(number, comparison.flipped(), left);
                }
            }
            Expression::In(value, list, _) => {
                if let Some(column) = own(value).filter(|_| list.iter().all(is_known))
                    && known[column].equal.is_none()
                {
                    known[column].equal = Some((number, list.clone()));
                }
            }
            _ => {}
        }
    }
    known
}

fn is_unsteady(expression: &Expression) -> bool {
    match expression {
        Expression::NextValue(_) | Expression::TokenOutcome(_) | Expression::Aggregate(_) => true,
        Expression::Call(function, _, _) => function.is_volatile(),
        _ => false,
    }
}

impl Known {
    fn learn(&mut self, number: usize, comparison: Comparison, value: &Expression) {
        let value = value.clone();
        match comparison {
            // One value is better than a list.
            Comparison::Equal if self.equal.as_ref().is_none_or(|(_, list)| list.len() > 1) => {
                self.equal = Some((number, vec![value]));
            }
            Comparison::Greater | Comparison::GreaterOrEqual if self.lower.is_none() => {
                self.lower = Some((number, value, comparison == Comparison::GreaterOrEqual));
            }
            Comparison::Less | Comparison::LessOrEqual if self.upper.is_none() => {
                self.upper = Some((number, value, comparison == Comparison::LessOrEqual));
            }
            _ => {}
        }
    }

    fn values(&self) -> usize {
        self.equal.as_ref().map_or(0, |(_, list)| list.len())
    }
}

/// The score of an index; `usize::MAX` for points.
fn score(table: &Table, index: IndexChoice, known: &[Known]) -> usize {
    let columns = index.columns(table);
    let is_unique = match index {
        IndexChoice::Primary => true,
        IndexChoice::Secondary(number) => table.indexes[number].unique,
    };
    let points = columns
        .iter()
        .try_fold(1_usize, |points, column| points.checked_mul(known[*column].values()));
    // A single list is read value by value, whatever its length, unless that happens for each row on the left.
    let named = || {
        let lists = columns.iter().filter_map(|column| known[*column].equal.as_ref());
        let is_fixed = lists.clone().all(|(_, list)| list.iter().all(Expression::is_fixed));
        if is_fixed { lists.map(|(_, list)| list.len()).sum() } else { 0 }
    };
    let may_be_points =
        |points| (1..=POINTS_MAX).contains(&points) || (points > 0 && points <= named());
    if is_unique && points.is_some_and(may_be_points) {
        return usize::MAX;
    }
    let prefix = columns.iter().take_while(|column| known[**column].values() == 1).count();
    let next = columns.get(prefix).map(|column| &known[*column]);
    let bounds = next
        .map_or(0, |next| usize::from(next.lower.is_some()) + usize::from(next.upper.is_some()));
    3 * prefix + bounds
}

fn points(
    table: &Table,
    index: IndexChoice,
    mut known: Vec<Known>,
    conditions: Vec<Expression>,
) -> Chosen {
    let mut used = Vec::new();
    let mut columns = Vec::new();
    for column in index.columns(table) {
        let (number, list) = known[*column].equal.take().expect("points have every column");
        used.push(number);
        columns.push(list);
    }
    let rest = without(conditions, &used);
    Chosen { access: Access::Points { index, columns }, rest, score: usize::MAX, is_ordered: false }
}

fn range(
    table: &Table,
    index: IndexChoice,
    mut known: Vec<Known>,
    conditions: Vec<Expression>,
    descending: bool,
) -> Chosen {
    let mut used = Vec::new();
    let mut prefix = Vec::new();
    let (mut lower, mut upper) = (None, None);
    for column in index.columns(table) {
        let known = &mut known[*column];
        if known.values() == 1 {
            let (number, mut list) = known.equal.take().expect("it has one value");
            used.push(number);
            prefix.extend(list.pop());
            continue;
        }
        let mut bound = |bound: Option<(usize, Expression, bool)>| {
            bound.map(|(number, value, included)| {
                used.push(number);
                (value, included)
            })
        };
        lower = bound(known.lower.take());
        upper = bound(known.upper.take());
        break;
    }
    let rest = without(conditions, &used);
    let access = Access::Range(IndexRange { index, prefix, lower, upper, descending });
    Chosen { access, rest, score: 0, is_ordered: false }
}

fn without(conditions: Vec<Expression>, used: &[usize]) -> Vec<Expression> {
    let numbered = conditions.into_iter().enumerate();
    numbered.filter(|(number, _)| !used.contains(number)).map(|(_, condition)| condition).collect()
}

/// Whether an index yields an order, and whether it does so backwards.
fn order_of(
    table: &Table,
    index: IndexChoice,
    known: &[Known],
    order: &[SortKey],
    is_own: &impl Fn(usize) -> Option<usize>,
) -> Option<bool> {
    let descending = order.first()?.descending;
    let mut columns = index.columns(table).iter().peekable();
    for key in order {
        let Expression::Column(column) = key.expression else { return None };
        let column = is_own(column)?;
        // NULLs are last in an index, and so first in reverse.
        let nulls_fit = key.nulls_first == descending || table.columns[column].not_null;
        if key.descending != descending || !nulls_fit {
            return None;
        }
        while columns.peek().is_some_and(|next| **next != column && known[**next].values() == 1) {
            columns.next();
        }
        if *columns.next()? != column {
            return None;
        }
    }
    Some(descending)
}

/// Whether a condition never holds, so that nothing needs to be read.
pub(super) fn is_never(condition: &Expression) -> bool {
    matches!(condition, Expression::Constant(Value::Boolean(false) | Value::Null))
}
