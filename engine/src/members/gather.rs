//! How members find each other when they start: each calls all others until every one has come. Later they find each other
//! again so, when a connection has broken.
//!
//! *Invariants*: of two members the one with the smaller number is called. When all have come, nobody else can: a member
//! that has started again has another incarnation and no memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_rpc::{Clock, ClusterKey, MonotonicClock};

use crate::accept::{Acceptor, place};
use crate::callers::{Callers, Lines};
use crate::members::frame::Hello;
use crate::members::greeting::{CallError, Greeted, Objection, answer, call, difference};
use crate::members::link::Link;
use crate::members::{JoinError, Membership, PATIENCE, Shared, refused, spawn};

/// Callers of one address, and of all, whose greeting has not ended; for a further one the oldest makes room.
const GREETINGS_MAX: (usize, usize) = (64, 256);
/// Between two calls of a member that is not there yet.
const CALL_INTERVAL: Duration = Duration::from_millis(100);

/// All members, each of whom has come.
pub(super) struct Gathered {
    /// The streams to the others.
    pub(super) greeted: BTreeMap<usize, Greeted>,
    /// Where those hear so who come too late, and others call whose connection has broken.
    pub(super) door: Door,
    coming: Receiver<Coming>,
}

/// Waits until every member has come.
pub(super) fn gather(
    listener: TcpListener,
    membership: &Membership,
    settings: BTreeMap<String, String>,
    shared: &Arc<Shared>,
) -> Result<Gathered, JoinError> {
    let (came, coming) = channel();
    let greeter = Arc::new(Greeter {
        node: membership.node,
        incarnation: getrandom::u32().map_err(refused("random bytes"))?,
        settings,
        key: membership.key.clone(),
        nodes: membership.addresses.len(),
        answered: Mutex::default(),
        route: Mutex::new(Route::Gathering(came)),
        shared: Arc::clone(shared),
        callers: Callers::new(GREETINGS_MAX.0, GREETINGS_MAX.1),
        lines: Lines::default(),
    });
    let door = Door::open(&greeter, listener)?;
    // Those with greater numbers call by themselves, unless they have been called before: then they say so.
    for (node, address) in membership.addresses.iter().enumerate() {
        if node != membership.node {
            Arc::clone(&greeter).keep_calling(node, *address)?;
        }
    }
    let greeted = wait_for_all(membership, &coming)?;
    Ok(Gathered { greeted, door, coming })
}

impl Gathered {
    /// From now on whoever calls is one of these members, whose connection has broken, or comes too late.
    pub(super) fn link(self, links: &[Arc<Link>]) -> Door {
        let Self { greeted: _, door, coming } = self;
        let mut route = door.greeter.route();
        for greeted in coming.try_iter().flatten() {
            replace(links, greeted);
        }
        *route = Route::Linked(links.to_vec());
        drop(route);
        door
    }
}

/// Where callers are greeted until it is dropped.
pub(super) struct Door {
    pub(super) greeter: Arc<Greeter>,
    _callers: Acceptor,
}

impl Door {
    fn open(greeter: &Arc<Greeter>, listener: TcpListener) -> Result<Self, JoinError> {
        let greet = Arc::clone(greeter);
        let callers = Acceptor::start("members-listen", listener, move |stream| {
            Arc::clone(&greet).greet(stream);
        });
        Ok(Self { greeter: Arc::clone(greeter), _callers: callers.map_err(refused("a thread"))? })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in Shared::is_leaving(). Also where the others did not come.
        self.greeter.shared.leaving.store(true, Ordering::Release);
    }
}

/// Who has come, or why somebody will not.
type Coming = Result<Greeted, JoinError>;

/// What becomes of those who were greeted.
enum Route {
    /// Somebody waits for them.
    Gathering(Sender<Coming>),
    /// All have come, and one that comes again has lost its connection.
    Linked(Vec<Arc<Link>>),
}

fn replace(links: &[Arc<Link>], greeted: Greeted) {
    let of = links.iter().find(|link| link.node == greeted.hello.node);
    if let Some(link) = of.filter(|link| link.incarnation == greeted.hello.incarnation) {
        link.replace(greeted);
    }
}

/// Who greets: what all threads that do know.
pub(super) struct Greeter {
    node: usize,
    /// Of this member.
    pub(super) incarnation: u32,
    settings: BTreeMap<String, String>,
    key: Option<ClusterKey>,
    nodes: usize,
    /// Callers that have been answered.
    answered: Mutex<BTreeSet<usize>>,
    route: Mutex<Route>,
    shared: Arc<Shared>,
    /// Those whose greeting has not ended.
    callers: Arc<Callers>,
    /// Of calls that were refused.
    lines: Lines,
}

