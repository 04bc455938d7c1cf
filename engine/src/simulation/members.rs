//! The members of a simulated cluster: the group of each, with its part in changes, over simulated streams.
//!
//! ```text
//! Group, Changes ── actions ─▶ Streams ── arrivals ─▶ Group, Changes of another member
//! ```
//! *Invariants*: a group gets virtual time, what arrives, and the complaints of its node, and nothing else. A member that was killed says nothing more.
//!
//! *Not here*: how a cluster of them comes about, in `joining.rs`; workers and packets, in `mod.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gannet_manager::ReplicaId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::change::Changes;
use crate::change_message::ChangeMessage;
use crate::configuration::{Change, ChangeError, Configuration};
use crate::lease::LeaseTerms;
use crate::members::{Action, Event, Group, Input, JoinError, Setup, Voting, replica_ids};
use crate::node::Node;
use crate::replica::Replica;
use crate::simulation::clock::Rate;
use crate::simulation::faults::Fault;
use crate::simulation::manager::{ManagerEvent, ManagerKind, ModelManager};
use crate::simulation::raft::{Said, SimulatedReplica};
use crate::simulation::streams::{Arrived, Streams};
use crate::statistics::NodeReport;

/// The first look whether workers have come to a change. A later one takes an eighth of the time that the member has waited.
const WORKERS_LOOK_NS: u64 = 20_000;
/// How long a copy may be missing before another is made.
const COPIES_AFTER: Duration = Duration::from_millis(3);
/// Between two looks whether a member has joined.
const START_LOOK_NS: u64 = 100_000;

/// A member that has started.
pub(crate) struct SimulatedMember<R: Replica> {
    pub(crate) group: Group,
    changes: Changes<R>,
    voting: Voting,
    /// Its replica, if the manager is no model, and what has come for the replica before it started.
    replica: Option<SimulatedReplica>,
    early: Vec<(u16, Vec<u8>)>,
    /// Whether it leads the manager, as far as it knows.
    leads: bool,
    /// Members that have it wait until it is let in. What the process before has stored votes meanwhile.
    waits_at: BTreeSet<usize>,
    /// Answers to its proposals, by number.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    /// Why it could not join.
    pub(crate) failure: Option<JoinError>,
    /// Its node, which needs a lease.
    node: Option<Arc<Node>>,
    /// It takes no step before this time.
    stands_until_ns: u64,
    /// Since when it waits for its workers.
    awaits_since_ns: Option<u64>,
    /// How fast its clock runs.
    rate: Rate,
}

/// All members of a simulation.
pub(crate) struct SimulatedMembers<R: Replica> {
    /// By node; none before it has started, and after it was killed.
    members: BTreeMap<usize, SimulatedMember<R>>,
    streams: Streams,
    manager_kind: ManagerKind,
    /// The model of the manager, if it has that, since the first change was made.
    manager: Option<ModelManager>,
    /// Whether members that are silent are suspected.
    has_leases: bool,
    seed: u64,
    /// How the clocks of members run that have been started, by node, and by how much such a clock may be wrong.
    rates: BTreeMap<usize, Rate>,
    drift_permille_max: u32,
    lease_ns: u64,
    now_ns: u64,
}

impl<R: Replica> SimulatedMember<R> {
    /// Whether it has joined.
    pub(crate) fn has_joined(&self) -> bool {
        self.changes.is_formed()
    }

    /// Whether the others have told it that it cannot join.
    pub(crate) fn was_refused(&self) -> bool {
        self.failure.is_some()
    }

    /// Says what the member has to say about changes.
    fn say(&mut self, said: Vec<(usize, ChangeMessage)>) {
        for (to, message) in said {
            self.group.say_change(to, message);
        }
        if let Some(reason) = self.changes.take_end() {
            self.group.cannot_go_on(&reason);
        }
        self.answers.append(&mut self.changes.take_answers());
        let knows_log = self.changes.knows_log();
        if let Some(why) = self.voting.obstacle(&self.changes.lost_for_good()).filter(|_| knows_log)
        {
            self.group.cannot_go_on(&why);
        }
        self.group.remove(&self.changes.removed());
        self.group.admit(&self.changes.incarnations());
        self.group.set_changing(self.changes.is_changing());
    }

