//! The participant: a worker's answers to coordinators, its own node's included.
//!
//! One file per request. Every request names its table, partition and bucket by number; a request that names a table,
//! partition or bucket that the node does not have is refused and counted, never trusted. What was read of a bucket that is not there any more has
//! changed.

mod backup;
mod barrier;
mod copy;
mod expect;
mod fold;
mod load;
mod lock;
mod log;
mod primary;
mod read;
mod reserve;
mod scan;
mod unlock;
mod validate;

pub(crate) use backup::backed_up;
pub(crate) use load::loaded;
pub(crate) use lock::lock_status;
pub(crate) use primary::applied_at_primary;
pub(crate) use read::read_status;
pub(crate) use validate::{rows_validated, validated};

use std::cell::RefCell;
use std::hint::select_unpredictable;
use std::rc::Rc;
use std::sync::Arc;

use gannet_rpc::{Clock, Handler, ResponseWriter};
use gannet_rules::rule;
use gannet_storage::{
    BucketAddress, BucketSnapshot, BucketUpdate, CommitLog, FoldedBucket, HashedKey, Item,
    SlotHint, Table, TableKind, UnitKind,
};

use crate::fold::{FoldCache, FoldPrograms};
use crate::request::{
    self, Barrier, CopyBuckets, Expect, FoldBuckets, LockRow, Read, Reserve, Scan, Status,
    TableRequest, Unlock, Validate, ValidateMany, ValidateRange, ValidateSpan,
};
use crate::row_reservations::RESERVED_KEY_BYTES;
use crate::scan_page::PageWriter;
use crate::view::View;

/// One worker's participant: the node's tables, and the worker's own log slots.
pub(crate) struct Participant {
    view: Arc<View>,
    /// Shared with the worker's own coroutines.
    log: Rc<RefCell<CommitLog>>,
    clock: Rc<dyn Clock>,
    /// The value of a heap table's row, on its way to a response.
    value: Vec<u8>,
    /// The page of a scan, on its way to a response.
    page: PageWriter,
    /// A bucket, and units, on their way to a learner, or the result of a fold.
    snapshot: BucketSnapshot,
    units: Vec<u8>,
    programs: FoldCache,
    /// A bucket whose rows are folded.
    folded: FoldedBucket,
}

impl Participant {
    pub(crate) fn new(
        view: Arc<View>,
        log: Rc<RefCell<CommitLog>>,
        clock: Rc<dyn Clock>,
        programs: FoldPrograms,
    ) -> Self {
        Self {
            view,
            log,
            clock,
            programs: FoldCache::new(programs),
            folded: FoldedBucket::default(),
            value: Vec::new(),
            page: PageWriter::default(),
            snapshot: BucketSnapshot::default(),
            units: Vec::new(),
        }
    }

    /// Answers by this view from now on.
    pub(crate) fn adopt(&mut self, view: &Arc<View>) {
        self.view = Arc::clone(view);
    }

    /// Prefetches the headers of the buckets of rows.
    #[inline]
    pub(crate) fn prefetch_headers(&self, rows: &[SlotHint]) {
        rows.iter().for_each(|row| self.view.arena().prefetch_header(row.address));
    }

    /// Prefetches the slots of rows whose headers were prefetched before.
    #[inline]
    pub(crate) fn prefetch_slots(&self, rows: &mut Vec<SlotHint>) {
        rows.drain(..).for_each(|row| self.view.arena().prefetch_slot(row));
    }

    /// The records in the log slots of transactions of an epoch.
    pub(crate) fn log_records_of_epoch(&self, epoch: u32) -> Vec<Vec<u8>> {
        self.log.borrow().records_of_epoch(epoch).map(<[u8]>::to_vec).collect()
    }

