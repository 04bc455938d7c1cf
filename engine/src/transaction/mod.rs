//! A transaction as its code sees it: read and write sets, execute, commit, abort.
//!
//! ```text
//! add_to_read_set ┐                    ┌ commit: buckets agree (C2) ─ validate ─ log ─ backup ─ primary
//! add_to_write_set┴ execute ─ values ─ ┤
//!     (again with further keys)        └ abort: unlock
//! ```
//! One file per phase. The transaction's buffers belong to its coroutine and are used again by the
//! next one, so that a transaction allocates nothing once they have grown.
//!
//! *Source*: FaSST sections 5 and 5.2.1.
//!
//! *Invariants*: rule C1: `execute` returns only when every lock is answered, and `validate` comes
//! after; what a row says was true at one moment, and all rows at the same one only after commit.

mod abort;
mod access_set;
mod backup;
pub(crate) mod barrier;
mod buckets;
pub(crate) mod copy;
mod count;
mod execute;
pub(crate) mod expect;
mod fold;
mod heap;
pub(crate) mod load;
mod local;
mod log;
mod merge;
mod primary;
pub(crate) mod reserve;
pub(crate) mod round;
mod scan;
pub(crate) mod split;
mod validate;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use gannet_rpc::is_cancel;
use gannet_rules::rule;
use gannet_storage::{CommitLog, Key, LockMode, Owner, Partitioning, TableKind, TransactionId};

use crate::cancellation::CancellationToken;
use crate::commit::{Settled, Stage};
use crate::configuration::NOBODY;
use crate::control::{Interruption, PrefetchQueue, WaitReason};
use crate::holder::Passes;
use crate::outcome::{Abort, Conflict, Failure, Misuse, RowProblem, panic_message};
use crate::row_key::RowKey;
use crate::table_id::TableId;
pub use crate::transaction::access_set::RowId;
use crate::transaction::access_set::{AccessSet, Row, RowState, bytes_of_value};
use crate::transaction::buckets::BucketGroup;
pub(crate) use crate::transaction::fold::{FoldPage, SpanObservation};
pub use crate::transaction::heap::Change;
pub(crate) use crate::transaction::heap::Observation;
use crate::transaction::log::Record;
use crate::transaction::round::{Interrupted, Round};
pub(crate) use crate::transaction::scan::{RangeObservation, ScanObservation, ScanPage};
use crate::view::{AdoptedView, View};

/// Bytes of values and records that a coroutine keeps from one transaction to the next.
const BYTES_KEPT_MAX: usize = 256 << 10;

/// Scratch space of the phases.
#[derive(Default)]
struct Scratch {
    /// Buckets and rows in the order of the buckets; see `buckets.rs`.
    order: Vec<(u64, u32)>,
    /// The groups of buckets that this transaction holds, and of those that it has only read.
    held: Vec<BucketGroup>,
    read: Vec<BucketGroup>,
    /// Whether observations of a bucket differ, in a table whose rows have stamps.
    are_doubtful: bool,
    /// A request, while it is put together.
    message: Vec<u8>,
}

/// A transaction in a coroutine; [`crate::Coordinator::begin`] starts one.
pub struct Transaction<'s> {
    /// The view that the transaction began with.
    view: Arc<View>,
    /// Of its worker.
    adopted: Rc<AdoptedView>,
    /// Of its worker.
    log: Rc<RefCell<CommitLog>>,
    /// Of its worker.
    prefetches: Rc<PrefetchQueue>,
    round: Round<'s>,
    owner: Owner,
    /// Cancels the job, if that is possible.
    cancellation: Option<Arc<CancellationToken>>,
    /// Why it cannot commit any more.
    doom: Option<Abort>,
    /// Whether the runner of the transaction's code commits it, and the code itself must not.
    is_committed_for: bool,
    /// Whether reservations of others do not keep its locks out.
    passes: Passes,
    set: AccessSet,
    scratch: Scratch,
    record: Record,
}

/// The last transaction of a coroutine, as one of the view's epoch.
fn owner_in(view: &View, round: &Round<'_>) -> Owner {
    let epoch = view.configuration().epoch;
    TransactionId { epoch, ..round.commits().open.id() }.into()
}

