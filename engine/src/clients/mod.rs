//! Transactions of programs that are no members of the cluster.
//!
//! ```text
//! Client ── run: a closure as a transaction          Gateway ── at a node; a thread for each connection
//!   └─ RemoteTransaction: get, scan, put   ◀─ TCP ─▶   └─ Deferred: what was read, what is to be written
//!                                                            └─ commit: locks, validates, writes
//! ```
//! Nothing is locked before commit, so a client that goes leaves nothing behind, and one that thinks for long only risks
//! a conflict. Writes travel with the next request that needs an answer.
//!
//! *Source*: `docs/architecture.md`, "Transactions": lock mode *at commit*.
//!
//! *Invariants*: each request runs once: a session outlives a connection that breaks, and what was not answered is said again on
//! another one. An outcome is told as unknown if the answer to a commit that writes does not come, and then alone. A transaction of
//! which a write was refused does not commit. What breaks for good before the commit is run again in another session, at another
//! node if its own has ended or halted.
//!
//! *Not here*: how such a transaction reads and commits, in `deferred`; handshake, seal and numbers of messages, in `link`.

mod client;
mod conversation;
mod gateway;
mod message;
mod once;
mod remote_transaction;
mod sessions;

pub use client::{Client, ClientError, ClientOptions};
pub use gateway::{Clients, Gateway, GatewayError, GatewayOptions};
pub use remote_transaction::RemoteTransaction;

/// About as many bytes of keys and values are sent in one message; more take several messages.
const MESSAGE_BYTES: usize = 1 << 20;
/// Of each row in a message, beside its key and value.
const OVERHEAD_BYTES: usize = 16;
