//! A node: its memory, its present view, and which version of the configuration each of its workers goes by.
//!
//! ```text
//! publish(an epoch that is prepared) ─▶ each worker stops, and leaves the records of its log slots      stopped()
//!                                       flush(all records): units are applied, ids are kept
//! publish(the epoch when it is active) ▶ each worker settles its commits by those ids, and goes on      flushed()
//! ```
//! *Invariants*: versions of views only rise. A worker is counted from the moment that it has its first view. While the node is
//! flushed, no worker takes a step.
//!
//! *Not here*: the flush itself (`node/flush.rs`); what members tell each other for that, in `membership_change`.

mod flush;
mod hand_over;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use gannet_storage::{Arena, StorageError, Table, TransactionId};

use crate::by_number::ByNumber;
use crate::configuration::{Configuration, Phase, TableEntry};
use crate::learning::{Learning, Lesson};
use crate::lease::{Lease, LeaseTerms};
use crate::node::hand_over::Dropped;
use crate::row_reservations::RowReservations;
use crate::silences::Silences;
use crate::statistics::{ChangeCounters, LessonReport};
use crate::view::{NodeCounts, View};

/// In place of a version that any view has.
const VERSION_OF_ENDED: u64 = u64::MAX;

/// Why a node cannot take part in a membership change. This is a bug of Gannet, or of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlushError {
    #[error("a commit record is damaged; this is a bug of Gannet, or the host's memory fails")]
    Damaged,
    #[error(
        "bucket {bucket} of partition {partition} of table {table} misses an earlier update; this is a bug of Gannet"
    )]
    Gap { table: u32, partition: u16, bucket: u32 },
}

/// What all workers of a node share.
pub struct Node {
    id: u16,
    pub(crate) arena: Arc<Arena>,
    counts: Arc<NodeCounts>,
    view: ArcSwap<View>,
    /// Version of the configuration in `view`, which workers look at in each step.
    version: AtomicU64,
    /// The last version that did more than add tables: a transaction that is under way need not know a table that came after it began.
    awaited: AtomicU64,
    workers: Mutex<Vec<WorkerState>>,
    /// A worker has come to another version, has stopped, or has ended.
    adoption: Condvar,
    flushed: ArcSwap<Flushed>,
    /// Set once: its workers take no step any more.
    ended: AtomicBool,
    /// Set once: they have ended as those of a process that was killed.
    killed: AtomicBool,
    found_by_others: OnceLock<Arc<Flushed>>,
    lease: Lease,
    /// Its times, if one is needed.
    lease_terms: OnceLock<LeaseTerms>,
    /// Has the thread that renews the lease look whether a renewal is wanted at once.
    renewal_waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Nodes that its workers complain about since that was last told.
    complaints: Mutex<BTreeSet<u16>>,
    silences: Silences,
    /// Views that were replaced, and that a thread may hold.
    older: Mutex<Vec<Weak<View>>>,
    /// Large tables that were dropped, and whose memory is to be given back.
    dropped: Mutex<Dropped>,
    /// Workers that split buckets of its tables.
    growing: AtomicUsize,
    /// How often it has begun to hand partitions over.
    hand_overs: AtomicU64,
    /// The partitions that it is handing over.
    handing_over: Mutex<Vec<u16>>,
    /// Whether it is about to be no member any more.
    parts: AtomicBool,
    /// The partitions that the node is to get a part of by what was prepared last.
    prepared: Mutex<BTreeSet<u16>>,
    /// Copies of partitions that it has given up.
    copies_given_up: AtomicU64,
    learning: Arc<Learning>,
    reservations: Arc<RowReservations>,
    changes: ChangeCounters,
}

/// The versions of the configuration that a worker has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adopted {
    /// By which it answers, and its next transactions begin.
    pub(crate) worker: u64,
    /// Which the transactions have that are under way, or a later one.
    pub(crate) coroutines: u64,
}

/// What a node knows of one of its workers.
#[derive(Debug, Default)]
struct WorkerState {
    /// The versions that it goes by, and that all its coroutines have come to; none before the worker is there, and when it has ended.
    adopted: Option<Adopted>,
    /// The version of the view for which it has stopped last.
    stopped: u64,
    /// It has begun a step since the node has begun to hand partitions over for this time.
    hand_overs: u64,
    /// The records of its log slots then, of the epoch that was active.
    records: Vec<Vec<u8>>,
}

/// The transactions of an epoch that are committed, as far as their commits were under way when it ended.
#[derive(Debug, Default)]
pub(crate) struct Flushed {
    /// The epoch.
    epoch: u32,
    pub(crate) ids: BTreeSet<TransactionId>,
    pub(crate) records: Vec<Vec<u8>>,
}

