//! The state that an endpoint keeps of one other node: the routes both ways, round trips, losses, and credits.
//!
//! *Credits*: an endpoint has at most as many packets of requests under way to a node as its window
//! says (`window.rs`); further batches are held until answers arrive, so that many coroutines, or many
//! nodes at once, do not overrun the receiver. A message of more packets than that goes alone.
//!
//! *Invariants*: as long as a coroutine is held, something is under way; its answer, or its loss, lets
//! the next one go. A message has credits or is held, never both.
//!
//! *Source*: `docs/architecture.md`, "RPC".

use std::collections::VecDeque;

use crate::loss_detection::LossDetection;
use crate::packet::RouteWords;
use crate::request_batch::Lane;
use crate::round_trip::RoundTrip;
use crate::window::Window;

/// A node that is asked again so often without an answer may be silent.
const SILENT_TIMEOUTS: u32 = 4;

/// Why a message is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A later one was answered: it is lost.
    LaterAnswer,
    /// It was sent last, and its answer tells of others.
    Probe,
    /// There was no answer for too long.
    Timeout,
}

pub(crate) struct Peer {
    /// The route that its packets must have.
    pub(crate) expected: RouteWords,
    /// The route of packets to it.
    pub(crate) route: RouteWords,
    pub(crate) round_trip: RoundTrip,
    window: Window,
    losses: LossDetection,
    packets_under_way: usize,
    /// Time-outs since the last answer, and when the first of them was.
    timeouts: u32,
    silent_since_ns: u64,
    /// Coroutines whose requests wait for credits.
    held: VecDeque<u16>,
}

impl Peer {
    pub(crate) fn new(
        expected: RouteWords,
        route: RouteWords,
        round_trip: RoundTrip,
        window: Window,
        losses: LossDetection,
        coroutines: usize,
    ) -> Self {
        let held = VecDeque::with_capacity(coroutines);
        Self {
            expected,
            route,
            round_trip,
            window,
            losses,
            packets_under_way: 0,
            timeouts: 0,
            silent_since_ns: 0,
            held,
        }
    }

    #[inline(always)]
    fn has_room_for(&self, packets: usize) -> bool {
        self.packets_under_way + packets <= self.window.packets() || self.packets_under_way == 0
    }

    /// Takes credits for a message of `packets`; without them the coroutine is held.
    #[inline(always)]
    pub(crate) fn admit(&mut self, coroutine: u16, packets: usize) -> bool {
        if self.has_room_for(packets) && self.held.is_empty() {
            self.packets_under_way += packets;
            true
        } else {
            self.held.push_back(coroutine);
            false
        }
    }

    /// Takes the round trip of a message that was sent once.
    #[inline]
    pub(crate) fn sample(&mut self, took_ns: u64) {
        self.round_trip.sample(took_ns);
        self.window.grow();
    }

    /// Numbers the packets of a message that is sent now; the number of its last one.
    #[inline(always)]
    pub(crate) fn number(&mut self, packets: usize) -> u64 {
        self.losses.number(packets)
    }

    /// A message whose credits were given back is answered; whether earlier ones are not.
    #[inline(always)]
    pub(crate) fn answered(&mut self, number: u64, took_ns: u64) -> bool {
        self.losses.answered(number, took_ns, self.packets_under_way)
    }

    /// When the message in `lane` is sent again unless it is answered before, and why.
    #[inline(always)]
    pub(crate) fn due(&self, lane: &Lane) -> (u64, Cause) {
        let Lane { number, sent_at_ns, attempts, .. } = *lane;
        if self.losses.is_probe(number) {
            let probe_ns = self.round_trip.probe_ns(attempts);
            if probe_ns < self.round_trip.timeout_ns(attempts) {
                return (sent_at_ns + probe_ns, Cause::Probe);
            }
        }
        let timeout_at_ns = sent_at_ns + self.round_trip.timeout_ns(attempts);
        match self.losses.lost_at_ns(number, sent_at_ns, self.round_trip.smoothed_ns()) {
            Some(lost_at_ns) => (lost_at_ns.min(timeout_at_ns), Cause::LaterAnswer),
            None => (timeout_at_ns, Cause::Timeout),
        }
    }

