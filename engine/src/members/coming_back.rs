//! Processes that come back: one with the number of a member that was removed wants to be a member, or of a node that was not there before.
//!
//! ```text
//! process                                  each member
//! calls, as at its first start ───────────▶ the predecessor is a member still: NotYet
//!                                           it was removed: connected, as a newcomer ─▶ Came, to the decider
//!                                           so it is, and the decider has ended, too: Waits, and the predecessor's replica votes
//! Admit, from the decider: it prepares
//! Decide, or Sync: it has joined ─────────▶ the log has let it in: a member
//! ```
//! *Invariants*: a process that has met a member of a cluster never founds one. Until it has joined, it goes by no incarnation of another: each
//! may die before the decision. A newcomer's silence, and its end, halt nobody.
//!
//! *Source*: `docs/protocol.md`, "Nodes that come back".
//!
//! *Not here*: when the decider lets a process in, in `newcomers`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::change_message::{ChangeMessage, Loss};
use crate::configuration::{Configuration, MemberEntry};
use crate::link::LinkError;
use crate::members::calls::Connection;
use crate::members::group::{Action, Event, Group, Stage};
use crate::members::message::Welcome;
use crate::members::peer::Peer;

impl Group {
    /// Whether to call another node: the two are apart, and it may be a member. One with which the cluster does not begin is one when there may
    /// be a cluster. A member of a cluster that goes on calls nodes that have ended, too: another process may be there, and have no
    /// address of a member that lives.
    pub(super) fn calls(&self, peer: &Peer) -> bool {
        let is_apart = peer.present.is_none() && peer.attempt.is_none();
        let first = self.setup.terms.first_nodes;
        let may_be_member = peer.node < first
            || self.stage == Stage::Formed
            || self.node() >= first
            || self.comes_back.is_some();
        let answers = peer.address.is_some() && !(peer.is_gone && self.halted().is_some());
        is_apart && may_be_member && answers && self.stage != Stage::Leaving
    }