impl Flushed {
    /// The epoch that the transactions belong to.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl Node {
    /// A node without tables. Its memory limit bounds its tables; the limits of all members give the share of each partition.
    ///
    /// # Errors
    /// [`StorageError::Map`] if the operating system refuses the memory.
    ///
    /// # Panics
    /// If the node is no member.
    pub fn new(id: u16, configuration: Arc<Configuration>) -> Result<Self, StorageError> {
        let limits_bytes = configuration.memory_limits_bytes();
        let limit_bytes = limits_bytes[usize::from(id)];
        let shares = shares(&configuration, &limits_bytes);
        let arena = Arc::new(Arena::new(limit_bytes, &shares)?);
        let counts = Arc::<NodeCounts>::default();
        let [version, awaited] = [(); 2].map(|()| AtomicU64::new(configuration.version));
        let (tables, learning) = (ByNumber::default(), Arc::<Learning>::default());
        let reservations = Arc::<RowReservations>::default();
        let shared = (Arc::clone(&counts), Arc::clone(&learning), Arc::clone(&reservations));
        let view = View::new(id, configuration, Arc::clone(&arena), tables, shared);
        Ok(Self {
            id,
            arena,
            counts,
            view: ArcSwap::from_pointee(view),
            version,
            awaited,
            workers: Mutex::default(),
            adoption: Condvar::new(),
            flushed: ArcSwap::default(),
            ended: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            found_by_others: OnceLock::new(),
            lease: Lease::default(),
            lease_terms: OnceLock::new(),
            renewal_waker: OnceLock::new(),
            complaints: Mutex::default(),
            silences: Silences::default(),
            older: Mutex::default(),
            dropped: Mutex::default(),
            growing: AtomicUsize::new(0),
            hand_overs: AtomicU64::new(0),
            handing_over: Mutex::default(),
            parts: AtomicBool::new(false),
            prepared: Mutex::default(),
            copies_given_up: AtomicU64::new(0),
            learning,
            reservations,
            changes: ChangeCounters::default(),
        })
    }

    /// From now on the node answers only while it holds a lease.
    pub(crate) fn require_lease(&self, terms: LeaseTerms) {
        self.lease.require(terms);
        // Its members are there once.
        let _ = self.lease_terms.set(terms);
    }

    /// See there.
    #[inline(always)]
    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// This wakes the thread that renews the lease if a renewal is wanted at once.
    pub(crate) fn set_renewal_waker(&self, wake: impl Fn() + Send + Sync + 'static) {
        // The members have one node.
        let _ = self.renewal_waker.set(Box::new(wake));
    }

    /// Whether what was read at this time of the lease's clock is confirmed. If not, a renewal is sent at once.
    pub(crate) fn is_confirmed(&self, read_ns: u64) -> bool {
        let is_waited_for = self.lease.wants_renewal();
        let is_confirmed = self.lease.is_confirmed(read_ns);
        if !is_confirmed
            && !is_waited_for
            && let Some(wake) = self.renewal_waker.get()
        {
            wake();
        }
        is_confirmed
    }

    /// The times of its lease, if it needs one.
    pub(crate) fn lease_terms(&self) -> Option<LeaseTerms> {
        self.lease_terms.get().copied()
    }