impl<'s> Transaction<'s> {
    pub(crate) fn new(
        adopted: Rc<AdoptedView>,
        (log, prefetches): (Rc<RefCell<CommitLog>>, Rc<PrefetchQueue>),
        round: Round<'s>,
    ) -> Self {
        let view = adopted.get();
        let owner = owner_in(&view, &round);
        round.tell_view(view.configuration().version);
        Self {
            view,
            adopted,
            log,
            prefetches,
            round,
            owner,
            cancellation: None,
            doom: None,
            is_committed_for: false,
            passes: Passes::Nothing,
            set: AccessSet::default(),
            scratch: Scratch::default(),
            record: Record::default(),
        }
    }

    /// Starts the next transaction of the coroutine; one that was left open is aborted first.
    pub(crate) fn restart(&mut self) {
        self.abort();
        let is_committed = || self.stage().is_committed() && self.set.changes();
        if !rule!(C6) && is_committed() {
            self.replicate().expect("the record fits a message");
        }
        self.round.go_on();
        self.refresh_view();
        let id = self.round.commits().begin(self.view.configuration().epoch);
        self.owner = self.owner.with_counter(id.counter);
        debug_assert_eq!(self.owner, Owner::from(id), "the owner is of the epoch of the view");
        self.doom = None;
        if self.round.interruption().is_some() {
            self.doom = self.end_reason();
        }
        self.is_committed_for = false;
        self.passes = Passes::Nothing;
        self.set.clear();
        if self.set.values.capacity() > BYTES_KEPT_MAX || self.record.capacity() > BYTES_KEPT_MAX {
            self.give_memory_back();
        }
    }

    /// Goes by the view that the worker has adopted, from the next transaction on.
    #[inline(always)]
    pub(crate) fn refresh_view(&mut self) {
        if self.adopted.differs_from(&self.view) {
            self.take_view();
        }
    }

    #[cold]
    fn take_view(&mut self) {
        // The last PRIMARYs were sent by the view before; if the node has ended, that stays.
        if self.settle().is_err() && self.round.interruption().is_some_and(Interruption::is_end) {
            return;
        }
        // Another epoch may have begun meanwhile, and this is the view of it.
        self.round.go_on();
        self.view = self.adopted.get();
        self.owner = owner_in(&self.view, &self.round);
        self.round.tell_view(self.view.configuration().version);
    }

    /// After a transaction of uncommon size.
    #[cold]
    fn give_memory_back(&mut self) {
        self.set = AccessSet::default();
        self.scratch = Scratch::default();
        self.record = Record::default();
    }

    /// How far the commit has come.
    #[inline(always)]
    fn stage(&self) -> Stage {
        self.round.commits().open.stage()
    }

    /// The commit has come to a further stage.
    #[inline(always)]
    fn reach(&self, stage: Stage) {
        self.round.commits().open.reach(stage);
    }

