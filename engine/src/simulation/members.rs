//! The members of a simulated cluster: the group of each, with its part in changes, over simulated streams.
//!
//! ```text
//! Group, Changes ── actions ─▶ Streams ── arrivals ─▶ Group, Changes of another member
//! ```
//! *Invariants*: a group gets virtual time, and what arrives, and nothing else. A member that was killed says nothing more.
//!
//! *Not here*: how a cluster of them comes about, in `joining.rs`; workers and packets, in `mod.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::change::{Changes, Deciding};
use crate::change_message::ChangeMessage;
use crate::configuration::{Change, ChangeError, Configuration};
use crate::members::{Action, Event, Group, Input, JoinError, Setup};
use crate::replica::Replica;
use crate::simulation::streams::{Arrived, Streams};
use crate::statistics::NodeReport;

/// Between two looks whether workers have come to a change.
const WORKERS_LOOK_NS: u64 = 2_000;

/// A member that has started.
pub(crate) struct SimulatedMember<R: Replica> {
    pub(crate) group: Group,
    changes: Changes<R>,
    /// Answers to its proposals, by number.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    /// Why it could not join.
    pub(crate) failure: Option<JoinError>,
}

/// All members of a simulation.
pub(crate) struct SimulatedMembers<R: Replica> {
    /// By node; none before it has started, and after it was killed.
    members: BTreeMap<usize, SimulatedMember<R>>,
    streams: Streams,
    now_ns: u64,
}

impl<R: Replica> SimulatedMember<R> {
    /// Whether it has joined.
    pub(crate) fn has_joined(&self) -> bool {
        self.changes.is_formed()
    }

    /// Says what the member has to say about changes.
    fn say(&mut self, said: Vec<(usize, ChangeMessage)>) {
        for (to, message) in said {
            self.group.say_change(to, message);
        }
        if let Some(reason) = self.changes.take_end() {
            self.group.cannot_go_on(&reason);
        }
    }

    /// Handles what has happened in the group; whether anything had.
    fn handle_events(&mut self) -> bool {
        let mut has_any = false;
        while let Some(event) = self.group.next_event() {
            has_any = true;
            match event {
                Event::Change(from, message) if self.group.halted().is_none() => {
                    let said = self.changes.receive(from, message);
                    self.say(said);
                    self.answers.append(&mut self.changes.take_answers());
                    if self.has_joined() {
                        self.group.joined();
                    }
                    if let Some(error) = self.changes.take_failure() {
                        self.failure.get_or_insert(error.into());
                    }
                }
                Event::ReportDue => self.group.report(&NodeReport::default()),
                Event::Failed(error) => drop(self.failure.get_or_insert(error)),
                Event::Halted(reason) if !self.has_joined() => {
                    self.failure.get_or_insert(JoinError::Halted(reason));
                }
                // There are no replicas of the manager: node 0 decides.
                Event::Change(..) | Event::Halted(_) | Event::Manager(..) => {}
            }
        }
        has_any
    }
}

impl<R: Replica> SimulatedMembers<R> {
    /// No members yet.
    pub(crate) fn new(seed: u64) -> Self {
        Self { members: BTreeMap::new(), streams: Streams::new(seed), now_ns: 0 }
    }

    /// Starts a member.
    pub(crate) fn start(&mut self, setup: Setup, configuration: Configuration, replica: R) {
        let node = setup.hello.node;
        let member = SimulatedMember {
            group: Group::new(setup, self.now_ns),
            changes: Changes::new(node, Arc::new(configuration), replica, Deciding::ByFounder),
            answers: BTreeMap::new(),
            failure: None,
        };
        self.members.insert(node, member);
        self.streams.listen(node);
        self.settle(node);
    }

    /// Ends a member as the end of its process does.
    pub(crate) fn kill(&mut self, node: usize) {
        self.members.remove(&node);
        self.streams.kill(node, self.now_ns);
    }

    /// The member of a node, if it has started and was not killed.
    pub(crate) fn member(&self, node: usize) -> Option<&SimulatedMember<R>> {
        self.members.get(&node)
    }

