//! Sets of values, for IN and `= ANY`: made once for a statement, and asked for every row.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::array::Element;
use crate::encoding::key;
use crate::error::SqlError;
use crate::expression::Expression;
use crate::memory::{Budget, Charge};
use crate::value::Value;

/// Lists below this are compared one by one.
pub(crate) const MEMBERS_MIN: usize = 9;
/// Bytes of memory that a value takes beside its own.
const KEY_OVERHEAD_BYTES: usize = 48;

/// Tells lists apart, and expressions that are computed once. Copies have the same: what is put for a part of a list is no constant,
/// and no parameter, and a list with such a part has no set; no part of the others is replaced. It is a part of its expression, and
/// so equal to any other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptId(u64);

impl KeptId {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: they differ, that is all.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl PartialEq for KeptId {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What a statement keeps a set under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetKey {
    /// Of a list.
    List(u64),
    /// Of the array that a parameter is.
    Parameter(usize, Element),
}

impl SetKey {
    /// Of a list of constants and parameters that is worth it.
    pub(crate) fn of_list(id: KeptId, list: &[Expression]) -> Option<Self> {
        (list.len() >= MEMBERS_MIN).then_some(Self::List(id.0))
    }

    /// Of an array that is the same on every row.
    pub(crate) fn of_array(array: &Expression, element: Element) -> Option<Self> {
        match array {
            Expression::Parameter(number) => Some(Self::Parameter(*number, element)),
            Expression::Cast(cast) => Self::of_array(&cast.operand, element),
            _ => None,
        }
    }
}

/// Values, NULL apart.
#[derive(Debug, Default)]
pub(crate) struct ValueSet {
    keys: BTreeSet<Vec<u8>>,
    has_null: bool,
    /// Of the keys.
    charge: Charge,
}

impl Drop for ValueSet {
    fn drop(&mut self) {
        self.charge.dispose(std::mem::take(&mut self.keys));
    }
}

impl ValueSet {
    /// Adds a value, which is charged to a budget if there is one.
    ///
    /// # Errors
    /// SQLSTATE 53200 if it does not fit.
    pub(crate) fn add(
        &mut self,
        value: &Value,
        budget: Option<&Arc<Budget>>,
    ) -> Result<(), SqlError> {
        if value.is_null() {
            self.has_null = true;
            return Ok(());
        }
        let key = key_of(value);
        if let Some(budget) = budget
            && !self.keys.contains(&key)
        {
            self.charge.add(budget, key.len() + KEY_OVERHEAD_BYTES)?;
        }
        self.keys.insert(key);
        Ok(())
    }

    /// Whether a value is in it: NULL if that is unknown.
    pub(crate) fn contains(&self, value: &Value) -> Value {
        if value.is_null() {
            return if self.keys.is_empty() && !self.has_null {
                Value::Boolean(false)
            } else {
                Value::Null
            };
        }
        if self.keys.contains(&key_of(value)) {
            return Value::Boolean(true);
        }
        self.of_none()
    }

    /// Whether something holds for one of the values, if it does for none but perhaps NULL.
    pub(crate) fn of_none(&self) -> Value {
        if self.has_null { Value::Null } else { Value::Boolean(false) }
    }
}

fn key_of(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::push(&mut bytes, value);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_knows_null() {
        let mut set = ValueSet::default();
        assert_eq!(set.contains(&Value::Null), Value::Boolean(false));
        set.add(&Value::Integer(3), None).unwrap();
        assert_eq!(set.contains(&Value::Integer(3)), Value::Boolean(true));
        assert_eq!(set.contains(&Value::Integer(4)), Value::Boolean(false));
        assert_eq!(set.contains(&Value::Null), Value::Null);
        set.add(&Value::Null, None).unwrap();
        assert_eq!(set.contains(&Value::Integer(4)), Value::Null);
        assert_eq!(set.contains(&Value::Integer(3)), Value::Boolean(true));
    }

    #[test]
    fn values_that_are_equal_are_one() {
        let mut set = ValueSet::default();
        set.add(&Value::Float(0.0), None).unwrap();
        set.add(&Value::Numeric("1.0".parse().unwrap()), None).unwrap();
        assert_eq!(set.contains(&Value::Float(-0.0)), Value::Boolean(true));
        assert_eq!(set.contains(&Value::Numeric("1.00".parse().unwrap())), Value::Boolean(true));
    }
}