    /// Adds `key` to the keys that the next [`Self::execute`] reads.
    ///
    /// A row of the read set keeps the value that is in the table, whatever this transaction writes.
    ///
    /// The key is a number, or the bytes of a key of an ordered table.
    #[inline]
    pub fn add_to_read_set<'k>(&mut self, table: TableId, key: impl Into<Key<'k>>) -> RowId {
        match key.into() {
            Key::Number(number) => self.add(table, number, None),
            Key::Bytes(bytes) => self.add_row(table, bytes, None, 0),
        }
    }

    /// Adds `key` to the keys that the next [`Self::execute`] locks and reads.
    ///
    /// For [`LockMode::Delete`] a row that is there is deleted at commit; otherwise give it a value
    /// with [`Self::put`] or [`Self::value_mut`], which tell if the row is not as the mode wants it.
    /// A row that is given none stays as it is. A key may be in the write set once.
    ///
    /// A table whose keys are byte strings takes [`Self::add_row_to_write_set`] instead.
    pub fn add_to_write_set(&mut self, table: TableId, key: u64, mode: LockMode) -> RowId {
        self.add(table, key, Some(mode))
    }

    // One copy for all callers: the code of a transaction fills the processor's instruction cache.
    #[inline(never)]
    fn add(&mut self, table: TableId, key: u64, mode: Option<LockMode>) -> RowId {
        let row = self.set.next_row();
        let value_at = self.set.values_used;
        let (location, value_bytes) = match self.view.table(table.0) {
            Some(table) if table.layout().kind == TableKind::Fixed => {
                (table.locate(key), table.layout().value_bytes)
            }
            Some(_) => {
                let (key, problem) = (RowKey::Number(key), RowProblem::IsNumber);
                self.doom(Misuse::Row { table: table.0, key, problem });
                return row;
            }
            None => {
                self.doom(Misuse::NoSuchTable { table: table.0 });
                return row;
            }
        };
        let primary = self.view.configuration().primary(location.partition);
        if primary == NOBODY {
            self.doom(Failure::Lost { partition: location.partition });
            return row;
        }
        self.set.claim(value_bytes);
        if mode == Some(LockMode::Insert) {
            self.set.values[value_at..value_at + value_bytes].fill(0);
        }
        self.set.rows.push(Row {
            table: table.0,
            location,
            primary,
            bucket: location.root,
            key,
            mode,
            state: RowState::Pending,
            written: false,
            version: 0,
            value_at,
            value_bytes: bytes_of_value(value_bytes),
            key_at: 0,
            key_bytes: 0,
        });
        row
    }

    /// The value of a row that was executed; `None` if the key is not there.
    ///
    /// After [`Self::put`] it is the value put.
    #[inline]
    #[must_use]
    pub fn value(&self, row: RowId) -> Option<&[u8]> {
        self.set.value(row)
    }

    /// The value of a row that was locked for update or insert, to be changed in place and written
    /// at commit; an insert starts from zero bytes.
    ///
    /// # Errors
    /// [`Misuse::NotFound`] or [`Misuse::Exists`] if the row is not as the lock mode wants it,
    /// [`Misuse::Row`] for a row that is in the read set, is to be deleted, or was not executed.
    #[inline]
    pub fn value_mut(&mut self, row: RowId) -> Result<&mut [u8], Abort> {
        let conflict = self.conflict().unwrap_or(Conflict::Locked);
        self.set.value_mut(row, conflict.into())
    }

    /// Gives a row that was locked for update or insert the value that it will have after commit.
    ///
    /// # Errors
    /// As [`Self::value_mut`], and [`Misuse::ValueBytes`] unless `value` has the table's size.
    pub fn put(&mut self, row: RowId, value: &[u8]) -> Result<(), Abort> {
        if let Some(row) = self.set.row(row) {
            let (expected, found) = (row.value_bytes as usize, value.len());
            if expected != found {
                return Err(Misuse::ValueBytes { table: row.table, expected, found }.into());
            }
        }
        self.value_mut(row)?.copy_from_slice(value);
        Ok(())
    }

    /// Reads one key as it was last committed, without this transaction's own changes:
    /// [`Self::add_to_read_set`], [`Self::execute`], [`Self::value`].
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn get<'k>(
        &mut self,
        table: TableId,
        key: impl Into<Key<'k>>,
    ) -> Result<Option<&[u8]>, Abort> {
        let row = self.add_to_read_set(table, key);
        self.execute()?;
        Ok(self.value(row))
    }

    /// Adds a row: [`Self::add_to_write_set`], [`Self::execute`], [`Self::put`].
    ///
    /// # Errors
    /// As [`Self::execute`] and [`Self::put`].
    pub fn insert(&mut self, table: TableId, key: u64, value: &[u8]) -> Result<(), Abort> {
        let row = self.add_to_write_set(table, key, LockMode::Insert);
        self.execute()?;
        self.put(row, value)
    }

    /// Commits: afterwards the changes are decided and on every backup, or nothing was changed.
    ///
    /// The primaries apply them before any later request of this coroutine, and before the end of its job is reported. Until then
    /// the rows stay locked for all others. A job that goes on for long without a transaction should therefore give way, which
    /// releases them.
    ///
    /// A read-only transaction of one bucket skips validation (FaSST section 5).
    ///
    /// # Errors
    /// The [`Abort`] that ended the transaction; [`Abort::Requested`] if it was aborted before. All
    /// its locks are released. To commit twice is to commit once. After [`Failure::Unknown`], and no other, it may have
    /// committed.
    ///
    /// [`Misuse::CommitsItself`] in a closure that is run as a transaction, such as that of [`crate::Coordinator::run`]: it may
    /// be run again, also when it fails after the commit. Such a transaction does not commit at all.
    #[inline]
    pub fn commit(&mut self) -> Result<(), Abort> {
        if self.is_committed_for && self.stage() == Stage::Executing {
            self.doom(Misuse::CommitsItself);
            return Err(Misuse::CommitsItself.into());
        }
        self.commit_decided()
    }

    /// Leaves the commit to the runner of the transaction's code: [`Self::commit`] refuses.
    pub(crate) fn leave_commit(&mut self) -> &mut Self {
        self.is_committed_for = true;
        self
    }

    /// Of its worker.
    pub(crate) fn adopted(&self) -> &AdoptedView {
        &self.adopted
    }

    /// Which rows that others have reserved are locked like any others.
    pub(crate) fn pass(&mut self, passes: Passes) {
        self.passes = passes;
    }

    /// Commits for the transaction's code.
    pub(crate) fn commit_decided(&mut self) -> Result<(), Abort> {
        match self.stage() {
            stage if stage.is_committed() => return Ok(()),
            Stage::Settled(_) => return Err(self.end_reason().unwrap_or(Abort::Requested)),
            _ => {}
        }
        let result = match self.commit_phases() {
            Ok(()) if !self.stage().is_committed() => self.round.hold_lease().map_err(Abort::from),
            result => result,
        };
        let result = self.conclude(result);
        self.round.count(result.is_ok());
        result
    }

    /// Ends the commit, whose phases have ended so.
    fn conclude(&mut self, result: Result<(), Abort>) -> Result<(), Abort> {
        let result = match result {
            Err(_) if self.round.interruption().is_some() => self.verdict(),
            result => result,
        };
        match result {
            Ok(()) if self.stage() == Stage::PrimariesSent => {}
            Ok(()) => self.reach(Stage::Settled(Settled::Committed)),
            Err(_) => self.abort(),
        }
        result
    }

    /// How the worker has settled the commit, which was interrupted.
    #[cold]
    fn verdict(&mut self) -> Result<(), Abort> {
        let abort = match (self.stage(), self.round.interruption()) {
            (Stage::Settled(Settled::Committed), _) => return Ok(()),
            (Stage::Settled(Settled::Unknown), _) => Failure::Unknown.into(),
            (_, Some(interruption)) => self.round.answer(interruption).into(),
            (_, None) => Abort::Requested,
        };
        self.doom = Some(abort);
        Err(abort)
    }

    /// Why the transaction has ended without the doing of its code, if so.
    #[cold]
    fn end_reason(&self) -> Option<Abort> {
        self.doom.or_else(|| self.round.interruption().map(Abort::from))
    }

    fn commit_phases(&mut self) -> Result<(), Abort> {
        if self.set.executed < self.set.rows.len() || self.doom.is_some() {
            self.execute()?;
        }
        if let ([Row { mode: None, .. }], []) = (&self.set.rows[..], &self.set.scanned[..]) {
            // One read of one bucket is a snapshot by itself.
            return Ok(());
        }
        self.reach(Stage::Validating);
        self.group_buckets()?;
        self.validate()?;
        if self.scratch.held.is_empty() {
            return Ok(());
        }
        if !self.set.changes() {
            self.release_locks();
            return Ok(());
        }
        self.write_record()?;
        if self.cancellation.as_ref().is_some_and(|cancellation| !cancellation.may_log()) {
            return Err(Abort::Cancelled);
        }
        if !rule!(C6) {
            return Ok(());
        }
        self.replicate()
    }

    /// Logs and applies the transaction. A panic of these phases is the engine's own: it must neither abort what is decided nor be taken
    /// for the closure's.
    #[inline(always)]
    fn replicate(&mut self) -> Result<(), Abort> {
        match catch_unwind(AssertUnwindSafe(|| self.replicate_phases())) {
            Ok(result) => result,
            Err(panic) if is_cancel(&*panic) => resume_unwind(panic),
            Err(panic) => self.round.fail_with(panic_message(&*panic)),
        }
    }

    /// From this point on the transaction cannot abort (rule C3). Each phase waits until it is acknowledged everywhere (C4, C5), but for
    /// the last, for which the coroutine waits before it logs again (C6, C8).
    #[inline(always)]
    fn replicate_phases(&mut self) -> Result<(), Abort> {
        if !rule!(C4) {
            self.commit_backups()?;
        }
        self.log()?;
        if !rule!(C3) && self.round.commits().open.id().counter.is_multiple_of(4) {
            return Err(Conflict::Locked.into());
        }
        if rule!(C5) {
            self.commit_backups()?;
            self.commit_primaries()?;
        } else {
            self.commit_primaries()?;
            self.settle()?;
            self.commit_backups()?;
        }
        Ok(())
    }

    /// Ends a transaction whose code gave up: tells whether what it had read was valid.
    ///
    /// # Errors
    /// The conflict because of which its reads were not valid. Its locks are released either way.
    pub(crate) fn give_up(&mut self) -> Result<(), Abort> {
        let valid = match self.doom {
            Some(abort) if abort.is_conflict() || self.round.interruption().is_some() => Err(abort),
            _ => self
                .group_buckets()
                .and_then(|()| self.validate())
                .and_then(|()| self.round.hold_lease().map_err(Abort::from)),
        };
        self.abort();
        valid
    }

    /// The waiter of the job learns by this token what keeps the job from going on, until the next call.
    pub(crate) fn tell_token(&self, token: Option<Arc<CancellationToken>>) {
        self.round.tell_token(token);
    }

    /// Sets the token that cancels the job, until the next call; the one before.
    pub(crate) fn set_cancellation(
        &mut self,
        cancellation: Option<Arc<CancellationToken>>,
    ) -> Option<Arc<CancellationToken>> {
        std::mem::replace(&mut self.cancellation, cancellation)
    }

    /// That token.
    pub(crate) fn cancellation(&self) -> Option<Arc<CancellationToken>> {
        self.cancellation.clone()
    }

    /// Whether the job is cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancellation.as_ref().is_some_and(|cancellation| cancellation.is_cancelled())
    }

    /// Whether the job is cancelled, and has not seen that yet.
    pub(crate) fn acts_in_vain(&self) -> bool {
        self.cancellation.as_ref().is_some_and(|cancellation| cancellation.is_unseen())
    }

    /// The epoch that it began in.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.view.configuration().epoch
    }

    /// The version of the configuration that it goes by.
    #[inline]
    pub(crate) fn view_version(&self) -> u64 {
        self.view.configuration().version
    }

    /// Whether some partition has got another primary, without another epoch, after a version of the configuration.
    pub(crate) fn was_any_handed_over_since(&self, version: u64) -> bool {
        let configuration = self.view.configuration();
        let mut partitions = (0..).take(configuration.partitioning.count());
        partitions.any(|partition| configuration.was_handed_over_since(version, partition))
    }

    /// Itself, as locks name it.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The node that it runs at.
    #[inline]
    pub(crate) fn node_id(&self) -> u16 {
        self.view.id()
    }

    /// A partition near that node; see [`View::home_partition`].
    pub(crate) fn home_partition(&self) -> Option<u16> {
        self.view.home_partition()
    }

    /// How keys divide over partitions.
    pub(crate) fn partitioning(&self) -> Partitioning {
        self.view.configuration().partitioning
    }

    /// The primary of `key`; `u16::MAX` if its partition is lost.
    pub(crate) fn primary(&self, key: u64) -> u16 {
        self.view.configuration().primary_of_key(key)
    }

    /// The conflict that doomed the transaction.
    pub(crate) fn conflict(&self) -> Option<Conflict> {
        match self.doom {
            Some(Abort::Conflict(conflict)) => Some(conflict),
            _ => None,
        }
    }

    /// Whether the transaction may go on to execute.
    #[inline(always)]
    fn is_open(&self) -> bool {
        self.doom.is_none() && self.stage() == Stage::Executing
    }

    /// Remembers why the transaction cannot commit; the first reason stands.
    fn doom(&mut self, abort: impl Into<Abort>) {
        if self.is_open() {
            self.doom = Some(abort.into());
        }
    }

    /// Waits until the node holds its lease.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn hold_lease(&mut self) -> Result<(), Abort> {
        self.round.hold_lease().map_err(Abort::from)
    }

    /// Waits until the clock shows `until_ns`, or the node has ended.
    pub(crate) fn sleep_until(&mut self, until_ns: u64) {
        match self.round.interruption().filter(|interruption| interruption.is_end()) {
            Some(interruption) => drop(self.round.answer(interruption)),
            None if self.settle().is_ok() => {
                // A wait that ends early needs no answer.
                let _: Result<(), Interrupted> = self.round.wait_for(WaitReason::Time(until_ns));
            }
            None => {}
        }
    }

    /// Waits until the primaries have applied what was committed, or the coroutine is interrupted.
    #[inline]
    pub(crate) fn settle(&mut self) -> Result<(), Interrupted> {
        self.round.settle()
    }

    /// Waits for the next job of the coroutine.
    pub(crate) fn wait_for_job(&mut self) {
        // The worker ends a coroutine without a job whether the cluster has halted or not.
        let _: Result<(), Interrupted> = self.round.wait_for(WaitReason::Job);
    }
}