    /// A message that seemed lost is answered. `was_lost`: the answer is to the repetition, not to the first packet.
    #[cold]
    pub(crate) fn learn(&mut self, was_lost: bool) {
        self.losses.learn(was_lost);
        self.window.learn(was_lost);
    }

    /// Gives the credits of an answered message back; whether a coroutine is held.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, packets: usize) -> bool {
        self.packets_under_way -= packets;
        self.timeouts = 0;
        !self.held.is_empty()
    }

    /// Whether it has answered nothing for so long, although it was asked again and again.
    pub(crate) fn is_silent(&self, now_ns: u64, for_ns: u64) -> bool {
        let was_asked = self.timeouts >= SILENT_TIMEOUTS;
        was_asked && now_ns.saturating_sub(self.silent_since_ns) >= for_ns
    }

    /// Its silence counts from now on.
    pub(crate) fn forgive(&mut self) {
        self.timeouts = 0;
    }

    /// A message is due to be sent again. Unless it is sent as a probe, it seems lost and gives its credits back. Returns whether it
    /// has credits to be sent again now; without them its coroutine is held, before all others.
    pub(crate) fn lose(
        &mut self,
        coroutine: u16,
        packets: usize,
        (cause, now_ns): (Cause, u64),
    ) -> bool {
        if cause == Cause::Probe {
            return true;
        }
        if cause == Cause::Timeout {
            if self.timeouts == 0 {
                self.silent_since_ns = now_ns;
            }
            self.timeouts = self.timeouts.saturating_add(1);
        }
        self.packets_under_way -= packets;
        self.window.cut(cause == Cause::LaterAnswer);
        let has_room = self.has_room_for(packets);
        if has_room {
            self.packets_under_way += packets;
        } else {
            self.held.push_front(coroutine);
        }
        has_room
    }

    /// A held message turns out not to be lost: it is under way after all.
    #[cold]
    pub(crate) fn find(&mut self, coroutine: u16, packets: usize) {
        self.held.retain(|&held| held != coroutine);
        self.packets_under_way += packets;
    }

    /// Packets under way, and coroutines held.
    pub(crate) fn open(&self) -> usize {
        self.packets_under_way + self.held.len()
    }

    /// Takes the coroutine that has been held longest, if its message of `packets_of` can go now.
    pub(crate) fn release(&mut self, packets_of: impl FnOnce(u16) -> usize) -> Option<u16> {
        let packets = packets_of(*self.held.front()?);
        if !self.has_room_for(packets) {
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
    use crate::window::CREDITS;

    fn peer(follows_losses: bool) -> Peer {
        let route = RouteWords::from(Route {
            cluster_id: 1,
            epoch: 1,
            source: 0,
            destination: 1,
            source_incarnation: 1,
            destination_incarnation: 1,
        });
        Peer::new(
            route,
            route,
            RoundTrip::new(1),
            Window::new(follows_losses),
            LossDetection::new(true),
            8,
        )
    }

    #[test]
    fn messages_wait_for_credits_in_their_order() {
        let mut peer = peer(false);
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
    #[test]
    fn what_is_lost_waits_and_may_be_found() {
        let mut peer = peer(true);
        assert!((0..16).all(|coroutine| peer.admit(coroutine, 1)));
        assert!(!peer.admit(16, 1));
        // Each takes half a packet of the window: every second one finds room to be sent again.
        let found_room = [0, 1, 2, 3, 4, 5, 6, 7]
            .map(|coroutine| peer.lose(coroutine, 1, (Cause::LaterAnswer, 0)));
        assert_eq!(found_room, [false, true, false, true, false, true, false, true]);
        peer.find(4, 1);
        assert!(peer.give_back(1));
        assert_eq!(peer.release(|_| 1), None, "12 are under way");
        assert!(peer.give_back(1));
        assert_eq!(peer.release(|_| 1), Some(6), "what was lost goes before what was not sent");
        for expected in [2, 0, 16] {
            assert!(peer.give_back(1));
            assert_eq!(peer.release(|_| 1), Some(expected));
        }
        assert!(!peer.give_back(1));
    }
}
