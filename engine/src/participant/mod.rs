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
use gannet_storage::{BucketUpdate, CommitLog, Item, LockMode, Place, Table};

use crate::node::Node;
use crate::request::{self, KeyRequest, Status, lock_mode_from_wire};

/// One worker's participant: the node's tables, and the worker's own log slots.
pub(crate) struct Participant {
    node: Arc<Node>,
    log: CommitLog,
}

impl Participant {
    pub(crate) fn new(node: Arc<Node>, log: CommitLog) -> Self {
        Self { node, log }
    }

    /// What `request` is about, if this node is the primary of its key.
    #[inline]
    fn key_target(&self, request: &KeyRequest) -> Option<Target> {
        let table = self.node.table(request.table)?;
        let location = table.locate(request.key);
        let is_primary = self.node.configuration().primary(location.partition) == self.node.id();
        let place = table.place_of(location)?;
        is_primary.then_some(Target { request: *request, place })
    }

    /// What `request` is about, if this node is the primary of its bucket.
    #[inline]
    fn bucket_target(&self, request: &KeyRequest) -> Option<Target> {
        let place = self.node.table(request.table)?.bucket_place(request.detail, request.bucket)?;
        let is_primary = self.node.configuration().primary(request.detail) == self.node.id();
        is_primary.then_some(Target { request: *request, place })
    }

    /// Table and place of a unit, if it fits the table and this node holds the bucket.
    #[inline]
    fn unit_target(&self, payload: &[u8]) -> Option<(u16, Place)> {
        let (unit, rest) = BucketUpdate::parse(payload).ok()?;
        let table = self.node.table(unit.table)?;
        let mut place = table.bucket_place(unit.partition, unit.bucket)?;
        if !rest.is_empty() || unit.layout != table.layout().version {
            return None;
        }
        for item in unit.items() {
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
        Some((unit.table, place))
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

/// A request about a key or a bucket of this node.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    request: KeyRequest,
    place: Place,
}

/// A request that was parsed and found to be about something that is here.
#[derive(Clone, Copy)]
pub(crate) enum Prepared {
    Read(Target),
    Lock(Target, LockMode),
    Validate(Target),
    Log,
    Backup(u16, Place),
    Primary(u16, Place),
    Unlock(Target),
    Refused,
}

impl Handler for Participant {
    type Prepared = Prepared;

    #[inline]
    fn prepare(&self, kind: u16, payload: &[u8]) -> Prepared {
        let key_request = || KeyRequest::decode(payload);
        let prepared = match kind {
            request::READ => {
                key_request().and_then(|request| self.key_target(&request)).map(Prepared::Read)
            }
            request::LOCK => key_request().and_then(|request| {
                let mode = lock_mode_from_wire(request.detail)?;
                Some(Prepared::Lock(self.key_target(&request)?, mode))
            }),
            request::VALIDATE => {
                key_request().and_then(|request| self.bucket_target(&request)).map(Prepared::Validate)
            }
            request::UNLOCK => {
                key_request().and_then(|request| self.bucket_target(&request)).map(Prepared::Unlock)
            }
            request::LOG => Some(Prepared::Log),
            request::BACKUP => {
                self.unit_target(payload).map(|(table, place)| Prepared::Backup(table, place))
            }
            request::PRIMARY => {
                self.unit_target(payload).map(|(table, place)| Prepared::Primary(table, place))
            }
            _ => None,
        };
        match prepared {
            Some(Prepared::Read(target) | Prepared::Lock(target, _) | Prepared::Validate(target)) => {
                self.table(target.request.table).prefetch(target.place);
            }
            Some(Prepared::Backup(table, place)) => self.table(table).prefetch(place),
            // The header and slots of what it unlocks were touched when it was locked.
            Some(Prepared::Primary(..) | Prepared::Unlock(_) | Prepared::Log | Prepared::Refused)
            | None => {}
        }
        prepared.unwrap_or(Prepared::Refused)
    }

    #[inline]
    fn prefetch_next(&self, prepared: &Prepared) {
        match prepared {
            Prepared::Read(target) | Prepared::Lock(target, _) => {
                self.table(target.request.table).prefetch_slot(target.place);
            }
            Prepared::Backup(table, place) => self.table(*table).prefetch_slot(*place),
            Prepared::Validate(_)
            | Prepared::Primary(..)
            | Prepared::Unlock(_)
            | Prepared::Log
            | Prepared::Refused => {}
        }
    }

    #[inline]
    fn handle(&mut self, prepared: Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match prepared {
            Prepared::Read(target) => self.read(target, response),
            Prepared::Lock(target, mode) => self.lock(target, mode, response),
            Prepared::Validate(target) => self.validate(target, response),
            Prepared::Log => self.log(payload, response),
            Prepared::Backup(table, place) => self.backup(table, place, payload, response),
            Prepared::Primary(table, place) => self.primary(table, place, payload, response),
            Prepared::Unlock(target) => self.unlock(target, response),
            Prepared::Refused => self.refuse(response),
        }
    }
}
