//! SCAN: the rows of a range of one partition, and what validates that no other row was there.
//!
//! *Source*: `docs/protocol.md`, "Ordered index": the number of the index when the scan began, and the bucket versions of every row
//! examined.

use std::ops::{Bound, ControlFlow};

use crate::heap::Heap;
use crate::key::HashedKey;
use crate::ordered_index::{Counted, Direction};
use crate::owner::Owner;
use crate::read::Read;
use crate::table::{BucketAddress, Table};

/// A row that a scan examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedRow<'a> {
    /// Bucket of the key, in the partition that was scanned.
    pub bucket: u32,
    /// Version of the bucket.
    pub version: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value; `None` for a key that went while it was scanned.
    pub value: Option<&'a [u8]>,
}

/// How a scan ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// The range is exhausted.
    Complete,
    /// The visitor wanted no more; what lies behind the last row was not examined.
    Stopped,
    /// Another transaction holds the bucket of a row in the range.
    Locked,
}

/// Keys of a leaf, and where their rows are. They are copied before the rows are read, so that the leaf is not locked
/// meanwhile and all rows are prefetched at once.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    located: Vec<Located>,
}

/// A key, and where its row is.
struct Located {
    /// Where the key ends among the bytes.
    end: usize,
    hash: u64,
    address: BucketAddress,
}

impl Keys {
    fn clear(&mut self) {
        self.bytes.clear();
        self.located.clear();
    }

    fn push(&mut self, key: &[u8], table: &Table) {
        self.bytes.extend_from_slice(key);
        let hash = table.hashed(key).word();
        let location = table.locate(hash);
        let address = table.held_address_of(location);
        let address = address.expect("the index has keys of its partition alone");
        table.prefetch(address);
        self.located.push(Located { end: self.bytes.len(), hash, address });
    }

    /// Prefetches all rows: their slots, and the rows that those point to.
    fn prefetch(&self, table: &Table) {
        self.located.iter().for_each(|key| table.prefetch_slot(key.address));
        self.located
            .iter()
            .for_each(|key| table.bucket(key.address).prefetch_row(key.address.tag()));
    }

    fn iter(&self) -> impl Iterator<Item = (HashedKey<'_>, &Located)> {
        let starts = std::iter::once(0).chain(self.located.iter().map(|key| key.end));
        starts.zip(&self.located).map(|(start, located)| {
            (HashedKey::from_parts(located.hash, &self.bytes[start..located.end]), located)
        })
    }
}

impl Table {
    /// Visits the rows of `partition` in a range, for the transaction `reader`, until `visit` breaks. The number by which
    /// [`Self::validate_range`] tells whether keys have come or gone.
    ///
    /// A partition that this node does not hold, or a table without order, has no rows.
    pub fn scan(
        &self,
        partition: u16,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        reader: Owner,
        mut visit: impl FnMut(ScannedRow<'_>) -> ControlFlow<()>,
    ) -> (u64, Scanned) {
        let Some(index) = self.heap(partition).and_then(Heap::index) else {
            return (0, Scanned::Complete);
        };
        let number = index.number();
        let (mut keys, mut value) = (Keys::default(), Vec::new());
        let mut position: Option<Bound<Box<[u8]>>> = None;
        loop {
            let at = position.as_ref().map(|bound| bound.as_ref().map(|key| &**key));
            let range = match direction {
                Direction::Ascending => (at.unwrap_or(from), to),
                Direction::Descending => (from, at.unwrap_or(to)),
            };
            keys.clear();
            let next = index.scan_leaf(range, direction, reader, |key| keys.push(key, self));
            keys.prefetch(self);
            for (key, located) in keys.iter() {
                match self.visit_row(key, located, reader, &mut value, &mut visit) {
                    ControlFlow::Continue(()) => {}
                    ControlFlow::Break(end) => return (number, end),
                }
            }
            match next {
                Some(next) => position = Some(next),
                None => return (number, Scanned::Complete),
            }
        }
    }

    /// Counts the keys of a range of `partition`, for the transaction `owner`, in so many leaves of the index at most. None if another
    /// transaction is about to add or remove one of them.
    ///
    /// A partition that this node does not hold, or a table without order, has no keys.
    #[must_use]
    pub fn count(
        &self,
        partition: u16,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        owner: Owner,
        leaves_max: usize,
    ) -> Option<Counted> {
        let index = self.heap(partition).and_then(Heap::index);
        let none = Counted { number: 0, keys: 0, next: None };
        index.map_or(Some(none), |index| index.count(range, owner, leaves_max))
    }

    fn visit_row(
        &self,
        key: HashedKey<'_>,
        located: &Located,
        reader: Owner,
        value: &mut Vec<u8>,
        visit: &mut impl FnMut(ScannedRow<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<Scanned> {
        value.clear();
        let (version, value) = match self.read_row(located.address, key, reader, value) {
            Read::Found { version } => (version, Some(value.as_slice())),
            Read::Absent { version } => (version, None),
            Read::Locked => return ControlFlow::Break(Scanned::Locked),
        };
        let bucket = self.bucket_of(key.word(), version);
        let row = ScannedRow { bucket, version, key: key.bytes(), value };
        visit(row).map_break(|()| Scanned::Stopped)
    }
}
