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
pub(crate) use validate::validated;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gannet_rpc::{Handler, ResponseWriter};
use gannet_storage::{
    BucketUpdate, CommitLog, HEAP_VALUE_BYTES_MAX, Item, KEY_BYTES_MAX, LockMode, Owner, Place,
    RowKey, Table,
};

use crate::node::Node;
use crate::request::{self, KEY_REQUEST_BYTES, KeyRequest, Status};
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

    /// The records in the log slots.
    pub(crate) fn log_records(&self) -> Vec<Vec<u8>> {
        self.log.borrow().records().map(<[u8]>::to_vec).collect()
    }

    /// What a request about a key is about, if this node is the key's primary.
    #[inline(always)]
    fn key_target(&self, action: Action, request: &KeyRequest, row_key: &[u8]) -> Prepared {
        let Some(table) = self.node.table(request.table) else { return Prepared::REFUSED };
        if !is_key_of(table, request.key, row_key) {
            return Prepared::REFUSED;
        }
        let location = table.locate(request.key);
        let Some(place) = table.place_of(location) else { return Prepared::REFUSED };
        if self.node.configuration().primary(location.partition) != self.node.id() {
            return Prepared::REFUSED;
        }
        Prepared { action, table: request.table, place, key: request.key, owner: request.owner }
    }

    /// What a request about a bucket is about, if this node is the bucket's primary.
    #[inline(always)]
    fn bucket_target(&self, action: Action, request: &KeyRequest) -> Prepared {
        let table = self.node.table(request.table);
        self.target(action, request, table, request.bucket)
    }

    /// What an UNLOCK is about: a bucket, and in a heap table the key that was locked there.
    #[inline(always)]
    fn unlock_target(&self, request: &KeyRequest, row_key: &[u8]) -> Prepared {
        let table = self.node.table(request.table);
        match table.filter(|table| is_key_of(table, request.key, row_key)) {
            Some(_) => self.bucket_target(Action::Unlock, request),
            None => Prepared::REFUSED,
        }
    }

    /// What a request about the order of a partition is about, if this node is its primary.
    fn partition_target(&self, action: Action, request: &KeyRequest) -> Prepared {
        let table = self.node.table(request.table).filter(|table| table.is_ordered());
        self.target(action, request, table, 0)
    }

    #[inline(always)]
    fn target(
        &self,
        action: Action,
        request: &KeyRequest,
        table: Option<&Table>,
        bucket: u32,
    ) -> Prepared {
        let place = table.and_then(|table| table.bucket_place(request.detail, bucket));
        match place {
            Some(place) if self.node.configuration().primary(request.detail) == self.node.id() => {
                let (key, owner) = (request.key, request.owner);
                Prepared { action, table: request.table, place, key, owner }
            }
            _ => Prepared::REFUSED,
        }
    }

    /// What a unit is about, if it fits its table and this node holds the bucket.
    #[inline]
    fn unit_target(&self, action: Action, payload: &[u8]) -> Option<Prepared> {
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
        if !items.is_at_end() {
            return None;
        }
        Some(Prepared { action, table: unit.table, place, key: 0, owner: unit.owner })
    }

    /// The table of a request that was prepared.
    #[inline]
    fn table(&self, number: u16) -> &Table {
        self.node.table(number).expect("a prepared request names a table that is here")
    }

    /// The key of a heap table's row, behind the fixed part of a request that was prepared.
    #[inline]
    fn row_key<'p>(prepared: &Prepared, payload: &'p [u8]) -> RowKey<'p> {
        RowKey::with_hash(prepared.key, &payload[KEY_REQUEST_BYTES..])
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

/// A request that was parsed, and found to be about something that is here.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    action: Action,
    table: u16,
    place: Place,
    /// Key, or version.
    key: u64,
    owner: Owner,
}

impl Prepared {
    const REFUSED: Self = Self {
        action: Action::Refuse,
        table: 0,
        place: Place::NOWHERE,
        key: 0,
        owner: Owner::FREE,
    };

    const fn log(action: Action) -> Self {
        Self { action, ..Self::REFUSED }
    }
}

impl Handler for Participant {
    type Prepared = Prepared;

    #[inline]
    fn prepare(&self, kind: u16, payload: &[u8]) -> Prepared {
        match kind {
            request::LOG => return Prepared::log(Action::Log),
            request::LOG_PART => return Prepared::log(Action::LogPart),
            request::BACKUP => {
                return self.unit_target(Action::Backup, payload).unwrap_or(Prepared::REFUSED);
            }
            request::PRIMARY => {
                return self.unit_target(Action::Primary, payload).unwrap_or(Prepared::REFUSED);
            }
            _ => {}
        }
        let Some((request, rest)) = KeyRequest::decode(payload) else { return Prepared::REFUSED };
        let key_target = |action| self.key_target(action, &request, rest);
        match (kind, request.detail) {
            (request::READ, _) => key_target(Action::Read),
            (request::LOCK, request::UPDATE) => key_target(Action::LockForUpdate),
            (request::LOCK, request::INSERT) => key_target(Action::LockForInsert),
            (request::LOCK, request::DELETE) => key_target(Action::LockForDelete),
            (request::VALIDATE, _) if rest.is_empty() => {
                self.bucket_target(Action::Validate, &request)
            }
            (request::VALIDATE_MANY, _) => {
                let table = self.node.table(request.table);
                self.target(Action::ValidateMany, &request, table, 0)
            }
            (request::UNLOCK, _) => self.unlock_target(&request, rest),
            (request::SCAN, _) => self.partition_target(Action::Scan, &request),
            (request::VALIDATE_LEAF, _) if rest.is_empty() => {
                self.partition_target(Action::ValidateLeaf, &request)
            }
            (request::GUARD, _) if rest.is_empty() => {
                self.partition_target(Action::Guard, &request)
            }
            (request::UNGUARD, _) if rest.is_empty() => {
                self.partition_target(Action::Unguard, &request)
            }
            _ => Prepared::REFUSED,
        }
    }

    #[inline(always)]
    fn prefetch(&self, prepared: &Prepared) {
        // Whatever is asked for, without a branch: what was touched before is near, and so is a place that is none.
        self.node.prefetch(prepared.place);
    }

    #[inline]
    fn prefetch_next(&self, prepared: &Prepared) {
        match prepared.action {
            Action::Read
            | Action::LockForUpdate
            | Action::LockForInsert
            | Action::LockForDelete
            | Action::Backup => self.table(prepared.table).prefetch_slot(prepared.place),
            Action::Validate
            | Action::ValidateMany
            | Action::Primary
            | Action::Unlock
            | Action::Log
            | Action::LogPart
            | Action::Scan
            | Action::ValidateLeaf
            | Action::Guard
            | Action::Unguard
            | Action::Refuse => {}
        }
    }

    #[inline]
    fn handle(&mut self, prepared: Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match prepared.action {
            Action::Read => self.read(&prepared, payload, response),
            Action::LockForUpdate => self.lock(&prepared, LockMode::Update, payload, response),
            Action::LockForInsert => self.lock(&prepared, LockMode::Insert, payload, response),
            Action::LockForDelete => self.lock(&prepared, LockMode::Delete, payload, response),
            Action::Validate => self.validate(&prepared, response),
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