    /// The records in the log slots.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn log_records(&self) -> Vec<Vec<u8>> {
        self.log.borrow().records().map(<[u8]>::to_vec).collect()
    }

    /// The slot of a key, if this node is the key's primary and serves it.
    #[inline(always)]
    fn key_target(&self, table: u32, key: HashedKey<'_>) -> Option<SlotHint> {
        let table = self.table_with(table, key)?;
        let location = table.locate(key.word());
        let address = table.address_of(location)?;
        self.is_primary_of(location.partition).then(|| table.slot_hint(address))
    }

    /// The table, if the node has it and it can have the key.
    #[inline(always)]
    fn table_with(&self, table: u32, key: HashedKey<'_>) -> Option<&Table> {
        let table = self.view.table(table)?;
        table.fits_key(key).then_some(table)
    }

    /// A bucket, if this node is its primary and serves it.
    #[inline(always)]
    fn served_target(&self, table: u32, partition: u16, bucket: u32) -> Option<BucketAddress> {
        let address = self.view.table(table)?.served_bucket_address(partition, bucket)?;
        self.is_primary_of(partition).then_some(address)
    }

    /// A bucket of a partition that this node has, whether it is primary still or not.
    #[inline(always)]
    fn held_target(&self, table: u32, partition: u16, bucket: u32) -> Option<BucketAddress> {
        self.view.table(table)?.bucket_address(partition, bucket)
    }

    /// Whether the node has the table, and it is ordered.
    fn has_order(&self, table: u32) -> bool {
        self.view.table(table).is_some_and(|table| table.layout().kind == TableKind::Ordered)
    }

    /// The first bucket of a partition of an ordered table, if this node is its primary and serves it.
    fn order_target(&self, table: u32, partition: u16) -> Option<BucketAddress> {
        self.served_target(table, partition, 0).filter(|_| self.has_order(table))
    }

    /// The first bucket of a partition of an ordered table that this node has, whether it is primary still or not.
    fn barrier_target(&self, barrier: Barrier, rest: &[u8]) -> Option<BucketAddress> {
        let Barrier { table, partition, .. } = barrier;
        let held = self.held_target(table, partition, 0);
        held.filter(|_| rest.is_empty() && self.has_order(table))
    }

    /// The first bucket of a partition that rows are expected in, if this node is its primary and serves it.
    fn expect_target(&self, expect: Expect, rest: &[u8]) -> Option<BucketAddress> {
        let served = self.served_target(expect.table, expect.partition, 0);
        served.filter(|_| rest.is_empty())
    }

    /// The first bucket of the partition that a learner asks for, if this node is its primary.
    fn copy_target(&self, copy: CopyBuckets, rest: &[u8]) -> Option<BucketAddress> {
        // A primary that has become one meanwhile may have fewer buckets than the learner has asked for.
        let CopyBuckets { table, partition, .. } = copy;
        let target = self.held_target(table, partition, 0);
        target.filter(|_| rest.is_empty() && self.is_primary_of(partition))
    }

    #[inline(always)]
    fn is_primary_of(&self, partition: u16) -> bool {
        self.view.configuration().primary(partition) == self.view.id() || !rule!(MOVED)
    }

    /// As `prepare`, of a request that is not of every transaction: what it is about, if this node has that.
    fn prepare_other(&self, kind: u16, payload: &[u8]) -> (Action, Option<BucketAddress>) {
        match kind {
            request::SCAN => {
                let order =
                    |Scan { table, partition, .. }, _: &[u8]| self.order_target(table, partition);
                (Action::Scan, target(payload, order))
            }
            request::COUNT => {
                let order =
                    |Scan { table, partition, .. }, _: &[u8]| self.order_target(table, partition);
                (Action::Count, target(payload, order))
            }
            request::VALIDATE_ROWS => {
                let partition = |ValidateMany { table, partition, .. }, _: &[u8]| {
                    let table_has_rows = self.view.table(table)?.layout().kind != TableKind::Fixed;
                    self.served_target(table, partition, 0).filter(|_| table_has_rows)
                };
                (Action::ValidateRows, target(payload, partition))
            }
            request::FOLD => {
                let order = |FoldBuckets { table, partition, .. }, _: &[u8]| {
                    self.order_target(table, partition)
                };
                (Action::Fold, target(payload, order))
            }
            request::VALIDATE_SPAN => {
                let order = |ValidateSpan { table, partition, .. }, _: &[u8]| {
                    self.order_target(table, partition)
                };
                (Action::ValidateSpan, target(payload, order))
            }
            request::VALIDATE_RANGE => {
                let order = |ValidateRange { table, partition, .. }, _: &[u8]| {
                    self.order_target(table, partition)
                };
                (Action::ValidateRange, target(payload, order))
            }
            request::SET_BARRIER => {
                let order = |Barrier { table, partition, .. }, rest: &[u8]| {
                    self.order_target(table, partition).filter(|_| rest.is_empty())
                };
                (Action::SetBarrier, target(payload, order))
            }
            request::RELEASE_BARRIER => {
                (Action::ReleaseBarrier, target(payload, |it, rest| self.barrier_target(it, rest)))
            }
            request::COPY => {
                (Action::Copy, target(payload, |copy, rest| self.copy_target(copy, rest)))
            }
            request::EXPECT => {
                (Action::Expect, target(payload, |it, rest| self.expect_target(it, rest)))
            }
            request::RESERVE => {
                let row = |Reserve { table, hash, .. }, rest: &[u8]| {
                    let partition = self.view.configuration().partitioning.partition(hash);
                    let fits = rest.len() <= RESERVED_KEY_BYTES;
                    self.served_target(table, partition, 0).filter(|_| fits)
                };
                (Action::Reserve, target(payload, row))
            }
            request::BEGIN_LOAD | request::LOAD | request::END_LOAD => {
                self.prepare_load(kind, payload)
            }
            request::SHARE => (Action::Share, Some(BucketAddress::NONE)),
            request::RELEASE_SHARED => (Action::ReleaseShared, Some(BucketAddress::NONE)),
            request::RELEASE_ROW => (Action::ReleaseRow, Some(BucketAddress::NONE)),
            request::WAITS_FOR => (Action::WaitsFor, Some(BucketAddress::NONE)),
            _ => (Action::Refuse, None),
        }
    }

    /// What becomes of a request about nothing that this node serves. One that was sent to the primary that the node was, or is to be, is
    /// told so. So is one about a table that the sender's configuration has, and that of this node not yet.
    #[cold]
    fn refusal(&self, kind: u16, payload: &[u8]) -> Prepared {
        let partitioning = self.view.configuration().partitioning;
        let partition = request::partition_of(kind, payload, partitioning);
        let number = request::table_of(payload);
        let table = self.view.table(number);
        if table.is_some() && !self.view.configuration().has_table(number) {
            let is_validated = matches!(
                kind,
                request::VALIDATE
                    | request::VALIDATE_MANY
                    | request::VALIDATE_ROWS
                    | request::VALIDATE_RANGE
                    | request::VALIDATE_SPAN
            );
            return Prepared::of_no_bucket(if is_validated { Action::Move } else { Action::Leave });
        }
        let configuration = self.view.configuration();
        if table.is_none() && partition.is_some() && configuration.is_to_come(number) {
            let is_known = rule!(TABLES_TO_COME);
            return Prepared::of_no_bucket(match kind {
                _ if !is_known => Action::Refuse,
                request::BACKUP | request::BEGIN_LOAD => Action::Await,
                _ => Action::Move,
            });
        }
        if let Some(action) = self.refuse_load(kind, payload) {
            return Prepared::of_no_bucket(action);
        }
        let is_moved = table.zip(partition).is_some_and(|(table, partition)| {
            let kind_of_table = table.layout().kind;
            let fits = |key, bytes| table.fits_key(HashedKey::from_parts(key, bytes));
            match kind {
                request::READ => Read::decode(payload).is_some_and(|(it, rest)| fits(it.key, rest)),
                request::LOCK => {
                    LockRow::decode(payload).is_some_and(|(it, rest)| fits(it.key, rest))
                }
                request::VALIDATE
                | request::VALIDATE_MANY
                | request::COPY
                | request::EXPECT
                | request::RESERVE => table.has_partition(partition),
                request::VALIDATE_ROWS => {
                    table.has_partition(partition) && kind_of_table != TableKind::Fixed
                }
                request::SCAN
                | request::COUNT
                | request::FOLD
                | request::VALIDATE_RANGE
                | request::VALIDATE_SPAN
                | request::SET_BARRIER => {
                    table.has_partition(partition) && kind_of_table == TableKind::Ordered
                }
                _ => false,
            }
        });
        Prepared::of_no_bucket(if is_moved { Action::Move } else { Action::Refuse })
    }

    /// What a unit is about, if it fits its table and this node holds the bucket: the slot of its last row.
    #[inline]
    fn unit_target(&self, payload: &[u8]) -> Option<SlotHint> {
        let (unit, rest) = BucketUpdate::parse_header(payload).ok()?;
        let table = self.view.table(unit.table)?;
        if !rest.is_empty() || !table.fits_bucket(&unit) {
            return None;
        }
        let mut address = table.address_to_fill(&unit)?;
        if unit.kind == UnitKind::Merge {
            // `fits_bucket` has looked at its rows.
            return Some(SlotHint::of_bucket(address));
        }
        let mut items = unit.items();
        for item in items.by_ref() {
            let (key, fits) = match item {
                Item::Put { key, value } => (key, table.fits(key, value)),
                Item::Delete { key } => (key, table.fits_key(key)),
            };
            let location = table.locate(key.word());
            let bucket = table.bucket_at(location, unit.base_version);
            if !fits || (location.partition, bucket) != (unit.partition, unit.bucket) {
                return None;
            }
            address = address.with_tag(location.tag);
        }
        items.is_at_end().then(|| table.slot_hint(address))
    }

    /// The table of a request that was prepared, or of a row of this node.
    #[inline]
    fn table(&self, number: u32) -> &Table {
        self.view
            .table(number)
            .expect("a prepared request or a row names a table that the node has")
    }

    /// A request that was prepared, and what follows its fixed part.
    #[inline(always)]
    fn decoded<R: TableRequest>(payload: &[u8]) -> (R, &[u8]) {
        R::decode(payload).expect("it was prepared")
    }

    /// Ends the worker, and with it the node, whose copy has not what is decided. Nobody hears an answer: the coordinator waits until the
    /// others have removed the node.
    #[cold]
    fn end(&self, request: &str, status: Status, unit: &BucketUpdate<'_>) -> ! {
        let BucketUpdate { table, partition, bucket, .. } = *unit;
        panic!(
            "{request} was answered {status:?} by node {}: its copy of bucket {bucket} in partition {partition} of table {table} lacks an \
             update",
            self.view.id()
        )
    }

    fn refuse(&self, response: &mut ResponseWriter<'_>) {
        self.view.count_refused();
        response.push(Status::Refused as u16);
    }
}

