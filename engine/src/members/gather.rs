//! Discovery of the members: when a member starts, it connects to all others until every one has come. After a connection has
//! broken, members find each other again in the same way.
//!
//! *Invariants*: of two members the one with the smaller number is called. When all have come, every further process is refused: a
//! member that has started again has another incarnation and empty tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_rpc::{Clock, ClusterKey, MonotonicClock};

use crate::accept::{Acceptor, admit};
use crate::log_limiter::LogLimiter;
use crate::members::frame::Hello;
use crate::members::handshake::{CallError, Connection, Rejection, answer, call, difference};
use crate::members::link::Link;
use crate::members::{GroupState, JoinError, Membership, PROGRESS_INTERVAL, refused, spawn};
use crate::pending::PendingConnections;

/// Connections of one address, and of all, whose handshake has not ended; for a further one the oldest is evicted.
const HANDSHAKES_MAX: (usize, usize) = (64, 256);
/// Between two calls of a member that is not there yet.
const CALL_INTERVAL: Duration = Duration::from_millis(100);

/// All members, each of whom has come.
pub(super) struct Gathered {
    /// The streams to the others.
    pub(super) connections: BTreeMap<usize, Connection>,
    /// Refuses processes that come too late, and accepts members whose connection has broken.
    pub(super) listener: MemberListener,
    arrivals: Receiver<Arrival>,
}

/// Waits until every member has come.
pub(super) fn gather(
    listener: TcpListener,
    membership: &Membership,
    settings: BTreeMap<String, String>,
    group: &Arc<GroupState>,
) -> Result<Gathered, JoinError> {
    let (came, arrivals) = channel();
    let handshaker = Arc::new(Handshaker {
        node: membership.node,
        incarnation: getrandom::u32().map_err(refused("random bytes"))?,
        settings,
        key: membership.key.clone(),
        nodes: membership.addresses.len(),
        answered: Mutex::default(),
        route: Mutex::new(Route::Gathering(came)),
        group: Arc::clone(group),
        pending: PendingConnections::new(HANDSHAKES_MAX.0, HANDSHAKES_MAX.1),
        log: LogLimiter::default(),
    });
    let listener = MemberListener::open(&handshaker, listener)?;
    // Those with greater numbers call by themselves, unless they have been called before: then they say so.
    for (node, address) in membership.addresses.iter().enumerate() {
        if node != membership.node {
            Arc::clone(&handshaker).keep_calling(node, *address)?;
        }
    }
    let connections = wait_for_all(membership, &arrivals)?;
    Ok(Gathered { connections, listener, arrivals })
}

impl Gathered {
    /// From now on a caller is one of these members, whose connection has broken, or comes too late.
    pub(super) fn link(self, links: &[Arc<Link>]) -> MemberListener {
        let Self { connections: _, listener, arrivals } = self;
        let mut route = listener.handshaker.route();
        for connection in arrivals.try_iter().flatten() {
            replace(links, connection);
        }
        *route = Route::Linked(links.to_vec());
        drop(route);
        listener
    }
}

/// Accepts connections of other members until it is dropped.
pub(super) struct MemberListener {
    pub(super) handshaker: Arc<Handshaker>,
    _acceptor: Acceptor,
}

impl MemberListener {
    fn open(handshaker: &Arc<Handshaker>, listener: TcpListener) -> Result<Self, JoinError> {
        let of_acceptor = Arc::clone(handshaker);
        let acceptor = Acceptor::start("members-listen", listener, move |stream| {
            Arc::clone(&of_acceptor).handshake(stream);
        });
        Ok(Self {
            handshaker: Arc::clone(handshaker),
            _acceptor: acceptor.map_err(refused("a thread"))?,
        })
    }
}

impl Drop for MemberListener {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in GroupState::is_leaving(). Also where the others did not come.
        self.handshaker.group.leaving.store(true, Ordering::Release);
    }
}

/// A member that has come, or why one will not come.
type Arrival = Result<Connection, JoinError>;

/// Where a connection goes after its handshake.
enum Route {
    /// This member waits for the others to come.
    Gathering(Sender<Arrival>),
    /// All have come, and one that comes again has lost its connection.
    Linked(Vec<Arc<Link>>),
}

fn replace(links: &[Arc<Link>], connection: Connection) {
    let of = links.iter().find(|link| link.node == connection.hello.node);
    if let Some(link) = of.filter(|link| link.incarnation == connection.hello.incarnation) {
        link.replace(connection);
    }
}

/// Performs handshakes: what all threads that do so share.
pub(super) struct Handshaker {
    node: usize,
    /// Of this member.
    pub(super) incarnation: u32,
    settings: BTreeMap<String, String>,
    key: Option<ClusterKey>,
    nodes: usize,
    /// Members whose calls have been answered.
    answered: Mutex<BTreeSet<usize>>,
    route: Mutex<Route>,
    group: Arc<GroupState>,
    /// Connections whose handshake has not ended.
    pending: Arc<PendingConnections>,
    /// Of calls that were refused.
    log: LogLimiter,
}

