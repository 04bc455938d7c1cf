//! BEGIN_LOAD, LOAD, END_LOAD: rows for a partition that no transaction uses, at each of its copies.
//!
//! *Source*: `docs/protocol.md`, "Bulk loads". *Invariant*: a node takes part in a load only while copies neither come nor go, and in the placement
//! in which the load has begun: so all rows go to the same copies.
//!
//! *Not here*: what is done with the rows, in `storage/src/bulk_load.rs`.

use gannet_rpc::ResponseWriter;
use gannet_rules::rule;
use gannet_storage::{BucketAddress, BulkLoaded, HashedKey};

use crate::answer::ROWS_BYTES;
use crate::participant::{Action, Participant};
use crate::request::{self, Load, Status, TableRequest};
use crate::view::View;

impl Participant {
    /// What a request about a load is about, if all rows of the load go to the copies that this node knows: no bucket.
    pub(super) fn prepare_load(
        &self,
        kind: u16,
        payload: &[u8],
    ) -> (Action, Option<BucketAddress>) {
        let action = match kind {
            request::BEGIN_LOAD => Action::BeginLoad,
            request::LOAD => Action::Load,
            _ => Action::EndLoad,
        };
        let load = self.parsed_load(kind, payload).filter(|load| {
            let placement = self.view.configuration().settled_placement();
            placement == Some(load.placement) || !rule!(LOAD_IN_ONE_EPOCH)
        });
        (action, load.map(|_| BucketAddress::NONE))
    }

    /// What becomes of a request about a load, if it is one, that is not prepared: the node has not heard of the placement yet, or a copy has come
    /// or gone since the load began, or is being made.
    pub(super) fn refuse_load(&self, kind: u16, payload: &[u8]) -> Option<Action> {
        let is_of_load = matches!(kind, request::BEGIN_LOAD | request::LOAD | request::END_LOAD);
        let load = self.parsed_load(kind, payload).filter(|_| is_of_load)?;
        let is_later = self.view.configuration().placement() < load.placement;
        Some(if is_later { Action::Await } else { Action::Move })
    }

    /// A request about a partition of an ordered table that this node holds.
    fn parsed_load(&self, kind: u16, payload: &[u8]) -> Option<Load> {
        let (load, rest) = Load::decode(payload)?;
        let is_held = self.held_target(load.table, load.partition, 0).is_some();
        let has_rows = kind == request::LOAD;
        (is_held && self.has_order(load.table) && rest.is_empty() != has_rows).then_some(load)
    }

    /// `prepare` has checked that this node holds the partition, and that the placement is that of the load.
    pub(super) fn begin_load(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Load { table, partition, owner, .. } = Self::decoded(payload).0;
        let has_begun = self.table(table).begin_bulk_load(partition, owner);
        response.push(if has_begun { Status::Done } else { Status::Changed } as u16);
    }

    /// As [`Self::begin_load`].
    pub(super) fn load(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (status, rows) = loaded(&self.view, payload);
        if status == Status::Refused {
            self.view.count_refused();
        }
        response.push_with(ROWS_BYTES, |out| {
            out.copy_from_slice(&(rows as u64).to_le_bytes());
            (status as u16, ROWS_BYTES)
        });
    }

    /// As [`Self::begin_load`].
    pub(super) fn end_load(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Load { table, partition, owner, .. } = Self::decoded(payload).0;
        let has_ended = self.table(table).end_bulk_load(partition, owner);
        response.push(if has_ended { Status::Done } else { Status::Changed } as u16);
    }
}

/// The answer to a LOAD at the node of `view`, which holds the partition: a status, and how many rows are loaded.
pub(crate) fn loaded(view: &View, payload: &[u8]) -> (Status, usize) {
    let (load, mut rest) = Load::decode(payload).expect("it was prepared, or is this node's own");
    let Load { table, partition, role, owner, .. } = load;
    let table = view.table(table).expect("it was found before");
    let mut rows = Vec::with_capacity(request::LOADED_ROWS_MAX);
    while let Some(((key, value), others)) = request::next_loaded_row(rest) {
        let hashed: HashedKey<'_> = table.hashed(key);
        let is_here = table.locate(hashed.word()).partition == partition;
        if !is_here || !table.fits(hashed, value) {
            return (Status::Refused, 0);
        }
        rows.push((hashed, value));
        rest = others;
    }
    if !rest.is_empty() {
        return (Status::Refused, 0);
    }
    match table.bulk_load((partition, owner), &rows, role == request::COUNTS_MEMORY) {
        BulkLoaded::All => (Status::Done, rows.len()),
        BulkLoaded::Exists(loaded) => (Status::Exists, loaded),
        BulkLoaded::Full(loaded) if table.awaits_memory() => (Status::Locked, loaded),
        BulkLoaded::Full(loaded) => (Status::Full, loaded),
        BulkLoaded::Unknown => (Status::Changed, 0),
    }
}