    /// Takes what has happened at its replica of the manager.
    fn hear_manager(&mut self, event: ManagerEvent, has_leases: bool) {
        let said = match event {
            ManagerEvent::Leads(term) => {
                self.set_leads(true, has_leases);
                self.changes.leads(term)
            }
            ManagerEvent::Follows => {
                self.set_leads(false, has_leases);
                self.changes.follows();
                Vec::new()
            }
            ManagerEvent::Appended(index, term, decision) => {
                let standing = decision.standing_in(term);
                standing.into_iter().for_each(|it| self.group.log_standing(index, it));
                Vec::new()
            }
            ManagerEvent::Truncated(from) => {
                self.group.log_truncated(from);
                Vec::new()
            }
            ManagerEvent::Made(_, term, decision) => self.changes.made(term, &decision),
            ManagerEvent::Voting(index, sets) => {
                self.group.set_voters(index, sets);
                Vec::new()
            }
            ManagerEvent::Voters(_, voters) => {
                self.voting.set_voters(voters);
                Vec::new()
            }
            ManagerEvent::Failed => {
                self.set_leads(false, has_leases);
                self.voting.set_voters(Vec::new());
                self.group.vote_no_more();
                self.changes.follows();
                Vec::new()
            }
            ManagerEvent::Installed(index, decided) => {
                self.group.log_installed(index, &decided.configuration);
                self.changes.installed(decided);
                Vec::new()
            }
        };
        self.say(said);
    }

    fn set_leads(&mut self, leads: bool, has_leases: bool) {
        self.leads = leads;
        self.voting.set_leads(leads);
        self.group.set_decides(leads && has_leases);
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
                    if self.has_joined() {
                        self.group.joined(self.changes.configuration());
                    }
                    if let Some(error) = self.changes.take_failure() {
                        self.failure.get_or_insert(error.into());
                    }
                }
                Event::ReportDue => self.group.report(&NodeReport::default()),
                Event::RenewalDue => {
                    let complaints = self.node.as_ref().map(|node| node.take_complaints());
                    self.group.renew(&complaints.unwrap_or_default());
                    let copied = self.node.as_ref().map(|node| node.take_copied());
                    self.group.tell_copied(copied.unwrap_or_default());
                }
                Event::Lease(until_ns) => {
                    if let Some(node) = &self.node {
                        node.lease().extend(until_ns);
                    }
                }
                Event::Failed(error) => drop(self.failure.get_or_insert(error)),
                Event::Halted(reason) if !self.has_joined() => {
                    self.failure.get_or_insert(JoinError::Halted(reason));
                }
                Event::Halted(_) => self.node.iter().for_each(|node| node.lease().give_up()),
                Event::Manager(from, bytes) => match &mut self.replica {
                    Some(replica) => replica.tell().hear(from, bytes),
                    None => self.early.push((from, bytes)),
                },
                Event::Restart => {}
                Event::Waits(member, _) => drop(self.waits_at.insert(usize::from(member))),
                Event::WaitsNoMore(_) => {}
                Event::Change(..) => {}
            }
        }
        has_any
    }

    /// Starts its replica of the manager, if it is time.
    fn start_replica(&mut self, lease_ns: u64, now_ns: u64) {
        if self.replica.is_some() || !self.has_joined() {
            return;
        }
        let configuration = self.changes.configuration();
        let node = u16::try_from(self.group.node()).expect("nodes are numbered with 16 bits");
        let mut voters = BTreeSet::new();
        if !self.changes.has_come_back() {
            voters = Voting::first_voters(configuration);
            self.voting.set_voters(vec![voters.clone()]);
        }
        let incarnation = configuration.members[usize::from(node)].incarnation;
        let (id, founders) =
            (ReplicaId { node, incarnation }, replica_ids(configuration, voters.iter()));
        let decided = self.changes.first_decided();
        let replica = SimulatedReplica::start(id, founders, decided, (lease_ns, now_ns));
        let mut replica = replica.expect("a runtime without I/O needs nothing of the system");
        for (from, bytes) in std::mem::take(&mut self.early) {
            replica.tell().hear(from, bytes);
        }
        self.replica = Some(replica);
    }

    /// Lets its replica do what there is to do; whether that was anything.
    fn run_replica(&mut self, now_ns: u64, has_leases: bool) -> bool {
        if self.group.halted().is_some() {
            // Its process has ended.
            self.replica = None;
        }
        let Some(replica) = &mut self.replica else { return false };
        replica.advance(now_ns);
        let mut has_said = false;
        while let Some(said) = self.replica.as_ref().and_then(SimulatedReplica::take_said) {
            has_said = true;
            match said {
                Said::Send(to, bytes) => self.group.send_to_replica(to, bytes),
                Said::Event(event) => self.hear_manager(event, has_leases),
            }
        }
        has_said
    }

    /// Has its replica decide what it wants decided, as the product does.
    fn decide(&mut self) {
        let Some(replica) = &mut self.replica else { return };
        for decision in self.changes.take_decisions() {
            let decision = postcard::to_stdvec(&decision);
            replica.tell().decide(decision.expect("all lists of a decision know their lengths"));
        }
        let number = u16::try_from(self.group.node()).expect("nodes are numbered with 16 bits");
        let wanted = self.voting.take_wanted(number, self.changes.configuration());
        wanted.into_iter().for_each(|members| replica.tell().set_members(members));
    }
}

