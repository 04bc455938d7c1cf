//! What an endpoint knows of one other node: the route both ways, its round trips, and its credits.
//!
//! *Credits*: an endpoint has at most [`CREDITS`] packets of requests under way to a node; further
//! batches are held until answers arrive, so that many coroutines, or many nodes at once, do not
//! overrun the receiver. A message of more packets than that goes alone.
//!
//! *Source*: `architecture.md`, "RPC".

use std::collections::VecDeque;

use crate::packet::RouteWords;
use crate::round_trip::RoundTrip;

/// Packets of requests that may be under way to a node, from one worker.
pub(crate) const CREDITS: usize = 64;

pub(crate) struct Peer {
    /// The route that its packets must have.
    pub(crate) expected: RouteWords,
    /// The route of packets to it.
    pub(crate) route: RouteWords,
    pub(crate) round_trip: RoundTrip,
    packets_under_way: usize,
    /// Coroutines whose requests wait for credits.
    held: VecDeque<u16>,
}

impl Peer {
    pub(crate) fn new(
        expected: RouteWords,
        route: RouteWords,
        round_trip: RoundTrip,
        coroutines: usize,
    ) -> Self {
        let held = VecDeque::with_capacity(coroutines);
        Self { expected, route, round_trip, packets_under_way: 0, held }
    }

    /// Takes credits for a message of `packets`; without them the coroutine is held.
    #[inline(always)]
    pub(crate) fn admit(&mut self, coroutine: u16, packets: usize) -> bool {
        let fits = self.packets_under_way + packets <= CREDITS || self.packets_under_way == 0;
        if fits && self.held.is_empty() {
            self.packets_under_way += packets;
            true
        } else {
            self.held.push_back(coroutine);
            false
        }
    }

    /// Gives the credits of an answered message back; whether a coroutine is held.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, packets: usize) -> bool {
        self.packets_under_way -= packets;
        !self.held.is_empty()
    }

    /// Packets under way, and coroutines held.
    pub(crate) fn open(&self) -> usize {
        self.packets_under_way + self.held.len()
    }

    /// Takes the coroutine that has been held longest, if its message of `packets_of` can go now.
    pub(crate) fn release(&mut self, packets_of: impl FnOnce(u16) -> usize) -> Option<u16> {
        let packets = packets_of(*self.held.front()?);
        if self.packets_under_way + packets > CREDITS && self.packets_under_way > 0 {
            return None;
        }
        self.packets_under_way += packets;
        self.held.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Route;

    #[test]
    fn messages_wait_for_credits_in_their_order() {
        let route = RouteWords::from(Route {
            cluster_id: 1,
            epoch: 1,
            source: 0,
            destination: 1,
            source_incarnation: 1,
            destination_incarnation: 1,
        });
        let mut peer = Peer::new(route, route, RoundTrip::new(1), 8);
        assert!(peer.admit(0, CREDITS + 10), "alone, whatever its size");
        assert!(!peer.admit(1, 1));
        assert!(!peer.admit(2, CREDITS));
        assert!(peer.give_back(CREDITS + 10));
        let packets = |coroutine| if coroutine == 2 { CREDITS } else { 1 };
        assert_eq!(peer.release(packets), Some(1));
        assert_eq!(peer.release(packets), None);
        assert!(!peer.admit(3, 1), "behind those that are held");
        assert!(peer.give_back(1));
        assert_eq!(peer.release(packets), Some(2));
        assert_eq!(peer.release(packets), None);
        assert!(peer.give_back(CREDITS));
        assert_eq!(peer.release(packets), Some(3));
        assert!(!peer.give_back(1));
    }
}
