//! A server that speaks PostgreSQL's protocol: psql, drivers and tools of PostgreSQL work with it.
//!
//! ```text
//! accept ─ startup (TLS, users) ─ connection ┬ query      simple protocol
//!                                            ├ extended   Parse, Bind, Execute; portals
//!                                            ├ copy       COPY in and out
//!                                            └ rows       results on their way to the client
//! ```
//!
//! *Source*: PostgreSQL 15, chapter 55.
//!
//! *Invariants*: a client's input ends at most its own connection. The end of a connection drops its session, which rolls
//! back. Every connection, startup, wait and shutdown is bounded.
//!
//! *Not here*: replication, GSSAPI, the function call protocol.
#![forbid(unsafe_code)]

mod admission;
mod cancellation;
mod connection;
mod copy;
mod extended;
mod interruption;
mod message;
mod query;
mod replies;
mod rows;
mod secret;
mod settings;
mod startup;
mod stopping;
mod stream;
mod threads;
mod users;
mod waits;
mod wire_types;

use std::future::Future;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pgwire::tokio::TlsAcceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use admission::Admission;
use cancellation::Cancellation;
use gannet_frontend::Database;
pub use stopping::Stopped;
use stopping::{StopSignals, Stopping, stopped};
pub use stream::TlsError;
pub use threads::ServerThreads;
pub use users::{Users, UsersError, add_user};

/// Startups of one address beyond the number of sessions, because all clients may connect at once.
const STARTUPS_MAX: usize = 64;
/// Time limit of a startup.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, such as for too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for cancelled statements, before their connections are dropped.
const CANCELLED_TIMEOUT: Duration = Duration::from_secs(2);

/// How long statements wait for a lease or for silent nodes by default.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on, such as `127.0.0.1:5433`; port 0 means any free port.
    pub listen: String,
    /// The users. Without users, everybody on this machine may connect, and nobody else.
    pub users: Users,
    /// PEM files of the certificate chain and its key, for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether clients without TLS are refused. By default they are, if other machines can connect and there is a
    /// certificate.
    pub tls_required: Option<bool>,
    /// Maximum number of sessions.
    pub connections_max: usize,
    /// How long a client may be idle, between statements and in transactions.
    pub idle_timeout: Option<Duration>,
    /// How long a statement may run.
    pub statement_timeout: Option<Duration>,
    /// How long a statement may wait for another node that does not answer. Looked at twice a second.
    pub wait_timeout: Option<Duration>,
    /// How long a stopping server waits for transactions and running statements.
    pub shutdown_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:5433".to_owned(),
            users: Users::default(),
            tls: None,
            tls_required: None,
            connections_max: 100,
            idle_timeout: None,
            statement_timeout: None,
            wait_timeout: Some(WAIT_TIMEOUT),
            shutdown_timeout: Duration::from_secs(2),
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The system refuses to listen on the address.
    #[error("cannot listen on {address}: {source}; choose another --listen")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other machines could connect without a password.
    #[error(
        "{0} can be reached from other machines, and there are no users; give --users, or listen \
         on 127.0.0.1"
    )]
    Open(SocketAddr),
    /// TLS is required, but there is no certificate.
    #[error("TLS is required, and there is no certificate; give --tls-cert and --tls-key")]
    NoCertificate,
    /// TLS is unavailable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The runtime cannot start.
    #[error("the operating system refused a thread or a signal handler: {0}")]
    Runtime(std::io::Error),
}

/// State that all connections share.
struct ServerState {
    database: Arc<Database>,
    options: ServerOptions,
    tls: Option<Tls>,
    cancellation: Arc<Cancellation>,
    admission: Arc<Admission>,
    /// One permit for each session.
    sessions: Arc<Semaphore>,
}

struct Tls {
    acceptor: TlsAcceptor,
    /// The certificate chain in PEM, for the channel binding of SCRAM.
    certificates_pem: Vec<u8>,
}

/// A server that listens and does not accept yet.
pub struct Server {
    listener: std::net::TcpListener,
    options: ServerOptions,
    tls: Option<Tls>,
    admission: Arc<Admission>,
}

