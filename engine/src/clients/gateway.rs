//! The gateway: the port of a node at which clients connect, with a thread for each connection.
//!
//! The thread reads a request, submits a job to a worker, waits for its result, and answers.
//!
//! *Invariants*: a client counts against the limit of connections after it has shown the key. A transaction with a write that was
//! refused cannot commit.
//!
//! *Not here*: the transaction itself, in `deferred`; how it outlives a connection, in `sessions.rs`; the bytes of requests, in
//! `message.rs`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use gannet_rpc::ClusterKey;
use gannet_storage::{RECORD_BYTES_MAX, TableKind};

use crate::accept::{Acceptor, PAUSE, admit};
use crate::clients::message::{
    AbortCode, Answer, Opening, Operation, Request, SessionId, TableEntry, Welcome, Write,
    direction,
};
use crate::clients::sessions::{NoSession, Session, Sessions};
use crate::clients::{MESSAGE_BYTES, OVERHEAD_BYTES};
use crate::cluster::{Cluster, ClusterError};
use crate::completion::Lost;
use crate::coordinator::Coordinator;
use crate::deferred::{Deferred, Page};
use crate::key_range::KeyRange;
use crate::link::{Connection, LinkError, ReceiveHalf, Role, User};
use crate::log_limiter::LogLimiter;
use crate::outcome::{Abort, Misuse};
use crate::pending::PendingConnections;
use crate::table_id::TableId;
use crate::tokens::Tokens;

/// Keys of one read, before the size of their values is known: if the values may be large, and if they are small.
const KEYS_AT_ONCE: (usize, usize) = (8, 256);
/// Bytes of values behind which the next ones are expected to be small.
const SMALL_BYTES: usize = 64 << 10;
/// Clients of one address, and of all, whose handshake has not ended; for a further one the oldest is evicted.
const HANDSHAKES_MAX: (usize, usize) = (64, 256);

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
        "clients of other hosts could connect to {address} without a key: give a key of clients, listen on 127.0.0.1, \
         or say that the network is trusted"
    )]
    Exposed {
        /// Where to listen.
        address: SocketAddr,
    },
    /// There is no table for the tokens of clients.
    #[error("the tokens of clients have no table: {0}")]
    Tokens(#[from] ClusterError),
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
    /// [`GatewayError::Listen`] if the system has no thread for it; [`GatewayError::Tokens`] if the cluster has no room for the
    /// tokens of clients.
    pub fn open(self, cluster: &Arc<Cluster>, tables: &[TableId]) -> Result<Clients, GatewayError> {
        let address = self.options.listen;
        let gateway = Arc::new(OpenGateway {
            tables: tables.iter().map(|table| entry(cluster, *table)).collect(),
            tokens: cluster.open_tokens()?,
            cluster: Arc::downgrade(cluster),
            sessions: Sessions::new(self.options.connections_max),
            options: self.options,
            pending: PendingConnections::new(HANDSHAKES_MAX.0, HANDSHAKES_MAX.1),
            log: LogLimiter::default(),
        });
        let (of_acceptor, mut number) = (Arc::clone(&gateway), 0);
        let acceptor = Acceptor::start("clients-listen", self.listener, move |stream| {
            number += 1;
            Arc::clone(&of_acceptor).begin(number, stream);
        });
        let acceptor = acceptor.map_err(|reason| GatewayError::Listen { address, reason })?;
        Ok(Clients { address: acceptor.address(), acceptor: Some(acceptor), gateway })
    }
}