impl<R: Replica> SimulatedMembers<R> {
    /// No members yet.
    pub(crate) fn new(seed: u64, manager_kind: ManagerKind) -> Self {
        Self {
            members: BTreeMap::new(),
            streams: Streams::new(seed),
            manager_kind,
            manager: None,
            has_leases: false,
            seed,
            rates: BTreeMap::new(),
            drift_permille_max: 0,
            lease_ns: 0,
            now_ns: 0,
        }
    }

    /// From now on the clocks of members that start are wrong, by at most so much.
    pub(crate) fn let_clocks_drift(&mut self, permille_max: u32) {
        self.drift_permille_max = permille_max;
    }

    /// How the clock of a node runs.
    pub(crate) fn rate_of(&mut self, node: usize) -> Rate {
        let mut random = SmallRng::seed_from_u64(self.seed ^ (node as u64) << 48);
        let most = self.drift_permille_max;
        let mut draw = || Rate::new(random.random_range(1_000 - most..=1_000 + most));
        self.rates.entry(node).or_insert_with(&mut draw).clone()
    }

    /// Starts a member.
    pub(crate) fn start(&mut self, setup: Setup, configuration: Configuration, replica: R) {
        let node = setup.hello.node;
        let terms = Some(LeaseTerms::new(setup.terms.lease).with_copies_after(COPIES_AFTER));
        self.lease_ns = u64::try_from(setup.terms.lease.as_nanos()).unwrap_or(u64::MAX);
        let configuration = Arc::new(configuration);
        let rate = self.rate_of(node);
        let member = SimulatedMember {
            group: Group::new(setup, rate.local_ns(self.now_ns)),
            changes: Changes::new(node, configuration, replica, terms),
            voting: Voting::default(),
            replica: None,
            early: Vec::new(),
            leads: false,
            waits_at: BTreeSet::new(),
            answers: BTreeMap::new(),
            failure: None,
            node: None,
            stands_until_ns: 0,
            awaits_since_ns: None,
            rate,
        };
        self.members.insert(node, member);
        self.streams.listen(node);
        self.settle(node);
    }

    /// From now on the nodes of all members need leases, and silent members are suspected.
    pub(crate) fn require_leases(&mut self, nodes: &[Arc<Node>], terms: LeaseTerms) {
        self.has_leases = true;
        for (number, member) in &mut self.members {
            nodes[*number].require_lease(terms);
            member.node = Some(Arc::clone(&nodes[*number]));
            member.group.set_decides(member.leads);
            member.group.renew(&[]);
        }
        (0..nodes.len()).for_each(|node| self.settle(node));
    }

