//! Scans whose rows may come in any order, because no result shows it: those under most aggregates.
//!
//! *Invariants*: an aggregate of numbers that are no integers takes its rows in the order of the scan's key. In another order their sum may have
//! other digits or leave the range, and another one of the equal numbers 1.0 and 1.00 may stand for both. Limits, row numbers and DISTINCT ON go by
//! the order, too.
//!
//! *Not here*: aggregates that the primaries compute (`Fold`), and how such scans read (`execute/scan`).

use crate::encoding::row::Wanted;
use crate::expression::Expression;
use crate::expression::aggregate::{Aggregate, Kind};
use crate::fold::is_portable;
use crate::plan::{Node, Scan, types};
use crate::value::{DataType, Value};

/// Has full scans under an aggregate give their rows in any order, where no result shows it.
pub(super) fn set_in_any_order(input: &mut Node, keys: &[Expression], aggregates: &[Aggregate]) {
    let parts = aggregates.iter().flat_map(Aggregate::expressions);
    if aggregates.iter().all(ignores_order)
        && keys.iter().all(is_exact)
        && aggregates.iter().filter_map(|aggregate| aggregate.argument.as_ref()).all(is_exact)
        && keys.iter().chain(parts).all(is_steady)
        && !reads_fractions(input)
    {
        set(input);
    }
}

/// Whether an aggregate of integers and texts is the same in any order of its rows.
pub(super) fn ignores_order(aggregate: &Aggregate) -> bool {
    match aggregate.kind {
        Kind::Count | Kind::Sum | Kind::Average | Kind::And | Kind::Or => true,
        Kind::Min | Kind::Max => types::has_one_form(aggregate.data_type),
        Kind::Join | Kind::Collect => false,
    }
}

/// Whether an expression has the same value whenever it is evaluated on a row.
pub(crate) fn is_steady(expression: &Expression) -> bool {
    !expression.any(&Expression::changes)
}

fn set(node: &mut Node) {
    match node {
        Node::Scan(scan) => scan.in_any_order = scan.filter.as_ref().is_none_or(is_portable),
        Node::Filter { input, condition } if is_steady(condition) => set(input),
        Node::Lookup { left, scan, condition, .. }
            if condition.iter().chain(&scan.filter).all(is_steady) =>
        {
            set(left);
        }
        Node::Project { input, expressions }
            if expressions.iter().all(|one| is_exact(one) && is_steady(one)) =>
        {
            set(input);
        }
        Node::Distinct { input, is_sorted: false, .. } => set(input),
        Node::SetOperation { left, right, .. } => {
            set(left);
            set(right);
        }
        // Rows of both sides of a hash join that belong together often have keys in one order, and then lie side by side in memory.
        _ => {}
    }
}

/// Whether an expression computes no numbers but integers, of rows that have no others.
fn is_exact(expression: &Expression) -> bool {
    !expression.any(&|part| match part {
        Expression::Constant(value) => matches!(value, Value::Float(_) | Value::Numeric(_)),
        Expression::Arithmetic(_, data_type, ..) | Expression::Call(_, data_type, _) => {
            has_fractions(*data_type)
        }
        Expression::Cast(cast) => has_fractions(cast.to),
        Expression::Subquery(_) => true,
        _ => false,
    })
}

/// Whether the sum of some values, or the one of equal values that stands for them, depends on their order.
fn has_fractions(data_type: DataType) -> bool {
    matches!(data_type, DataType::Numeric(_) | DataType::Real | DataType::Double | DataType::Padded)
}

fn reads_fractions(node: &Node) -> bool {
    let own = match node {
        Node::Scan(scan) | Node::Lookup { scan, .. } => has_wanted_fractions(scan),
        _ => false,
    };
    own || node.inputs().into_iter().any(reads_fractions)
}

fn has_wanted_fractions(scan: &Scan) -> bool {
    let is_wanted = |number: usize| match &scan.wanted {
        Wanted::All => true,
        Wanted::Some(wanted) => wanted[number],
    };
    let mut columns = scan.table.columns.iter().enumerate();
    columns.any(|(number, column)| has_fractions(column.data_type) && is_wanted(number))
}
