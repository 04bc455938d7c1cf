//! Loading a table's first rows, before any transaction runs: no lock, no version step, no message.

use crate::arena::Quota;
use crate::bucket::held;
use crate::error::StorageError;
use crate::table::{Place, Table};

impl Table {
    /// Adds a row whose key lives at `place` to this replica; several threads may load at once.
    ///
    /// Versions stay 0, so replicas that were loaded with the same rows are equal.
    ///
    /// # Errors
    /// [`StorageError::Exists`] for a key that is there, [`StorageError::Full`] at the memory limit.
    ///
    /// # Panics
    /// If `value` does not have the table's value size.
    pub fn load(&self, place: Place, key: u64, value: &[u8]) -> Result<(), StorageError> {
        assert_eq!(value.len(), self.layout().value_bytes, "values of {} are fixed", self.name());
        let bucket = self.bucket(place);
        bucket.write(|next| {
            if bucket.find(held(*next), place.tag(), key).is_some() {
                return Err(StorageError::Exists { table: self.name().to_owned(), key });
            }
            if bucket.put(next, place.tag(), key, value, Quota::WithinShare) {
                Ok(())
            } else {
                let (table, limit) = (self.name().to_owned(), self.limit_bytes());
                Err(StorageError::Full { table, limit })
            }
        })
    }

    /// Asks for the first slot that is free at `place`, once the header has arrived.
    pub fn prefetch_free_slot(&self, place: Place) {
        self.bucket(place).prefetch_slot(place.first_word(), 0);
    }
}