impl Greeter {
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
    ) -> Result<Greeted, CallError> {
        let own = self.hello(resumes).map_err(|_| CallError::Unreachable)?;
        call(node, address, &own, self.key.as_ref())
    }

    /// Answers a call, on a thread of its own.
    fn greet(self: Arc<Self>, stream: TcpStream) {
        let Some((_, caller)) = place(&self.callers, &stream) else { return };
        let greeter = Arc::clone(&self);
        let answered = spawn("members-greet", move || {
            greeter.answer(stream);
            drop(caller);
        });
        if let Err(error) = answered {
            tracing::error!("a call could not be answered: {error}");
        }
    }

    fn answer(&self, stream: TcpStream) {
        let from = stream.peer_addr().map_or_else(|e| e.to_string(), |from| from.to_string());
        let objection = |other: &Hello| {
            let objection = self.objection(other);
            if objection.is_none() {
                self.answered().insert(other.node);
            }
            objection
        };
        let own = match self.hello(None) {
            Ok(own) => own,
            Err(error) => {
                if let Some(left_out) = self.lines.next() {
                    tracing::warn!("a call from {from} was not answered: {error}{left_out}");
                }
                return;
            }
        };
        match answer(stream, &own, self.key.as_ref(), objection) {
            Ok(greeted) => match &*self.route() {
                // Nobody waits any more if this member could not start.
                Route::Gathering(came) => drop(came.send(Ok(greeted))),
                Route::Linked(links) => replace(links, greeted),
            },
            Err(Some(reason)) => {
                if let Some(left_out) = self.lines.next() {
                    tracing::warn!("a call from {from} was refused: {reason}{left_out}");
                }
            }
            Err(None) => {}
        }
    }

    fn answered(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is against a caller.
    fn objection(&self, other: &Hello) -> Option<Objection> {
        if self.shared.is_leaving() {
            return Some(Objection::Leaving { passed: self.shared.lock().point });
        }
        let is_another = other.node < self.nodes && other.node != self.node;
        let misfit = self.hello(None).ok().and_then(|own| difference(&own, other)).or_else(|| {
            (!is_another)
                .then(|| format!("node {} is not another node of {}", other.node, self.nodes))
        });
        if other.resumes.is_some_and(|incarnation| incarnation != self.incarnation) {
            let reason = format!("node {} was started again, and its memory was lost", self.node);
            return Some(Objection::Refuse(reason));
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
                    Some(Objection::WillCall)
                }
                Some(_) => None,
                None => Some(Objection::TooLate(misfit.unwrap_or_else(|| {
                    format!(
                        "node {} has been here before, and its memory was lost since. Without \
                         recovery it cannot come back: stop all nodes and start them again",
                        other.node
                    )
                }))),
            };
        }
        if other.node < self.node {
            return Some(Objection::WillCall);
        }
        misfit.map(Objection::Refuse)
    }

    /// Calls a member until it answers, or has called itself.
    fn keep_calling(
        self: Arc<Self>,
        node: usize,
        address: SocketAddr,
    ) -> Result<JoinHandle<()>, JoinError> {
        spawn("members-call", move || {
            while !self.shared.is_leaving() && matches!(*self.route(), Route::Gathering(_)) {
                let called = self.call(node, address, None);
                if self.answered().contains(&node) {
                    return;
                }
                let answer = match called {
                    Ok(greeted) => Ok(greeted),
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
                    // Whoever waited may have given up.
                    (Route::Gathering(came), answer) => drop(came.send(answer)),
                    (Route::Linked(links), Ok(greeted)) => replace(links, greeted),
                    (Route::Linked(_), Err(_)) => {}
                }
                return;
            }
        })
    }
}

fn wait_for_all(
    membership: &Membership,
    coming: &Receiver<Coming>,
) -> Result<BTreeMap<usize, Greeted>, JoinError> {
    let mut greeted = BTreeMap::new();
    let clock = MonotonicClock::new();
    let start_ns = clock.now_ns();
    loop {
        let missing: Vec<_> = (0..membership.addresses.len())
            .filter(|node| *node != membership.node && !greeted.contains_key(node))
            .map(|node| format!("node {node} at {}", membership.addresses[node]))
            .collect();
        if missing.is_empty() {
            return Ok(greeted);
        }
        let missing = missing.join(", ");
        let waited = Duration::from_nanos(clock.now_ns() - start_ns);
        let left = membership.join_timeout.saturating_sub(waited);
        match coming.recv_timeout(PATIENCE.min(left)) {
            Ok(came) => {
                let came = came?;
                tracing::info!("node {} is there", came.hello.node);
                greeted.insert(came.hello.node, came);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                if left <= PATIENCE {
                    let seconds = membership.join_timeout.as_secs();
                    return Err(JoinError::Missing { missing, seconds });
                }
                tracing::info!("waiting for {missing}");
            }
        }
    }
}
