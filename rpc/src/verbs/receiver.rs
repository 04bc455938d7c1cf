//! The receiving half of the `verbs` transport.
//!
//! Packets are read in the slots of the RECVs that the device has filled, until the batch is released. Then the slots are posted
//! again, many with one call.
//!
//! *Invariant*: a datagram that is shorter than a packet header is dropped and counted.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use super::device::Ring;
use super::restart::Restart;
use crate::packet::HEADER_BYTES;
use crate::transport::{PacketReceiver, Refused};

/// Packets of a batch: what the prefetch passes keep in flight.
const BATCH_MAX: usize = 64;
/// RECVs that are posted again as one chain.
const POSTED_TOGETHER: u64 = 32;

/// The receiving end of one worker; see `verbs.rs`.
pub struct VerbsReceiver {
    ring: Ring,
    restart: Rc<Restart>,
    mtu: usize,
    /// The slots of the batch's packets.
    packets: Vec<u64>,
    refused: Refused,
}

impl VerbsReceiver {
    pub(super) fn new(ring: Ring, restart: Rc<Restart>, mtu: usize) -> Self {
        let packets = Vec::with_capacity(2 * BATCH_MAX);
        let mut receiver = Self { ring, restart, mtu, packets, refused: Refused::default() };
        receiver.post();
        receiver
    }

    /// Posts RECVs in the slots that are free, if they are many.
    fn post(&mut self) {
        if self.restart.is_down() || self.ring.room() < POSTED_TOGETHER {
            return;
        }
        for _ in 0..self.ring.room() {
            self.ring.stage_receive(self.mtu);
        }
        // What is refused is tried again.
        self.ring.post();
    }
}

impl PacketReceiver for VerbsReceiver {
    fn poll(&mut self) -> usize {
        let mut next = self.ring.done().start;
        while self.packets.len() < BATCH_MAX {
            let failure = self.ring.poll();
            let done = self.ring.done();
            next = next.max(done.start);
            if next == done.end && failure.is_none() {
                break;
            }
            for number in next..done.end {
                match self.ring.contents(number).len() {
                    HEADER_BYTES.. => self.packets.push(number),
                    // Where a request failed or was flushed.
                    0 => {}
                    _ => self.refused.foreign += 1,
                }
            }
            next = done.end;
            if let Some(failure) = failure {
                self.restart.after(failure);
                break;
            }
        }
        if self.packets.is_empty() {
            self.release();
        }
        self.packets.len()
    }

    #[inline(always)]
    fn packet(&self, index: usize) -> &[u8] {
        self.ring.contents(self.packets[index])
    }

    fn release(&mut self) {
        self.packets.clear();
        self.ring.free(self.ring.done().end);
        self.post();
    }

    /// A thread that is told that there are none may sleep: the descriptor tells of the next.
    fn has_packets(&self) -> bool {
        self.ring.arm()
    }

    fn refused(&self) -> Refused {
        self.refused
    }
}

impl AsFd for VerbsReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.pair().as_fd()
    }
}