    /// A worker has good reason to think that a node does not work, which it has asked about these partitions. The time is that of the
    /// lease's clock.
    pub(crate) fn complain(&self, about: u16, partitions: &BTreeSet<u16>, now: (u64, LeaseTerms)) {
        self.silences.note(about, partitions, now);
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).insert(about);
    }

    /// The nodes that workers have complained about since the last call.
    pub(crate) fn take_complaints(&self) -> Vec<u16> {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *complaints).into_iter().collect()
    }

    /// The nodes that do not answer its workers.
    pub(crate) fn silences(&self) -> &Silences {
        &self.silences
    }

    /// What the node does as a learner.
    pub(crate) fn learning(&self) -> &Learning {
        &self.learning
    }

    /// What was copied since the last call.
    pub(crate) fn take_copied(&self) -> BTreeSet<Lesson> {
        self.learning.take_copied()
    }

    /// What changes of the membership have done at this node.
    pub(crate) fn changes(&self) -> &ChangeCounters {
        &self.changes
    }

    /// The last hand-overs of partitions whose primary the node was, the latest first: for how long it served nobody there before another
    /// node did.
    #[must_use]
    pub fn unserved_at_hand_overs(&self) -> Vec<Duration> {
        self.changes.unserved()
    }

    /// The node's number.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The configuration and the tables that the node has.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Version of the configuration in [`Self::view`].
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: pairs with the Release in publish(). The view of this version is there.
        self.version.load(Ordering::Acquire)
    }

    /// Whether the new tables of a later configuration would fit.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if one does not, and that of a definition with which no table is possible.
    pub(crate) fn check_memory(&self, configuration: &Configuration) -> Result<(), StorageError> {
        let present = self.view.load();
        let holds = |partition| configuration.is_held_by(partition, self.id);
        for (number, TableEntry { definition, .. }) in
            configuration.tables_since(present.configuration())
        {
            if present.table(number).is_none() {
                let layout = definition.layout(configuration.partitioning)?;
                Table::check_memory(&definition.name, &layout, &self.arena, holds)?;
            }
        }
        Ok(())
    }

    /// Whether the partitions of a later configuration would have room, whose shares are smaller if nodes take more of them.
    ///
    /// # Errors
    /// [`StorageError::NoRoom`] if one has not.
    pub(crate) fn check_shares(&self, configuration: &Configuration) -> Result<(), StorageError> {
        let shares = shares(configuration, &configuration.memory_limits_bytes());
        for partition in configuration.held_by(self.id) {
            let used = self.arena.used_bytes_of(partition);
            let share = shares[usize::from(partition)];
            if used > share {
                return Err(StorageError::NoRoom { partition, used, share });
            }
        }
        Ok(())
    }

    /// The view of a later configuration: the tables that are there already, and new ones. Nobody uses it yet; a view that is
    /// dropped gives the memory of its new tables back.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if a new table does not fit.
    pub(crate) fn prepare(&self, configuration: Arc<Configuration>) -> Result<View, StorageError> {
        let present = self.view.load();
        let holds = |partition| configuration.is_held_by(partition, self.id);
        let before = present.configuration();
        let coming = configuration.held_by(self.id).filter(|it| !before.is_held_by(*it, self.id));
        self.lock_prepared().extend(coming);
        let mut tables = present.shared_tables().clone();
        if !configuration.is_placed_as(before) {
            // Partitions that a table has already stay as they are.
            tables.iter().try_for_each(|(_, table)| {
                configuration.held_by(self.id).try_for_each(|it| table.add_partition(it))
            })?;
        }
        for (number, _) in before.tables_since(&configuration) {
            if configuration.table(number).is_none() {
                tables.remove(number);
            }
        }
        for (number, TableEntry { definition, .. }) in configuration.tables_since(before) {
            if tables.get(number).is_none() {
                let layout = definition.layout(configuration.partitioning)?;
                let arena = Arc::clone(&self.arena);
                tables
                    .insert(number, Arc::new(Table::new(&definition.name, layout, arena, holds)?));
            }
        }
        let Self { counts, learning, reservations, .. } = self;
        let shared = (Arc::clone(counts), Arc::clone(learning), Arc::clone(reservations));
        Ok(View::new(self.id, configuration, Arc::clone(&self.arena), tables, shared))
    }

    /// Has the node's workers adopt a view of a later version.
    ///
    /// # Panics
    /// If its version is not later: the decider numbers the configurations.
    pub(crate) fn publish(&self, view: View) {
        let version = view.configuration().version;
        if self.has_ended() {
            return;
        }
        let present = self.view.load().shared_configuration();
        let hands_over = self.end_hand_over(&present, &view);
        assert!(version > present.version, "versions of configurations only rise");
        let configuration = view.configuration();
        if configuration.last_active_epoch > present.last_active_epoch {
            self.changes.count_epoch();
        }
        // Of an epoch that is prepared nobody is served, and workers may still take a step in the one before.
        if configuration.phase == Phase::Active {
            self.serve(&view, (!hands_over).then_some(&*present));
        }
        if !configuration.only_adds_tables_to(&present) {
            self.awaited.fetch_max(version, Ordering::Relaxed);
        }
        self.arena.set_shares(&shares(configuration, &configuration.memory_limits_bytes()));
        // Before a worker adopts the view, which gives their memory back.
        self.keep_dropped(&self.view.load(), &view);
        let before = self.view.swap(Arc::new(view));
        let mut older = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        older.retain(|view| view.strong_count() > 0);
        older.push(Arc::downgrade(&before));
        drop((older, before));
        self.lock_prepared().clear();
        // Release: pairs with the Acquire in version(). The maximum: the node may have ended meanwhile.
        self.version.fetch_max(version, Ordering::Release);
    }

    /// A worker begins to split buckets of the node's tables, or has ended that.
    pub(crate) fn count_growing(&self, begins: bool) {
        // SeqCst: it is counted before what it takes is no longer noted.
        if begins {
            self.growing.fetch_add(1, Ordering::SeqCst);
        } else {
            self.growing.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether buckets of its tables are split, or about to be.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        let goes_on = self.arena.has_crowded() || self.growing.load(Ordering::SeqCst) > 0;
        goes_on && !self.has_ended()
    }

    /// Whether all views are gone but this one, which is the present one.
    pub(crate) fn is_only_view(&self, view: &View) -> bool {
        let mut older = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        older.retain(|view| view.strong_count() > 0);
        older.is_empty() && self.version() == view.configuration().version
    }

    /// Does something, unless a change that was prepared, and is perhaps decided, gives the node a part of the partition. None is prepared
    /// meanwhile.
    pub(crate) fn unless_prepared(&self, partition: u16, work: impl FnOnce()) {
        let prepared = self.lock_prepared();
        if !prepared.contains(&partition) {
            work();
        }
    }

    /// What was prepared last is given up: nobody uses the partitions that the node was to have by it.
    pub(crate) fn abandon(&self) {
        let view = self.view.load();
        for partition in std::mem::take(&mut *self.lock_prepared()) {
            if !view.configuration().is_held_by(partition, self.id) {
                for (_, table) in view.tables() {
                    table.remove_partition(partition);
                }
            }
        }
    }

    fn lock_prepared(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        // Nothing panics while it is held.
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy is given up.
    pub(crate) fn count_given_up(&self) {
        // Relaxed: a count.
        self.copies_given_up.fetch_add(1, Ordering::Relaxed);
    }

    /// A worker has come to these versions.
    pub(crate) fn adopted(&self, worker: u16, adopted: Adopted) {
        self.change_worker(worker, |state| state.adopted = Some(adopted));
    }

    /// A worker has ended, and is waited for no longer.
    pub(crate) fn worker_ended(&self, worker: u16) {
        self.change_worker(worker, |state| state.adopted = None);
    }

    /// A worker takes no step until the epoch of a view begins that was published with this version. It leaves the records of its
    /// log slots.
    pub(crate) fn stopped(&self, worker: u16, version: u64, records: Vec<Vec<u8>>) {
        self.change_worker(worker, |state| (state.stopped, state.records) = (version, records));
    }

    /// Workers that are there, or were.
    pub(crate) fn worker_count(&self) -> usize {
        self.lock_workers().len().max(1)
    }

    fn change_worker(&self, worker: u16, change: impl FnOnce(&mut WorkerState)) {
        let (mut workers, worker) = (self.lock_workers(), usize::from(worker));
        if workers.len() <= worker {
            workers.resize_with(worker + 1, WorkerState::default);
        }
        change(&mut workers[worker]);
        self.adoption.notify_all();
    }

    /// Waits until every worker that runs goes by this version, or a later one; at most for a time. Its transactions are waited for as well,
    /// unless the versions after theirs have only added tables. Whether all do.
    pub(crate) fn wait_for_adoption(&self, version: u64, at_most: Duration) -> bool {
        // Relaxed: the thread that waits has published it, or has heard from a thread that has.
        let awaited = self.awaited.load(Ordering::Relaxed).min(version);
        self.wait_for_workers(at_most, |state| {
            state.adopted.is_none_or(|it| it.worker >= version && it.coroutines >= awaited)
        })
    }

    /// Waits until every worker that runs has stopped for the view of this version; at most for a time. Whether they have.
    pub(crate) fn wait_for_stop(&self, version: u64, at_most: Duration) -> bool {
        self.wait_for_workers(at_most, |state| state.adopted.is_none() || state.stopped >= version)
    }

    fn wait_for_workers(&self, at_most: Duration, is_there: impl Fn(&WorkerState) -> bool) -> bool {
        let is_behind = |workers: &mut Vec<WorkerState>| !workers.iter().all(&is_there);
        let waited = self.adoption.wait_timeout_while(self.lock_workers(), at_most, is_behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn lock_workers(&self) -> MutexGuard<'_, Vec<WorkerState>> {
        // Nothing panics while it is held.
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the workers for good, as the end of the node's process would.
    pub(crate) fn kill(&self) {
        // Release: pairs with the Acquire in is_killed().
        self.killed.store(true, Ordering::Release);
        self.end();
    }

    /// Stops the workers for good, with their next steps.
    pub(crate) fn end(&self) {
        // Release: pairs with the Acquire in has_ended(), and the one below with that in version().
        self.ended.store(true, Ordering::Release);
        self.version.store(VERSION_OF_ENDED, Ordering::Release);
    }

    /// Whether the workers are to take no step any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the node was killed.
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Has the workers of a node that was killed settle the commits that were under way, by what the others have found.
    pub(crate) fn bury(&self, flushed: Arc<Flushed>) {
        // A node is killed once.
        let _ = self.found_by_others.set(flushed);
    }

    /// What the others have found of the transactions of this node, which was killed.
    pub(crate) fn found_by_others(&self) -> Option<&Flushed> {
        self.found_by_others.get().map(|flushed| &**flushed)
    }

    /// Bytes of table memory in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.arena.used_bytes()
    }

    /// Bytes of table memory that a partition takes.
    #[must_use]
    pub fn used_bytes_of(&self, partition: u16) -> usize {
        self.arena.used_bytes_of(partition)
    }

    /// What it has of partitions that nodes are being filled with, and that it is primary of or is being filled with.
    pub(crate) fn lessons(&self) -> Vec<LessonReport> {
        let configuration = self.view.load().shared_configuration();
        let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
        let lesson = |partition| {
            let learners = configuration.learners(partition);
            let learns = learners.iter().any(|learner| learner.node == self.id);
            let teaches = !learners.is_empty() && configuration.primary(partition) == self.id;
            let bytes = || self.used_bytes_of(partition) as u64;
            let count = u16::try_from(learners.len()).expect("nodes are numbered with 16 bits");
            let report = || LessonReport { partition, learners: count, learns, bytes: bytes() };
            (learns || teaches).then(report)
        };
        partitions.filter_map(lesson).collect()
    }

    /// Bytes of main buckets, which tables take when they are created, and as they grow. They count in [`Self::used_bytes`] even while they are
    /// empty; the system gives memory only to those that were touched.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        let view = self.view.load();
        let of_table = |(_, table): (u32, &Table)| {
            let held = view.configuration().held_by(self.id);
            held.map(|partition| table.bucket_bytes(partition)).sum::<usize>()
        };
        view.tables().map(of_table).sum()
    }

    /// Bytes of table memory that it may use.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.arena.limit_bytes()
    }

    /// Bytes of data that all nodes together have room for, a copy of each partition counted, as far as it spreads evenly. The
    /// same on every node.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.arena.capacity_bytes()
    }

    /// Copies of partitions of a table that the node has given up, as others have them.
    #[must_use]
    pub fn copies_given_up(&self) -> u64 {
        self.copies_given_up.load(Ordering::Relaxed)
    }

    /// Updates that a copy on this node could not apply because an earlier one is missing.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.counts.gaps.load(Ordering::Relaxed)
    }

    /// Requests that named a table, partition or bucket that this node does not have, or were malformed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.counts.refused.load(Ordering::Relaxed)
    }
}

