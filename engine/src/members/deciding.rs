//! The thread that takes part in changes of the configuration, with the manager's replica of this node.
//!
//! ```text
//! messages of members ─┐                                    ┌─▶ messages to members
//!                      ├─▶ Changes ─▶ decisions ─▶ Replica ─┤
//! events of the replica┘                  ◀─── made ────────┘
//! ```
//! The first change is made without replicas; they begin with the members that it names. Of three or four members three vote, of five or more
//! five, and of fewer one: with two voters the loss of either would stop both. When a voter is lost, others take its place.
//!
//! *Invariants*: a replica begins once, with the first change. Without a majority of the voters no loss can be decided: the cluster halts.
//!
//! *Not here*: the log, in crate `manager`.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use gannet_manager::{Event, Options, Replica as ManagerReplica};

use crate::change::Changes;
use crate::change_message::{Addressed, ChangeMessage};
use crate::configuration::{Configuration, Phase};
use crate::members::{JoinError, Joining, Shared};
use crate::replica::Replica;

/// Between two looks whether workers have come to a change.
const WORKERS_LOOK: Duration = Duration::from_micros(200);
/// Between two signs of life of the manager's leader.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// What the thread is told.
pub(super) enum Heard {
    /// A member's message, perhaps of this one.
    Member(usize, ChangeMessage),
    /// What has happened at this node's replica of the manager.
    Manager(Event),
}

/// The thread's state.
struct Deciding<R: Replica> {
    shared: Arc<Shared>,
    changes: Changes<R>,
    manager: Option<Arc<ManagerReplica>>,
    /// Those of the manager's replicas that vote.
    voters: BTreeSet<u16>,
    /// Those that are to vote, as this node leads them.
    wanted: Option<BTreeSet<u16>>,
    leads: bool,
}

