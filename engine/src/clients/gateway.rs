//! The gateway: the port of a node at which clients connect, with a thread for each connection.
//!
//! The thread reads a request, submits a job to a worker, waits for its result, and answers.
//!
//! *Invariants*: a client counts against the limit of connections after it has shown the key. A transaction with a write that was
//! refused cannot commit.
//!
//! *Not here*: the transaction itself, in `deferred`; the bytes of requests, in `message.rs`.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gannet_rpc::ClusterKey;
use gannet_storage::{RECORD_BYTES_MAX, TableKind};

use crate::accept::{Acceptor, PAUSE, admit};
use crate::clients::channel::{Channel, ChannelError};
use crate::clients::message::{
    AbortCode, Answer, Operation, Request, TableEntry, Write, direction,
};
use crate::clients::{MESSAGE_BYTES, OVERHEAD_BYTES};
use crate::cluster::{Cluster, ClusterError};
use crate::coordinator::Coordinator;
use crate::deferred::{Deferred, Page};
use crate::log_limiter::LogLimiter;
use crate::node::TableId;
use crate::outcome::Abort;
use crate::pending::PendingConnections;
use crate::transaction::KeyRange;

/// Keys of one read, before the size of their values is known: if the values may be large, and if they are small.
const KEYS_AT_ONCE: (usize, usize) = (8, 256);
/// Bytes of values behind which the next ones are expected to be small.
const SMALL_BYTES: usize = 64 << 10;
/// Clients of one address, and of all, whose handshake has not ended; for a further one the oldest is evicted.
const HANDSHAKES_MAX: (usize, usize) = (64, 256);
/// Longest wait for transactions that commit while the gateway closes.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How clients reach a node.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Where to listen; with port 0 the system chooses one.
    pub listen: SocketAddr,
    /// What clients must have, and messages are sealed with.
    pub key: Option<ClusterKey>,
    /// Listen for other hosts without a key, because their network is trusted.
    pub is_trusted_network: bool,
    /// Connections at a time.
    pub connections_max: usize,
    /// How long a connection may be silent; for ever if not given.
    pub idle_timeout: Option<Duration>,
}

/// Why clients cannot connect. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be listened at.
    #[error("cannot listen for clients at {address}: {reason}; choose another address")]
    Listen {
        /// Where to listen.
        address: SocketAddr,
        /// What the system says.
        reason: std::io::Error,
    },
    /// Other hosts could read and write everything.
    #[error(
        "clients of other hosts could connect to {address} without a key: give a cluster key, listen on 127.0.0.1, \
         or say that the network is trusted"
    )]
    Exposed {
        /// Where to listen.
        address: SocketAddr,
    },
}

/// Where clients will connect.
pub struct Gateway {
    listener: TcpListener,
    options: GatewayOptions,
}

impl Gateway {
    /// Listens for clients, who wait until [`Self::open`].
    ///
    /// # Errors
    /// [`GatewayError::Exposed`] for an address that other hosts reach, without a key;
    /// [`GatewayError::Listen`] for one that cannot be listened at.
    pub fn bind(options: GatewayOptions) -> Result<Self, GatewayError> {
        let address = options.listen;
        if options.key.is_none() && !options.is_trusted_network && !address.ip().is_loopback() {
            return Err(GatewayError::Exposed { address });
        }
        let listener = TcpListener::bind(address);
        let listener = listener.map_err(|reason| GatewayError::Listen { address, reason })?;
        Ok(Self { listener, options })
    }

    /// Runs transactions of clients on the workers of this process, on some of the cluster's tables.
    ///
    /// This does not keep the cluster open.
    ///
    /// # Errors
    /// [`GatewayError::Listen`] if the system has no thread for it.
    pub fn open(self, cluster: &Arc<Cluster>, tables: &[TableId]) -> Result<Clients, GatewayError> {
        let address = self.options.listen;
        let sessions = Arc::new(Sessions {
            tables: tables.iter().map(|table| entry(cluster, *table)).collect(),
            cluster: Arc::downgrade(cluster),
            options: self.options,
            pending: PendingConnections::new(HANDSHAKES_MAX.0, HANDSHAKES_MAX.1),
            log: LogLimiter::default(),
            open: Mutex::default(),
            ended: Condvar::new(),
        });
        let (of_acceptor, mut number) = (Arc::clone(&sessions), 0);
        let acceptor = Acceptor::start("clients-listen", self.listener, move |stream| {
            number += 1;
            Arc::clone(&of_acceptor).begin(number, stream);
        });
        let acceptor = acceptor.map_err(|reason| GatewayError::Listen { address, reason })?;
        Ok(Clients { address: acceptor.address(), acceptor: Some(acceptor), sessions })
    }
}

