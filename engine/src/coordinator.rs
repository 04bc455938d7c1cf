//! The coordinator: a job in a coroutine starts its transactions with it, one after the other.
//!
//! *Invariants*: a coroutine has one transaction at a time. A closure's error or panic is reported only if its reads were valid. After a
//! job nothing is locked.
//!
//! *Source*: FaSST section 5 (worker coroutines act as coordinators).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gannet_rpc::{Clock, is_cancel};
use gannet_storage::HashSeed;

use crate::cancellation::CancellationToken;
use crate::holder::Holder;
use crate::outcome::{Abort, Conflict, Failure, Outcome, panic_message};
use crate::table_id::TableId;
use crate::transaction::Transaction;
use crate::transaction::barrier::ScanBarrier;
use crate::transaction::load::BulkLoad;
use crate::transaction::round::Interrupted;

/// Runs of a closure before its conflicts are reported.
const ATTEMPTS_MAX: u32 = 100;
/// The same for a closure whose locks a scan barrier refuses, which may take seconds.
const BARRIER_ATTEMPTS_MAX: u32 = 20_000;
/// Longest first wait after a conflict; it doubles with each further one.
const BACKOFF_NS_MIN: u64 = 2_000;
/// Longest wait after one of the first conflicts.
const BACKOFF_NS_MAX: u64 = 1_000_000;
/// Conflicts after which the other transaction is considered to be delayed: its thread has lost its core, or a node is slow.
const LASTING_ATTEMPTS: u32 = 40;
/// Further conflicts until the longest wait doubles, up to so many times.
const LASTING_STEP: u32 = 10;
const LASTING_DOUBLINGS_MAX: u32 = 6;
/// Between the first two looks whether there are buckets for expected rows. The time doubles up to the longest.
const EXPECTING_LOOK_MIN: Duration = Duration::from_micros(100);
const EXPECTING_LOOK_MAX: Duration = Duration::from_millis(1);
/// Looks before the rows are inserted all the same.
const EXPECTING_LOOKS_MAX: u32 = 2_000;
/// How long a job that calls [`Coordinator::give_way`] has its worker to itself.
const TURN_NS_MAX: u64 = 1_000_000;

/// Starts the transactions of one coroutine, one after the other.
pub struct Coordinator<'s> {
    transaction: Transaction<'s>,
    clock: Rc<dyn Clock>,
    time_of_day: Rc<dyn Clock>,
    /// State of the generator behind the backoff.
    random: u64,
    /// Scan barriers on tables that are read.
    barriers: Vec<ScanBarrier>,
    /// Since when the job has not given way; `None` before its first call of [`Self::give_way`].
    turn_since_ns: Option<u64>,
}

impl<'s> Coordinator<'s> {
    /// A coordinator with a clock and the time of day.
    pub(crate) fn new(
        transaction: Transaction<'s>,
        (clock, time_of_day): (Rc<dyn Clock>, Rc<dyn Clock>),
        seed: u64,
    ) -> Self {
        let (barriers, turn_since_ns) = (Vec::new(), None);
        Self { transaction, clock, time_of_day, random: seed, barriers, turn_since_ns }
    }

