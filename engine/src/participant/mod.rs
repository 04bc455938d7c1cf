//! The participant: a worker's answers to coordinators, its own node's included.
//!
//! One file per request. Every request names what it means by number; a request that names a table,
//! partition or bucket that is not here is refused and counted, never trusted.

mod backup;
mod guard;
mod lock;
mod log;
mod primary;
mod read;
mod scan;
mod unlock;
mod validate;

pub(crate) use backup::backed_up;
pub(crate) use lock::lock_status;
pub(crate) use primary::applied_at_primary;
pub(crate) use read::read_status;
pub(crate) use validate::validated;

use std::cell::RefCell;
use std::hint::select_unpredictable;
use std::rc::Rc;
use std::sync::Arc;

use gannet_rpc::{Handler, ResponseWriter};
use gannet_storage::{
    BucketUpdate, CommitLog, HEAP_VALUE_BYTES_MAX, Item, KEY_BYTES_MAX, LockMode, Place, RowKey,
    Table,
};

use crate::node::Node;
use crate::request::{self, KeyRequest, Status};
use crate::scan_page::PageWriter;

/// One worker's participant: the node's tables, and the worker's own log slots.
pub(crate) struct Participant {
    node: Arc<Node>,
    /// Shared with the worker's own coroutines.
    log: Rc<RefCell<CommitLog>>,
    /// The value of a heap table's row, on its way to a response.
    value: Vec<u8>,
    /// The page of a scan, on its way to a response.
    page: PageWriter,
}

impl Participant {
    pub(crate) fn new(node: Arc<Node>, log: Rc<RefCell<CommitLog>>) -> Self {
        Self { node, log, value: Vec::new(), page: PageWriter::default() }
    }

    /// Asks for the headers of the buckets of rows.
    #[inline]
    pub(crate) fn prefetch_headers(&self, rows: &[(u16, Place)]) {
        for &(_, place) in rows {
            self.node.prefetch(place);
        }
    }

    /// Asks for the slots of rows whose headers were asked for before.
    #[inline]
    pub(crate) fn prefetch_slots(&self, rows: &mut Vec<(u16, Place)>) {
        for (table, place) in rows.drain(..) {
            self.table(table).prefetch_slot(place);
        }
    }

    /// The records in the log slots.
    pub(crate) fn log_records(&self) -> Vec<Vec<u8>> {
        self.log.borrow().records().map(<[u8]>::to_vec).collect()
    }

    /// The bucket that a request about a key is about, if this node is the key's primary.
    #[inline(always)]
    fn key_target(&self, payload: &[u8]) -> Option<Place> {
        let (request, row_key) = KeyRequest::decode(payload)?;
        let table = self.node.table(request.table)?;
        if !is_key_of(table, request.key, row_key) {
            return None;
        }
        let location = table.locate(request.key);
        let place = table.place_of(location)?;
        self.is_primary_of(location.partition).then_some(place)
    }

    /// The bucket that a request with nothing behind its fixed part is about, if this node is the bucket's primary.
    #[inline(always)]
    fn bucket_target(&self, payload: &[u8]) -> Option<Place> {
        let (request, []) = KeyRequest::decode(payload)? else { return None };
        self.target(&request, self.node.table(request.table)?, request.bucket)
    }

    /// What an UNLOCK is about: a bucket, and in a heap table the key that was locked there.
    #[inline(always)]
    fn unlock_target(&self, payload: &[u8]) -> Option<Place> {
        let (request, row_key) = KeyRequest::decode(payload)?;
        let table = self.node.table(request.table)?;
        if !is_key_of(table, request.key, row_key) {
            return None;
        }
        self.target(&request, table, request.bucket)
    }

    /// The first bucket of the partition that a request is about, if this node is its primary.
    fn partition_target(&self, payload: &[u8]) -> Option<Place> {
        let (request, _) = KeyRequest::decode(payload)?;
        self.target(&request, self.node.table(request.table)?, 0)
    }