/// The clients of a node, which are accepted until this is dropped. Their connections end with it, after the requests under way
/// are answered.
pub struct Clients {
    address: SocketAddr,
    acceptor: Option<Acceptor>,
    sessions: Arc<Sessions>,
}

impl Clients {
    /// Where they connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        drop(self.acceptor.take());
        let open = self.sessions.open();
        for stream in open.values() {
            // It may have ended.
            let _ = stream.shutdown(Shutdown::Read);
        }
        let some_are_left = |open: &mut BTreeMap<u64, TcpStream>| !open.is_empty();
        drop(self.sessions.ended.wait_timeout_while(open, END_TIMEOUT, some_are_left));
    }
}

fn entry(cluster: &Cluster, table: TableId) -> TableEntry {
    let view = cluster.view();
    let definition = view.table(table.number()).expect("the table is of this cluster");
    let layout = definition.layout();
    let value_bytes = match layout.kind {
        TableKind::Fixed => Some(u32::try_from(layout.value_bytes).expect("at most 4,096")),
        TableKind::Heap | TableKind::Ordered => None,
    };
    TableEntry { name: definition.name().to_owned(), number: table.0, value_bytes }
}

/// The connections of a gateway, and what they share.
struct Sessions {
    cluster: Weak<Cluster>,
    options: GatewayOptions,
    tables: Vec<TableEntry>,
    /// Connections whose handshake has not ended.
    pending: Arc<PendingConnections>,
    /// Of connections that ended with an error.
    log: LogLimiter,
    /// By number of the connection: those whose handshake is done.
    open: Mutex<BTreeMap<u64, TcpStream>>,
    /// One of these has ended.
    ended: Condvar,
}

impl Sessions {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a client on a thread of its own.
    fn begin(self: Arc<Self>, number: u64, stream: TcpStream) {
        let Some((from, pending)) = admit(&self.pending, &stream) else { return };
        let sessions = Arc::clone(&self);
        let body = move || {
            let connected = sessions.handshake(number, stream);
            drop(pending);
            let ended = connected.and_then(|channel| {
                let ended = sessions.serve(channel);
                sessions.open().remove(&number);
                sessions.ended.notify_all();
                ended
            });
            if let Err(error) = ended
                && let Some(suppressed) = sessions.log.permit()
            {
                tracing::warn!("the connection of client {from} ended: {error}{suppressed}");
            }
        };
        let begun = std::thread::Builder::new().name(format!("client-{number}")).spawn(body);
        if let Err(error) = begun {
            tracing::error!("a client could not be answered: {error}");
            std::thread::park_timeout(PAUSE);
        }
    }

    /// A connection is counted when its client has shown the key.
    fn handshake(&self, number: u64, stream: TcpStream) -> Result<Channel, ChannelError> {
        let GatewayOptions { key, connections_max, idle_timeout, .. } = &self.options;
        let is_full = self.open().len() >= *connections_max;
        let channel = Channel::answer(stream, key.as_ref(), is_full, *idle_timeout)?;
        let handle = channel.stream().try_clone()?;
        let mut open = self.open();
        if open.len() >= *connections_max {
            return Err(ChannelError::Full);
        }
        open.insert(number, handle);
        Ok(channel)
    }

    fn serve(&self, mut channel: Channel) -> Result<(), ChannelError> {
        let mut session = Session::default();
        loop {
            let request = match channel.receive() {
                Ok(request) => request,
                Err(ChannelError::Ended | ChannelError::TimedOut) => return Ok(()),
                Err(error) => return Err(error),
            };
            channel.send(&self.answer(&mut session, request))?;
        }
    }

    /// Has a request performed by some worker.
    fn answer(&self, session: &mut Session, request: Request) -> Answer {
        let Session { mut transaction, doom } = std::mem::take(session);
        if request.begins {
            transaction = Deferred::new();
        }
        let ends = matches!(request.operation, Operation::Commit | Operation::GiveUp);
        let answer = match (&request.operation, doom.filter(|_| !request.begins)) {
            (Operation::Tables, _) => return Answer::Tables(self.tables.clone()),
            // A write of the transaction was refused.
            (Operation::Commit, Some(doom)) => return doom,
            (_, doom) => {
                session.doom = doom;
                self.perform(&mut transaction, request)
            }
        };
        match answer {
            Answer::Aborted(AbortCode::Locked | AbortCode::Changed) => {
                // The client sends no further request of it.
                session.doom = Some(answer.clone());
            }
            _ if ends => {}
            Answer::Aborted(_) | Answer::Refused(_) => {
                session.transaction = transaction;
                session.doom = Some(answer.clone());
            }
            _ => session.transaction = transaction,
        }
        answer
    }