    /// The node of a member that has come back needs a lease, as those of all others.
    pub(crate) fn require_lease_of(&mut self, number: usize, node: &Arc<Node>, terms: LeaseTerms) {
        let has_leases = self.has_leases;
        if let Some(member) = self.members.get_mut(&number).filter(|_| has_leases) {
            node.require_lease(terms);
            member.node = Some(Arc::clone(node));
            member.group.set_decides(member.leads);
            member.group.renew(&[]);
        }
        self.settle(number);
    }

    /// A member takes no step before this time. What is sent to it waits.
    pub(crate) fn stand(&mut self, node: usize, until_ns: u64) {
        if let Some(member) = self.members.get_mut(&node) {
            member.stands_until_ns = member.stands_until_ns.max(until_ns);
            self.streams.stand(node, member.stands_until_ns);
        }
    }

    /// Nothing arrives between the nodes that a fault cuts off before this time.
    pub(crate) fn cut(&mut self, fault: Fault, until_ns: u64) {
        self.streams.cut(fault, until_ns);
    }

    /// The disk of a voter's replica fails then, if the manager is the model.
    pub(crate) fn fail_disk(&mut self, at_ns: u64) {
        self.manager.iter_mut().for_each(|manager| manager.fail_disk(at_ns));
    }

    /// Elections that processes have decided which were members no more.
    pub(crate) fn elected_by_predecessors(&self) -> u64 {
        self.manager.as_ref().map_or(0, ModelManager::elected_by_predecessors)
    }

    /// Ends a member as the end of its process does.
    pub(crate) fn kill(&mut self, node: usize) {
        self.members.remove(&node);
        self.streams.kill(node, self.now_ns);
        self.manager.iter_mut().for_each(|manager| manager.kill(node));
    }

    /// The member of a node, if it has started and was not killed.
    pub(crate) fn member(&self, node: usize) -> Option<&SimulatedMember<R>> {
        self.members.get(&node)
    }

    /// A member's group.
    #[cfg(test)]
    pub(crate) fn group_mut(&mut self, node: usize) -> &mut Group {
        &mut self.members.get_mut(&node).expect("the member has started").group
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
        let due = |member: &SimulatedMember<R>| {
            let look_ns = |since_ns| WORKERS_LOOK_NS.max((self.now_ns - since_ns) / 8);
            let looks = member.awaits_since_ns.map(|since_ns| self.now_ns + look_ns(since_ns));
            let ticks = member.replica.as_ref().map(SimulatedReplica::next_tick_ns);
            let local = member.changes.next_deadline_ns().into_iter();
            let local_ns = local.fold(member.group.next_deadline_ns(), u64::min);
            let deadlines = looks.into_iter().chain(ticks);
            let due_ns = deadlines.fold(member.rate.virtual_ns(local_ns), u64::min);
            due_ns.max(member.stands_until_ns)
        };
        let deadlines = self.members.values().map(due);
        let deadlines = deadlines.chain(self.manager.as_ref().map(ModelManager::next_event_ns));
        deadlines.chain(self.streams.next_arrival_ns()).min().unwrap_or(u64::MAX)
    }

