//! The best node for a statement: the primary of the first row or index entry that the statement reads by its key.
//!
//! On that node, most short statements read and lock without a message. On any other node the result is the same.
//!
//! *Not here*: choosing the coroutine (`session/run`).

use crate::encoding::key;
use crate::expression::Expression;
use crate::plan::{Access, Node, Scan};
use crate::value::Value;

/// A key that is known when the parameters are.
#[derive(Debug)]
pub(crate) struct Home {
    /// Constants and parameters.
    values: Vec<Expression>,
}

impl Home {
    /// The first key that a node reads, if it is made of constants and parameters.
    pub(super) fn of(node: &Node) -> Option<Self> {
        match node {
            Node::Scan(scan) => Self::of_scan(scan),
            _ => Self::of(node.inputs().first()?),
        }
    }

    fn of_scan(scan: &Scan) -> Option<Self> {
        let Access::Points { columns, .. } = &scan.access else { return None };
        let values = columns.iter().map(|values| match values.first()? {
            known @ (Expression::Constant(_) | Expression::Parameter(_)) => Some(known.clone()),
            _ => None,
        });
        Some(Self { values: values.collect::<Option<_>>()? })
    }

    /// The key; None if a value is NULL, because no row has such a key.
    pub(crate) fn key(&self, parameters: &[Value]) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(16 * self.values.len());
        for value in &self.values {
            let value = match value {
                Expression::Constant(value) => value,
                Expression::Parameter(number) => parameters.get(*number)?,
                _ => return None,
            };
            if value.is_null() {
                return None;
            }
            key::push(&mut bytes, value);
        }
        Some(bytes)
    }
}