    fn perform(&self, transaction: &mut Deferred, request: Request) -> Answer {
        let named = request.writes.iter().map(|write| write.table).chain(request.operation.table());
        for table in named {
            if !self.tables.iter().any(|entry| entry.number == table) {
                return Abort::NoSuchTable { table }.into();
            }
        }
        let Some(cluster) = self.cluster.upgrade() else {
            return Answer::Halted("the cluster was closed".to_owned());
        };
        let is_commit = request.operation == Operation::Commit;
        let mut taken = std::mem::take(transaction);
        let job = move |coordinator: &mut Coordinator<'_>| {
            let answer = perform(&mut taken, coordinator, request);
            (taken, answer.unwrap_or_else(Answer::from))
        };
        let performed = match cluster.spawn_anywhere(job) {
            Ok(completion) => completion.wait(),
            Err(ClusterError::Busy) => return Answer::Busy,
            Err(error) => return Answer::Halted(error.to_string()),
        };
        match performed {
            Ok((after, answer)) => {
                *transaction = after;
                answer
            }
            Err(lost) if is_commit => Answer::Unknown(cluster.loss(lost).to_string()),
            Err(lost) => Answer::Halted(cluster.loss(lost).to_string()),
        }
    }
}

/// The transaction of a connection.
#[derive(Default)]
struct Session {
    transaction: Deferred,
    /// Why it cannot commit any more.
    doom: Option<Answer>,
}

fn perform(
    transaction: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    Request { writes, operation, .. }: Request,
) -> Result<Answer, Abort> {
    if operation == Operation::GiveUp {
        transaction.give_up(coordinator)?;
        return Ok(Answer::Done);
    }
    write(transaction, coordinator, writes)?;
    Ok(match operation {
        Operation::Tables | Operation::Write | Operation::GiveUp => Answer::Done,
        Operation::Get { table, keys } => {
            let (mut values, mut bytes) = (Vec::new(), 0);
            let (few, many) = KEYS_AT_ONCE;
            let mut at_once = few;
            while values.len() < keys.len() && bytes <= MESSAGE_BYTES {
                let rest = &keys[values.len()..];
                let keys = &rest[..at_once.min(rest.len())];
                let found = transaction.get_many(coordinator, TableId(table), keys)?;
                let of_values: usize = found.iter().flatten().map(Vec::len).sum();
                at_once = if of_values > SMALL_BYTES { few } else { (2 * at_once).min(many) };
                bytes += of_values + OVERHEAD_BYTES * found.len();
                values.extend(found);
            }
            Answer::Values(cut(values, |value| value.as_ref().map_or(0, Vec::len)))
        }
        Operation::Scan { table, range, is_descending, limit } => {
            let (range, direction) = (KeyRange::from(range), direction(is_descending));
            let Page { rows, rest } =
                transaction.scan(coordinator, TableId(table), &range, direction, limit as usize)?;
            let all = rows.len();
            let rows = cut(rows.into_iter().collect(), |(key, value)| key.len() + value.len());
            let rest = match rows.last() {
                Some((last, _)) if rows.len() < all => Some(range.after(last.clone(), direction)),
                _ => rest,
            };
            Answer::Page(rows, rest.map(Into::into))
        }
        Operation::Commit => {
            transaction.commit(coordinator)?;
            Answer::Done
        }
    })
}

/// As many of the first ones as fit into a message, at least one.
fn cut<T>(mut all: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<T> {
    let mut bytes = 0;
    let fit = all.iter().take_while(|one| {
        let fits = bytes <= MESSAGE_BYTES;
        bytes += size(one) + OVERHEAD_BYTES;
        fits
    });
    all.truncate(fit.count());
    all
}

/// Adds writes to a transaction, after it has read the keys that it does not know yet.
fn write(
    transaction: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    writes: Vec<Write>,
) -> Result<(), Abort> {
    let mut unread: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for Write { table, key, .. } in writes.iter().filter(|write| !write.was_read) {
        unread.entry(*table).or_default().push(key.clone());
    }
    for (table, keys) in unread {
        for keys in keys.chunks(KEYS_AT_ONCE.0) {
            transaction.get_many(coordinator, TableId(table), keys)?;
        }
    }
    for Write { table, key, value, .. } in writes {
        match value {
            Some(value) => transaction.put(TableId(table), key, value),
            None => transaction.delete(TableId(table), key),
        }
    }
    let bytes = transaction.written_bytes();
    if bytes > RECORD_BYTES_MAX {
        return Err(Abort::TooLarge { bytes, max: RECORD_BYTES_MAX });
    }
    Ok(())
}