impl Server {
    /// Listens. Clients that connect wait until [`Self::serve`].
    ///
    /// # Errors
    /// [`ServerError`] if the options are invalid or the address is unavailable.
    pub fn bind(mut options: ServerOptions) -> Result<Self, ServerError> {
        let listen_error = |source| ServerError::Listen { address: options.listen.clone(), source };
        let tls = match &options.tls {
            None => None,
            Some((certificate, key)) => Some(Tls {
                acceptor: stream::tls_acceptor(certificate, key)?,
                certificates_pem: std::fs::read(certificate).map_err(listen_error)?,
            }),
        };
        let addresses: Vec<_> = options.listen.to_socket_addrs().map_err(listen_error)?.collect();
        let outside = addresses.iter().find(|address| !address.ip().is_loopback());
        if let Some(address) = outside.filter(|_| options.users.is_empty()) {
            return Err(ServerError::Open(*address));
        }
        let by_default = outside.is_some() && tls.is_some();
        let is_required = *options.tls_required.get_or_insert(by_default);
        if is_required && tls.is_none() {
            return Err(ServerError::NoCertificate);
        }
        if let Some(address) = outside.filter(|_| !is_required) {
            tracing::warn!(
                "other machines reach {address}, and may send data in clear; give --tls-cert, --tls-key \
                 and --tls required"
            );
        }
        let listener = std::net::TcpListener::bind(&addresses[..]);
        let listener = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let address = options.listen.clone();
        let listener = listener.map_err(|source| ServerError::Listen { address, source })?;
        let startups_max = options.connections_max.saturating_add(STARTUPS_MAX);
        let admission = Arc::new(Admission::new(startups_max));
        Ok(Self { listener, options, tls, admission })
    }

    /// The limits and counts of clients that have not logged in.
    #[must_use]
    pub fn admission(&self) -> Arc<Admission> {
        Arc::clone(&self.admission)
    }

    /// Serves a database until SIGTERM or SIGINT, or until it is to be started again; which of both is returned. A node that has
    /// the only copy of some rows, without which the others would go on, says so in the log and goes on until a second signal. If
    /// `threads` are given, they serve the connections, and also host the cluster. `listening` is called with the address once
    /// clients are served; it is `dyn`, so that the server is compiled with its crate.
    ///
    /// # Errors
    /// [`ServerError`] if the server cannot start.
    pub fn serve(
        self,
        database: Arc<Database>,
        threads: Option<Arc<ServerThreads>>,
        listening: &dyn Fn(SocketAddr),
    ) -> Result<Stopped, ServerError> {
        let runtime = threads::runtime(threads.is_some()).map_err(ServerError::Runtime)?;
        let Self { listener, options, tls, admission } = self;
        let sessions = Arc::new(Semaphore::new(options.connections_max));
        let cancellation = Arc::default();
        let shared =
            Arc::new(ServerState { database, options, tls, cancellation, admission, sessions });
        let own = runtime.handle();
        let next_thread = || threads.as_deref().map_or(own, ServerThreads::next);
        let served = runtime.block_on(async {
            let signals = StopSignals::new().map_err(ServerError::Runtime)?;
            let stop = stopped(signals, Arc::clone(&shared.database));
            let listener = TcpListener::from_std(listener).map_err(ServerError::Runtime)?;
            listening(listener.local_addr().map_err(ServerError::Runtime)?);
            Ok(accept_until(stop, listener, shared, next_thread).await)
        });
        // Remaining tasks have had their time.
        runtime.shutdown_background();
        served
    }
}

/// Accepts clients until `stop`, then waits for their end.
async fn accept_until<'t>(
    stop: impl Future<Output = Stopped>,
    listener: TcpListener,
    shared: Arc<ServerState>,
    next_thread: impl Fn() -> &'t Handle,
) -> Stopped {
    let (stopping, told) = watch::channel(Stopping::No);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    let stopped = loop {
        let accepted = tokio::select! {
            stopped = &mut stop => break stopped,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener) => accepted,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(suppressed) = shared.admission.accept_log.permit() {
                    tracing::warn!("cannot accept a connection: {error}{suppressed}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (shared, told) = (Arc::clone(&shared), told.clone());
        let attend = async move {
            // Fails only if the system has no more descriptors.
            if let Ok(socket) = TcpStream::from_std(socket) {
                startup::attend(socket, from, shared, told).await;
            }
        };
        connections.spawn_on(attend, next_thread());
    };
    drop(listener);
    stopping.send_replace(Stopping::BetweenTransactions);
    let ended = async |connections: &mut JoinSet<()>, timeout| {
        let all = async { while connections.join_next().await.is_some() {} };
        tokio::time::timeout(timeout, all).await.is_ok()
    };
    if !ended(&mut connections, shared.options.shutdown_timeout).await {
        stopping.send_replace(Stopping::Now);
        shared.cancellation.cancel_all();
        ended(&mut connections, CANCELLED_TIMEOUT).await;
    }
    connections.shutdown().await;
    stopped
}

async fn accept(listener: &TcpListener) -> std::io::Result<(std::net::TcpStream, IpAddr)> {
    let (socket, from) = listener.accept().await?;
    // Fails only if the client has disconnected, which the first read reports as well.
    let _ = socket.set_nodelay(true);
    // Another thread takes over the socket.
    Ok((socket.into_std()?, from.ip()))
}
