//! The manager's replica of the process before this one, from its directory. A majority of those that decide on the membership may have ended, and
//! without one the others can remove nobody, nor let in a process that comes back. So each such process goes on with what its predecessor has
//! stored, until it is let in.
//!
//! ```text
//! a member has this process wait ─▶ both are connected ─▶ the replica goes on ─▶ a majority: the predecessor is removed, and votes no more
//!                                                                             ─▶ this process is let in ─▶ end
//! ```
//! *Invariants*: the replica votes as the process before did, of which it has every promise. It grants no lease, and decides nothing. If it
//! leads, it has the members that it has met vote in place of all others, if its log names them: one of an earlier run of the cluster changes nothing.
//!
//! *Source*: `docs/protocol.md`, "A majority that comes back".
//!
//! *Not here*: how its bytes are carried, in `coming_back.rs`; when the process is let in, in `newcomers`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gannet_manager::{Event, Options, Replica, ReplicaId};

use crate::configuration::Configuration;
use crate::decision::Decided;

/// See the module's text.
pub(crate) struct Predecessor {
    options: Options,
    /// What is decided before anything is. Its directory has more.
    first: Arc<Configuration>,
    state: Mutex<State>,
    /// Takes its bytes to other nodes.
    carrier: OnceLock<Carrier>,
}

type Carrier = Box<dyn Fn(u16, Vec<u8>) + Send + Sync>;

#[derive(Default)]
struct State {
    replica: Option<Replica>,
    leads: bool,
    /// Members that have this process wait.
    met: BTreeSet<ReplicaId>,
    has_ended: bool,
}

impl State {
    /// If it leads, others vote from now on.
    fn hand_over(&self) {
        if let Some(replica) = self.replica.as_ref().filter(|_| self.leads) {
            replica.hand_over(self.met.clone());
        }
    }
}

impl Predecessor {
    /// The replica of a cluster whose directory this is; it does not begin yet.
    pub(crate) fn new(
        cluster: String,
        (id, directory): (ReplicaId, PathBuf),
        heartbeat: Duration,
        first: Arc<Configuration>,
    ) -> Self {
        let founders = BTreeSet::new();
        let options = Options { cluster, id, founders, heartbeat, directory: Some(directory) };
        Self { options, first, state: Mutex::default(), carrier: OnceLock::new() }
    }

    /// This takes its bytes to other nodes, from the first call on.
    pub(crate) fn send_by(&self, carrier: impl Fn(u16, Vec<u8>) + Send + Sync + 'static) {
        // Only one process has it.
        let _ = self.carrier.set(Box::new(carrier));
    }

    /// That of the process before.
    pub(crate) fn incarnation(&self) -> u32 {
        self.options.id.incarnation
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has this process wait: the replica goes on.
    pub(crate) fn resume(self: &Arc<Self>, member: ReplicaId) {
        let mut state = self.lock();
        state.met.retain(|met| met.node != member.node);
        state.met.insert(member);
        if state.replica.is_none() && !state.has_ended {
            let of_events = Arc::downgrade(self);
            let decided = Decided::new(Arc::clone(&self.first));
            let replica = Replica::start(self.options.clone(), decided, move |event| {
                let Some(predecessor) = of_events.upgrade() else { return };
                match event {
                    Event::Send { to, bytes } => {
                        if let Some(carrier) = predecessor.carrier.get() {
                            carrier(to, bytes);
                        }
                    }
                    Event::Leads { .. } => predecessor.set_leads(true),
                    Event::Follows { .. } => predecessor.set_leads(false),
                    Event::Failed { reason } => {
                        tracing::error!(
                            "what the process before has decided on is not to be had: {reason}"
                        );
                    }
                    // They are for members.
                    Event::Installed { .. }
                    | Event::Appended { .. }
                    | Event::Voting { .. }
                    | Event::Truncated { .. }
                    | Event::Made { .. }
                    | Event::Voters(_) => {}
                }
            });
            match replica {
                Ok(replica) => {
                    tracing::info!("this process votes as the one before it until it is let in");
                    state.replica = Some(replica);
                }
                Err(error) => {
                    tracing::error!("this process cannot vote as the one before it: {error}");
                    state.has_ended = true;
                }
            }
        }
        state.hand_over();
    }

    /// A member has ended, or is not connected now.
    pub(crate) fn part(&self, node: u16) {
        let mut state = self.lock();
        state.met.retain(|met| met.node != node);
        state.hand_over();
    }

    fn set_leads(&self, leads: bool) {
        let mut state = self.lock();
        state.leads = leads;
        state.hand_over();
    }

    /// The replica takes bytes that another node's has had carried here; they come back if it does not run.
    pub(crate) fn hear(&self, from: u16, bytes: Vec<u8>) -> Option<Vec<u8>> {
        match &self.lock().replica {
            Some(replica) => {
                replica.hear(from, bytes);
                None
            }
            None => Some(bytes),
        }
    }

    /// It ends for good.
    pub(crate) fn end(&self) {
        let ended = {
            let mut state = self.lock();
            state.has_ended = true;
            state.replica.take()
        };
        // Without the lock, which the replica's thread may wait for.
        drop(ended);
    }
}
