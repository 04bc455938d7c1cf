//! Processes of killed members that are started again: each comes back empty, as another incarnation. Nodes that are added come so, too.
//!
//! ```text
//! a death ─ some time ─ the process is started again ─ its predecessor is removed ─ the others let it in ─ its workers start
//! ```
//! *Invariants*: a process that is started again has nothing of its predecessor. It ends if the others refuse it.
//!
//! *Not here*: how a member is let in, in `newcomers` and `members`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::configuration::Phase;
use crate::simulation::{SimulatedNode, Simulation, joining};

/// What became of processes of killed members that were started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CameBack {
    /// All of them.
    pub all: u64,
    /// Those that could not join, because the others had halted.
    pub refused: u64,
    /// Those that were let in, and removed again before their workers started.
    pub removed: u64,
    /// Those that are members again.
    pub joined: u64,
    /// Those of nodes that were not there before; they are among all.
    pub added: u64,
    /// Elections of who decides that had no majority but for those that were no members yet.
    pub elections: u64,
}

impl Simulation {
    /// How many nodes were there at first.
    #[must_use]
    pub fn first_nodes(&self) -> usize {
        self.nodes.len() - self.spares
    }

    /// The nodes of which a process was killed, or removed by the others, and those that were not there at first.
    #[must_use]
    pub fn died(&self) -> BTreeSet<usize> {
        let killed = self.killed.iter().map(|kill| usize::from(kill.node));
        let spares = self.first_nodes()..self.nodes.len();
        killed.chain(self.removed.iter().copied()).chain(spares).collect()
    }

    /// Those that have not come back.
    #[must_use]
    pub fn dead(&self) -> BTreeSet<usize> {
        self.died().difference(&self.back).copied().collect()
    }

    /// Starts the processes again of members whose time has come.
    pub(super) fn start_again(&mut self) {
        let now_ns = self.now_ns();
        while let Some(&(at_ns, node)) = self.restarts.first().filter(|(at_ns, _)| *at_ns <= now_ns)
        {
            self.restarts.remove(&(at_ns, node));
            self.trace.note(now_ns, || format!("node {node} is started again"));
            let before = self.latest_configuration();
            let options = self.cluster.options();
            let who = (node, self.spares);
            let outcome = joining::start_again(&mut self.members.lock(), options, who, &before)
                .expect("a process with these options was started before");
            self.came_back.all += 1;
            self.came_back.added += u64::from(before.members[node].incarnation == 0);
            self.again.insert(node, outcome);
            self.members_due_ns = 0;
        }
    }

    /// How many processes of killed members were started again; of those, how many could not join, and how many are members.
    #[must_use]
    pub fn came_back(&self) -> CameBack {
        CameBack { elections: self.members.lock().elected_by_predecessors(), ..self.came_back }
    }

    /// Starts the workers of processes that have joined, and ends those that could not.
    pub(super) fn let_in(&mut self) {
        for (node, mut outcome) in std::mem::take(&mut self.again) {
            let mut members = self.members.lock();
            let Some(member) = members.member(node) else { continue };
            let is_removed = member.group.is_outcast();
            if member.was_refused() || is_removed {
                members.kill(node);
                drop(members);
                self.came_back.refused += u64::from(!is_removed);
                self.came_back.removed += u64::from(is_removed);
                self.members_due_ns = 0;
                continue;
            }
            drop(members);
            // Those of a process would stop with all others while an epoch is prepared.
            let is_active = |part: &&Cluster| part.configuration().phase == Phase::Active;
            match outcome.joined().filter(is_active) {
                Some(part) => self.start_workers(node, part),
                None => drop(self.again.insert(node, outcome)),
            }
        }
    }

    /// Starts the workers of a process that is a member.
    fn start_workers(&mut self, node: usize, part: &Cluster) {
        let member = Arc::clone(&part.members[0]);
        let terms = self.lease_terms.expect("members come back to a cluster that needs leases");
        self.members.lock().require_lease_of(node, member.node(), terms);
        let narrow = |count: usize| u16::try_from(count).expect("checked by the cluster");
        let workers = narrow(self.cluster.options.threads);
        let surroundings = (&self.time, &self.joined_at_ns, &self.network, &self.members);
        self.nodes[node] = SimulatedNode::new(narrow(node), &member, workers, surroundings);
        let mut all = self.cluster.members.clone();
        self.former.push(std::mem::replace(&mut all[node], member));
        let nodes = all.len();
        let mut cluster = Cluster::of_members(self.cluster.options.clone(), all, 0);
        cluster.manager = self.members.as_manager(nodes);
        self.cluster = Arc::new(cluster);
        self.back.insert(node);
        self.came_back.joined += 1;
        self.members_due_ns = 0;
        self.trace.note(self.time.get(), || format!("node {node} is a member again"));
    }

    /// Whether processes of killed members are still to be started again, or to be let in or refused by a member that lives.
    pub(super) fn awaits_newcomers(&self) -> bool {
        let CameBack { all, refused, removed, joined, .. } = self.came_back;
        let has_living = self.nodes.iter().any(|node| !node.has_ended);
        has_living && (!self.restarts.is_empty() || refused + removed + joined < all)
    }
}
