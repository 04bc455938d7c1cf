//! The client library: transactions of a program that is no member of the cluster, at whichever of its nodes takes them.
//!
//! ```text
//! run ─▶ a session at a node ─┬─ Committed, Failed ...
//!  ▲                          ├─ a conflict, or the session broke before the commit ─▶ again, at this node or the next
//!  │                          ├─ the node has halted ─▶ again, at a node that has not
//!  └──────────────────────────┴─ the session broke in a commit that writes ─▶ Unknown
//! ```
//! *Invariants*: a transaction has a session of its own while it runs. Only a commit that writes and whose answer is lost is
//! reported as unknown. A session that failed is never used again. A transaction does not return to a
//! node that has halted.
//!
//! *Not here*: what a transaction does, in `remote_transaction.rs`; connections that break, in `conversation.rs`; how the node runs
//! the transaction, in `gateway.rs` and `deferred`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_rpc::ClusterKey;

use crate::clients::conversation::Conversation;
use crate::clients::message::{Operation, TableEntry};
use crate::clients::remote_transaction::{Interruption, RemoteTransaction};
use crate::outcome::{Abort, Outcome, panic_message};
use crate::table_id::TableId;

/// Runs of a closure before its conflicts are reported.
const ATTEMPTS_MAX: u32 = 100;
/// Attempts to connect while no node can be reached, after one could.
const CALLS_MAX: u32 = 5;
/// Sessions that are kept without a transaction.
const IDLE_MAX: usize = 32;
/// Longest first wait after a conflict; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_micros(50);
/// Longest wait after a conflict.
const BACKOFF_MAX: Duration = Duration::from_millis(20);

/// Where a cluster takes clients.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Of some of its nodes, or all: one that cannot be reached is passed over.
    pub addresses: Vec<SocketAddr>,
    /// The key of the cluster's clients, unless it trusts their network.
    pub key: Option<ClusterKey>,
    /// Longest wait for an answer.
    pub timeout: Duration,
}

/// Why a transaction was not run. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No address was given.
    #[error("there is no address of a node; give one where it takes clients")]
    NoAddress,
    /// No node takes this client.
    #[error("no node takes this client: {0}; does it run, and take clients there?")]
    Unreachable(String),
    /// There is no such table, or not for clients.
    #[error("there is no table named {0} for clients; name it where the nodes are started")]
    NoSuchTable(String),
    /// A node lacks tables that this client knows, or has others under their numbers, and no other node takes this client.
    #[error("the nodes were started again with other tables; connect again")]
    OtherTables,
    /// Connections broke, or nodes were busy, each time that the transaction was run.
    #[error("{0}; nothing was written; run it again")]
    Interrupted(String),
    /// The node did not answer in time.
    #[error("no answer came within {0:?}; nothing was written; look at the nodes' log")]
    TimedOut(Duration),
    /// Each node that takes this client has halted, and says why.
    #[error("the cluster has halted: {0}")]
    Halted(String),
    /// Whether the transaction committed is not known.
    #[error(
        "whether the transaction committed is unknown: {0}; read what it wrote before it is run again"
    )]
    Unknown(String),
    /// The node finds a request impossible that this client should not have sent.
    #[error("the node has refused a request: {0}")]
    Refused(String),
}

/// What nodes have said that have halted, or are no members any more, by address.
pub(super) type Halted = BTreeMap<SocketAddr, String>;

/// A client of a cluster, for any number of threads. Each transaction under way has a connection of its own.
///
/// When its node ends, halts, or is no member any more, a transaction that was not committing is run again at the next address.
///
/// ```no_run
/// # use std::time::Duration;
/// use gannet_engine::{Abort, Client, ClientOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A node that was started with `--clients 127.0.0.1:7433 --tables stock:8`.
/// let client = Client::connect(ClientOptions {
///     addresses: vec!["127.0.0.1:7433".parse()?],
///     key: None,
///     timeout: Duration::from_secs(10),
/// })?;
/// let stock = client.table("stock")?;
/// let outcome = client.run(|tx| {
///     let value = tx.get(stock, 42_u64)?.unwrap_or_default();
///     let before = value.try_into().map_or(0, u64::from_le_bytes);
///     tx.put(stock, 42_u64, &(before + 1).to_le_bytes())?;
///     Ok::<_, Abort>(before)
/// })?;
/// # drop(outcome);
/// # Ok(())
/// # }
/// ```
pub struct Client {
    pub(super) options: ClientOptions,
    /// Sessions without a transaction.
    idle: Mutex<Vec<Conversation>>,
    /// The tables that the first node had for clients. Others may have more.
    pub(super) tables: Vec<TableEntry>,
    /// The address that the next connection tries first.
    next: AtomicUsize,
}

impl Client {
    /// Connects to one of the nodes; later to others, when they are needed.
    ///
    /// # Errors
    /// [`ClientError::NoAddress`]; [`ClientError::Unreachable`] if no node takes this client.
    pub fn connect(options: ClientOptions) -> Result<Self, ClientError> {
        let next = AtomicUsize::new(0);
        let mut client = Self { options, idle: Mutex::default(), tables: Vec::new(), next };
        let (conversation, tables) = client.called(&Halted::new())?;
        client.tables = tables;
        client.idle().push(conversation);
        Ok(client)
    }

