//! The configuration manager in a simulation: a model of the log that raft replicates, with elections, delays, and voters that are cut off.
//!
//! ```text
//! decide(leader, decision) ─▶ each voter that the leader reaches: Appended ─ a majority has it ─▶ all nodes, in one order: Made
//! the leader is dead, or reaches no majority ─▶ another leads, in the next term; what was not made may be Truncated
//! ```
//! It gives what crate `manager` gives, and not more: a leader may not know yet that another leads; a decision that was appended may never
//! be made; a node may hear late.
//!
//! *Invariants*: a decision is made when a majority of the voters has it, and in no other term than that in which it was
//! appended. A leader has heard of all decisions that were made before its term.
//!
//! *Source*: Ongaro and Ousterhout (ATC'14), figure 3, for what holds; `manager/src/replica.rs`, for the events.
//!
//! *Not here*: messages of replicas, in `raft.rs`; what a disk keeps, in crate `manager`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gannet_manager::LogMembers;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::decision::{Decided, Decision};
use crate::simulation::streams::Streams;

/// From an election's begin to its end, in nanoseconds of virtual time.
const ELECTION_NS: Range<u64> = 1_000_000..8_000_000;
/// Between two looks at the leader.
const LOOK_NS: u64 = 2_000_000;
/// How long a node takes to hear of something.
const DELAY_NS: Range<u64> = 10_000..2_000_000;
/// One of so many entries takes longer to reach others, by so much, as if it had been lost at first.
const LATE_ENTRIES: u32 = 8;
const LATE_NS: Range<u64> = 2_000_000..20_000_000;
/// Another one is elected without need once in so many leases.
const ELECTION_LEASES: u64 = 4;

/// Which manager a simulation has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManagerKind {
    /// The model: the same seed gives the same run.
    #[default]
    Model,
    /// The model, of logs that outlive their processes.
    DurableModel,
    /// Replicas with openraft in them, which draws at random for itself.
    Raft,
}

/// What has happened at a node's replica.
#[derive(Clone, Debug)]
pub(super) enum ManagerEvent {
    Leads(u64),
    Follows,
    /// What the log takes at this place, in this term.
    Appended(u64, u64, Decision),
    Truncated(u64),
    /// What is at this place, in this term.
    Made(u64, u64, Decision),
    /// The log takes these sets of nodes at this place; they vote if it is made.
    Voting(u64, Vec<BTreeSet<u16>>),
    /// These nodes vote, as was made at this place.
    Voters(u64, Vec<BTreeSet<u16>>),
    /// All that was made up to this place.
    Installed(u64, Decided),
    /// Its disk has failed: it hears nothing more.
    Failed,
}

/// What the log has.
#[derive(Clone)]
enum Entry {
    Decision(Decision),
    Voters(BTreeSet<u16>),
}

/// An entry of the log.
struct Logged {
    /// When a majority has it.
    made_ns: u64,
    term: u64,
    entry: Entry,
}

/// See the module's text.
pub(super) struct ModelManager {
    random: SmallRng,
    voters: BTreeSet<u16>,
    term: u64,
    leader: Option<usize>,
    looks_at_ns: u64,
    /// In one of so many looks another one is elected without need.
    election_every: u32,
    /// The election that is under way ends then.
    elects_at_ns: Option<u64>,
    /// What was decided before the first entry.
    first: Decided,
    log: Vec<Logged>,
    /// By node: when the last of what it is to hear comes.
    last_ns: BTreeMap<usize, u64>,
    serial: u64,
    /// By time and number.
    events: BTreeMap<(u64, u64), (usize, ManagerEvent)>,
    nodes: BTreeSet<usize>,
    /// Those that are to hear of decisions, too.
    newcomers: BTreeSet<usize>,
    /// Of the nodes, those whose processes are no members yet. What the processes before have stored votes on, and tells nobody anything.
    predecessors: BTreeSet<usize>,
    /// By process that is no member yet: the members that have it wait.
    met: BTreeMap<usize, BTreeSet<usize>>,
    /// Elections without a majority but for those.
    elected_by_predecessors: u64,
    /// The disk of a voter fails then.
    fails_at_ns: Option<u64>,
    /// Those whose disks have failed.
    failed: BTreeSet<usize>,
}

