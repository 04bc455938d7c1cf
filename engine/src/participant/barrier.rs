//! SET_BARRIER and RELEASE_BARRIER: keep new locks out of a partition while a transaction scans it.
//!
//! *Invariant*: a barrier serves progress alone: what is read behind it is validated as everything else.
//!
//! *Source*: `docs/protocol.md`, "Scan barriers".
//!
//! *Not here*: the barriers, in `storage/src/scan_barrier.rs`.

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::{Barrier, Status};

impl Participant {
    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn set_barrier(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Barrier { table, partition, owner } = Self::decoded(payload).0;
        self.table(table).set_barrier(partition, owner);
        response.push(Status::Done as u16);
    }

    /// As [`Self::set_barrier`].
    pub(super) fn release_barrier(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Barrier { table, partition, owner } = Self::decoded(payload).0;
        self.table(table).release_barrier(partition, owner);
        response.push(Status::Done as u16);
    }
}