/// What a request wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Lock,
    Validate,
    ValidateMany,
    Log,
    LogPart,
    Backup,
    Primary,
    Unlock,
    Scan,
    Fold,
    ValidateSpan,
    ValidateRows,
    ValidateRange,
    SetBarrier,
    ReleaseBarrier,
    Copy,
    Expect,
    Count,
    BeginLoad,
    Load,
    EndLoad,
    Reserve,
    Share,
    ReleaseRow,
    ReleaseShared,
    WaitsFor,
    Move,
    /// Refuse, as the table is about to be removed.
    Leave,
    /// Have the request sent again, as the node does not know the table yet.
    Await,
    Refuse,
}

/// A request that was parsed, and found to be about something that this node has. The rest of the request is parsed again when it is run,
/// which costs less than a copy.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    action: Action,
    table: u32,
    /// Has a slot in actions on a row that is probably not in the cache. The other actions read lines that one of these has fetched
    /// before, the header's first line included.
    hint: SlotHint,
}

impl Prepared {
    /// About no bucket.
    const fn of_no_bucket(action: Action) -> Self {
        Self { action, table: 0, hint: SlotHint::of_bucket(BucketAddress::NONE) }
    }

    #[inline(always)]
    fn address(&self) -> BucketAddress {
        self.hint.address
    }
}

