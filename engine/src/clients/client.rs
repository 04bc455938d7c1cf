//! The client library: transactions of a program that is no member of the cluster.
//!
//! *Invariants*: a transaction has a session of its own while it runs. Only a commit whose answer is lost is reported as
//! unknown. A session that failed is never used again.
//!
//! *Not here*: connections that break, in `conversation.rs`; how the node runs the transaction, in `gateway.rs` and `deferred`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_rpc::ClusterKey;
use gannet_storage::{Direction, HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, Key};

use crate::clients::conversation::{CallError, Conversation};
use crate::clients::message::{Answer, Operation, Request, TableEntry, Write};
use crate::clients::{MESSAGE_BYTES, OVERHEAD_BYTES};
use crate::deferred::Page;
use crate::link::LinkError;
use crate::node::TableId;
use crate::outcome::{Abort, Outcome, panic_message};
use crate::rows::Rows;
use crate::transaction::KeyRange;

/// Runs of a closure before its conflicts are reported.
const ATTEMPTS_MAX: u32 = 100;
/// Attempts to connect while no node can be reached, after one could.
const CALLS_MAX: u32 = 5;
/// Sessions that are kept without a transaction.
const IDLE_MAX: usize = 32;
/// Keys of one request.
const KEYS_MAX: usize = 4_096;
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
    /// The nodes have other tables than when this client connected.
    #[error("the nodes were started again with other tables; connect again")]
    OtherTables,
    /// Connections broke, or nodes were busy, each time that the transaction was run.
    #[error("{0}; nothing was written; run it again")]
    Interrupted(String),
    /// The node did not answer in time.
    #[error("no answer came within {0:?}; nothing was written; look at the nodes' log")]
    TimedOut(Duration),
    /// The cluster has halted.
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

