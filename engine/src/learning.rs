//! What a node does as a learner: it is filled with partitions, while transactions go on.
//!
//! ```text
//! Change::Learn   every node sends the updates of the partition to the learner, too: those that it cannot apply yet wait here
//! Change::Fill    all transactions have ended that do not: a job for each partition copies bucket after bucket (`copying`)
//! Change::Learned the partition has all its rows: the node is a backup
//! ```
//! An update waits if its bucket has a lower version than the update's base: until the copy of the bucket has come. Then it is applied, or
//! known to be in the copy. A copy replaces whatever the bucket has at a lower version: in the grace period between `Learn` and `Fill` some
//! updates come to the learner, and others do not. At its primary no bucket with rows has version 0.
//!
//! A half may be merged before it is copied. Then it will not be copied: the merge has its rows, or the copy of the bucket has, and what waits for
//! the half is given up.
//!
//! Where a split waited, the other half is born when the split is applied, and what waits for that half follows. Buckets are copied in the
//! order of their numbers, and a half that is born has a larger number: the copy comes to all halves.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again".
//!
//! *Invariants*: nothing waits for a bucket that was copied. When a partition is copied, nothing waits for any of its buckets.
//!
//! *Not here*: who becomes a learner, in `placement` and `decider`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gannet_rules::rule;
use gannet_storage::{Applied, BucketUpdate, Table, UnitKind};

/// A partition, and the version of the configuration since which the node learns it.
pub(crate) type Lesson = (u16, u64);

/// Bytes of each second that a worker copies at most, by default.
pub(crate) const COPY_BYTES_PER_SECOND: u64 = 16 << 20;
/// Partitions that a worker copies at once: while one waits for its primary, another is filled.
pub(crate) const JOBS_MAX: u64 = 2;
/// Most bytes of updates that wait. A node for which more come cannot keep up, and ends.
const WAITING_BYTES_MAX: usize = 1 << 30;

/// As long as more bytes wait, workers copy as fast as they can.
const UNPACED_BYTES: usize = WAITING_BYTES_MAX / 4;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Learning {
    state: Mutex<State>,
    /// Bytes of each second that a worker copies at most.
    bytes_per_second: AtomicU64,
}

impl Default for Learning {
    fn default() -> Self {
        Self { state: Mutex::default(), bytes_per_second: AtomicU64::new(COPY_BYTES_PER_SECOND) }
    }
}

#[derive(Debug, Default)]
struct State {
    /// By table, partition and bucket: units that wait for the copy of their bucket.
    waiting: BTreeMap<(u32, u16, u32), Vec<Vec<u8>>>,
    waiting_bytes: usize,
    /// What jobs copy, have copied, or are to copy.
    begun: BTreeSet<Lesson>,
    /// By worker with jobs that copy.
    queued: BTreeMap<u16, Queue>,
    /// What is copied, or given back, and was not told yet.
    copied: BTreeSet<Lesson>,
    /// Bytes that were copied since the node began.
    bytes: u64,
    /// The node closes: nothing is copied any more.
    is_over: bool,
}

/// What the jobs of a worker are to copy after what they copy now.
#[derive(Debug, Default)]
struct Queue {
    lessons: VecDeque<Lesson>,
    jobs: u64,
}

impl State {
    /// The units that wait for the copy of a bucket.
    fn take_waiting(&mut self, of_bucket: (u32, u16, u32)) -> Vec<Vec<u8>> {
        let waiting = self.waiting.remove(&of_bucket).unwrap_or_default();
        self.waiting_bytes -= waiting.iter().map(Vec::len).sum::<usize>();
        waiting
    }

    /// Gives up what waits for halves of a bucket that were merged into it before it was copied: they will not be copied.
    fn drop_merged(&mut self, table: &Table, copy: &BucketUpdate<'_>) {
        let (number, partition) = (copy.table, copy.partition);
        let behind =
            (number, partition, copy.bucket.saturating_add(1))..=(number, partition, u32::MAX);
        let buckets: Vec<_> = self.waiting.range(behind).map(|(key, _)| *key).collect();
        for key in buckets.into_iter().filter(|key| table.is_split_off(copy, key.2)) {
            let waiting = self.take_waiting(key);
            let is_later =
                |bytes: &Vec<u8>| BucketUpdate::parse_checked(bytes).order() > copy.order() + 1;
            let later: Vec<_> = waiting.into_iter().filter(is_later).collect();
            if !later.is_empty() {
                self.waiting_bytes += later.iter().map(Vec::len).sum::<usize>();
                self.waiting.insert(key, later);
            }
        }
    }
}

impl Learning {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held but on a bug of the tables, with which the node ends.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long a job of a worker is to take to copy so many bytes, at least, in nanoseconds.
    pub(crate) fn time_of(&self, worker: u16, bytes: usize) -> u64 {
        let state = self.lock();
        if state.waiting_bytes > UNPACED_BYTES {
            return 0;
        }
        let jobs = state.queued.get(&worker).map_or(1, |queue| queue.jobs);
        drop(state);
        // Relaxed: a setting.
        let bytes_per_second = self.bytes_per_second.load(Ordering::Relaxed).max(1);
        let alone_ns = (bytes as u64).saturating_mul(1_000_000_000) / bytes_per_second;
        alone_ns.saturating_mul(jobs)
    }