/// Takes part in changes until the cluster halts.
pub(super) fn follow<R: Replica>(
    shared: Arc<Shared>,
    changes: Changes<R>,
    heard: &Receiver<Heard>,
) {
    let voters = BTreeSet::new();
    let mut deciding =
        Deciding { shared, changes, manager: None, voters, wanted: None, leads: false };
    loop {
        let received = if deciding.changes.awaits_workers() {
            heard.recv_timeout(WORKERS_LOOK)
        } else {
            heard.recv().map_err(RecvTimeoutError::from)
        };
        let said = match received {
            Ok(Heard::Member(from, message)) => deciding.changes.receive(from, message),
            Ok(Heard::Manager(event)) => deciding.take_event(event),
            Err(RecvTimeoutError::Timeout) => deciding.changes.poll(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        deciding.say(said);
        if let Err(error) = deciding.go_on() {
            let reason = format!("the manager's replica cannot start: {error}");
            deciding.shared.change_and_wake(|state| state.group.leave(Some(reason)));
        }
    }
}

/// Of `members`, those that vote: as many of those that do already as possible, `leader` among them.
fn voters_of(members: &BTreeSet<u16>, present: &BTreeSet<u16>, leader: u16) -> BTreeSet<u16> {
    let count = match members.len() {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    };
    let those = |some: &BTreeSet<u16>| some.iter().copied().collect::<Vec<_>>();
    let preferred = [vec![leader], those(present), those(members)].concat();
    let mut voters = BTreeSet::new();
    for node in preferred.into_iter().filter(|node| members.contains(node)) {
        if voters.len() < count {
            voters.insert(node);
        }
    }
    voters
}

fn members(configuration: &Configuration) -> BTreeSet<u16> {
    configuration.member_numbers().collect()
}

impl<R: Replica> Deciding<R> {
    fn take_event(&mut self, event: Event) -> Vec<Addressed> {
        match event {
            Event::Leads { term } => {
                (self.leads, self.wanted) = (true, None);
                tracing::info!("this node decides on the membership from now on, in term {term}");
                self.changes.leads(term)
            }
            Event::Follows { .. } => {
                self.leads = false;
                self.changes.follows();
                Vec::new()
            }
            Event::Made { term, decision } => match postcard::from_bytes(&decision) {
                Ok(decision) => self.changes.made(term, &decision),
                Err(error) => {
                    tracing::error!("a decision in the manager's log is damaged: {error}");
                    Vec::new()
                }
            },
            Event::Voters(voters) => {
                self.voters = voters;
                Vec::new()
            }
            // The replica's thread hands bytes on itself.
            Event::Carry { .. } => Vec::new(),
        }
    }

    /// Says what there is to say, and tells what has become of joining.
    fn say(&mut self, said: Vec<Addressed>) {
        let Self { shared, changes, .. } = self;
        shared.change_and_wake(|state| {
            if let Some(reason) = changes.take_end() {
                state.group.cannot_go_on(&reason);
            }
            for (to, message) in said {
                state.group.say_change(to, message);
            }
            state.answers.append(&mut changes.take_answers());
            if let Some(error) = changes.take_failure() {
                state.fail(JoinError::from(error));
            } else if changes.is_formed() && matches!(state.joining, Joining::Waiting) {
                state.joining = Joining::Joined;
                state.group.joined();
            }
        });
    }

    /// Does what follows for the replica, which begins when the members are known.
    fn go_on(&mut self) -> io::Result<()> {
        if !self.changes.is_formed() {
            return Ok(());
        }
        let manager = match &self.manager {
            Some(manager) => Arc::clone(manager),
            None => self.start()?,
        };
        for decision in self.changes.take_decisions() {
            manager.decide(postcard::to_stdvec(&decision).map_err(io::Error::other)?);
        }
        let configuration = self.changes.configuration();
        if self.leads && configuration.phase == Phase::Active {
            let node = self.shared.node();
            let wanted = voters_of(&members(configuration), &self.voters, node);
            if self.voters.contains(&node)
                && wanted != self.voters
                && self.wanted.as_ref() != Some(&wanted)
            {
                tracing::info!("these nodes vote on the membership from now on: {wanted:?}");
                manager.set_voters(wanted.clone());
                self.wanted = Some(wanted);
            }
        }
        let left = self.voters.difference(self.changes.lost()).count();
        if 2 * left <= self.voters.len() {
            let Self { voters, .. } = self;
            let why =
                format!("of the nodes {voters:?}, which decide on the membership, {left} are left");
            self.shared.change_and_wake(|state| state.group.cannot_go_on(&why));
        }
        Ok(())
    }

    /// Starts the manager's replica of this node.
    fn start(&mut self) -> io::Result<Arc<ManagerReplica>> {
        let nodes = members(self.changes.configuration());
        let first = nodes.first().copied().unwrap_or_default();
        self.voters = voters_of(&nodes, &BTreeSet::new(), first);
        let options = Options {
            node: self.shared.node(),
            nodes: nodes.into_iter().collect(),
            voters: self.voters.clone(),
            heartbeat: HEARTBEAT,
        };
        let shared = Arc::downgrade(&self.shared);
        let manager = ManagerReplica::start(options, move |event| {
            let Some(shared) = shared.upgrade() else { return };
            match event {
                Event::Carry { to, bytes } => {
                    shared.change_and_wake(|state| state.group.carry(usize::from(to), bytes));
                }
                event => shared.change(|state| state.tell(Heard::Manager(event))),
            }
        })?;
        let manager = Arc::new(manager);
        self.manager = Some(Arc::clone(&manager));
        self.shared.change(|state| state.manager = Some(Arc::clone(&manager)));
        Ok(manager)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_left_after_one_loss_if_there_can_be_one() {
        let set = |nodes: &[u16]| nodes.iter().copied().collect::<BTreeSet<_>>();
        let first = |nodes: u16| voters_of(&(0..nodes).collect(), &BTreeSet::new(), 0);
        for (nodes, voters) in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)] {
            assert_eq!(first(nodes), (0..voters).collect(), "{nodes}");
        }
        // One that is lost is replaced, and those that vote stay.
        assert_eq!(voters_of(&set(&[0, 2, 3]), &set(&[0, 1, 2]), 2), set(&[0, 2, 3]));
        assert_eq!(voters_of(&set(&[1, 3, 4, 5]), &set(&[0, 1, 2, 3, 4]), 4), set(&[1, 3, 4]));
        // Of two one votes: the one that leads.
        assert_eq!(voters_of(&set(&[1, 2]), &set(&[0, 1, 2]), 2), set(&[2]));
    }
}
