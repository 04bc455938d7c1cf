//! The sending half of the `verbs` transport.
//!
//! Packets are copied into slots and chained. One doorbell posts the whole chain.
//!
//! *Invariant*: a packet that finds no free slot, or that the device does not take, is lost and counted.

use std::rc::Rc;

use super::Paths;
use super::device::Ring;
use super::restart::Restart;
use crate::transport::PacketSender;

/// A loss is answered after this at the earliest: threads that share a core may not run for as long.
const RETRANSMIT_FLOOR_NS: u64 = 2_000_000;
/// Looks for a free slot before a packet is dropped.
const LOOKS_MAX: usize = 64;

/// The sending end of one worker; see `verbs.rs`.
pub struct VerbsSender {
    ring: Ring,
    restart: Rc<Restart>,
    paths: Paths,
    loses_by_congestion: bool,
    dropped: u64,
}

impl VerbsSender {
    pub(super) fn new(
        ring: Ring,
        restart: Rc<Restart>,
        paths: Paths,
        loses_by_congestion: bool,
    ) -> Self {
        Self { ring, restart, paths, loses_by_congestion, dropped: 0 }
    }

    /// Frees the slots of SENDs that are done.
    #[inline]
    fn reap(&mut self) {
        let failure = self.ring.poll();
        self.ring.free(self.ring.done().end);
        if let Some(failure) = failure {
            self.dropped += failure.requests;
            self.restart.after(failure);
        }
    }

    /// Waits for a slot that is free, for a little while.
    #[cold]
    fn make_room(&mut self) {
        self.ring_doorbell();
        for _ in 0..LOOKS_MAX {
            if self.ring.room() > 0 {
                return;
            }
            self.reap();
        }
    }
}

impl PacketSender for VerbsSender {
    fn mtu(&self) -> usize {
        self.paths.chosen.mtu
    }

    /// The device checks every packet.
    fn wants_checksum(&self) -> bool {
        false
    }

    fn retransmit_floor_ns(&self) -> u64 {
        RETRANSMIT_FLOOR_NS
    }

    fn loses_by_congestion(&self) -> bool {
        self.loses_by_congestion
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.ring.room() == 0
    }

    fn queue(&mut self, destination: u16, packet: &[u8]) {
        if self.ring.room() == 0 {
            self.make_room();
        }
        if self.ring.room() == 0 || !self.ring.stage_send(destination, packet) {
            self.dropped += 1;
        }
    }

    fn ring_doorbell(&mut self) {
        self.reap();
        if !self.restart.is_down() {
            self.dropped += self.ring.post();
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped
    }

    fn reconnect(&mut self, node: u16, told: &str) -> Result<(), String> {
        self.paths.find(self.restart.pair(), node, told).map_err(|error| error.to_string())
    }
}