    /// Has workers copy at most so many bytes in a second.
    pub(crate) fn set_bytes_per_second(&self, bytes: u64) {
        self.bytes_per_second.store(bytes, Ordering::Relaxed);
    }

    /// Applies a unit of a bucket that may not be copied yet, or has it wait. It is `bytes`. Whether it could.
    pub(crate) fn update(&self, table: &Table, (unit, bytes): (&BucketUpdate<'_>, &[u8])) -> bool {
        let mut state = self.lock();
        // The copy may have come meanwhile, and the bucket have got other memory.
        let Some(address) = table.address_to_fill(unit) else { return false };
        if table.apply_at_backup(address, unit) != Applied::Gap || !rule!(WAITING_UPDATES) {
            return true;
        }
        if state.waiting_bytes + bytes.len() > WAITING_BYTES_MAX {
            return false;
        }
        state.waiting_bytes += bytes.len();
        let of_bucket = (unit.table, unit.partition, unit.bucket);
        state.waiting.entry(of_bucket).or_default().push(bytes.to_vec());
        true
    }

    /// Makes a bucket what it is at the primary, and applies what waits for that.
    ///
    /// # Errors
    /// A unit misses an earlier one, which is a bug.
    pub(crate) fn copy(&self, table: &Table, unit: &BucketUpdate<'_>) -> Result<(), Applied> {
        let mut state = self.lock();
        let applied = table.fill_bucket(unit);
        applied.expect("a learner has its partition, and memory for it");
        if state.waiting.is_empty() {
            return Ok(());
        }
        state.drop_merged(table, unit);
        let mut filled = vec![unit.bucket];
        while let Some(bucket) = filled.pop() {
            let waiting = state.take_waiting((unit.table, unit.partition, bucket));
            let units = waiting.iter().map(|bytes| BucketUpdate::parse_checked(bytes));
            let mut units: Vec<_> = units.collect();
            // A flush brings them in any order.
            units.sort_by_key(BucketUpdate::order);
            for unit in units {
                let address = table.address_to_fill(&unit);
                let address = address.ok_or(Applied::Gap)?;
                match table.apply_at_backup(address, &unit) {
                    Applied::Gap => return Err(Applied::Gap),
                    // Its other half is born, and is like a bucket that was copied.
                    Applied::Applied if unit.kind == UnitKind::Split && rule!(WAITING_SPLITS) => {
                        filled.extend(table.child_of(bucket, unit.base_version));
                    }
                    Applied::Applied | Applied::Duplicate => {}
                }
            }
        }
        Ok(())
    }

    /// A worker is to copy a partition, if nobody does so. Whether the worker is to begin a job for that: it has fewer than
    /// `jobs_max`.
    pub(crate) fn begin(&self, worker: u16, lesson: Lesson, jobs_max: u64) -> bool {
        let mut state = self.lock();
        if state.is_over || !state.begun.insert(lesson) {
            return false;
        }
        let queue = state.queued.entry(worker).or_default();
        queue.lessons.push_back(lesson);
        let begins = queue.jobs < jobs_max;
        queue.jobs += u64::from(begins);
        begins
    }

    /// What a worker's job is to copy next; none if the job is to end.
    pub(crate) fn next(&self, worker: u16) -> Option<Lesson> {
        let mut state = self.lock();
        let is_over = state.is_over;
        let queue = state.queued.get_mut(&worker)?;
        let next = queue.lessons.pop_front().filter(|_| !is_over);
        if next.is_none() {
            queue.jobs -= 1;
            if queue.jobs == 0 {
                state.queued.remove(&worker);
            }
        }
        next
    }

    /// The node closes, which waits for no copies.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
    }

    /// Whether it closes.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// The job that copied a partition has ended before all of it was copied.
    pub(crate) fn give_up(&self, lesson: Lesson) {
        self.lock().begun.remove(&lesson);
    }

    /// A partition is copied. What waits for tables that are not used any more is given up, and for halves that were merged before they were
    /// copied. Whether nothing else waits. `used` has the tables that are used.
    pub(crate) fn finish<'t>(
        &self,
        lesson: Lesson,
        used: impl Fn(u32) -> Option<&'t Table>,
    ) -> bool {
        let mut state = self.lock();
        let State { waiting, waiting_bytes, .. } = &mut *state;
        waiting.retain(|&(number, partition, _), units| {
            let table = used(number);
            units.retain(|bytes| {
                let unit = BucketUpdate::parse_checked(bytes);
                let is_open = |table: &Table| !table.is_duplicate(&unit);
                let is_kept = partition != lesson.0 || table.is_some_and(is_open);
                *waiting_bytes -= if is_kept { 0 } else { bytes.len() };
                is_kept
            });
            !units.is_empty()
        });
        state.copied.insert(lesson);
        state.waiting.keys().all(|(_, partition, _)| *partition != lesson.0)
    }

    /// So many bytes were copied.
    pub(crate) fn count(&self, bytes: usize) {
        self.lock().bytes += bytes as u64;
    }

    /// Bytes that were copied since the node began.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// What the node was to do with a partition is done: the decider is to hear of it.
    pub(crate) fn note(&self, lesson: Lesson) {
        self.lock().copied.insert(lesson);
    }

    /// What was copied, or given back, since the last call.
    pub(crate) fn take_copied(&self) -> BTreeSet<Lesson> {
        std::mem::take(&mut self.lock().copied)
    }
}
