//! LOCK: lock a key's bucket and read the key, at its primary.
//!
//! *Source*: FaSST section 5, step 1. *Invariant*: behind a scan barrier no lock is granted in a heap table, and none of a row that another has
//! reserved.

use gannet_rpc::ResponseWriter;
use gannet_storage::{HEAP_VALUE_BYTES_MAX, HashedKey, Lock, LockMode, Table, TableKind};

use crate::holder::Passes;
use crate::participant::{Participant, Prepared};
use crate::request::{LockRow, Status, VERSION_BYTES};

impl Participant {
    #[inline]
    pub(super) fn lock(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (table, address) = (self.table(prepared.table), prepared.address());
        if table.layout().kind != TableKind::Fixed {
            return self.lock_row(prepared, payload, response);
        }
        let LockRow { key, owner, mode, .. } = Self::decoded(payload).0;
        let capacity = VERSION_BYTES + table.layout().value_bytes;
        response.push_with(capacity, |out| {
            let (version_out, value) = out.split_at_mut(VERSION_BYTES);
            let lock = table.lock(address, key, owner, mode, value);
            let bytes = match lock {
                Lock::Granted { .. } if mode == LockMode::Insert => VERSION_BYTES,
                Lock::Granted { .. } | Lock::Exists { .. } => capacity,
                Lock::Absent { .. } => VERSION_BYTES,
                Lock::Locked | Lock::Full => 0,
            };
            let (status, version) = lock_status(table, lock);
            version_out.copy_from_slice(&version.to_le_bytes());
            (status as u16, bytes)
        });
    }

    fn lock_row(&self, prepared: &Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, bytes) = Self::decoded(payload);
        let LockRow { mode, passes, value_bytes, key: hash, owner, .. } = request;
        let change = (mode, value_bytes as usize);
        if change.1 > HEAP_VALUE_BYTES_MAX {
            return self.refuse(response);
        }
        let (table, key) = (self.table(prepared.table), HashedKey::from_parts(hash, bytes));
        if table.barrier_count(table.locate(key.word()).partition) > 0 {
            return response.push(Status::Barrier as u16);
        }
        let reservations = self.view.reservations();
        if passes != Passes::All && reservations.are_there() {
            let (row, now_ns) = ((prepared.table, hash), self.clock.now_ns());
            let is_read = || passes == Passes::Nothing && reservations.is_read(row, bytes, now_ns);
            if reservations.is_reserved(row, now_ns) || is_read() {
                return response.push(Status::Reserved as u16);
            }
        }
        let lock = table.lock_row(prepared.address(), key, owner, change);
        let (status, version) = lock_status(table, lock);
        response.push_with(VERSION_BYTES, |out| {
            out.copy_from_slice(&version.to_le_bytes());
            (status as u16, VERSION_BYTES)
        });
    }
}

/// The answer to a LOCK, and the bucket's version if it has one.
#[inline(always)]
pub(crate) fn lock_status(table: &Table, lock: Lock) -> (Status, u64) {
    match lock {
        Lock::Granted { version } => (Status::Granted, version),
        Lock::Absent { version } => (Status::Absent, version),
        Lock::Exists { version } => (Status::Exists, version),
        Lock::Locked => (Status::Locked, 0),
        // The coordinator waits for the memory as for a lock.
        Lock::Full if table.awaits_memory() => (Status::Locked, 0),
        Lock::Full => (Status::Full, 0),
    }
}