/// The last set of voters in a log, and its place.
fn last_voters(log: &[Logged]) -> (u64, BTreeSet<u16>) {
    let voters = |(index, logged): (usize, &Logged)| match &logged.entry {
        Entry::Voters(voters) => Some((index as u64, voters.clone())),
        Entry::Decision(_) => None,
    };
    let last = log.iter().enumerate().rev().find_map(voters);
    last.expect("the first entry has voters")
}

/// What a node is told of an entry: when the log takes the entry, and when it is made.
fn told((index, Logged { made_ns, term, entry }): (u64, &Logged)) -> (u64, [ManagerEvent; 2]) {
    let events = match entry {
        Entry::Decision(decision) => [
            ManagerEvent::Appended(index, *term, decision.clone()),
            ManagerEvent::Made(index, *term, decision.clone()),
        ],
        Entry::Voters(voters) => [
            ManagerEvent::Voting(index, vec![voters.clone()]),
            ManagerEvent::Voters(index, vec![voters.clone()]),
        ],
    };
    (*made_ns, events)
}

impl ModelManager {
    /// The manager of these nodes, which begins with what is decided; at first these vote.
    pub(super) fn new(
        (seed, lease_ns): (u64, u64),
        (first, nodes): (Decided, BTreeSet<usize>),
        voters: BTreeSet<u16>,
        now_ns: u64,
    ) -> Self {
        let mut manager = Self {
            random: SmallRng::seed_from_u64(seed),
            voters: voters.clone(),
            term: 0,
            leader: None,
            looks_at_ns: now_ns,
            election_every: u32::try_from((ELECTION_LEASES * lease_ns).div_ceil(LOOK_NS))
                .unwrap_or(u32::MAX),
            elects_at_ns: None,
            first,
            log: vec![Logged { made_ns: now_ns, term: 0, entry: Entry::Voters(voters.clone()) }],
            last_ns: BTreeMap::new(),
            serial: 0,
            events: BTreeMap::new(),
            nodes,
            newcomers: BTreeSet::new(),
            predecessors: BTreeSet::new(),
            met: BTreeMap::new(),
            elected_by_predecessors: 0,
            fails_at_ns: None,
            failed: BTreeSet::new(),
        };
        for node in manager.nodes.clone() {
            manager.tell(node, now_ns, ManagerEvent::Voting(0, vec![voters.clone()]));
            manager.tell(node, now_ns, ManagerEvent::Voters(0, vec![voters.clone()]));
        }
        manager
    }

    /// When something happens next.
    pub(super) fn next_event_ns(&self) -> u64 {
        let event = self.events.first_key_value().map(|((at_ns, _), _)| *at_ns);
        let others = self.elects_at_ns.into_iter().chain(self.fails_at_ns);
        event.into_iter().chain(others).fold(self.looks_at_ns, u64::min)
    }