/// A client of a cluster, for any number of threads. Each transaction under way has a connection of its own.
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
    options: ClientOptions,
    /// Sessions without a transaction.
    idle: Mutex<Vec<Conversation>>,
    /// The tables that every node has for clients.
    tables: Vec<TableEntry>,
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
        let (conversation, tables) = client.called()?;
        client.tables = tables;
        client.idle().push(conversation);
        Ok(client)
    }

    /// A table that the nodes have for clients.
    ///
    /// # Errors
    /// [`ClientError::NoSuchTable`].
    pub fn table(&self, name: &str) -> Result<TableId, ClientError> {
        let entry = self.tables.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| ClientError::NoSuchTable(name.to_owned()))?;
        Ok(TableId(entry.number))
    }

    /// Runs `body` as a transaction and commits it; runs it again, after a random and growing wait, when it met a
    /// conflict, or when a connection broke before commit.
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
        loop {
            let mut transaction = match RemoteTransaction::begin(self) {
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

    /// A session that no transaction has.
    fn conversation(&self) -> Result<Conversation, ClientError> {
        while let Some(conversation) = { self.idle().pop() } {
            // Its node may have ended it meanwhile.
            if conversation.is_quiet() {
                return Ok(conversation);
            }
        }
        let (conversation, tables) = self.called()?;
        // Nodes that were started again may have others under the same numbers.
        if tables == self.tables { Ok(conversation) } else { Err(ClientError::OtherTables) }
    }

    /// A new session, and the tables that its node has.
    fn called(&self) -> Result<(Conversation, Vec<TableEntry>), ClientError> {
        let addresses = &self.options.addresses;
        if addresses.is_empty() {
            return Err(ClientError::NoAddress);
        }
        // Relaxed: which is first does not matter.
        let first = self.next.fetch_add(1, Ordering::Relaxed) % addresses.len();
        let mut reasons = Vec::new();
        for address in addresses[first..].iter().chain(&addresses[..first]) {
            match Conversation::begin(*address, &self.options) {
                Ok(called) => return Ok(called),
                Err(error) => reasons.push(format!("{address}: {error}")),
            }
        }
        Err(ClientError::Unreachable(reasons.join("; ")))
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

fn unexpected() -> ClientError {
    ClientError::Refused("its answer is of a kind that does not answer the request".to_owned())
}

/// Why a transaction cannot go on.
enum Interruption {
    Abort(Abort),
    /// It may be run again.
    Broken(String),
    /// It must not.
    Final(ClientError),
}

/// A transaction at a node of a cluster: it reads now, and locks and writes when it commits.
///
/// It reads its own writes. What it has read was committed, and all of it was true at one moment if it commits.
pub struct RemoteTransaction<'c> {
    client: &'c Client,
    /// None after it broke.
    conversation: Option<Conversation>,
    has_begun: bool,
    interruption: Option<Interruption>,
    /// Keys that were read or written: whether they are there is known.
    known: BTreeSet<(u16, Vec<u8>)>,
    /// What the node has not been told.
    writes: Vec<Write>,
    /// Bytes of that.
    unsent_bytes: usize,
}

impl<'c> RemoteTransaction<'c> {
    fn begin(client: &'c Client) -> Result<Self, ClientError> {
        Ok(Self {
            conversation: Some(client.conversation()?),
            client,
            has_begun: false,
            interruption: None,
            known: BTreeSet::new(),
            writes: Vec::new(),
            unsent_bytes: 0,
        })
    }

    /// The value of a key; `None` if it is not there. One round trip.
    ///
    /// # Errors
    /// [`Abort::Locked`] if another transaction holds the row for long, [`Abort::Usage`] for a key that the table
    /// cannot have, [`Abort::Disconnected`] if the node does not answer.
    pub fn get<'k>(
        &mut self,
        table: TableId,
        key: impl Into<Key<'k>>,
    ) -> Result<Option<Vec<u8>>, Abort> {
        Ok(self.get_many(table, [key])?.pop().flatten())
    }

    /// The values of some keys, in their order: one round trip for about a mebibyte of them.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_many<'k>(
        &mut self,
        table: TableId,
        keys: impl IntoIterator<Item = impl Into<Key<'k>>>,
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        let keys = keys.into_iter().map(|key| self.checked(table, key.into()));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut values = Vec::with_capacity(keys.len());
        while let Some(rest) = keys.get(values.len()..).filter(|rest| !rest.is_empty()) {
            let mut bytes = 0;
            let fit = rest.iter().take(KEYS_MAX).take_while(|key| {
                bytes += key.len() + OVERHEAD_BYTES;
                bytes <= MESSAGE_BYTES
            });
            let keys = rest[..fit.count()].to_vec();
            match self.request(Operation::Get { table: table.0, keys })? {
                Answer::Values(some) if (1..=rest.len()).contains(&some.len()) => {
                    values.extend(some);
                }
                _ => return Err(self.fail(Interruption::Final(unexpected()))),
            }
        }
        self.known.extend(keys.into_iter().map(|key| (table.0, key)));
        Ok(values)
    }

    /// The first `limit` rows of a range of an ordered table, or fewer if they are large: one round trip.
    ///
    /// # Errors
    /// As [`Self::get`]; [`Abort::NoSuchTable`] for a table without order.
    ///
    /// With a limit of 0 it finds nothing, and all of the range is left.
    pub fn scan(
        &mut self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Abort> {
        self.entry(table)?;
        for bound in [&range.from, &range.to] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound
                && key.len() > KEY_BYTES_MAX
            {
                let problem = "keys have 1 to 4096 bytes; shorten the bound";
                return Err(Abort::Usage { table: table.0, key: 0, problem });
            }
        }
        if limit == 0 {
            return Ok(Page { rows: Rows::default(), rest: Some(range.clone()) });
        }
        let operation = Operation::Scan {
            table: table.0,
            range: range.clone().into(),
            is_descending: direction == Direction::Descending,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        };
        match self.request(operation)? {
            Answer::Page(rows, rest) => {
                self.known.extend(rows.iter().map(|(key, _)| (table.0, key.clone())));
                Ok(Page { rows: rows.into_iter().collect(), rest: rest.map(Into::into) })
            }
            _ => Err(self.fail(Interruption::Final(unexpected()))),
        }
    }

    /// Sets a key at commit, whether it is there or not. No round trip of its own, but now and then for many.
    ///
    /// # Errors
    /// [`Abort::ValueBytes`] for a value that the table cannot have, and those of [`Self::get`].
    pub fn put<'k>(
        &mut self,
        table: TableId,
        key: impl Into<Key<'k>>,
        value: &[u8],
    ) -> Result<(), Abort> {
        let (expected, found) = (self.entry(table)?.value_bytes, value.len());
        let expected = match expected.map(|bytes| bytes as usize) {
            Some(bytes) if bytes != found => Some(bytes),
            None if found > HEAP_VALUE_BYTES_MAX => Some(HEAP_VALUE_BYTES_MAX),
            Some(_) | None => None,
        };
        if let Some(expected) = expected {
            return Err(Abort::ValueBytes { table: table.0, expected, found });
        }
        self.write(table, key.into(), Some(value.to_vec()))
    }

    /// Removes a key at commit, if it is there.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn delete<'k>(&mut self, table: TableId, key: impl Into<Key<'k>>) -> Result<(), Abort> {
        self.write(table, key.into(), None)
    }

    fn write(&mut self, table: TableId, key: Key<'_>, value: Option<Vec<u8>>) -> Result<(), Abort> {
        let key = self.checked(table, key)?;
        self.unsent_bytes += key.len() + value.as_ref().map_or(0, Vec::len) + OVERHEAD_BYTES;
        let was_read = !self.known.insert((table.0, key.clone()));
        self.writes.push(Write { table: table.0, key, value, was_read });
        if self.unsent_bytes < MESSAGE_BYTES {
            return Ok(());
        }
        match self.request(Operation::Write)? {
            Answer::Done => Ok(()),
            _ => Err(self.fail(Interruption::Final(unexpected()))),
        }
    }

    fn entry(&self, table: TableId) -> Result<&'c TableEntry, Abort> {
        let entry = self.client.tables.iter().find(|entry| entry.number == table.0);
        entry.ok_or(Abort::NoSuchTable { table: table.0 })
    }

    /// A key as bytes, if the table can have it.
    fn checked(&self, table: TableId, key: Key<'_>) -> Result<Vec<u8>, Abort> {
        let is_numbered = self.entry(table)?.value_bytes.is_some();
        let usage = |key, problem| Err(Abort::Usage { table: table.0, key, problem });
        match key {
            Key::Number(number) if is_numbered => Ok(number.to_le_bytes().to_vec()),
            Key::Number(number) => usage(number, "the table's keys are byte strings; give one"),
            Key::Bytes { .. } if is_numbered => {
                usage(0, "the table's keys are numbers; give a u64")
            }
            Key::Bytes { bytes, .. } if !(1..=KEY_BYTES_MAX).contains(&bytes.len()) => {
                usage(0, "keys have 1 to 4096 bytes; shorten it")
            }
            Key::Bytes { bytes, .. } => Ok(bytes.to_vec()),
        }
    }

    /// Sends a request, and with it what was written since the last one; the answer.
    fn request(&mut self, operation: Operation) -> Result<Answer, Abort> {
        let is_commit = operation == Operation::Commit;
        let Some(conversation) = &mut self.conversation else { return Err(Abort::Disconnected) };
        let writes = std::mem::take(&mut self.writes);
        self.unsent_bytes = 0;
        let begins = !std::mem::replace(&mut self.has_begun, true);
        let options = &self.client.options;
        let request = Request { begins, writes, operation };
        let answer = match conversation.request(&request, options) {
            Ok(answer) => answer,
            Err((error, true)) if is_commit => {
                let unknown = ClientError::Unknown(error.to_string());
                return Err(self.fail(Interruption::Final(unknown)));
            }
            Err((CallError::Link(LinkError::TimedOut), _)) => {
                let late = ClientError::TimedOut(options.timeout);
                return Err(self.fail(Interruption::Final(late)));
            }
            Err((error, _)) => return Err(self.fail(Interruption::Broken(error.to_string()))),
        };
        let interruption = match answer {
            Answer::Aborted(code) => {
                let abort = Abort::from(code);
                // An abort that another run would not cure is left to the closure.
                if abort.is_conflict() {
                    self.interruption = Some(Interruption::Abort(abort));
                }
                return Err(abort);
            }
            Answer::Busy => {
                self.interruption = Some(Interruption::Broken("the node is busy".to_owned()));
                return Err(Abort::Disconnected);
            }
            Answer::Halted(reason) => Interruption::Final(ClientError::Halted(reason)),
            Answer::Unknown(reason) => Interruption::Final(ClientError::Unknown(reason)),
            Answer::Refused(reason) => Interruption::Final(ClientError::Refused(reason)),
            Answer::Values(_) | Answer::Page(..) | Answer::Done => {
                return Ok(answer);
            }
        };
        Err(self.fail(interruption))
    }

    /// Ends the use of the session.
    fn fail(&mut self, interruption: Interruption) -> Abort {
        self.conversation = None;
        self.interruption = Some(interruption);
        Abort::Disconnected
    }

    /// Commits or gives up.
    fn finish(mut self, last: Operation) -> Result<(), Interruption> {
        if last == Operation::GiveUp {
            self.writes.clear();
        }
        if self.interruption.is_none() {
            match self.request(last) {
                Ok(Answer::Done) => {}
                Ok(_) => {
                    self.fail(Interruption::Final(unexpected()));
                }
                Err(abort) => {
                    self.interruption.get_or_insert(Interruption::Abort(abort));
                }
            }
        }
        let ended = self.interruption.take().map_or(Ok(()), Err);
        self.give_back();
        ended
    }

    /// Leaves the session to the next transaction, unless it broke.
    fn give_back(self) {
        let Some(conversation) = self.conversation else { return };
        let mut idle = self.client.idle();
        if idle.len() < IDLE_MAX {
            idle.push(conversation);
            return;
        }
        drop(idle);
        conversation.leave();
    }
}
