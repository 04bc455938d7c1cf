//! The model of a membership change: propose, prepare, flush, activate.
//!
//! *Source*: `docs/protocol.md`, "Membership change". Flush and repair are one step here: the model covers their
//! decisions, not the interleaving of their messages.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::protocol::{Action, Fate, NODES, Phase, Protocol, Record, State};

/// The manager's committed configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Configuration {
    pub(crate) epoch: u8,
    pub(crate) is_active: bool,
    pub(crate) removed: BTreeSet<u8>,
    flushed: bool,
    lease_over: bool,
    /// Transactions of the last epoch whose records the flush has found.
    found: BTreeSet<u8>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            epoch: 1,
            is_active: true,
            removed: BTreeSet::new(),
            flushed: false,
            lease_over: false,
            found: BTreeSet::new(),
        }
    }
}

impl Protocol {
    fn members<'s>(&self, state: &'s State) -> impl Iterator<Item = u8> + use<'s> {
        (0..NODES).filter(|node| !state.configuration.removed.contains(node))
    }

    pub(crate) fn membership_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let configuration = &state.configuration;
        if configuration.epoch == 1 {
            for &node in &self.failing {
                if state.nodes.iter().all(|node| node.alive) {
                    actions.push(Action::Crash(node));
                }
                // A living node may be removed as well, because it was slow.
                actions.push(Action::Propose(node));
            }
            return;
        }
        if !configuration.lease_over {
            actions.push(Action::LeaseOver);
        }
        if configuration.is_active {
            return;
        }
        let mut all_are_prepared = true;
        for node in self.members(state) {
            for (worker, &epoch) in (0..).zip(&state.nodes[usize::from(node)].epochs) {
                if epoch < configuration.epoch {
                    actions.push(Action::Prepare(node, worker));
                    // Without the rule, a node answers for its other workers too early.
                    all_are_prepared &= worker > 0 && !self.rules.every_worker_prepares;
                }
            }
        }
        if !configuration.flushed && all_are_prepared {
            actions.push(Action::Flush);
        }
        let may_activate = configuration.lease_over || !self.rules.activation_waits_for_leases;
        if configuration.flushed && may_activate {
            actions.push(Action::Activate);
        }
    }

    pub(crate) fn change_membership(&self, state: &mut State, action: &Action) {
        match *action {
            Action::Crash(node) => state.nodes[usize::from(node)].alive = false,
            Action::Propose(node) => {
                let configuration = &mut state.configuration;
                configuration.epoch += 1;
                configuration.is_active = false;
                configuration.removed.insert(node);
            }
            Action::Prepare(node, worker) => {
                let epochs = &mut state.nodes[usize::from(node)].epochs;
                epochs[usize::from(worker)] = state.configuration.epoch;
            }
            Action::Flush => self.flush(state),
            Action::LeaseOver => {
                state.configuration.lease_over = true;
                for node in state.configuration.removed.clone() {
                    state.nodes[usize::from(node)].lease = false;
                }
            }
            Action::Activate => self.activate(state),
            Action::Begin(_) | Action::Deliver(_) | Action::Again(_) | Action::Advance(_) => {}
        }
    }

    /// Applies every record of any member, at every member that has a copy.
    fn flush(&self, state: &mut State) {
        let members: Vec<_> = self.members(state).collect();
        let mut records: BTreeMap<u8, Record> = BTreeMap::new();
        for &node in &members {
            for record in state.nodes[usize::from(node)].log.values() {
                // Without the union, each node knows its own records alone.
                records.insert(record.0, record.clone());
            }
        }
        let mut units: Vec<_> = records
            .values()
            .flat_map(|(index, units)| units.iter().map(|&(bucket, base)| (base, bucket, *index)))
            .collect();
        units.sort_unstable();
        for (base, bucket, index) in units {
            for node in self.copies(state, bucket) {
                let node = &mut state.nodes[usize::from(node)];
                let knows = node.log.values().any(|record| record.0 == index);
                if knows || self.rules.flush_takes_the_union {
                    node.buckets.entry(bucket).or_default().apply(index, base);
                }
            }
        }
        state.configuration.found = records.keys().copied().collect();
        state.configuration.flushed = true;
    }

    /// The new epoch opens. The flush's findings settle the coroutines of members, and locks of the old epoch are released.
    fn activate(&self, state: &mut State) {
        state.configuration.is_active = true;
        for (index, plan) in (0_u8..).zip(&self.plans) {
            let is_member = !state.configuration.removed.contains(&plan.node);
            let phase = state.transactions[usize::from(index)].phase;
            if matches!(phase, Phase::Idle | Phase::Ended) {
                continue;
            }
            state.transactions[usize::from(index)].phase = Phase::Ended;
            if is_member {
                let is_found = state.configuration.found.contains(&index);
                let fate = if is_found && self.rules.settled_by_the_flush {
                    Fate::Committed
                } else {
                    Fate::Aborted
                };
                Self::tell(state, index, fate);
            }
        }
        for node in self.members(state).collect::<Vec<_>>() {
            let node = &mut state.nodes[usize::from(node)];
            node.log.clear();
            node.buckets.values_mut().for_each(|bucket| bucket.owner = None);
        }
        // A coroutine that never began on a removed node never will.
        for (index, plan) in (0_u8..).zip(&self.plans) {
            let transaction = &mut state.transactions[usize::from(index)];
            let is_gone = state.configuration.removed.contains(&plan.node)
                && !state.nodes[usize::from(plan.node)].alive;
            if is_gone && transaction.phase == Phase::Idle {
                transaction.phase = Phase::Ended;
            }
        }
    }
}
