//! READ: version and value of a key, refused while another transaction holds the bucket.

use crate::mutant::{Mutant, active};
use crate::owner::Owner;
use crate::table::Table;

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The key is there; its value was copied.
    Found {
        /// Version of the bucket.
        version: u64,
    },
    /// The key is not there; the version validates the absence.
    Absent {
        /// Version of the bucket.
        version: u64,
    },
    /// Another transaction holds the bucket.
    Locked,
}

/// A bucket that was prefetched, for [`Table::prefetch_slot`].
#[derive(Clone, Copy, Debug)]
pub struct Prefetched {
    first_word: usize,
    tag: u8,
}

impl Table {
    /// Reads `key` for the transaction `reader`, copying its value into `out`.
    ///
    /// A bucket locked by another transaction is refused, not served in its old version: that would
    /// let two single-key reads see the new x and then the old y (FaSST section 5, step 1).
    #[inline]
    pub fn read(&self, key: u64, reader: Owner, out: &mut [u8]) -> Read {
        let location = self.locate(key);
        let bucket = self.bucket(location.partition, location.bucket);
        bucket.read_consistent(|sequence| {
            let owner = bucket.owner();
            if owner != Owner::FREE && owner != reader && !active(Mutant::ReadLocked) {
                return Read::Locked;
            }
            let version = bucket.version();
            match bucket.find(sequence, location.tag, key) {
                Some(slot) => {
                    slot.copy_value(out);
                    Read::Found { version }
                }
                None => Read::Absent { version },
            }
        })
    }

    /// Asks for the header of `key`'s bucket; first of two stages (HERD section 4.1.1).
    #[inline]
    #[must_use]
    pub fn prefetch(&self, key: u64) -> Prefetched {
        let location = self.locate(key);
        let first_word = self.bucket_word(location.partition, location.bucket);
        self.prefetch_word(first_word);
        Prefetched { first_word, tag: location.tag }
    }

    /// As [`Self::prefetch`], where a message from outside named the key; `None` if this node does
    /// not hold it.
    #[inline]
    #[must_use]
    pub fn prefetch_held(&self, key: u64) -> Option<Prefetched> {
        let location = self.locate(key);
        self.holds(location.partition, location.bucket).then(|| self.prefetch(key))
    }

    /// Asks for the key's slot once the header has arrived; second stage.
    #[inline]
    pub fn prefetch_slot(&self, prefetched: Prefetched) {
        self.bucket_at(prefetched.first_word).prefetch_slot(prefetched.first_word, prefetched.tag);
    }
}