/// The clients of a node, which are accepted until this is dropped. Their connections end with it, after the requests under way
/// are answered.
pub struct Clients {
    address: SocketAddr,
    acceptor: Option<Acceptor>,
    gateway: Arc<OpenGateway>,
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
        self.gateway.sessions.close();
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

/// What the connections of a gateway share.
struct OpenGateway {
    cluster: Weak<Cluster>,
    options: GatewayOptions,
    tables: Vec<TableEntry>,
    tokens: Tokens,
    /// Connections whose handshake has not ended.
    pending: Arc<PendingConnections>,
    /// Of connections that ended with an error.
    log: LogLimiter,
    sessions: Sessions<Work>,
}

/// The transaction of a session.
#[derive(Default)]
pub(super) struct Work {
    transaction: Deferred,
    /// Why it cannot commit any more.
    doom: Option<Answer>,
}

/// A session that is served on a connection.
pub(super) struct Served<'p> {
    gateway: &'p OpenGateway,
    session: Arc<Session<Work>>,
    /// The client has said that the session is over.
    has_left: bool,
}

impl User for Served<'_> {
    const ROLE: Role = Role::Client;
    type Opening = Opening;
    type Welcome = Welcome;
    type Message = Request;

    fn hear(&mut self, request: Request) -> Result<(), LinkError> {
        if request.operation == Operation::Leave {
            self.has_left = true;
            return Err(LinkError::Ended);
        }
        let answer = {
            let mut work = self.session.work.lock().unwrap_or_else(PoisonError::into_inner);
            self.gateway.answer(&mut work, request)
        };
        self.session.end.say(&answer)
    }

    fn outlives(&self, end: &LinkError) -> bool {
        !self.has_left && !matches!(end, LinkError::TimedOut)
    }
}

impl OpenGateway {
    /// Answers a client on a thread of its own.
    fn begin(self: Arc<Self>, number: u64, stream: TcpStream) {
        let admitted = admit(&self.pending, &stream).unwrap_or_else(|_| {
            std::thread::park_timeout(PAUSE);
            None
        });
        let Some((from, pending)) = admitted else { return };
        let gateway = Arc::clone(&self);
        let body = move || {
            let ended = match gateway.connect(number, stream) {
                Ok((id, session, receiving)) => {
                    drop(pending);
                    let mut served = Served { gateway: &gateway, session, has_left: false };
                    let session = Arc::clone(&served.session);
                    let ended = session.end.serve(receiving, &mut served);
                    let outlives = served.outlives(&ended);
                    drop(served);
                    gateway.sessions.end(id, number, outlives);
                    ended
                }
                Err(error) => error,
            };
            if !matches!(ended, LinkError::Ended | LinkError::TimedOut)
                && let Some(suppressed) = gateway.log.permit()
            {
                tracing::warn!("the connection of client {from} ended: {ended}{suppressed}");
            }
        };
        let begun = std::thread::Builder::new().name(format!("client-{number}")).spawn(body);
        if let Err(error) = begun {
            tracing::error!("a client could not be answered: {error}");
            std::thread::park_timeout(PAUSE);
        }
    }

    /// Performs the handshake, and begins a session or goes on with one. A connection is counted when its client has shown the key.
    fn connect(
        &self,
        number: u64,
        stream: TcpStream,
    ) -> Result<(SessionId, Arc<Session<Work>>, ReceiveHalf), LinkError> {
        let GatewayOptions { key, idle_timeout, .. } = &self.options;
        let (mut connection, opening) = Connection::answer::<Served<'_>>(stream, key.as_ref())?;
        let handle = connection.stream().try_clone()?;
        let begun = match opening.resumes {
            None => self.sessions.begin(number, handle).map_err(|reason| match reason {
                NoSession::Full => Some(Welcome::Full),
                NoSession::Closed => None,
            }),
            Some((id, _)) => {
                let resumed = self.sessions.resume(id, number, handle);
                resumed.map(|session| (id, session)).ok_or(Some(Welcome::Forgotten))
            }
        };
        let (id, session) = match begun {
            Ok(begun) => begun,
            Err(refusal) => {
                if let Some(welcome) = refusal {
                    connection.welcome(&welcome, None)?;
                }
                return Err(LinkError::Ended);
            }
        };
        let welcome = |heard| match opening.resumes {
            None => Welcome::Begun { session: id, tables: self.tables.clone() },
            Some(_) => Welcome::Resumed { heard },
        };
        let heard = opening.resumes.map_or(0, |(_, heard)| heard);
        let connected =
            session.end.connect(connection, heard, |heard| Some((welcome(heard), *idle_timeout)));
        match connected {
            Ok(receiving) => Ok((id, session, receiving)),
            Err(error) => {
                self.sessions.end(id, number, opening.resumes.is_some());
                Err(error)
            }
        }
    }