    /// The same, as time since another time.
    pub(crate) fn due_ns(&self, since_ns: u64) -> u64 {
        self.next_event_ns().saturating_sub(since_ns)
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

    /// Members that have halted, each with whether it leaves the others, which go on.
    pub(crate) fn halted(&self) -> impl Iterator<Item = (usize, bool)> {
        let groups = self.members.values().map(|member| &member.group);
        let halted = groups.filter(|group| group.halted().is_some());
        halted.map(|group| (group.node(), group.is_leaving()))
    }

    /// It is this time, unless it is later already: handles what has arrived, and what is due.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        let now_ns = self.now_ns.max(now_ns);
        self.now_ns = now_ns;
        // Before what others say: a voter knows what its log has.
        self.run_manager();
        while let Some(((node, number), what)) = self.streams.take_arrived(now_ns) {
            let Some(member) = self.members.get_mut(&node) else { continue };
            member.changes.set_time(member.rate.local_ns(now_ns));
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
                if member.stands_until_ns > now_ns {
                    continue;
                }
                let local_ns = member.rate.local_ns(now_ns);
                member.changes.set_time(local_ns);
                if member.node.as_ref().is_some_and(|node| node.lease().take_wish()) {
                    member.group.renew_now();
                }
                member.group.advance(local_ns);
                let said = member.changes.poll();
                member.say(said);
            }
            self.settle(node);
            self.note_waiting(node);
        }
    }

    /// Notes since when a member waits for its workers.
    fn note_waiting(&mut self, node: usize) {
        let now_ns = self.now_ns;
        if let Some(member) = self.members.get_mut(&node) {
            let since_ns = member.awaits_since_ns.unwrap_or(now_ns);
            member.awaits_since_ns = member.changes.awaits_workers().then_some(since_ns);
        }
    }

    /// Has members hear of the model of the manager, which begins with the first change.
    fn run_manager(&mut self) {
        let now_ns = self.now_ns;
        if self.manager_kind == ManagerKind::Raft {
            return;
        }
        if self.manager.is_none() {
            let mut formed = self.members.values().filter(|member| member.has_joined());
            let Some(member) = formed.next() else { return };
            let voters = Voting::first_voters(member.changes.configuration());
            let first = member.changes.first_decided();
            let nodes = self.members.keys().copied().collect();
            let (seed, begins) = ((self.seed, self.lease_ns), (first, nodes));
            self.manager = Some(ModelManager::new(seed, begins, voters, now_ns));
        }
        let Some(manager) = &mut self.manager else { return };
        manager.advance(&self.streams, now_ns);
        while let Some((node, event)) = self.manager.as_mut().and_then(|it| it.take(now_ns)) {
            let Some(member) = self.members.get_mut(&node) else { continue };
            let until_ns = if member.has_joined() { 0 } else { now_ns + START_LOOK_NS };
            let until_ns = until_ns.max(member.stands_until_ns);
            if until_ns > now_ns {
                self.manager.iter_mut().for_each(|it| it.put_back(node, event.clone(), until_ns));
                continue;
            }
            member.changes.set_time(member.rate.local_ns(now_ns));
            member.hear_manager(event, self.has_leases);
            self.settle(node);
        }
    }

    /// Has the manager decide what a member wants decided.
    fn decide(&mut self, node: usize) {
        let Self { members, manager, streams, now_ns, .. } = self;
        if self.manager_kind == ManagerKind::Raft {
            members.get_mut(&node).into_iter().for_each(SimulatedMember::decide);
            return;
        }
        let Some(manager) = manager else { return };
        let Some(member) = members.get_mut(&node) else { return };
        for decision in member.changes.take_decisions() {
            manager.decide(node, decision, streams, *now_ns);
        }
        let number = u16::try_from(node).expect("nodes are numbered with 16 bits");
        let wanted = member.voting.take_wanted(number, member.changes.configuration());
        if let Some(mut wanted) = wanted {
            // The processes of others have ended.
            wanted.all.retain(|replica| {
                let process = members.get(&usize::from(replica.node));
                process.is_some_and(|member| member.group.incarnation() == replica.incarnation)
            });
            manager.set_members(node, &wanted, streams, *now_ns);
        }
    }

    /// Does what the group of a member says, until it says nothing.
    fn settle(&mut self, node: usize) {
        loop {
            self.decide(node);
            let Some(member) = self.members.get_mut(&node) else { return };
            member.changes.set_silent(&member.group.silent());
            let admits = member.voting.admits(member.changes.configuration());
            let said = member.changes.set_admits(admits);
            member.say(said);
            let mut is_quiet = !member.handle_events();
            let is_durable = self.manager_kind == ManagerKind::DurableModel;
            if is_durable && member.group.halted().is_some() && member.has_joined() {
                self.manager.iter_mut().for_each(|manager| manager.halt(node));
            }
            for met in std::mem::take(&mut member.waits_at) {
                self.manager.iter_mut().for_each(|manager| manager.go_on(node, met));
            }
            if self.manager_kind == ManagerKind::Raft && member.stands_until_ns <= self.now_ns {
                member.start_replica(self.lease_ns, self.now_ns);
                is_quiet &= !member.run_replica(self.now_ns, self.has_leases);
            }
            while let Some(action) = member.group.next_action() {
                is_quiet = false;
                match action {
                    Action::Call { connection, node: called, .. } => {
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
