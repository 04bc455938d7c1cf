//! What a worker does about the workers of other nodes: those that do not answer, that have come back, and that have
//! parted.
//!
//! *Invariants*: a worker complains only while its node holds its lease, about nodes that have not answered for two
//! leases. A request to a node that has parted counts as answered, by `Moved`. The jobs that wait for a silent node are
//! told of it.
//!
//! *Source*: `docs/protocol.md`, "Leases", "Nodes that are drained" and "Nodes that come back".
//!
//! *Not here*: who is a member, which the view says; what follows from complaints, in `members/leases.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use gannet_rpc::{Identity, PacketReceiver, PacketSender};

use crate::configuration::Configuration;
use crate::lease::LeaseTerms;
use crate::request::{Status, partition_of};
use crate::view::View;
use crate::worker::Worker;

impl<S: PacketSender, R: PacketReceiver> Worker<S, R> {
    /// Waits for no answer of nodes that were members of a configuration, and have parted since: they held nothing that
    /// another node needs, and answer no more.
    pub(super) fn leave_others(&mut self, before: &Configuration) {
        let present = self.view.configuration();
        let is_gone = |node: &u16| !present.is_member(*node);
        for node in before.member_numbers().filter(is_gone) {
            self.endpoint.give_up_on(node, Status::Moved as u16);
        }
    }

    /// Complains about nodes that do not answer, unless this one could not hear them.
    #[cold]
    pub(super) fn complain(&mut self, now_ns: u64) {
        let Some(terms) = self.node.lease_terms() else { return };
        if self.lease.is_held() {
            let now = (self.lease.now_ns(), terms);
            for node in self.endpoint.silent_nodes(now_ns, terms.complaint_ns()) {
                self.node.complain(node, &self.tell_jobs(node, now), now);
            }
        } else {
            self.endpoint.forgive();
        }
    }

    /// Tells the jobs that wait for a node that it is silent; the partitions that they ask about.
    fn tell_jobs(&self, node: u16, now: (u64, LeaseTerms)) -> BTreeSet<u16> {
        let partitioning = self.view.configuration().partitioning;
        let mut of_all = BTreeSet::new();
        for (coroutine, slot) in (0..).zip(&self.slots) {
            let batch = self.endpoint.batch(coroutine);
            let batch = batch.borrow();
            let mut unanswered = batch.unanswered(node).peekable();
            if unanswered.peek().is_none() {
                continue;
            }
            let partitions: BTreeSet<_> = unanswered
                .filter_map(|request| partition_of(request.kind, request.payload, partitioning))
                .collect();
            if let Some(silences) =
                slot.control.token.borrow().as_ref().and_then(|job| job.silences())
            {
                silences.note(node, &partitions, now);
            }
            of_all.extend(partitions);
        }
        of_all
    }

    /// Exchanges packets with the processes that have come in the place of others.
    pub(super) fn meet_others(&mut self) {
        let identity = self.view.identity(self.number, self.coroutines());
        let view = Arc::clone(&self.view);
        if self.reconnect(&view, &identity) {
            self.endpoint.admit(identity);
        }
    }

    /// Finds the way to members that are other processes than before; whether there are any.
    pub(super) fn reconnect(&mut self, view: &View, identity: &Identity) -> bool {
        let configuration = view.configuration();
        let others = self.endpoint.others_than(identity);
        for node in others.iter().filter(|node| configuration.is_member(**node)) {
            let told = &configuration.members[usize::from(*node)].ports;
            if let Err(reason) = self.endpoint.sender_mut().reconnect(*node, told) {
                tracing::error!(
                    "no requests can be sent to node {node}, which has come back: {reason}"
                );
            }
        }
        !others.is_empty()
    }
}