/// What a request is about, as `target` finds in the request and in what follows its fixed part.
#[inline(always)]
fn target<'p, R: TableRequest, T>(
    payload: &'p [u8],
    target: impl FnOnce(R, &'p [u8]) -> Option<T>,
) -> Option<T> {
    let (request, rest) = R::decode(payload)?;
    target(request, rest)
}

impl Handler for Participant {
    type Prepared = Prepared;

    #[inline(always)]
    fn prepare(&self, kind: u16, payload: &[u8]) -> Prepared {
        let of_bucket = |target: Option<BucketAddress>| target.map(SlotHint::of_bucket);
        let (action, hint) = match kind {
            // One use of `key_target` for both, outside of closures: closures with it are called, not inlined.
            request::READ | request::LOCK => {
                let (action, named) = if kind == request::READ {
                    let named = |(Read { table, key, .. }, bytes)| (table, key, bytes);
                    (Action::Read, Read::decode(payload).map(named))
                } else {
                    let named = |(LockRow { table, key, .. }, bytes)| (table, key, bytes);
                    (Action::Lock, LockRow::decode(payload).map(named))
                };
                let hint = match named {
                    Some((table, key, bytes)) => {
                        self.key_target(table, HashedKey::from_parts(key, bytes))
                    }
                    None => None,
                };
                (action, hint)
            }
            request::VALIDATE => {
                let bucket = |Validate { table, partition, bucket, .. }, rest: &[u8]| {
                    let target = self.served_target(table, partition, bucket);
                    target.filter(|_| rest.is_empty())
                };
                (Action::Validate, of_bucket(target(payload, bucket)))
            }
            request::VALIDATE_MANY => {
                let partition = |ValidateMany { table, partition, .. }, _: &[u8]| {
                    self.served_target(table, partition, 0)
                };
                (Action::ValidateMany, of_bucket(target(payload, partition)))
            }
            request::LOG => return Prepared::of_no_bucket(Action::Log),
            request::LOG_PART => return Prepared::of_no_bucket(Action::LogPart),
            request::BACKUP => (Action::Backup, self.unit_target(payload)),
            request::PRIMARY => {
                (Action::Primary, self.unit_target(payload).map(SlotHint::without_slot))
            }
            request::UNLOCK => {
                let locked = |Unlock { table, partition, bucket, key, .. }, bytes| {
                    let table = self.table_with(table, HashedKey::from_parts(key, bytes))?;
                    // For another row of its bucket it may have been unlocked before, and merged since.
                    let gone = table.has_partition(partition).then_some(BucketAddress::NONE);
                    table.bucket_address(partition, bucket).or(gone)
                };
                (Action::Unlock, of_bucket(target(payload, locked)))
            }
            _ => {
                let (action, target) = self.prepare_other(kind, payload);
                (action, of_bucket(target))
            }
        };
        match hint {
            Some(hint) => Prepared { action, table: request::table_of(payload), hint },
            None => self.refusal(kind, payload),
        }
    }