    /// Starts a transaction; one that is still open is aborted.
    #[inline]
    pub fn begin(&mut self) -> &mut Transaction<'s> {
        self.transaction.restart();
        &mut self.transaction
    }

    /// Nanoseconds on the worker's clock.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Milliseconds since 1970.
    pub(crate) fn time_of_day_ms(&self) -> u64 {
        self.time_of_day.now_ns() / 1_000_000
    }

    /// The epoch of the last transaction.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.transaction.epoch()
    }

    /// The version of the configuration that the last transaction goes by.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.transaction.view_version()
    }

    /// The node that the transactions run at.
    #[inline]
    #[must_use]
    pub fn node(&self) -> u16 {
        self.transaction.node_id()
    }

    /// The worker of the node that the transactions run at.
    #[must_use]
    pub fn worker(&self) -> usize {
        usize::from(self.transaction.owner().worker())
    }

    /// A partition whose primary this node is: its rows are read without a message. If there is none, the first that is not lost.
    #[inline]
    #[must_use]
    pub fn home_partition(&self) -> Option<u16> {
        self.transaction.home_partition()
    }

    /// What goes into the hashes of keys.
    pub(crate) fn hash_seed(&self) -> HashSeed {
        self.transaction.partitioning().seed()
    }

    /// The node that holds `key` as primary, in every table; `u16::MAX` if the partition of the key is lost.
    #[inline]
    #[must_use]
    pub fn primary(&self, key: u64) -> u16 {
        self.transaction.primary(key)
    }

    /// Runs `body` as a transaction and commits it; runs it again, after a random and growing wait,
    /// when it met a conflict.
    ///
    /// `body` may see rows that do not belong together before validation tells; an error or panic
    /// that it raises is therefore reported only if what it had read was valid, and retried if not.
    /// It must not keep effects of its own from one run to the next, and cannot commit: [`Transaction::commit`] refuses in it.
    pub fn run<T, E: From<Abort>>(
        &mut self,
        mut body: impl FnMut(&mut Transaction<'s>) -> Result<T, E>,
    ) -> Outcome<T, E> {
        let (mut conflicting, mut blocked) = (0, 0);
        loop {
            let transaction = self.begin().leave_commit();
            let conflict = match catch_unwind(AssertUnwindSafe(|| body(transaction))) {
                Ok(Ok(value)) => match transaction.commit_decided() {
                    Ok(()) => return Outcome::Committed(value),
                    Err(Abort::Failure(Failure::Unknown)) => return Outcome::Unknown,
                    Err(abort) if abort.is_conflict() => abort,
                    Err(abort) => return Outcome::Aborted(abort),
                },
                Ok(Err(error)) => match transaction.give_up() {
                    Ok(()) => return Outcome::Failed(error),
                    Err(abort) => abort,
                },
                Err(panic) if is_cancel(&*panic) => resume_unwind(panic),
                Err(panic) => match transaction.give_up() {
                    Ok(()) => return Outcome::Panicked(panic_message(&*panic)),
                    Err(abort) => abort,
                },
            };
            let (attempts, attempts_max) = match conflict {
                Abort::Conflict(Conflict::Barrier | Conflict::Reserved) => {
                    (&mut blocked, BARRIER_ATTEMPTS_MAX)
                }
                _ => (&mut conflicting, ATTEMPTS_MAX),
            };
            *attempts += 1;
            if *attempts == attempts_max || !conflict.is_conflict() {
                return Outcome::Aborted(conflict);
            }
            match conflict {
                Abort::Conflict(Conflict::Barrier | Conflict::Reserved) => self.back_off(*attempts),
                _ => self.outwait(*attempts),
            }
        }
    }

    /// Runs `attempt`, which is given its number from 1, until it ends without a conflict or for the
    /// `attempts_max`th time, with a random and growing wait in between.
    ///
    /// For jobs that begin transactions themselves; [`Self::run`] does it itself.
    ///
    /// # Errors
    /// Those of the last attempt.
    pub fn retried<T, E>(
        &mut self,
        attempts_max: u32,
        is_conflict: impl Fn(&E) -> bool,
        mut attempt: impl FnMut(&mut Self, u32) -> Result<T, E>,
    ) -> Result<T, E> {
        for number in 1..attempts_max {
            match attempt(self, number) {
                Err(error) if is_conflict(&error) => self.outwait(number),
                result => return result,
            }
        }
        attempt(self, attempts_max)
    }

    /// Waits for a random time below a bound that doubles with each attempt, up to a millisecond.
    ///
    /// For jobs that count conflicts; [`Self::retried`] waits itself, and longer after many.
    pub fn back_off(&mut self, attempt: u32) {
        self.wait_below((BACKOFF_NS_MIN << attempt.min(16)).min(BACKOFF_NS_MAX));
    }

    /// Backs off, longer and longer after many conflicts. A hundred attempts together take about half a second, and two hundred about
    /// four seconds, so they outlast a thread that has lost its core with rows locked.
    fn outwait(&mut self, attempt: u32) {
        let lasting = attempt.saturating_sub(LASTING_ATTEMPTS).div_ceil(LASTING_STEP);
        let longest = BACKOFF_NS_MAX << lasting.min(LASTING_DOUBLINGS_MAX);
        self.wait_below((BACKOFF_NS_MIN << attempt.min(16)).min(longest));
    }

    /// Waits for a random time below a bound.
    fn wait_below(&mut self, bound_ns: u64) {
        // Knuth's multiplicative generator; its upper bits are good enough to separate two rivals.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let wait = (self.random >> 33) % bound_ns;
        let until = self.now_ns() + wait;
        self.transaction.sleep_until(until);
    }

    /// Waits for a time, in which the worker's other coroutines go on. For jobs that wait for other threads.
    pub fn pause(&mut self, time: Duration) {
        let wait_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let until = self.now_ns().saturating_add(wait_ns);
        self.transaction.sleep_until(until);
        self.turn_since_ns = None;
    }

    /// Lets the worker's other coroutines go on, and its participant answer, if the job has not done so for a millisecond. Whether they
    /// did.
    ///
    /// For jobs that compute for long, between transactions or in one; they call it often. Between transactions they had better
    /// [begin](Self::begin) one whenever others went on: changes of the cluster's tables wait for jobs that do not.
    pub fn give_way(&mut self) -> bool {
        let now = self.now_ns();
        let since = *self.turn_since_ns.get_or_insert(now);
        let is_long = now.saturating_sub(since) >= TURN_NS_MAX;
        if is_long {
            self.let_others_go_on(1);
        }
        is_long
    }

    /// Lets each of the worker's other coroutines go on so often, if it can.
    pub(crate) fn let_others_go_on(&mut self, turns: u32) {
        for _ in 0..turns {
            let now = self.now_ns();
            self.transaction.sleep_until(now);
            self.turn_since_ns = None;
        }
    }

    /// Has the primaries of a table split buckets for so many new rows, and waits for that, for two seconds or a little longer. Whether they
    /// have ended: each has enough buckets, or no memory for further ones.
    ///
    /// A hint, for rows that come soon, such as those of a loader: without it they find room in longer chains. The engine itself expects
    /// the rows that a deferred transaction inserts.
    ///
    /// # Errors
    /// That of an interruption.
    pub fn expect_rows(&mut self, table: TableId, rows: usize) -> Result<bool, Abort> {
        let partitions = self.transaction.partitioning().count();
        let each = u32::try_from(rows / partitions).unwrap_or(u32::MAX);
        self.expect_all(vec![(table, vec![each; partitions])])
    }

    /// As [`Self::expect_rows`], of several tables together, with the rows of each partition.
    pub(crate) fn expect_all(
        &mut self,
        mut tables: Vec<(TableId, Vec<u32>)>,
    ) -> Result<bool, Abort> {
        for look in 0..EXPECTING_LOOKS_MAX {
            let mut crowded = Vec::new();
            for (table, rows) in tables {
                if self.begin().expect(table, &rows)? {
                    crowded.push((table, rows));
                }
            }
            if crowded.is_empty() {
                return Ok(true);
            }
            tables = crowded;
            self.pause((EXPECTING_LOOK_MIN * (1 << look.min(8))).min(EXPECTING_LOOK_MAX));
        }
        Ok(false)
    }

    /// Begins a bulk load of an ordered table that no transaction uses yet, not even this job's: its rows come to all copies without locks and
    /// commit records. None if something was written to the table, another load of it has begun, it has more than 64 buckets in a partition, or
    /// copies come or go just now: insert the rows by transactions then.
    ///
    /// Nobody may use the table before [`Self::end_bulk_load`]. If one of the calls of a load ends with an error, this one included, or if the load
    /// is given up, drop the table.
    ///
    /// # Errors
    /// [`crate::Misuse::NoSuchTable`] for a table without order, [`Failure::Lost`] if a partition is lost, [`Conflict::Reconfigured`], or that of
    /// an interruption.
    pub fn begin_bulk_load(&mut self, table: TableId) -> Result<Option<BulkLoad>, Abort> {
        self.begin().begin_bulk_load(table)
    }

    /// Adds rows, keys and values, to a table whose bulk load has begun. Several jobs of the node may do so at once. The number of the first row
    /// whose key is there already, if there is one; the load has failed then.
    ///
    /// # Errors
    /// Why the load has failed: [`Conflict::Reconfigured`] if a copy has come or gone, or is being made; [`Failure::TableFull`];
    /// [`crate::Misuse::Row`] and [`crate::Misuse::ValueBytes`] for a row that the table cannot have, [`crate::Misuse::LoadEnded`],
    /// [`crate::Misuse::NoSuchTable`] if the table was dropped; that of an interruption.
    pub fn bulk_load(
        &mut self,
        load: BulkLoad,
        rows: &[(&[u8], &[u8])],
    ) -> Result<Option<usize>, Abort> {
        self.begin().bulk_load(load, rows)
    }

    /// Ends a bulk load, all of whose rows are there: transactions can use the table from now on.
    ///
    /// # Errors
    /// As [`Self::bulk_load`].
    pub fn end_bulk_load(&mut self, load: BulkLoad) -> Result<(), Abort> {
        self.begin().end_bulk_load(load)
    }

    /// A holder of row reservations that was none before.
    pub(crate) fn new_holder(&self) -> Holder {
        self.transaction.new_holder()
    }

    /// Whether one more coroutine of the worker may wait for a row that another transaction has reserved; then it does.
    pub(crate) fn begin_waiting(&self) -> bool {
        self.transaction.adopted().begin_waiting()
    }

    /// The coroutine does not wait any more.
    pub(crate) fn end_waiting(&self) {
        self.transaction.adopted().end_waiting();
    }

    /// The holder of the token may cancel the job before it ends, and learns what keeps the job from going on.
    pub fn set_cancellation(&mut self, token: Arc<CancellationToken>) {
        token.begin();
        self.transaction.tell_token(Some(Arc::clone(&token)));
        self.transaction.set_cancellation(Some(token));
    }

    /// The token of the job, for another job that does part of its work.
    #[must_use]
    pub fn cancellation(&self) -> Option<Arc<CancellationToken>> {
        self.transaction.cancellation()
    }

    /// Waits until the node holds its lease: then its own rows were right when the job has read them.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn hold_lease(&mut self) -> Result<(), Abort> {
        self.transaction.hold_lease()
    }

    /// Runs transactions that a cancellation of the job does not end: their outcome is not the job's.
    pub fn without_cancellation<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let token = self.transaction.set_cancellation(None);
        let result = work(self);
        self.transaction.set_cancellation(token);
        result
    }

    /// Whether the job is cancelled: then it had better end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.transaction.is_cancelled()
    }

    /// Whether the job is cancelled, and has not seen that yet: what it does is in vain.
    pub(crate) fn acts_in_vain(&self) -> bool {
        self.transaction.acts_in_vain()
    }

    /// Keeps others from locking rows of an ordered table, until [`Self::release_barriers`] or the end of the job.
    ///
    /// # Errors
    /// [`crate::Misuse::NoSuchTable`] for a table without order.
    pub(crate) fn set_barrier(&mut self, table: TableId) -> Result<(), Abort> {
        if self.barriers.iter().all(|barrier| barrier.table != table) {
            let barrier = self.begin().set_barrier(table)?;
            self.barriers.push(barrier);
        }
        Ok(())
    }

    /// Lets others lock those tables again; between transactions.
    pub(crate) fn release_barriers(&mut self) {
        for barrier in self.barriers.drain(..) {
            self.transaction.release_barrier(&barrier);
        }
    }

    /// Ends what a job left open; nothing is locked any more then. To do it twice is to do it once.
    pub(crate) fn finish_job(&mut self) {
        self.transaction.abort();
        self.release_barriers();
        // A coroutine that is interrupted has nothing to settle.
        let _: Result<(), Interrupted> = self.transaction.settle();
        if self.transaction.set_cancellation(None).is_some() {
            self.transaction.tell_token(None);
        }
        self.turn_since_ns = None;
    }

    /// Waits for the next job, by the view that the worker has adopted. A worker that adopts another one meanwhile resumes it without a
    /// job.
    pub(crate) fn wait_for_job(&mut self) {
        self.transaction.refresh_view();
        self.transaction.wait_for_job();
    }
}
