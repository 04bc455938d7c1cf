//! Cancel requests: the process ids and secret keys of connections, and the handles that cancel their statements.
//!
//! *Source*: PostgreSQL 15, section 55.2.8.
//!
//! *Invariants*: a request with a wrong key has no effect. Dropping a connection removes its entry.
//!
//! *Not here*: how a statement notices (`connection`, and sessions).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_frontend::CancelHandle;

/// Bytes of a secret key, in protocol 3.0.
const KEY_BYTES: usize = 4;

/// The connections whose statements can be cancelled.
#[derive(Default)]
pub(super) struct Cancellation {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    process_id_last: i32,
    by_process_id: BTreeMap<i32, Entry>,
}

struct Entry {
    secret_key: [u8; KEY_BYTES],
    handle: CancelHandle,
}

/// A connection's entry; dropping this removes the entry.
pub(super) struct Registration {
    cancellation: Arc<Cancellation>,
    pub(super) process_id: i32,
    pub(super) secret_key: [u8; KEY_BYTES],
}

impl Cancellation {
    pub(super) fn register(self: &Arc<Self>, handle: CancelHandle) -> Registration {
        let mut secret_key = [0; KEY_BYTES];
        getrandom::fill(&mut secret_key).expect("the system gives random bytes");
        let mut entries = self.lock();
        let process_id = loop {
            entries.process_id_last = entries.process_id_last.checked_add(1).unwrap_or(1);
            if !entries.by_process_id.contains_key(&entries.process_id_last) {
                break entries.process_id_last;
            }
        };
        entries.by_process_id.insert(process_id, Entry { secret_key, handle });
        Registration { cancellation: Arc::clone(self), process_id, secret_key }
    }

    /// Cancels a connection's statement, if the key is right.
    pub(super) fn cancel(&self, process_id: i32, secret_key: &[u8]) {
        if let Some(entry) = self.lock().by_process_id.get(&process_id)
            && entry.secret_key == secret_key
        {
            entry.handle.cancel();
        }
    }

    /// Cancels the statements of all connections.
    pub(super) fn cancel_all(&self) {
        self.lock().by_process_id.values().for_each(|entry| entry.handle.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code panics between two changes of the map, so a poisoned lock guards nothing broken.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cancellation.lock().by_process_id.remove(&self.process_id);
    }
}
