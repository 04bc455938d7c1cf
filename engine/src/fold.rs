//! Folds: what a transaction computes of all rows of a table where the rows are. Results travel, rows do not.
//!
//! ```text
//! coordinator   a program, as bytes ──▶ primary of each partition
//! primary       row, row, ... ─ finish ──▶ the result of some buckets, as bytes
//! ```
//! The application decides what a program means; see [`FoldPrograms`].
//!
//! *Source*: `docs/protocol.md`, "Folds".

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Programs that a worker remembers, with what they have prepared.
const REMEMBERED_MAX: usize = 8;

/// A computation on the rows of a part of a table, and then of another part.
pub trait FoldProgram {
    /// Takes a row. The rows come in no order.
    fn row(&mut self, key: &[u8], value: &[u8]);

    /// Whether the result is as large as an answer should be.
    fn is_full(&self) -> bool;

    /// Appends the result, and begins again.
    fn finish(&mut self, out: &mut Vec<u8>);
}

/// Reads a program; `None` for bytes that are none.
pub type ReadFoldProgram = fn(program: &[u8]) -> Option<Box<dyn FoldProgram>>;

/// What the programs of folds on the nodes of a process mean. All processes of a cluster have the same; until a process has set them,
/// its nodes refuse to fold.
#[derive(Clone, Debug, Default)]
pub struct FoldPrograms(Arc<OnceLock<ReadFoldProgram>>);

impl FoldPrograms {
    /// Sets what programs mean, unless it was set before.
    pub fn set(&self, read: ReadFoldProgram) {
        self.0.get_or_init(|| read);
    }
}

/// The programs that a worker has run last.
pub(crate) struct FoldCache {
    programs: FoldPrograms,
    /// The last one first.
    remembered: VecDeque<Remembered>,
}

struct Remembered {
    bytes: Box<[u8]>,
    program: Box<dyn FoldProgram>,
}

impl FoldCache {
    pub(crate) fn new(programs: FoldPrograms) -> Self {
        Self { programs, remembered: VecDeque::with_capacity(REMEMBERED_MAX) }
    }

    /// A program; `None` if the bytes are none.
    pub(crate) fn program(&mut self, bytes: &[u8]) -> Option<&mut (dyn FoldProgram + 'static)> {
        match self.remembered.iter().position(|it| *it.bytes == *bytes) {
            Some(0) => {}
            Some(at) => self.remembered.swap(0, at),
            None => {
                let read = self.programs.0.get()?;
                let program = read(bytes)?;
                self.remembered.truncate(REMEMBERED_MAX - 1);
                self.remembered.push_front(Remembered { bytes: bytes.into(), program });
            }
        }
        self.remembered.front_mut().map(|it| &mut *it.program)
    }
}

/// What is left of a table to fold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldRest {
    /// By partition the next bucket; `None` behind the last. Empty before the first part.
    pub(crate) buckets: Vec<Option<u32>>,
}

impl FoldRest {
    /// The whole table.
    #[must_use]
    pub fn whole() -> Self {
        Self::default()
    }

    /// No part of any table.
    #[must_use]
    pub fn nothing() -> Self {
        Self { buckets: vec![None] }
    }

    /// The same in so many parts, or fewer, of some partitions each.
    #[must_use]
    pub fn divided(&self, parts: usize) -> Vec<Self> {
        let left = self.buckets.iter().filter(|next| next.is_some()).count();
        let size = left.div_ceil(parts.max(1)).max(1);
        let mut divided = Vec::new();
        for (partition, next) in self.buckets.iter().enumerate().filter(|(_, next)| next.is_some())
        {
            let is_full = |part: &Self| part.buckets.iter().flatten().count() >= size;
            if divided.last().is_none_or(is_full) {
                divided.push(Self { buckets: vec![None; self.buckets.len()] });
            }
            if let Some(part) = divided.last_mut() {
                part.buckets[partition] = *next;
            }
        }
        divided
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.buckets.is_empty() && self.buckets.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts rows; its name is its program.
    struct Counting(u8, u8);

    impl FoldProgram for Counting {
        fn row(&mut self, _: &[u8], _: &[u8]) {
            self.1 += 1;
        }
        fn is_full(&self) -> bool {
            false
        }
        fn finish(&mut self, out: &mut Vec<u8>) {
            out.extend_from_slice(&[self.0, std::mem::take(&mut self.1)]);
        }
    }

    fn read(program: &[u8]) -> Option<Box<dyn FoldProgram>> {
        let &[name] = program else { return None };
        Some(Box::new(Counting(name, 0)))
    }

    #[test]
    fn what_is_left_is_divided_by_partitions() {
        let whole = FoldRest { buckets: vec![Some(1), None, Some(3), Some(4), None, Some(6)] };
        for parts in 0..8 {
            let divided = whole.divided(parts);
            assert!(!divided.is_empty() && divided.len() <= parts.clamp(1, 4));
            assert!(divided.iter().all(|part| !part.is_empty() && part.buckets.len() == 6));
            for (partition, next) in whole.buckets.iter().enumerate() {
                let mut parts = divided.iter().filter_map(|part| part.buckets[partition]);
                assert_eq!((parts.next(), parts.next()), (*next, None));
            }
        }
        assert!(FoldRest::nothing().divided(2).is_empty());
    }

    #[test]
    fn a_worker_remembers_the_programs_that_it_has_run_last() {
        let programs = FoldPrograms::default();
        let mut cache = FoldCache::new(programs.clone());
        assert!(cache.program(&[1]).is_none(), "nobody has said what programs mean");
        programs.set(read);
        assert!(cache.program(b"none").is_none());
        for turn in 0..3 {
            for name in 0..5 * (turn + 1) {
                let program = cache.program(&[name]).unwrap();
                program.row(b"key", b"value");
                let mut result = Vec::new();
                program.finish(&mut result);
                assert_eq!(result, [name, 1]);
                assert!(cache.remembered.len() <= REMEMBERED_MAX);
            }
        }
    }
}
