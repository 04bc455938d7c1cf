//! The participant: a worker's answers to coordinators, its own node's included.
//!
//! One file per request. Every request names what it means by number; a request that names a table,
//! partition or bucket that is not here is refused and counted, never trusted.

mod backup;
mod lock;
mod log;
mod primary;
mod read;
mod unlock;
mod validate;

use std::sync::Arc;

use gannet_rpc::{Handler, ResponseWriter};
use gannet_storage::{BucketUpdate, CommitLog, Item, LockMode, Owner, Place, Table};

use crate::node::Node;
use crate::request::{self, KeyRequest, Status};

/// One worker's participant: the node's tables, and the worker's own log slots.
pub(crate) struct Participant {
    node: Arc<Node>,
    log: CommitLog,
}

impl Participant {
    pub(crate) fn new(node: Arc<Node>, log: CommitLog) -> Self {
        Self { node, log }
    }

    /// The records in the log slots.
    pub(crate) fn log_records(&self) -> impl Iterator<Item = &[u8]> {
        self.log.records()
    }

    /// What a request about a key is about, if this node is the key's primary.
    #[inline(always)]
    fn key_target(&self, action: Action, request: &KeyRequest) -> Prepared {
        let Some(table) = self.node.table(request.table) else { return Prepared::REFUSED };
        let location = table.locate(request.key);
        let Some(place) = table.place_of(location) else { return Prepared::REFUSED };
        table.prefetch(place);
        if self.node.configuration().primary(location.partition) != self.node.id() {
            return Prepared::REFUSED;
        }
        Prepared { action, table: request.table, place, key: request.key, owner: request.owner }
    }

    /// What a request about a bucket is about, if this node is the bucket's primary.
    #[inline(always)]
    fn bucket_target(&self, action: Action, request: &KeyRequest) -> Prepared {
        let table = self.node.table(request.table);
        let place = table.and_then(|table| table.bucket_place(request.detail, request.bucket));
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
            let (key, fits) = match item {
                Item::Put { key, value } => (key, value.len() == table.layout().value_bytes),
                Item::Delete { key } => (key, true),
            };
            let location = table.locate(key);
            if !fits || (location.partition, location.bucket) != (unit.partition, unit.bucket) {
                return None;
            }
            place = place.with_tag(location.tag);
        }
        if !items.is_at_end() {
            return None;
        }
        if action == Action::Backup {
            // At the primary header and slots were touched when the bucket was locked.
            table.prefetch(place);
        }
        Some(Prepared { action, table: unit.table, place, key: 0, owner: unit.owner })
    }

    /// The table of a request that was prepared.
    #[inline]
    fn table(&self, number: u16) -> &Table {
        self.node.table(number).expect("a prepared request names a table that is here")
    }

    fn refuse(&self, response: &mut ResponseWriter<'_>) {
        self.node.count_refused();
        response.push(Status::Refused as u16);
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
    Log,
    Backup,
    Primary,
    Unlock,
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
    const LOG: Self = Self { action: Action::Log, ..Self::REFUSED };
}

impl Handler for Participant {
    type Prepared = Prepared;

    #[inline]
    fn prepare(&self, kind: u16, payload: &[u8]) -> Prepared {
        match kind {
            request::LOG => return Prepared::LOG,
            request::BACKUP => {
                return self.unit_target(Action::Backup, payload).unwrap_or(Prepared::REFUSED);
            }
            request::PRIMARY => {
                return self.unit_target(Action::Primary, payload).unwrap_or(Prepared::REFUSED);
            }
            _ => {}
        }
        let Some(request) = KeyRequest::decode(payload) else { return Prepared::REFUSED };
        match (kind, request.detail) {
            (request::READ, _) => self.key_target(Action::Read, &request),
            (request::LOCK, request::UPDATE) => self.key_target(Action::LockForUpdate, &request),
            (request::LOCK, request::INSERT) => self.key_target(Action::LockForInsert, &request),
            (request::LOCK, request::DELETE) => self.key_target(Action::LockForDelete, &request),
            (request::VALIDATE, _) => self.bucket_target(Action::Validate, &request),
            (request::UNLOCK, _) => self.bucket_target(Action::Unlock, &request),
            _ => Prepared::REFUSED,
        }
    }

    #[inline]
    fn prefetch_next(&self, prepared: &Prepared) {
        match prepared.action {
            Action::Read
            | Action::LockForUpdate
            | Action::LockForInsert
            | Action::LockForDelete
            | Action::Backup => self.table(prepared.table).prefetch_slot(prepared.place),
            Action::Validate | Action::Primary | Action::Unlock | Action::Log | Action::Refuse => {}
        }
    }

    #[inline]
    fn handle(&mut self, prepared: Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match prepared.action {
            Action::Read => self.read(&prepared, response),
            Action::LockForUpdate => self.lock(&prepared, LockMode::Update, response),
            Action::LockForInsert => self.lock(&prepared, LockMode::Insert, response),
            Action::LockForDelete => self.lock(&prepared, LockMode::Delete, response),
            Action::Validate => self.validate(&prepared, response),
            Action::Log => self.log(payload, response),
            Action::Backup => self.backup(&prepared, payload, response),
            Action::Primary => self.primary(&prepared, payload, response),
            Action::Unlock => self.unlock(&prepared, response),
            Action::Refuse => self.refuse(response),
        }
    }
}
