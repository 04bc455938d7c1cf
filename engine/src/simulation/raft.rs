//! A member's replica of the manager in a simulation: that of crate `manager`, with openraft in it, in virtual time.
//!
//! ```text
//! Group ── bytes of other replicas ─▶ SimulatedReplica ─▶ ManagerEvent, or bytes for others, by the members' streams
//! ```
//! *Invariants*: a member that stands still has a replica that stands still. Events are handled in their order, before any byte that
//! follows them is sent.
//!
//! *Not here*: the model of all replicas, in `manager.rs`. openraft draws at random for itself: two runs of a seed differ.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_manager::{DrivenReplica, Event, Options, Replica, ReplicaId, StartError};

use crate::decision::Decided;
use crate::simulation::manager::ManagerEvent;

/// The finest time that the timers of a replica know.
const TICK_NS: u64 = 1_000_000;
/// Signs of life of the leader in a lease, as in [`crate::members`].
const HEARTBEATS: u32 = 5;

/// What a replica has to say.
pub(super) enum Said {
    Event(ManagerEvent),
    /// To another node.
    Send(usize, Vec<u8>),
}

/// See the module's text.
pub(super) struct SimulatedReplica {
    driven: DrivenReplica,
    said: Arc<Mutex<VecDeque<Event>>>,
    /// Whether it has been told something that it has not looked at.
    is_told: bool,
    now_ns: u64,
}

impl SimulatedReplica {
    /// Starts a replica of a log with these first voters, if it is there from the beginning.
    pub(super) fn start(
        id: ReplicaId,
        founders: BTreeSet<ReplicaId>,
        decided: Decided,
        (lease_ns, now_ns): (u64, u64),
    ) -> Result<Self, StartError> {
        let options = Options {
            cluster: "gannet".to_owned(),
            id,
            founders,
            heartbeat: Duration::from_nanos(lease_ns) / HEARTBEATS,
            directory: None,
        };
        let said: Arc<Mutex<VecDeque<Event>>> = Arc::default();
        let events = Arc::clone(&said);
        let driven = DrivenReplica::start(options, decided, move |event| {
            lock(&events).push_back(event);
        })?;
        Ok(Self { driven, said, is_told: true, now_ns })
    }

    /// The replica, to be told something.
    pub(super) fn tell(&mut self) -> &Replica {
        self.is_told = true;
        self.driven.replica()
    }

    /// When its timers go on.
    pub(super) fn next_tick_ns(&self) -> u64 {
        self.now_ns + TICK_NS
    }

    /// Lets it do what there is to do at this time.
    pub(super) fn advance(&mut self, now_ns: u64) {
        // In whole ticks: the timers know no others.
        let ticks = now_ns.saturating_sub(self.now_ns) / TICK_NS;
        if ticks == 0 && !std::mem::take(&mut self.is_told) {
            return;
        }
        self.now_ns += ticks * TICK_NS;
        self.driven.advance(Duration::from_nanos(ticks * TICK_NS));
    }

    /// What it has to say, in its order.
    pub(super) fn take_said(&self) -> Option<Said> {
        let decoded = |decision: &[u8]| {
            postcard::from_bytes(decision).expect("members decide nothing but decisions")
        };
        Some(Said::Event(match lock(&self.said).pop_front()? {
            Event::Send { to, bytes } => return Some(Said::Send(usize::from(to), bytes)),
            Event::Leads { term } => ManagerEvent::Leads(term),
            Event::Follows { .. } => ManagerEvent::Follows,
            Event::Appended { index, term, decision } => {
                ManagerEvent::Appended(index, term, decoded(&decision))
            }
            Event::Truncated { from } => ManagerEvent::Truncated(from),
            // Nobody looks at the place of what was made, here and below.
            Event::Made { term, decision } => ManagerEvent::Made(0, term, decoded(&decision)),
            Event::Voting { index, sets } => ManagerEvent::Voting(index, sets),
            Event::Voters(sets) => ManagerEvent::Voters(0, sets),
            Event::Installed { index, snapshot } => {
                let decided = Decided::from_snapshot(&snapshot);
                ManagerEvent::Installed(index, decided.expect("members make the snapshots"))
            }
            Event::Failed { reason } => panic!("a replica in memory has failed: {reason}"),
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A simulation in which something panics is over.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