    /// As [`Self::partition_target`], for a request about the order of the partition.
    fn order_target(&self, payload: &[u8]) -> Option<Place> {
        let (request, _) = KeyRequest::decode(payload)?;
        let table = self.node.table(request.table).filter(|table| table.is_ordered())?;
        self.target(&request, table, 0)
    }

    /// As [`Self::order_target`], for a request that has nothing behind its fixed part.
    fn bare_order_target(&self, payload: &[u8]) -> Option<Place> {
        let (_, []) = KeyRequest::decode(payload)? else { return None };
        self.order_target(payload)
    }

    #[inline(always)]
    fn target(&self, request: &KeyRequest, table: &Table, bucket: u32) -> Option<Place> {
        let place = table.bucket_place(request.detail, bucket)?;
        self.is_primary_of(request.detail).then_some(place)
    }

    #[inline(always)]
    fn is_primary_of(&self, partition: u16) -> bool {
        self.node.configuration().primary(partition) == self.node.id()
    }

    /// The bucket that a unit is about, if it fits its table and this node holds the bucket.
    #[inline]
    fn unit_target(&self, payload: &[u8]) -> Option<Place> {
        let (unit, rest) = BucketUpdate::parse_header(payload).ok()?;
        let table = self.node.table(unit.table)?;
        let mut place = table.bucket_place(unit.partition, unit.bucket)?;
        if !rest.is_empty() || unit.layout != table.layout().version {
            return None;
        }
        let mut items = unit.items();
        for item in items.by_ref() {
            let (key, row_key, fits) = match item {
                Item::Put { key, row_key, value } => (key, row_key, fits(table, value)),
                Item::Delete { key, row_key } => (key, row_key, true),
            };
            let location = table.locate(key);
            let fits = fits && is_key_of(table, key, row_key);
            if !fits || (location.partition, location.bucket) != (unit.partition, unit.bucket) {
                return None;
            }
            place = place.with_tag(location.tag);
        }
        items.is_at_end().then_some(place)
    }

    /// The table of a request that was prepared, or of a row of this node.
    #[inline]
    fn table(&self, number: u16) -> &Table {
        self.node.table(number).expect("a prepared request or a row names a table that is here")
    }

    /// What a request says that was prepared, about a key, a bucket or a partition, and what follows that.
    #[inline(always)]
    fn said(payload: &[u8]) -> (KeyRequest, &[u8]) {
        KeyRequest::decode(payload).expect("it was prepared")
    }

    fn refuse(&self, response: &mut ResponseWriter<'_>) {
        self.node.count_refused();
        response.push(Status::Refused as u16);
    }
}

/// Whether `key` and `row_key` belong together in `table`.
#[inline(always)]
fn is_key_of(table: &Table, key: u64, row_key: &[u8]) -> bool {
    if table.layout().is_heap {
        row_key.len() <= KEY_BYTES_MAX && RowKey::new(row_key).hash() == key
    } else {
        row_key.is_empty()
    }
}

#[inline(always)]
fn fits(table: &Table, value: &[u8]) -> bool {
    if table.layout().is_heap {
        value.len() <= HEAP_VALUE_BYTES_MAX
    } else {
        value.len() == table.layout().value_bytes
    }
}

/// What a request wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    LockForUpdate,
    LockForInsert,
    LockForDelete,
    Validate,
    ValidateMany,
    Log,
    LogPart,
    Backup,
    Primary,
    Unlock,
    Scan,
    ValidateLeaf,
    Guard,
    Unguard,
    Refuse,
}

impl Action {
    /// Those about a row that has probably not been touched for a while. What the others look at, its header's first line
    /// included, one of these has.
    const OF_ROWS: u32 = {
        let lock =
            Self::LockForUpdate.bit() | Self::LockForInsert.bit() | Self::LockForDelete.bit();
        Self::Read.bit() | lock | Self::Backup.bit()
    };