    /// The cluster begins without the nodes that may come later.
    pub(super) fn leave_out_spares(&mut self) {
        for node in self.setup.terms.first_nodes..self.setup.terms.addresses.len() {
            self.end_present(node);
            self.end_attempt(node);
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.forget();
                (peer.is_removed, peer.is_gone) = (true, true);
            }
        }
    }

    /// Why a process that was not there before is not met yet as a newcomer; none if it is.
    pub(super) fn wait_of_newcomer(&self, node: usize) -> Option<String> {
        let peer = self.peers.get(&node)?;
        let before = if peer.is_newcomer && peer.present.is_some() {
            "another process with this number is about to join"
        } else if !peer.is_removed && !peer.is_newcomer {
            "the process before it is a member still, and is removed when its lease is over"
        } else {
            return None;
        };
        Some(format!("node {node} is not let in yet: {before}"))
    }

    /// What a process is told that was not there before and waits. If the process before has ended, and this one has its log of the
    /// membership, the two carry what the manager's replicas say.
    pub(super) fn have_wait(
        &self,
        node: usize,
        predecessor: Option<u32>,
        reason: String,
    ) -> Welcome {
        let before = self.peers.get(&node).filter(|peer| peer.is_gone && !peer.is_removed);
        match before.and_then(Peer::incarnation) {
            Some(incarnation) if predecessor == Some(incarnation) => {
                Welcome::Waits { reason, incarnation: self.incarnation() }
            }
            _ => Welcome::NotYet(reason),
        }
    }

    /// The connection with a process that waits, or with a member that has this one wait, if there is one.
    pub(super) fn waiting(&self, node: usize) -> Option<u64> {
        let attempt = self.peers.get(&node)?.attempt?;
        let is_it = matches!(self.connections.get(&attempt), Some(Connection::Waiting { .. }));
        is_it.then_some(attempt)
    }

    /// Uses a call for what the manager's replicas say.
    pub(super) fn keep_waiting(&mut self, number: u64, node: usize) -> Result<(), LinkError> {
        if self.peers.get(&node).is_some_and(|peer| peer.attempt != Some(number)) {
            self.end_attempt(node);
        }
        let Some(Connection::Calling { mut session, .. } | Connection::Called { mut session, .. }) =
            self.connections.remove(&number)
        else {
            return Err(LinkError::Malformed);
        };
        session.trust();
        self.connections.insert(number, Connection::Waiting { node, session });
        let Some(peer) = self.peers.get_mut(&node) else { return Err(LinkError::Malformed) };
        peer.attempt = Some(number);
        self.actions.push_back(Action::Admit { connection: number });
        self.send(number);
        Ok(())
    }

    /// The process that waits calls again.
    pub(super) fn end_waiting(&mut self, node: usize) {
        if self.waiting(node).is_some() {
            self.end_attempt(node);
        }
    }

    /// Another process has a member's number, or answers at its address.
    pub(super) fn lose_if_replaced(&mut self, node: usize) {
        let over_ns = self.leases.terms.over_ns();
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.is_member()) else { return };
        if peer.present.is_none() && self.now_ns >= peer.apart_since_ns + over_ns {
            self.lose(node, Loss::Gone, "was silent, and its process was started again");
        }
    }

    /// A process has come in the place of one that was removed.
    pub(super) fn meet_newcomer(&mut self, node: usize, entry: &MemberEntry) {
        self.end_attempt(node);
        self.end_present(node);
        let counts_calls = self.node() > node;
        if let Some(peer) = self.peers.get_mut(&node) {
            let before = peer.connection;
            peer.come_back(entry.clone());
            // The two may have been connected before this process was a member.
            peer.connection = if counts_calls { before } else { 0 };
            peer.call_at_ns = self.now_ns;
        }
    }

    /// There is a connection with a member: if the member is a newcomer, the decider hears of it.
    pub(super) fn tell_newcomer(&mut self, node: usize) {
        let newcomer = self.peers.get(&node).filter(|peer| peer.is_newcomer);
        let entry = newcomer.and_then(|peer| peer.entry.clone());
        if let (Ok(node), Some(entry)) = (u16::try_from(node), entry) {
            self.say_change(self.node(), ChangeMessage::Came { node, entry });
        }
    }

    /// These incarnations are members, as is decided.
    pub(crate) fn admit(&mut self, members: &BTreeMap<u16, u32>) {
        for (number, incarnation) in members {
            let peer = self.peers.get_mut(&usize::from(*number));
            let is_it =
                |peer: &&mut Peer| peer.is_newcomer && peer.incarnation() == Some(*incarnation);
            if let Some(peer) = peer.filter(is_it) {
                peer.is_newcomer = false;
                self.leases.welcome(*number);
                tracing::info!("node {number} is a member again");
            }
        }
    }

    /// This process waits until it is let in. The member with which it is connected may need what its predecessor has promised.
    pub(super) fn offer_vote_of_predecessor(&mut self, node: usize, incarnation: u32) {
        if let (Ok(node), Some(_)) = (u16::try_from(node), self.setup.predecessor) {
            self.events.push_back(Event::Waits(node, incarnation));
        }
    }

    /// A connection with a member has ended, which may be for good.
    pub(super) fn withdraw_vote_of_predecessor(&mut self, node: usize) {
        let helps = self.stage == Stage::Gathering && self.setup.predecessor.is_some();
        let node = u16::try_from(node).ok().filter(|_| helps);
        self.events.extend(node.map(Event::WaitsNoMore));
    }

    /// By node: where it is, as far as this member of a cluster that goes on knows; nothing of a process that is none.
    pub(super) fn known_addresses(&self) -> Vec<Option<SocketAddr>> {
        if self.stage != Stage::Formed || self.halted().is_some() {
            return Vec::new();
        }
        let mut known = self.setup.terms.addresses.clone();
        for peer in self.peers.values().filter(|peer| peer.address.is_some()) {
            known[peer.node] = peer.address;
        }
        known
    }

    /// A process has told where the nodes of a cluster are, or nothing if there is none.
    pub(super) fn learn_of_cluster(&mut self, addresses: &[Option<SocketAddr>]) {
        if self.stage != Stage::Gathering || addresses.is_empty() {
            return;
        }
        for (peer, address) in addresses.iter().enumerate() {
            let peer = self.peers.get_mut(&peer).filter(|peer| peer.present.is_none());
            if let (Some(peer), Some(address)) = (peer, address) {
                peer.address = Some(*address);
            }
        }
        self.comes_back.get_or_insert_with(|| "not all of them are connected with it".to_owned());
    }

    /// There is a connection with another member, which has said where the nodes of its cluster are.
    pub(super) fn hear_of_cluster(&mut self, node: usize, addresses: &[Option<SocketAddr>]) {
        self.learn_of_cluster(addresses);
        if self.stage == Stage::Gathering && !addresses.is_empty() {
            let incarnation = self.peers.get(&node).and_then(Peer::incarnation);
            incarnation.into_iter().for_each(|it| self.offer_vote_of_predecessor(node, it));
        }
    }

    /// A member waits until the process before this one was removed.
    pub(super) fn hear_not_yet(&mut self, from: usize, reason: String) {
        match self.stage {
            Stage::Gathering => {
                if self.comes_back.is_none() {
                    tracing::info!("{reason}");
                }
                self.comes_back = Some(reason);
            }
            // Another process has this one's number.
            Stage::Formed if self.peers.get(&from).is_some_and(Peer::is_member) => {
                self.was_removed();
            }
            // One that is no member has answered late.
            Stage::Formed => {}
            Stage::Leaving => {}
        }
    }

    /// This process is let in, and these are the members.
    pub(super) fn form_again(&mut self, configuration: &Configuration) {
        self.stage = Stage::Formed;
        for (node, entry) in configuration.members.iter().enumerate() {
            let is_member = u16::try_from(node).is_ok_and(|node| configuration.is_member(node));
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let is_other = peer.become_incarnation(entry);
            (peer.is_removed, peer.is_gone) = (!is_member, !is_member);
            if is_other || !is_member {
                self.end_present(node);
                self.end_attempt(node);
            }
        }
    }
}