    #[inline(always)]
    fn prefetch(&self, prepared: &Prepared) {
        // Every request, without a branch: a line that was touched before is in the cache, and so is that of no bucket.
        self.view.arena().prefetch_header(prepared.address());
    }

    #[inline]
    fn prefetch_next(&self, prepared: &Prepared) {
        // No branch either: the processor could not predict the next request.
        let hint = prepared.hint;
        let none = SlotHint::of_bucket(BucketAddress::NONE);
        self.view.arena().prefetch_slot(select_unpredictable(hint.has_slot(), hint, none));
    }

    #[inline(always)]
    fn handle(&mut self, prepared: Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match prepared.action {
            Action::Read => self.read(&prepared, payload, response),
            Action::Lock => self.lock(&prepared, payload, response),
            Action::Validate => self.validate(&prepared, payload, response),
            Action::ValidateMany => self.validate_many(payload, response),
            Action::Log => self.log(payload, response),
            Action::LogPart => self.log_part(payload, response),
            Action::Backup => self.backup(&prepared, payload, response),
            Action::Primary => self.primary(&prepared, payload, response),
            Action::Unlock => self.unlock(&prepared, payload, response),
            Action::Scan => self.scan(payload, response),
            Action::Count => self.count(payload, response),
            Action::Fold => self.fold(payload, response),
            Action::ValidateSpan => self.validate_span(payload, response),
            Action::BeginLoad => self.begin_load(payload, response),
            Action::Load => self.load(payload, response),
            Action::EndLoad => self.end_load(payload, response),
            Action::Reserve => self.reserve(payload, response),
            Action::Share => self.share(payload, response),
            Action::ReleaseRow => self.release_row(payload, response),
            Action::ReleaseShared => self.release_shared(payload, response),
            Action::WaitsFor => self.waits_for(payload, response),
            Action::ValidateRows => self.validate_rows(payload, response),
            Action::ValidateRange => self.validate_range(payload, response),
            Action::SetBarrier => self.set_barrier(payload, response),
            Action::ReleaseBarrier => self.release_barrier(payload, response),
            Action::Copy => self.copy(payload, response),
            Action::Expect => self.expect(payload, response),
            Action::Move => response.push(Status::Moved as u16),
            Action::Leave => response.push(Status::Refused as u16),
            Action::Await => response.push(Status::Early as u16),
            Action::Refuse => self.refuse(response),
        }
    }
}
