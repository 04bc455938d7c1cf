//! The bare transport: packets bounced between nodes, without sessions, coroutines or checks.
//!
//! *Invariants*: every node answers its peers in turn, so as many packets go out as came in, and as many are in flight as in
//! an echo.

use gannet_rpc::{Clock, HEADER_BYTES, MonotonicClock, PacketReceiver, PacketSender, Port};

use super::echo::{Measured, histogram};
use super::port::ThreadEndpoints;
use super::{EchoSettings, PAYLOAD_BYTES};

/// Polls between two checks of the clock.
const POLLS_PER_LOOK: u32 = 64;
/// Silence after which a packet counts as lost, and is replaced.
const QUIET_NS: u64 = 20_000_000;

struct BareNode<S, R> {
    halves: (S, R),
    peers: Vec<u16>,
    /// The peer to answer next.
    next: usize,
}

impl<S: PacketSender, R: PacketReceiver> BareNode<S, R> {
    fn send(&mut self, packet: &[u8], each: usize) {
        for &peer in &self.peers {
            (0..each).for_each(|_| self.halves.0.queue(peer, packet));
        }
        self.halves.0.ring_doorbell();
    }

    /// Answers the packets that have arrived. Returns their number.
    fn answer(&mut self) -> u64 {
        let (sender, receiver) = &mut self.halves;
        let count = receiver.poll();
        for index in 0..count {
            sender.queue(self.peers[self.next], receiver.packet(index));
            self.next = if self.next + 1 == self.peers.len() { 0 } else { self.next + 1 };
        }
        receiver.release();
        sender.ring_doorbell();
        count as u64
    }
}

/// Bounces packets of `messages` messages each. Returns the number of packets that a thread received.
pub(super) fn bare<P: Port>(
    settings: &EchoSettings,
    endpoints: ThreadEndpoints<P>,
    messages: usize,
) -> Measured {
    let packet = vec![7; HEADER_BYTES + messages * (8 + PAYLOAD_BYTES)];
    let mut nodes: Vec<_> = endpoints
        .into_iter()
        .map(|endpoint| {
            let peers = (0..endpoint.nodes - 1).map(|other| endpoint.peer(other)).collect();
            BareNode { halves: endpoint.port.split(), peers, next: 0 }
        })
        .collect();
    let clock = MonotonicClock::new();
    let start_ns = clock.now_ns();
    for node in &mut nodes {
        node.send(&packet, settings.coroutines);
    }
    let (mut measured_from, mut packets, mut heard_ns) = (None, 0, start_ns);
    loop {
        let mut came = 0;
        for _ in 0..POLLS_PER_LOOK {
            came += nodes.iter_mut().map(BareNode::answer).sum::<u64>();
        }
        let now_ns = clock.now_ns();
        if came > 0 {
            heard_ns = now_ns;
        } else if now_ns - heard_ns > QUIET_NS {
            heard_ns = now_ns;
            nodes.iter_mut().for_each(|node| node.send(&packet, 1));
        }
        let took = std::time::Duration::from_nanos(now_ns - start_ns);
        match measured_from {
            None if took >= settings.warmup => measured_from = Some(now_ns),
            None => {}
            Some(from_ns) => {
                packets += came;
                if took >= settings.warmup + settings.duration {
                    let seconds = (now_ns - from_ns) as f64 / 1e9;
                    let (requests, latencies) = (packets, histogram());
                    return Measured { requests, mismatches: 0, unanswered: 0, seconds, latencies };
                }
            }
        }
    }
}
