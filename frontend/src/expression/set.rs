//! Sets of values for IN and `= ANY`: built once per statement, looked up for every row.
//!
//! *Invariants*: a set has SQL's three-valued logic: a value that is missing from a set with NULL is neither in nor out.
//!
//! *Not here*: where a statement caches its sets (`execute::Context`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::array::Element;
use crate::encoding::key;
use crate::error::SqlError;
use crate::expression::Expression;
use crate::memory::{Budget, Charge};
use crate::value::Value;

/// Shorter lists are compared member by member.
pub(crate) const MEMBERS_MIN: usize = 9;
/// Bytes of memory of a value, beside its own.
const KEY_OVERHEAD_BYTES: usize = 48;

/// The identity of a list, or of an expression that is computed once. Copies share the identity of the original. This is
/// safe, because replacing a part of a list gives a list without a set, and no part of an expression that is computed once is
/// replaced. Two identities are always equal for `==`, so that expressions compare by their other parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptId(u64);

impl KeptId {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters.
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

/// The key of a set in a statement's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetKey {
    /// Of a list.
    List(u64),
    /// The array in a parameter.
    Parameter(usize, Element),
}

impl SetKey {
    /// The key for a list of constants and parameters that is long enough.
    pub(crate) fn of_list(id: KeptId, list: &[Expression]) -> Option<Self> {
        (list.len() >= MEMBERS_MIN).then_some(Self::List(id.0))
    }

    /// The key for an array that is the same on every row.
    pub(crate) fn of_array(array: &Expression, element: Element) -> Option<Self> {
        match array {
            Expression::Parameter(number) => Some(Self::Parameter(*number, element)),
            Expression::Cast(cast) => Self::of_array(&cast.operand, element),
            _ => None,
        }
    }
}

/// Values; NULL is kept apart.
#[derive(Debug, Default)]
pub(crate) struct ValueSet {
    keys: BTreeSet<Vec<u8>>,
    has_null: bool,
    /// The charge of the keys.
    charge: Charge,
}

impl Drop for ValueSet {
    fn drop(&mut self) {
        self.charge.dispose(std::mem::take(&mut self.keys));
    }
}

impl ValueSet {
    /// Adds a value, and charges the budget if there is one.
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

    /// Whether the set contains a value: NULL if unknown.
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

    /// The result of ANY if no member but perhaps NULL satisfies it.
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
    fn null_makes_a_missing_value_unknown() {
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
    fn equal_values_are_one_member() {
        let mut set = ValueSet::default();
        set.add(&Value::Float(0.0), None).unwrap();
        set.add(&Value::Numeric("1.0".parse().unwrap()), None).unwrap();
        assert_eq!(set.contains(&Value::Float(-0.0)), Value::Boolean(true));
        assert_eq!(set.contains(&Value::Numeric("1.00".parse().unwrap())), Value::Boolean(true));
    }
}