    /// What a node hears now.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<(usize, ManagerEvent)> {
        let event = self.events.first_entry().filter(|event| event.key().0 <= now_ns)?;
        Some(event.remove())
    }

    /// A node that does not run now hears it later.
    pub(super) fn put_back(&mut self, node: usize, event: ManagerEvent, at_ns: u64) {
        // Before what it is to hear then.
        let waits = self.events.iter().filter(|(_, (other, _))| *other == node);
        let waits: Vec<_> = waits.map(|(at, _)| *at).collect();
        let later: Vec<_> = waits.into_iter().filter_map(|at| self.events.remove(&at)).collect();
        self.last_ns.insert(node, at_ns);
        self.serial += 1;
        self.events.insert((at_ns, self.serial), (node, event));
        for (node, event) in later {
            self.tell(node, at_ns, event);
        }
    }

    /// A node has ended.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes.remove(&node);
        self.newcomers.remove(&node);
        self.predecessors.remove(&node);
        self.met.remove(&node);
        self.events.retain(|_, (other, _)| *other != node);
    }

    /// The process of a node is there again, and a member has it wait: what the process before has stored votes on.
    pub(super) fn go_on(&mut self, node: usize, member: usize) {
        self.met.entry(node).or_default().insert(member);
        if self.nodes.insert(node) {
            self.predecessors.insert(node);
        }
    }

    /// A member has halted, and its log outlives its process: another process has the log at once, which votes and decides nothing.
    pub(super) fn halt(&mut self, node: usize) {
        if self.nodes.contains(&node) && self.predecessors.insert(node) {
            self.events.retain(|_, (other, _)| *other != node);
        }
    }

    /// The disk of a voter fails then.
    pub(super) fn fail_disk(&mut self, at_ns: u64) {
        self.fails_at_ns = Some(at_ns);
    }

    /// A voter stops, and says so.
    fn stop_voter(&mut self, now_ns: u64) {
        let voters: Vec<_> = self.voters.iter().map(|voter| usize::from(*voter)).collect();
        let node = voters[self.random.random_range(0..voters.len())];
        self.events.retain(|_, (other, _)| *other != node);
        self.tell(node, now_ns, ManagerEvent::Failed);
        self.failed.insert(node);
    }

    /// Looks whether the leader still leads, and elects another one if it is time.
    pub(super) fn advance(&mut self, streams: &Streams, now_ns: u64) {
        if self.fails_at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            self.stop_voter(now_ns);
        }
        if self.looks_at_ns <= now_ns {
            self.looks_at_ns = now_ns + LOOK_NS;
            let leads = self.leader.is_some_and(|leader| self.can_lead(leader, streams, now_ns));
            let is_replaced = self.random.random_ratio(1, self.election_every);
            if (!leads || is_replaced) && self.elects_at_ns.is_none() {
                self.elects_at_ns = Some(now_ns + self.random.random_range(ELECTION_NS));
            }
        }
        if self.elects_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.elects_at_ns = None;
            self.elect(streams, now_ns);
        }
        self.take_in(streams, now_ns);
    }

    /// Whether a voter runs, reaches a majority, and is a member.
    fn can_lead(&self, node: usize, streams: &Streams, now_ns: u64) -> bool {
        !self.predecessors.contains(&node) && self.reaches_majority(node, streams, now_ns)
    }

    fn reaches_majority(&self, node: usize, streams: &Streams, now_ns: u64) -> bool {
        let votes = self.voters.iter().any(|voter| usize::from(*voter) == node);
        votes && 2 * self.reached(node, streams, now_ns).count() > self.voters.len()
    }

    /// The voters that one reaches.
    fn reached(&self, node: usize, streams: &Streams, now_ns: u64) -> impl Iterator<Item = usize> {
        self.voters.iter().map(|voter| usize::from(*voter)).filter(move |voter| {
            let way = [(node, *voter), (*voter, node)];
            way.into_iter()
                .all(|(from, to)| self.reach_ns(from, to, streams, now_ns) == Some(now_ns))
        })
    }

    /// Elections that processes have decided which were members no more.
    pub(super) fn elected_by_predecessors(&self) -> u64 {
        self.elected_by_predecessors
    }

    /// When a node hears another; never if it has ended.
    fn reach_ns(&self, from: usize, to: usize, streams: &Streams, now_ns: u64) -> Option<u64> {
        let works = |node| self.nodes.contains(&node) && !self.failed.contains(&node);
        (works(from) && works(to)).then(|| streams.reach_ns(from, to, now_ns))
    }

    fn elect(&mut self, streams: &Streams, now_ns: u64) {
        let voters: Vec<_> = self.voters.iter().map(|voter| usize::from(*voter)).collect();
        let able = voters.into_iter().filter(|voter| self.can_lead(*voter, streams, now_ns));
        let able: Vec<_> = able.collect();
        if able.is_empty() {
            return self.hand_over(streams, now_ns);
        }
        let leader = able[self.random.random_range(0..able.len())];
        let reached = self.reached(leader, streams, now_ns);
        let members = reached.filter(|voter| !self.predecessors.contains(voter)).count();
        self.elected_by_predecessors += u64::from(2 * members <= self.voters.len());
        self.leader = Some(leader);
        self.term += 1;
        self.give_up(leader, streams, now_ns);
        for node in self.nodes.clone().into_iter().filter(|node| *node != leader) {
            // The one that has led before may learn late.
            if let Some(at_ns) = self.reach_ns(leader, node, streams, now_ns) {
                let delay_ns = self.random.random_range(DELAY_NS);
                self.tell(node, at_ns + delay_ns, ManagerEvent::Follows);
            }
        }
        // After all that was made.
        self.tell(leader, now_ns, ManagerEvent::Leads(self.term));
    }

    /// Nobody who could decide leads, and a predecessor does: it has the members that it has met vote in place of all others.
    fn hand_over(&mut self, streams: &Streams, now_ns: u64) {
        let voters = self.voters.iter().map(|voter| usize::from(*voter));
        let mut able = voters.filter(|voter| self.reaches_majority(*voter, streams, now_ns));
        let Some(leader) = able.next() else { return };
        let met = self.met.get(&leader).into_iter().flatten();
        let reached =
            met.filter(|node| self.reach_ns(leader, **node, streams, now_ns) == Some(now_ns));
        let reached: BTreeSet<_> = reached.filter_map(|node| u16::try_from(*node).ok()).collect();
        if reached.is_empty() {
            return;
        }
        self.elected_by_predecessors += 1;
        (self.leader, self.term) = (Some(leader), self.term + 1);
        self.give_up(leader, streams, now_ns);
        self.set_voters(leader, &reached, streams, now_ns);
        self.leader = None;
    }

    /// What no majority has when another leads is gone.
    fn give_up(&mut self, leader: usize, streams: &Streams, now_ns: u64) {
        let kept = self.made_until(now_ns);
        if kept == self.log.len() {
            return;
        }
        self.log.truncate(kept);
        let from = kept as u64;
        self.events.retain(|_, (_, event)| match event {
            ManagerEvent::Appended(index, ..)
            | ManagerEvent::Voting(index, _)
            | ManagerEvent::Voters(index, _)
            | ManagerEvent::Made(index, ..) => *index < from,
            ManagerEvent::Leads(_)
            | ManagerEvent::Follows
            | ManagerEvent::Truncated(_)
            | ManagerEvent::Failed
            | ManagerEvent::Installed(..) => true,
        });
        self.voters = last_voters(&self.log).1;
        for node in self.nodes.clone() {
            if let Some(at_ns) = self.reach_ns(leader, node, streams, now_ns) {
                self.tell(node, at_ns, ManagerEvent::Truncated(from));
            }
        }
    }

    /// A node that may lead wants a decision made.
    pub(super) fn decide(
        &mut self,
        node: usize,
        decision: Decision,
        streams: &Streams,
        now_ns: u64,
    ) {
        let (index, term) = (self.log.len() as u64, self.term);
        let Some(made_ns) = self.append(node, Entry::Decision(decision.clone()), streams, now_ns)
        else {
            return;
        };
        for other in self.nodes.clone() {
            if let Some(at_ns) = self.reach_ns(node, other, streams, made_ns) {
                self.tell(other, at_ns, ManagerEvent::Made(index, term, decision.clone()));
            }
        }
    }

    /// Of the entries, those that a majority has at this time.
    fn made_until(&self, now_ns: u64) -> usize {
        self.log.iter().take_while(|logged| logged.made_ns <= now_ns).count()
    }

    /// A node that may lead has these be the replicas of the log. The model has no time in which both sets vote.
    pub(super) fn set_members(
        &mut self,
        node: usize,
        members: &LogMembers,
        streams: &Streams,
        now_ns: u64,
    ) {
        if self.leader == Some(node) {
            let all = members.all.iter().map(|replica| usize::from(replica.node));
            let hears =
                |node: &usize| self.nodes.contains(node) && !self.predecessors.contains(node);
            self.newcomers = all.filter(|node| !hears(node)).collect();
            self.take_in(streams, now_ns);
        }
        let voters = members.voters.iter().map(|replica| replica.node).collect();
        if self.voters != voters {
            self.set_voters(node, &voters, streams, now_ns);
        }
    }

    /// The leader has the nodes that are to hear of decisions do so, as far as it reaches them: of what was made at once, and of the rest
    /// as all others.
    fn take_in(&mut self, streams: &Streams, now_ns: u64) {
        let Some(leader) = self.leader.filter(|leader| self.nodes.contains(leader)) else { return };
        for node in self.newcomers.clone() {
            let at_ns = streams.reach_ns(leader, node, now_ns);
            if at_ns > now_ns {
                continue;
            }
            self.newcomers.remove(&node);
            self.failed.remove(&node);
            self.predecessors.remove(&node);
            self.nodes.insert(node);
            let made = self.made_until(now_ns);
            let mut decided = self.first.clone();
            for logged in &self.log[..made] {
                if let Entry::Decision(decision) = &logged.entry {
                    // One that comes too late is none.
                    let _ = decided.make(logged.term, decision);
                }
            }
            let at_ns = now_ns + self.random.random_range(DELAY_NS);
            self.tell(node, at_ns, ManagerEvent::Installed(made as u64 - 1, decided));
            let (index, voters) = last_voters(&self.log[..made]);
            self.tell(node, at_ns, ManagerEvent::Voting(index, vec![voters.clone()]));
            self.tell(node, at_ns, ManagerEvent::Voters(index, vec![voters]));
            let later: Vec<_> = (made as u64..).zip(&self.log[made..]).map(told).collect();
            for (made_ns, [appended, made]) in later {
                self.tell(node, at_ns, appended);
                if made_ns < u64::MAX {
                    self.tell(node, at_ns.max(made_ns), made);
                }
            }
        }
    }

    /// A node that may lead has these vote from now on.
    fn set_voters(&mut self, node: usize, voters: &BTreeSet<u16>, streams: &Streams, now_ns: u64) {
        let index = self.log.len() as u64;
        let Some(made_ns) = self.append(node, Entry::Voters(voters.clone()), streams, now_ns)
        else {
            return;
        };
        self.voters.clone_from(voters);
        for other in self.nodes.clone() {
            if let Some(at_ns) = self.reach_ns(node, other, streams, made_ns) {
                self.tell(other, at_ns, ManagerEvent::Voters(index, vec![voters.clone()]));
            }
        }
    }

    /// Has the voters that the leader reaches take an entry; when a majority has it, if ever.
    fn append(&mut self, node: usize, entry: Entry, streams: &Streams, now_ns: u64) -> Option<u64> {
        if self.leader != Some(node) {
            return None;
        }
        let index = self.log.len() as u64;
        let mut taken = Vec::new();
        let is_late = self.random.random_ratio(1, LATE_ENTRIES);
        let late_ns = if is_late { self.random.random_range(LATE_NS) } else { 0 };
        for other in self.nodes.clone() {
            let Some(at_ns) = self.reach_ns(node, other, streams, now_ns) else { continue };
            let delay_ns = self.random.random_range(DELAY_NS) + late_ns;
            let delay_ns = if other == node { 0 } else { delay_ns };
            let event = match &entry {
                Entry::Decision(decision) => {
                    ManagerEvent::Appended(index, self.term, decision.clone())
                }
                Entry::Voters(voters) => ManagerEvent::Voting(index, vec![voters.clone()]),
            };
            let at_ns = self.tell(other, at_ns + delay_ns, event);
            if self.voters.iter().any(|voter| usize::from(*voter) == other) {
                taken.push(at_ns);
            }
        }
        taken.sort_unstable();
        let before_ns = self.log.last().map_or(0, |logged| logged.made_ns);
        let made_ns = taken.get(self.voters.len() / 2).map_or(u64::MAX, |at| before_ns.max(*at));
        self.log.push(Logged { made_ns, term: self.term, entry });
        (made_ns < u64::MAX).then_some(made_ns)
    }

    /// Has a node hear something, after all that it was told before; when that is.
    fn tell(&mut self, node: usize, at_ns: u64, event: ManagerEvent) -> u64 {
        let last_ns = self.last_ns.entry(node).or_default();
        *last_ns = at_ns.max(*last_ns);
        if self.predecessors.contains(&node) {
            return *last_ns;
        }
        self.serial += 1;
        self.events.insert((*last_ns, self.serial), (node, event));
        *last_ns
    }
}