    #[inline(always)]
    const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// What a LOCK wants done.
    #[inline(always)]
    fn of_lock(payload: &[u8]) -> Self {
        match KeyRequest::decode(payload).map(|(request, _)| request.detail) {
            Some(request::UPDATE) => Self::LockForUpdate,
            Some(request::INSERT) => Self::LockForInsert,
            Some(request::DELETE) => Self::LockForDelete,
            _ => Self::Refuse,
        }
    }
}

/// A request that was parsed, and found to be about something that is here. What else it says is read again when it is run: a
/// copy of it, written and read back at once, costs more.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    action: Action,
    table: u16,
    place: Place,
}

impl Prepared {
    const REFUSED: Self = Self::of_no_bucket(Action::Refuse);

    /// About no bucket.
    const fn of_no_bucket(action: Action) -> Self {
        Self { action, table: 0, place: Place::NOWHERE }
    }
}

impl Handler for Participant {
    type Prepared = Prepared;

    #[inline]
    fn prepare(&self, kind: u16, payload: &[u8]) -> Prepared {
        let (action, place) = match kind {
            request::READ => (Action::Read, self.key_target(payload)),
            request::LOCK => (Action::of_lock(payload), self.key_target(payload)),
            request::VALIDATE => (Action::Validate, self.bucket_target(payload)),
            request::VALIDATE_MANY => (Action::ValidateMany, self.partition_target(payload)),
            request::LOG => return Prepared::of_no_bucket(Action::Log),
            request::LOG_PART => return Prepared::of_no_bucket(Action::LogPart),
            request::BACKUP => (Action::Backup, self.unit_target(payload)),
            request::PRIMARY => (Action::Primary, self.unit_target(payload)),
            request::UNLOCK => (Action::Unlock, self.unlock_target(payload)),
            request::SCAN => (Action::Scan, self.order_target(payload)),
            request::VALIDATE_LEAF => (Action::ValidateLeaf, self.bare_order_target(payload)),
            request::GUARD => (Action::Guard, self.bare_order_target(payload)),
            request::UNGUARD => (Action::Unguard, self.bare_order_target(payload)),
            _ => (Action::Refuse, None),
        };
        match place {
            Some(place) => Prepared { action, table: request::table_of(payload), place },
            None => Prepared::REFUSED,
        }
    }

    #[inline(always)]
    fn prefetch(&self, prepared: &Prepared) {
        // Whatever is asked for, without a branch: what was touched before is near, and so is a place that is none.
        self.node.prefetch(prepared.place);
    }

    #[inline]
    fn prefetch_next(&self, prepared: &Prepared) {
        // No branch either: what comes next, nobody can predict.
        let is_of_row = Action::OF_ROWS & prepared.action.bit() != 0;
        let place = select_unpredictable(is_of_row, prepared.place, Place::NOWHERE);
        if let Some(table) = self.node.table(prepared.table) {
            table.prefetch_slot(place);
        }
    }

    #[inline]
    fn handle(&mut self, prepared: Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match prepared.action {
            Action::Read => self.read(&prepared, payload, response),
            Action::LockForUpdate => self.lock(&prepared, LockMode::Update, payload, response),
            Action::LockForInsert => self.lock(&prepared, LockMode::Insert, payload, response),
            Action::LockForDelete => self.lock(&prepared, LockMode::Delete, payload, response),
            Action::Validate => self.validate(&prepared, payload, response),
            Action::ValidateMany => self.validate_many(payload, response),
            Action::Log => self.log(payload, response),
            Action::LogPart => self.log_part(payload, response),
            Action::Backup => self.backup(&prepared, payload, response),
            Action::Primary => self.primary(&prepared, payload, response),
            Action::Unlock => self.unlock(&prepared, payload, response),
            Action::Scan => self.scan(payload, response),
            Action::ValidateLeaf => self.validate_leaf(payload, response),
            Action::Guard => self.guard(payload, response),
            Action::Unguard => self.unguard(payload, response),
            Action::Refuse => self.refuse(response),
        }
    }
}
