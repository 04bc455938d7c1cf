//! A relay for UDP between nodes: it delays, duplicates and damages packets, by a seed.
//!
//! A delayed packet is overtaken by later ones. A damaged packet has one changed bit in its payload and no UDP checksum, so
//! only the receiving node can notice.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_rpc::{Clock, MonotonicClock};
use nix::poll::{PollFd, PollFlags, ppoll};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tun_rs::{DeviceBuilder, SyncDevice};

const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const PACKET_BYTES_MAX: usize = 65_536;
/// Longest delay: far more than a round trip.
const DELAY_MAX_NS: u64 = 2_000_000;

/// The probability of each fault, in percent.
#[derive(Clone, Copy)]
pub(super) struct Faults {
    pub(super) seed: u64,
    pub(super) delayed: u32,
    pub(super) doubled: u32,
    pub(super) damaged: u32,
}

/// The number of faults of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) relayed: u64,
    pub(super) delayed: u64,
    pub(super) overtaken: u64,
    pub(super) doubled: u64,
    pub(super) damaged: u64,
}

/// A thread that relays the packets of its tunnel device, until it is dropped.
pub(super) struct Relay {
    is_over: Arc<AtomicBool>,
    relayed: Arc<AtomicU64>,
    thread: Option<JoinHandle<Counts>>,
}

impl Relay {
    pub(super) fn start(device: &str, faults: Faults) -> Self {
        let device = DeviceBuilder::new().name(device).enable(false).build_sync().unwrap();
        device.set_nonblocking(true).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let relayed = Arc::new(AtomicU64::new(0));
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&relayed));
        let thread = std::thread::spawn(move || {
            let mut line = Line::new(device, faults);
            while !over.load(Ordering::Relaxed) {
                line.step();
                count.store(line.counts.relayed, Ordering::Relaxed);
            }
            line.counts
        });
        Self { is_over, relayed, thread: Some(thread) }
    }

    /// Packets so far.
    pub(super) fn relayed(&self) -> u64 {
        self.relayed.load(Ordering::Relaxed)
    }

    pub(super) fn stop(mut self) -> Counts {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Packets in flight.
struct Line {
    device: SyncDevice,
    faults: Faults,
    random: SmallRng,
    clock: MonotonicClock,
    /// For each packet the due time and its number.
    waiting: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    /// The greatest number sent so far.
    gone: u64,
    counts: Counts,
}

impl Line {
    fn new(device: SyncDevice, faults: Faults) -> Self {
        Self {
            device,
            faults,
            random: SmallRng::seed_from_u64(faults.seed),
            clock: MonotonicClock::new(),
            waiting: BinaryHeap::new(),
            gone: 0,
            counts: Counts::default(),
        }
    }

    /// Takes packets that have arrived, sends those that are due, and waits for either.
    fn step(&mut self) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        while let Ok(bytes) = self.device.recv(&mut buffer) {
            self.take(buffer[..bytes].to_vec());
        }
        let now_ns = self.clock.now_ns();
        while self.waiting.peek().is_some_and(|Reverse((due_ns, ..))| *due_ns <= now_ns) {
            let Some(Reverse((_, number, packet))) = self.waiting.pop() else { break };
            self.counts.overtaken += u64::from(number < self.gone);
            self.gone = self.gone.max(number);
            // A full device loses the packet, as networks do.
            let _ = self.device.send(&packet);
        }
        let due_ns = self.waiting.peek().map(|Reverse((due_ns, ..))| due_ns.saturating_sub(now_ns));
        let wait = Duration::from_nanos(due_ns.unwrap_or(u64::MAX)).min(Duration::from_millis(20));
        let mut watched = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
        let _ = ppoll(&mut watched, Some(wait.into()), None);
    }

    fn strikes(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn take(&mut self, mut packet: Vec<u8>) {
        self.counts.relayed += 1;
        if self.strikes(self.faults.damaged) {
            self.counts.damaged += u64::from(damage(&mut packet, &mut self.random));
        }
        if self.strikes(self.faults.doubled) {
            self.counts.doubled += 1;
            self.send_later(packet.clone());
        }
        self.send_later(packet);
    }

    fn send_later(&mut self, packet: Vec<u8>) {
        let mut due_ns = self.clock.now_ns();
        if self.strikes(self.faults.delayed) {
            self.counts.delayed += 1;
            due_ns += self.random.random_range(0..=DELAY_MAX_NS);
        }
        let number = self.counts.relayed + self.counts.doubled;
        self.waiting.push(Reverse((due_ns, number, packet)));
    }
}

/// Flips a bit of a datagram's payload, unless that is empty.
fn damage(packet: &mut [u8], random: &mut SmallRng) -> bool {
    let payload = IP_HEADER_BYTES + UDP_HEADER_BYTES;
    if packet.len() <= payload {
        return false;
    }
    let at = random.random_range(payload..packet.len());
    packet[at] ^= 1 << random.random_range(0..8);
    packet[payload - 2..payload].fill(0);
    true
}
