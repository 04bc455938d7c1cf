//! How members find each other when they start: each calls all others until every one has come.
//!
//! *Invariants*: of two members the one with the smaller number is called. When all have come, nobody else can: a member
//! that has started again has another incarnation and no memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_rpc::{Clock, ClusterKey, MonotonicClock};

use crate::accept::{Acceptor, PAUSE};
use crate::members::frame::Hello;
use crate::members::greeting::{CallError, Greeted, Objection, answer, call, difference};
use crate::members::{JoinError, Membership, PATIENCE, refused, spawn};

/// Callers whose greeting has not ended; more wait.
const GREETINGS_MAX: usize = 16;
/// Between two calls of a member that is not there yet.
const CALL_INTERVAL: Duration = Duration::from_millis(100);

/// All members, each of whom has come.
pub(super) struct Gathered {
    /// Of this member.
    pub(super) incarnation: u32,
    /// The streams to the others.
    pub(super) greeted: BTreeMap<usize, Greeted>,
    /// Where those who come too late hear so.
    pub(super) door: Door,
}

/// Waits until every member has come.
pub(super) fn gather(
    listener: TcpListener,
    membership: &Membership,
    settings: BTreeMap<String, String>,
) -> Result<Gathered, JoinError> {
    let nodes = membership.addresses.len();
    let (came, coming) = channel();
    let greeter = Arc::new(Greeter {
        own: hello(membership.node, settings)?,
        key: membership.key.clone(),
        nodes,
        came,
        answered: Mutex::default(),
        all_came: AtomicBool::new(false),
        has_left: AtomicBool::new(false),
        greetings: AtomicUsize::new(0),
    });
    let door = Door::open(&greeter, listener)?;
    // Those with greater numbers call by themselves, unless they have been called before: then they say so.
    for (node, address) in membership.addresses.iter().enumerate() {
        if node != membership.node {
            Arc::clone(&greeter).keep_calling(node, *address)?;
        }
    }
    let greeted = wait_for_all(membership, &coming)?;
    greeter.all_came.store(true, Ordering::Relaxed);
    Ok(Gathered { incarnation: greeter.own.incarnation, greeted, door })
}

/// Where callers are greeted, and who calls; both end when it is dropped.
pub(super) struct Door {
    greeter: Arc<Greeter>,
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
        self.greeter.has_left.store(true, Ordering::Relaxed);
    }
}

fn hello(node: usize, settings: BTreeMap<String, String>) -> Result<Hello, JoinError> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(refused("random bytes"))?;
    let incarnation = getrandom::u32().map_err(refused("random bytes"))?;
    Ok(Hello { node, incarnation, nonce, settings })
}

/// Who has come, or why somebody will not.
type Coming = Result<Greeted, JoinError>;

/// What the threads that greet know.
struct Greeter {
    own: Hello,
    key: Option<ClusterKey>,
    nodes: usize,
    came: Sender<Coming>,
    /// Callers that have been answered.
    answered: Mutex<BTreeSet<usize>>,
    all_came: AtomicBool,
    /// The member has stopped.
    has_left: AtomicBool,
    /// Greetings that have not ended.
    greetings: AtomicUsize,
}

impl Greeter {
    // Relaxed in all: a call at the moment of a change is refused, or made again.

    /// Answers a call, on a thread of its own.
    fn greet(self: Arc<Self>, stream: TcpStream) {
        if self.greetings.load(Ordering::Relaxed) >= GREETINGS_MAX {
            // Too many callers do not end their greeting.
            drop(stream);
            std::thread::park_timeout(PAUSE);
            return;
        }
        self.greetings.fetch_add(1, Ordering::Relaxed);
        let greeter = Arc::clone(&self);
        let answered = spawn("members-greet", move || {
            greeter.answer(stream);
            greeter.greetings.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = answered {
            tracing::error!("a call could not be answered: {error}");
            self.greetings.fetch_sub(1, Ordering::Relaxed);
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
        match answer(stream, &self.own, self.key.as_ref(), objection) {
            // Nobody waits for who comes too late; its stream ends.
            Ok(greeted) => drop(self.came.send(Ok(greeted))),
            Err(Some(reason)) => tracing::warn!("a call from {from} was refused: {reason}"),
            Err(None) => {}
        }
    }

    fn answered(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is against a caller.
    fn objection(&self, other: &Hello) -> Option<Objection> {
        let is_another = other.node < self.nodes && other.node != self.own.node;
        let misfit = difference(&self.own, other).or_else(|| {
            (!is_another)
                .then(|| format!("node {} is not another node of {}", other.node, self.nodes))
        });
        if self.all_came.load(Ordering::Relaxed) {
            return Some(Objection::TooLate(misfit.unwrap_or_else(|| {
                format!(
                    "node {} has been here before, and its memory was lost since. Without recovery \
                     it cannot come back: stop all nodes and start them again",
                    other.node
                )
            })));
        }
        if other.node < self.own.node {
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
            while !self.has_left.load(Ordering::Relaxed) {
                let called = call(node, address, &self.own, self.key.as_ref());
                if self.answered().contains(&node) {
                    return;
                }
                let answer = match called {
                    Ok(greeted) => Ok(greeted),
                    Err(CallError::TooLate(reason)) => {
                        Err(JoinError::Refused { node, address, reason })
                    }
                    Err(CallError::Refused(reason)) if node < self.own.node => {
                        Err(JoinError::Refused { node, address, reason })
                    }
                    // Of two that do not fit the one with the greater number ends.
                    Err(CallError::Refused(_) | CallError::Unreachable) => {
                        std::thread::park_timeout(CALL_INTERVAL);
                        continue;
                    }
                };
                // Whoever waited may have given up.
                let _ = self.came.send(answer);
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