/// By partition, the bytes that each of its copies may take (rule C9): a node divides its limit evenly among the copies that it
/// holds, and the smallest of these shares is what all copies of the partition have. So what fits a primary fits its backups.
fn shares(configuration: &Configuration, limit_bytes: &[usize]) -> Vec<usize> {
    let partitions = || (0..=u16::MAX).take(configuration.partitioning.count());
    let mut copies_held = vec![0; limit_bytes.len()];
    for copy in partitions().flat_map(|partition| configuration.holders_of(partition)) {
        copies_held[usize::from(copy)] += 1;
    }
    let share = |copy: u16| {
        let node = usize::from(copy);
        Arena::share_bytes(limit_bytes[node], copies_held[node])
    };
    let smallest = |partition| configuration.holders_of(partition).map(share).min();
    // One that is lost has no copy, and takes nothing.
    partitions().map(|partition| smallest(partition).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;

    #[test]
    fn a_partition_has_the_smallest_share_of_its_copies() {
        // Node n holds partitions n - 1 and n of each round of five: 4 + 3 of 16 on node 0, as it begins one round more.
        let configuration = Configuration::new(7, 5, 2, Partitioning::new(16).unwrap());
        let mebibytes = [70, 70, 6, 70, 70].map(|limit: usize| limit << 20);
        let shares = shares(&configuration, &mebibytes);
        for (partition, share) in (0..).zip(&shares) {
            let is_small = configuration.copies(partition).contains(&2);
            assert_eq!(*share <= 1 << 20, is_small, "{partition}: {share}");
        }
        for node in 0..5_u16 {
            let holds = |partition| configuration.copies(partition).contains(&node);
            let all: usize = (0..).zip(&shares).filter(|(p, _)| holds(*p)).map(|(_, s)| s).sum();
            assert!(all < mebibytes[usize::from(node)], "node {node}: {all}");
        }
    }
}