    /// Has a request performed by some worker.
    fn answer(&self, work: &mut Work, request: Request) -> Answer {
        let Work { mut transaction, doom } = std::mem::take(work);
        if request.begins {
            transaction = Deferred::new();
        }
        let commits = request.operation.commits();
        let ends = commits || request.operation == Operation::GiveUp;
        let answer = match doom.filter(|_| !request.begins) {
            // A write of the transaction was refused.
            Some(doom) if commits => return doom,
            doom => {
                work.doom = doom;
                self.perform(&mut transaction, request)
            }
        };
        match answer {
            Answer::Aborted(AbortCode::Locked | AbortCode::Changed) => {
                // The client sends no further request of it.
                work.doom = Some(answer.clone());
            }
            _ if ends => {}
            Answer::Aborted(_) | Answer::Refused(_) => {
                work.transaction = transaction;
                work.doom = Some(answer.clone());
            }
            _ => work.transaction = transaction,
        }
        answer
    }

    fn perform(&self, transaction: &mut Deferred, request: Request) -> Answer {
        let named = request.writes.iter().map(|write| write.table).chain(request.operation.table());
        for table in named {
            if !self.tables.iter().any(|entry| entry.number == table) {
                return Abort::from(Misuse::NoSuchTable { table }).into();
            }
        }
        let Some(cluster) = self.cluster.upgrade() else {
            return Answer::Halted("the cluster was closed".to_owned());
        };
        let is_commit = request.operation.commits();
        let (mut taken, tokens) = (std::mem::take(transaction), self.tokens.clone());
        let job = move |coordinator: &mut Coordinator<'_>| {
            let answer = perform(&mut taken, coordinator, &tokens, request);
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
                match answer {
                    // If the cluster goes on, the node of the worker alone has ended, and others of this process have room.
                    Answer::Halted(_) => cluster.halted().map_or(Answer::Busy, Answer::Halted),
                    Answer::Unknown(said) => Answer::Unknown(cluster.halted().unwrap_or(said)),
                    answer => answer,
                }
            }
            Err(Lost::NotBegun) if cluster.halted().is_none() => Answer::Busy,
            Err(lost) if is_commit && lost != Lost::NotBegun => {
                Answer::Unknown(cluster.loss(lost).to_string())
            }
            Err(lost) => Answer::Halted(cluster.loss(lost).to_string()),
        }
    }
}

fn perform(
    transaction: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    tokens: &Tokens,
    Request { writes, operation, .. }: Request,
) -> Result<Answer, Abort> {
    if operation == Operation::GiveUp {
        transaction.give_up(coordinator)?;
        return Ok(Answer::Done);
    }
    write(transaction, coordinator, writes)?;
    Ok(match operation {
        Operation::Write | Operation::GiveUp | Operation::Leave => Answer::Done,
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
        Operation::ReadToken(token) => {
            Answer::Token(tokens.read(transaction, coordinator, &token)?)
        }
        Operation::Commit => {
            transaction.commit(coordinator)?;
            Answer::Done
        }
        Operation::CommitOnce { token, result } => {
            tokens.write(transaction, coordinator, &token, &result)?;
            transaction.commit(coordinator)?;
            tokens.sweep(coordinator);
            Answer::Done
        }
        Operation::Decide(token) => Answer::Outcome(tokens.decide(coordinator, &token)?),
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
    let mut unread: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
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
        return Err(Misuse::TooLarge { bytes, max: RECORD_BYTES_MAX }.into());
    }
    Ok(())
}
