//! Shared reservations: at a primary, the ranges of keys that transactions have read, and whose rows others leave alone meanwhile.
//!
//! ```text
//! table ─▶ ranges, each with its holder and the end of its hold
//! ```
//! Ranges of several holders may have rows in common. They serve progress alone, as reservations of rows do.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariants*: each table has a bounded number of ranges, and so have all tables together. Ranges whose holds are over are forgotten when
//! others are added to the table.
//!
//! *Not here*: rows with one holder, and what waits for what, in `row_reservations`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::holder::Holder;
use crate::key_range::KeyRange;
use crate::scan_page::Bounds;

/// Most ranges of a table.
const RANGES_MAX: usize = 1_000;
/// Most ranges of all tables.
const ALL_RANGES_MAX: usize = 16 << 10;

/// A range that a transaction has read.
struct SharedRange {
    holder: Holder,
    range: KeyRange,
    until_ns: u64,
}

impl SharedRange {
    fn is(&self, bounds: Bounds<'_>, holder: Holder) -> bool {
        self.holder == holder && self.range.bounds() == bounds
    }
}

/// Whether a range was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The holder had the range.
    Before,
    Now,
    /// There was no room.
    Full,
}

/// The ranges that transactions have read, by their tables.
#[derive(Default)]
pub(crate) struct SharedRanges {
    tables: Mutex<BTreeMap<u32, Vec<SharedRange>>>,
    /// How many ranges there are.
    count: AtomicUsize,
}

impl SharedRanges {
    /// Whether there may be ranges.
    #[inline(always)]
    pub(crate) fn are_there(&self) -> bool {
        // Relaxed: a request that misses a range which is added at the same time was before it.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Adds a range, or lengthens its hold.
    pub(crate) fn add(
        &self,
        table: u32,
        bounds: Bounds<'_>,
        holder: Holder,
        (now_ns, hold_ns): (u64, u64),
    ) -> Added {
        let until_ns = now_ns.saturating_add(hold_ns);
        let mut tables = self.tables.lock();
        // Relaxed: under the lock.
        if self.count.load(Ordering::Relaxed) >= ALL_RANGES_MAX {
            self.retain(&mut tables, |it| now_ns < it.until_ns);
        }
        let is_full = self.count.load(Ordering::Relaxed) >= ALL_RANGES_MAX;
        let ranges = tables.entry(table).or_default();
        let before = ranges.len();
        ranges.retain(|it| now_ns < it.until_ns);
        let added = if let Some(known) = ranges.iter_mut().find(|it| it.is(bounds, holder)) {
            known.until_ns = until_ns;
            Added::Before
        } else if is_full || ranges.len() >= RANGES_MAX {
            Added::Full
        } else {
            ranges.push(SharedRange { holder, range: KeyRange::of(bounds), until_ns });
            Added::Now
        };
        // Relaxed: as in are_there().
        self.count.fetch_add(ranges.len().wrapping_sub(before), Ordering::Relaxed);
        added
    }

    /// Keeps some ranges.
    fn retain(
        &self,
        tables: &mut BTreeMap<u32, Vec<SharedRange>>,
        keeps: impl Fn(&SharedRange) -> bool,
    ) {
        tables.retain(|_, ranges| {
            let before = ranges.len();
            ranges.retain(&keeps);
            // Relaxed: as in are_there().
            self.count.fetch_sub(before - ranges.len(), Ordering::Relaxed);
            !ranges.is_empty()
        });
    }

    /// Takes a range back, if it was added.
    pub(crate) fn take_back(&self, table: u32, bounds: Bounds<'_>, holder: Holder) {
        let mut tables = self.tables.lock();
        let Some(ranges) = tables.get_mut(&table) else { return };
        if let Some(last) = ranges.iter().position(|it| it.is(bounds, holder)) {
            ranges.remove(last);
            // Relaxed: as in are_there().
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        if ranges.is_empty() {
            tables.remove(&table);
        }
    }

    /// The holders of the ranges that have a key, each once for each range.
    pub(crate) fn holders(&self, table: u32, key: &[u8], now_ns: u64) -> Vec<Holder> {
        if !self.are_there() {
            return Vec::new();
        }
        let tables = self.tables.lock();
        let ranges = tables.get(&table).map_or(&[][..], Vec::as_slice);
        let found = ranges.iter().filter(|it| now_ns < it.until_ns && it.range.has(key));
        found.map(|it| it.holder).collect()
    }

    /// Ends the holds of a holder.
    pub(crate) fn release(&self, holder: Holder) {
        self.retain(&mut self.tables.lock(), |it| it.holder != holder);
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        let mut tables = self.tables.lock();
        tables.clear();
        // Relaxed: as in are_there().
        self.count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound::{Excluded, Included, Unbounded};

    use super::*;

    #[test]
    fn ranges_have_their_keys_until_they_end() {
        let shared = SharedRanges::default();
        let add = |table, bounds: Bounds<'_>, holder, time| {
            shared.add(table, bounds, Holder(holder), time)
        };
        assert_eq!(add(1, (Included(b"b"), Excluded(b"d")), 7, (0, 100)), Added::Now);
        assert_eq!(add(1, (Included(b"c"), Included(b"c")), 8, (0, 40)), Added::Now);
        assert_eq!(add(1, (Included(b"c"), Included(b"c")), 8, (0, 50)), Added::Before);
        assert_eq!(add(2, (Unbounded, Unbounded), 7, (0, 100)), Added::Now);
        let holders = |key: &[u8], now_ns| {
            shared.holders(1, key, now_ns).iter().map(|it| it.0).collect::<Vec<_>>()
        };
        assert_eq!(["a", "b", "c", "d"].map(|key| holders(key.as_bytes(), 0).len()), [0, 1, 2, 0]);
        assert_eq!(holders(b"c", 49), [7, 8]);
        assert_eq!(holders(b"c", 50), [7], "the hold of the other is over");
        assert_eq!(add(1, (Included(b"b"), Included(b"b")), 7, (50, 100)), Added::Now);
        assert_eq!(holders(b"b", 60), [7, 7]);
        shared.take_back(1, (Included(b"b"), Included(b"b")), Holder(7));
        assert_eq!(holders(b"b", 60), [7]);
        shared.release(Holder(7));
        assert!(!shared.are_there());
    }

    #[test]
    fn a_table_has_a_bounded_number_of_ranges() {
        let shared = SharedRanges::default();
        let add =
            |holder, now_ns| shared.add(1, (Unbounded, Unbounded), Holder(holder), (now_ns, 10));
        let added = (0..2 * RANGES_MAX as u64).filter(|holder| add(*holder, 0) == Added::Now);
        assert_eq!(added.count(), RANGES_MAX);
        assert_eq!(add(1, 10), Added::Now, "those before are over");
        shared.clear();
        assert!(!shared.are_there());
    }
}
