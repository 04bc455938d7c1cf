//! Members that are told to stop: each tells the others before it leaves, so that each knows whether the cluster ends as a whole.
//!
//! *Not here*: what would be lost with a member, in `stopping`; how a member leaves, in `group.rs`.

use std::collections::BTreeMap;

use crate::members::group::{Event, Group, Stage};
use crate::members::message::Message;
use crate::members::peer::Peer;

impl Group {
    /// Tells the others that this member is to stop. It goes on until it leaves.
    pub(crate) fn announce_stop(&mut self) {
        if self.stage == Stage::Formed {
            self.peer_nodes().into_iter().for_each(|node| self.keep(node, &Message::Stops));
        }
    }

    /// Has the process of a member, perhaps this one, stop and be started again. Whether it is there.
    pub(crate) fn restart(&mut self, node: usize) -> bool {
        if node == self.node() {
            self.events.push_back(Event::Restart);
            return true;
        }
        let is_there = self.peers.get(&node).is_some_and(Peer::is_member);
        if is_there {
            self.keep(node, &Message::Restart);
        }
        is_there
    }

    /// A member is to stop.
    pub(super) fn hear_stop(&mut self, node: usize) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.stops = true;
        }
    }

    /// The other members that were neither lost nor removed, each with whether it is to stop.
    pub(crate) fn present(&self) -> BTreeMap<u16, bool> {
        let members = self.peers.values().filter(|peer| peer.is_member());
        members.filter_map(|peer| Some((u16::try_from(peer.node).ok()?, peer.stops))).collect()
    }
}