    /// A table that the nodes have for clients, since this client has connected.
    ///
    /// # Errors
    /// [`ClientError::NoSuchTable`].
    pub fn table(&self, name: &str) -> Result<TableId, ClientError> {
        let entry = self.tables.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| ClientError::NoSuchTable(name.to_owned()))?;
        Ok(TableId(entry.number))
    }

    /// Runs `body` as a transaction and commits it; runs it again, after a random and growing wait, when it met a
    /// conflict, or when a connection broke before commit or its node has halted, at the next address then.
    ///
    /// `body` may see rows that do not belong together before commit tells; an error or panic that it raises is
    /// therefore reported only if what it had read was valid. It must not keep effects of its own from one run to the
    /// next.
    ///
    /// # Errors
    /// Why there is no outcome; after [`ClientError::Unknown`] it may have committed.
    pub fn run<T, E: From<Abort>>(
        &self,
        mut body: impl FnMut(&mut RemoteTransaction<'_>) -> Result<T, E>,
    ) -> Result<Outcome<T, E>, ClientError> {
        let (mut attempt, mut calls) = (0, 0);
        let mut halted = Halted::new();
        loop {
            let mut transaction = match RemoteTransaction::begin(self, &halted) {
                Ok(transaction) => transaction,
                // An earlier connection broke: the nodes may come back.
                Err(ClientError::Unreachable(_)) if attempt > 0 && calls < CALLS_MAX => {
                    calls += 1;
                    std::thread::park_timeout(BACKOFF_MAX);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let result = catch_unwind(AssertUnwindSafe(|| body(&mut transaction)));
            let is_done = matches!(result, Ok(Ok(_)));
            let last = if is_done { Operation::Commit } else { Operation::GiveUp };
            let ended = transaction.finish(last);
            attempt += 1;
            let is_last = attempt == ATTEMPTS_MAX;
            match (ended, result) {
                (Ok(()), Ok(Ok(value))) => return Ok(Outcome::Committed(value)),
                (Ok(()), Ok(Err(error))) => return Ok(Outcome::Failed(error)),
                (Ok(()), Err(panic)) => return Ok(Outcome::Panicked(panic_message(&*panic))),
                (Err(Interruption::Abort(abort)), _) if is_last || !abort.is_conflict() => {
                    return Ok(Outcome::Aborted(abort));
                }
                (Err(Interruption::Broken(reason)), _) if is_last => {
                    return Err(ClientError::Interrupted(reason));
                }
                (Err(Interruption::Halted(_, reason)), _) if is_last => {
                    return Err(ClientError::Halted(reason));
                }
                (Err(Interruption::Halted(address, reason)), _) => {
                    halted.insert(address, reason);
                }
                (Err(Interruption::Abort(_) | Interruption::Broken(_)), _) => {}
                (Err(Interruption::Final(error)), _) => return Err(error),
            }
            let bound = (BACKOFF_MIN * 2_u32.pow(attempt.min(16))).min(BACKOFF_MAX);
            std::thread::park_timeout(bound.mul_f64(random_fraction()));
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Conversation>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session that no transaction has, at a node that has not halted.
    pub(super) fn conversation(&self, halted: &Halted) -> Result<Conversation, ClientError> {
        while let Some(conversation) = { self.idle().pop() } {
            // Its node may have ended it meanwhile.
            if conversation.is_quiet() && !halted.contains_key(&conversation.address()) {
                return Ok(conversation);
            }
        }
        self.called(halted).map(|(conversation, _)| conversation)
    }

    /// Keeps a session for a later transaction.
    pub(super) fn keep(&self, conversation: Conversation) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(conversation);
            return;
        }
        drop(idle);
        conversation.leave();
    }

    /// A new session, and the tables that its node has: those that this client knows, and perhaps others.
    fn called(&self, halted: &Halted) -> Result<(Conversation, Vec<TableEntry>), ClientError> {
        let addresses = &self.options.addresses;
        if addresses.is_empty() {
            return Err(ClientError::NoAddress);
        }
        // Relaxed: which is first does not matter.
        let first = self.next.fetch_add(1, Ordering::Relaxed) % addresses.len();
        let (mut reasons, mut has_other_tables) = (Vec::new(), false);
        for address in addresses[first..].iter().chain(&addresses[..first]) {
            if let Some(reason) = halted.get(address) {
                reasons.push(format!("{address}: {reason}"));
                continue;
            }
            match Conversation::begin(*address, &self.options) {
                // A node that was started again may have others under the same numbers.
                Ok((conversation, tables)) => {
                    if self.tables.iter().all(|table| tables.contains(table)) {
                        return Ok((conversation, tables));
                    }
                    has_other_tables = true;
                    conversation.leave();
                }
                Err(error) => reasons.push(format!("{address}: {error}")),
            }
        }
        let reasons = reasons.join("; ");
        Err(match (has_other_tables, halted.is_empty()) {
            (true, _) => ClientError::OtherTables,
            (false, false) => ClientError::Halted(reasons),
            (false, true) => ClientError::Unreachable(reasons),
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut *self.idle());
        idle.into_iter().for_each(Conversation::leave);
    }
}

/// A random number from 0 to 1; its quality does not matter.
fn random_fraction() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}
