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
use gannet_storage::{BucketUpdate, CommitLog, Item, Prefetched, Table};

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

    /// The table of a request about a key, if this node is the primary of the key.
    #[inline]
    fn table_of_key(&self, request: &KeyRequest) -> Option<&Table> {
        let table = self.node.table(request.table)?;
        let configuration = self.node.configuration();
        let partition = configuration.partitioning.partition(request.key);
        (configuration.primary(partition) == self.node.id()).then_some(table)
    }

    /// The table of a request about a bucket, if this node is the primary of the bucket.
    #[inline]
    fn table_of_bucket(&self, request: &KeyRequest) -> Option<&Table> {
        let table = self.node.table(request.table)?;
        let held = table.holds(request.detail, request.bucket)
            && self.node.configuration().primary(request.detail) == self.node.id();
        held.then_some(table)
    }

    /// A unit and its table, if it fits the table and this node holds the bucket.
    #[inline]
    fn unit<'p>(&self, payload: &'p [u8]) -> Option<(&Table, BucketUpdate<'p>)> {
        let (unit, rest) = BucketUpdate::parse(payload).ok()?;
        let table = self.node.table(unit.table)?;
        let fits = |item: Item<'_>| {
            let (key, fits) = match item {
                Item::Put { key, value } => (key, value.len() == table.layout().value_bytes),
                Item::Delete { key } => (key, true),
            };
            let location = table.locate(key);
            fits && (location.partition, location.bucket) == (unit.partition, unit.bucket)
        };
        let here = rest.is_empty()
            && unit.layout == table.layout().version
            && table.holds(unit.partition, unit.bucket)
            && unit.items().all(fits);
        here.then_some((table, unit))
    }

    fn refuse(&self, response: &mut ResponseWriter<'_>) {
        self.node.count_refused();
        response.push(Status::Refused as u16);
    }
}

impl Handler for Participant {
    type Prefetched = (u16, Prefetched);

    #[inline]
    fn prefetch(&self, kind: u16, payload: &[u8]) -> Option<Self::Prefetched> {
        match kind {
            request::READ | request::LOCK => {
                let request = KeyRequest::decode(payload)?;
                Some((request.table, self.table_of_key(&request)?.prefetch(request.key)))
            }
            request::VALIDATE | request::UNLOCK => {
                let request = KeyRequest::decode(payload)?;
                let table = self.table_of_bucket(&request)?;
                table.prefetch_header(request.detail, request.bucket);
                None
            }
            request::BACKUP | request::PRIMARY => {
                let (unit, _) = BucketUpdate::parse(payload).ok()?;
                let key = match unit.items().next()? {
                    Item::Put { key, .. } | Item::Delete { key } => key,
                };
                Some((unit.table, self.node.table(unit.table)?.prefetch_held(key)?))
            }
            _ => None,
        }
    }

    #[inline]
    fn prefetch_next(&self, (table, prefetched): Self::Prefetched) {
        if let Some(table) = self.node.table(table) {
            table.prefetch_slot(prefetched);
        }
    }

    #[inline]
    fn handle(
        &mut self,
        _source: u16,
        kind: u16,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        match kind {
            request::READ => self.read(payload, response),
            request::LOCK => self.lock(payload, response),
            request::VALIDATE => self.validate(payload, response),
            request::LOG => self.log(payload, response),
            request::BACKUP => self.backup(payload, response),
            request::PRIMARY => self.primary(payload, response),
            request::UNLOCK => self.unlock(payload, response),
            _ => self.refuse(response),
        }
    }
}