impl Handshaker {
    fn hello(&self, resumes: Option<u32>) -> Result<Hello, getrandom::Error> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce)?;
        let (node, incarnation) = (self.node, self.incarnation);
        Ok(Hello { node, incarnation, nonce, resumes, settings: self.settings.clone() })
    }

    fn route(&self) -> MutexGuard<'_, Route> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the member `node`, to which a connection has broken if it resumes one.
    pub(super) fn call(
        &self,
        node: usize,
        address: SocketAddr,
        resumes: Option<u32>,
    ) -> Result<Connection, CallError> {
        let own = self.hello(resumes).map_err(|_| CallError::Unreachable)?;
        call(node, address, &own, self.key.as_ref())
    }

    /// Answers a call, on a thread of its own.
    fn handshake(self: Arc<Self>, stream: TcpStream) {
        let Some((_, pending)) = admit(&self.pending, &stream) else { return };
        let handshaker = Arc::clone(&self);
        let answered = spawn("members-answer", move || {
            handshaker.answer(stream);
            drop(pending);
        });
        if let Err(error) = answered {
            tracing::error!("a call could not be answered: {error}");
        }
    }

    fn answer(&self, stream: TcpStream) {
        let from = stream.peer_addr().map_or_else(|e| e.to_string(), |from| from.to_string());
        let rejection = |other: &Hello| {
            let rejection = self.rejection(other);
            if rejection.is_none() {
                self.answered().insert(other.node);
            }
            rejection
        };
        let own = match self.hello(None) {
            Ok(own) => own,
            Err(error) => {
                if let Some(suppressed) = self.log.permit() {
                    tracing::warn!("a call from {from} was not answered: {error}{suppressed}");
                }
                return;
            }
        };
        match answer(stream, &own, self.key.as_ref(), rejection) {
            Ok(connection) => match &*self.route() {
                // The receiver is gone if this member could not start.
                Route::Gathering(came) => drop(came.send(Ok(connection))),
                Route::Linked(links) => replace(links, connection),
            },
            Err(Some(reason)) => {
                if let Some(suppressed) = self.log.permit() {
                    tracing::warn!("a call from {from} was refused: {reason}{suppressed}");
                }
            }
            Err(None) => {}
        }
    }

    fn answered(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a caller is rejected, if it is.
    fn rejection(&self, other: &Hello) -> Option<Rejection> {
        if self.group.is_leaving() {
            return Some(Rejection::Leaving { passed: self.group.lock().point });
        }
        let is_another = other.node < self.nodes && other.node != self.node;
        let misfit = self.hello(None).ok().and_then(|own| difference(&own, other)).or_else(|| {
            (!is_another)
                .then(|| format!("node {} is not another node of {}", other.node, self.nodes))
        });
        if other.resumes.is_some_and(|incarnation| incarnation != self.incarnation) {
            let reason = format!("node {} was started again, and its memory was lost", self.node);
            return Some(Rejection::Refuse(reason));
        }
        if let Route::Linked(links) = &*self.route() {
            let link = links.iter().find(|link| {
                (link.node, link.incarnation) == (other.node, other.incarnation) && misfit.is_none()
            });
            return match link {
                Some(link) if other.node < self.node => {
                    if other.resumes.is_some() {
                        link.want();
                    }
                    Some(Rejection::WillCall)
                }
                Some(_) => None,
                None => Some(Rejection::TooLate(misfit.unwrap_or_else(|| {
                    format!(
                        "node {} has been here before, and its memory was lost since. Without \
                         recovery it cannot come back: stop all nodes and start them again",
                        other.node
                    )
                }))),
            };
        }
        if other.node < self.node {
            return Some(Rejection::WillCall);
        }
        misfit.map(Rejection::Refuse)
    }

    /// Calls a member until it answers, or has called itself.
    fn keep_calling(
        self: Arc<Self>,
        node: usize,
        address: SocketAddr,
    ) -> Result<JoinHandle<()>, JoinError> {
        spawn("members-call", move || {
            while !self.group.is_leaving() && matches!(*self.route(), Route::Gathering(_)) {
                let called = self.call(node, address, None);
                if self.answered().contains(&node) {
                    return;
                }
                let answer = match called {
                    Ok(connection) => Ok(connection),
                    Err(CallError::TooLate(reason)) => {
                        Err(JoinError::Refused { node, address, reason })
                    }
                    Err(CallError::Refused(reason)) if node < self.node => {
                        Err(JoinError::Refused { node, address, reason })
                    }
                    // Of two that do not fit the one with the greater number ends.
                    Err(
                        CallError::Refused(_)
                        | CallError::Unreachable
                        | CallError::NobodyListens
                        | CallError::Leaving { .. },
                    ) => {
                        std::thread::park_timeout(CALL_INTERVAL);
                        continue;
                    }
                };
                match (&*self.route(), answer) {
                    // The receiver is gone if the wait has timed out.
                    (Route::Gathering(came), answer) => drop(came.send(answer)),
                    (Route::Linked(links), Ok(connection)) => replace(links, connection),
                    (Route::Linked(_), Err(_)) => {}
                }
                return;
            }
        })
    }
}

fn wait_for_all(
    membership: &Membership,
    arrivals: &Receiver<Arrival>,
) -> Result<BTreeMap<usize, Connection>, JoinError> {
    let mut connections = BTreeMap::new();
    let clock = MonotonicClock::new();
    let start_ns = clock.now_ns();
    loop {
        let missing: Vec<_> = (0..membership.addresses.len())
            .filter(|node| *node != membership.node && !connections.contains_key(node))
            .map(|node| format!("node {node} at {}", membership.addresses[node]))
            .collect();
        if missing.is_empty() {
            return Ok(connections);
        }
        let missing = missing.join(", ");
        let waited = Duration::from_nanos(clock.now_ns() - start_ns);
        let left = membership.join_timeout.saturating_sub(waited);
        match arrivals.recv_timeout(PROGRESS_INTERVAL.min(left)) {
            Ok(came) => {
                let came = came?;
                tracing::info!("node {} is there", came.hello.node);
                connections.insert(came.hello.node, came);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                if left <= PROGRESS_INTERVAL {
                    let seconds = membership.join_timeout.as_secs();
                    return Err(JoinError::Missing { missing, seconds });
                }
                tracing::info!("waiting for {missing}");
            }
        }
    }
}