    /// The members that have started and were not killed.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SimulatedMember<R>> {
        self.members.values()
    }

    /// Has a member propose a change; the proposal's number.
    pub(crate) fn propose(&mut self, node: usize, change: Change) -> Option<u64> {
        let number = self.members.get_mut(&node)?.group.propose(change);
        self.settle(node);
        Some(number)
    }

    /// The answer to a proposal, once.
    pub(crate) fn take_answer(
        &mut self,
        node: usize,
        number: u64,
    ) -> Option<Result<(), ChangeError>> {
        self.members.get_mut(&node)?.answers.remove(&number)
    }

    /// Has a member leave.
    #[cfg(test)]
    pub(crate) fn leave(&mut self, node: usize, because: Option<String>) {
        self.members
            .get_mut(&node)
            .into_iter()
            .for_each(|member| member.group.leave(because.clone()));
        self.settle(node);
    }

    /// Breaks all streams of a member.
    pub(crate) fn break_all(&mut self, node: usize) {
        self.streams.break_all(node, self.now_ns);
    }

    /// Streams that were broken.
    #[cfg(test)]
    pub(crate) fn broken(&self) -> u64 {
        self.streams.broken
    }

    /// From now on so many of 1,000 messages break their stream, and so many are changed.
    pub(crate) fn break_streams(&mut self, breaks_permille: u32, changes_permille: u32) {
        self.streams.breaks_permille = breaks_permille;
        self.streams.changes_permille = changes_permille;
    }

    /// When something happens next.
    pub(crate) fn next_event_ns(&self) -> u64 {
        let look = |member: &SimulatedMember<R>| {
            member.changes.awaits_workers().then_some(self.now_ns + WORKERS_LOOK_NS)
        };
        let deadlines = self.members.values().map(|member| member.group.next_deadline_ns());
        let deadlines = deadlines.chain(self.members.values().filter_map(look));
        deadlines.chain(self.streams.next_arrival_ns()).min().unwrap_or(u64::MAX)
    }

    /// Handles what arrives and what is due until this time, each at its own time.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        while self.next_event_ns() <= until_ns {
            self.advance(self.next_event_ns());
        }
        self.advance(until_ns);
    }

    /// The time of the members.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Why some member could not join.
    pub(crate) fn take_failure(&mut self) -> Option<JoinError> {
        self.members.values_mut().find_map(|member| member.failure.take())
    }

    /// Members that have halted.
    pub(crate) fn halted(&self) -> impl Iterator<Item = usize> {
        let all = self.members.values();
        all.filter(|member| member.group.halted().is_some()).map(|member| member.group.node())
    }

    /// It is this time, unless it is later already: handles what has arrived, and what is due.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        let now_ns = self.now_ns.max(now_ns);
        self.now_ns = now_ns;
        while let Some(((node, number), what)) = self.streams.take_arrived(now_ns) {
            let Some(member) = self.members.get_mut(&node) else { continue };
            let group = &mut member.group;
            match what {
                Arrived::Called(_) => {
                    let connection = group.accepted("a member".to_owned());
                    self.streams.accept(number, connection, now_ns);
                }
                Arrived::Connected => group.take(number, &Input::Connected),
                Arrived::NobodyListens => group.take(number, &Input::NobodyListens),
                Arrived::Bytes(bytes) => group.take(number, &Input::Heard(&bytes)),
                Arrived::Ended => group.take(number, &Input::Ended),
            }
            self.settle(node);
        }
        for node in self.members.keys().copied().collect::<Vec<_>>() {
            if let Some(member) = self.members.get_mut(&node) {
                member.group.advance(now_ns);
                let said = member.changes.poll();
                member.say(said);
            }
            self.settle(node);
        }
    }

    /// Does what the group of a member says, until it says nothing.
    fn settle(&mut self, node: usize) {
        let Some(member) = self.members.get_mut(&node) else { return };
        loop {
            let mut is_quiet = !member.handle_events();
            while let Some(action) = member.group.next_action() {
                is_quiet = false;
                match action {
                    Action::Call { connection, node: called } => {
                        self.streams.call((node, connection), called, self.now_ns);
                    }
                    Action::Send { connection, bytes } => {
                        self.streams.send((node, connection), bytes, self.now_ns);
                    }
                    Action::Close { connection } => {
                        self.streams.close((node, connection), self.now_ns);
                    }
                    Action::Admit { .. } => {}
                }
            }
            if is_quiet {
                return;
            }
        }
    }
}
