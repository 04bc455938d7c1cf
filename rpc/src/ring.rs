//! A ring of packets from one worker thread to one other; the memory fence of this crate.
//!
//! ```text
//! frame: u64 packet bytes | packet, padded to 8 bytes       2^64 - 1 = skip to the ring's start
//! head: what the receiver has released       tail: what the sender has published
//! ```
//! Positions count bytes and never wrap; a position modulo the capacity is the place in the ring. A
//! frame is contiguous, so a packet can be read where it lies. A sender that finds the ring empty
//! goes back to its start, with a small packet, once it has left the first few KiB: the part in use
//! stays in the cache, however large the ring is for bursts.
//!
//! Facts that the unsafe code rests on:
//! - there is one [`Producer`] and one [`Consumer`] of a ring, neither of which can be cloned;
//! - the producer writes only to positions in `tail .. head + capacity`, where `head` was loaded with
//!   Acquire; the consumer reads only positions in `head .. tail`, where `tail` was loaded with
//!   Acquire; the two ranges never overlap;
//! - a [`ConsumerSet`] remembers a frame only from its poll to its release; both take it by
//!   `&mut self`, and packets are borrowed from it, so no packet is read after its room was given
//!   back;
//! - the memory is allocated once, zeroed, and lives as long as either half.
//!
//! *Source*: the single-producer queue of Lamport (Specifying Concurrent Program Modules, 1983),
//! with each side's last view of the other's position kept beside its own.
#![allow(unsafe_code, reason = "the fence around packet memory; see the facts above")]

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crossbeam::utils::CachePadded;

const FRAME_HEADER_BYTES: usize = 8;
const SKIP: u64 = u64::MAX;
/// How far into an otherwise empty ring a sender goes before it returns to the start.
const RESTART_BYTES: usize = 4 << 10;
/// Packets that a set has room for before its list grows.
const FRAMES_EXPECTED: usize = 64;

struct Shared {
    memory: Memory,
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
}

/// The sending end.
pub(crate) struct Producer {
    shared: Arc<Shared>,
    /// Where the next frame goes; ahead of the published tail until [`Producer::publish`].
    tail: u64,
    /// The tail at the last doorbell.
    published: u64,
    /// The receiver's position when this end last looked.
    head_seen: u64,
}

/// The receiving end.
pub(crate) struct Consumer {
    shared: Arc<Shared>,
    /// The next frame to look at; ahead of the published head until the set is released.
    head: u64,
    /// The sender's position when this end last looked.
    tail_seen: u64,
    /// Whether frames were taken since the last release.
    taken: bool,
}

/// The receiving ends of several rings, polled in turn.
pub(crate) struct ConsumerSet {
    consumers: Vec<CachePadded<Consumer>>,
    /// The ring to look at first, so that a busy peer does not starve the others.
    first: usize,
    /// Packets taken since the last release.
    frames: Vec<Frame>,
}

/// A ring of `capacity` bytes, a power of two.
pub(crate) fn ring(capacity: usize) -> (Producer, Consumer) {
    assert!(capacity.is_power_of_two() && capacity >= 16, "a ring's capacity is a power of two");
    let shared = Arc::new(Shared {
        memory: Memory::new(capacity),
        head: CachePadded::new(AtomicU64::new(0)),
        tail: CachePadded::new(AtomicU64::new(0)),
    });
    (
        Producer { shared: Arc::clone(&shared), tail: 0, published: 0, head_seen: 0 },
        Consumer { shared, head: 0, tail_seen: 0, taken: false },
    )
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an offset is below the capacity")]
fn offset(position: u64, capacity: usize) -> usize {
    position as usize & (capacity - 1)
}

impl Producer {
    /// Copies a packet into the ring; `false` if there is no room. Unseen until [`Self::publish`].
    #[inline]
    pub(crate) fn push(&mut self, packet: &[u8]) -> bool {
        let capacity = self.shared.memory.capacity();
        let frame = FRAME_HEADER_BYTES + packet.len().next_multiple_of(8);
        let mut at = offset(self.tail, capacity);
        // A restart gives up the rest of the ring, which the packets of a large message may need.
        let may_restart = at >= RESTART_BYTES && frame <= RESTART_BYTES;
        if at + frame > capacity || may_restart && self.is_empty() {
            if !self.has_room(capacity - at + frame) {
                return false;
            }
            self.shared.memory.write_u64(at, SKIP);
            self.tail += (capacity - at) as u64;
            at = 0;
        } else if !self.has_room(frame) {
            return false;
        }
        self.shared.memory.write_frame(at, packet);
        self.tail += frame as u64;
        true
    }

    #[inline]
    fn has_room(&mut self, needed: usize) -> bool {
        let end = self.tail + needed as u64;
        let capacity = self.shared.memory.capacity() as u64;
        if end > self.head_seen + capacity {
            // Acquire: pairs with the Release in Consumer::release(): what it released is not read
            // any more and may be overwritten.
            self.head_seen = self.shared.head.load(Ordering::Acquire);
        }
        end <= self.head_seen + capacity
    }

    /// Whether the receiver has released everything; looked at once per doorbell.
    #[inline]
    fn is_empty(&mut self) -> bool {
        if self.published != self.tail {
            return false;
        }
        // Acquire: as in has_room().
        self.head_seen = self.shared.head.load(Ordering::Acquire);
        self.head_seen == self.tail
    }

    /// Makes the packets pushed so far visible: the doorbell.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: pairs with the Acquire in Consumer::pop().
        self.shared.tail.store(self.tail, Ordering::Release);
        self.published = self.tail;
    }
}

impl Consumer {
    /// Takes the next packet; it is left in place.
    #[inline(always)]
    fn take(&mut self) -> Option<Frame> {
        if self.head == self.tail_seen {
            // Acquire: pairs with the Release in Producer::publish().
            self.tail_seen = self.shared.tail.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        let memory = &self.shared.memory;
        let capacity = memory.capacity();
        let mut at = offset(self.head, capacity);
        let mut bytes = memory.read_u64(at);
        if bytes == SKIP {
            self.head += (capacity - at) as u64;
            at = 0;
            bytes = memory.read_u64(at);
        }
        self.head += FRAME_HEADER_BYTES as u64 + bytes.next_multiple_of(8);
        self.taken = true;
        let bytes = usize::try_from(bytes).expect("the producer wrote a length in memory");
        Some(memory.frame(at + FRAME_HEADER_BYTES, bytes))
    }
}

impl ConsumerSet {
    pub(crate) fn new(consumers: impl Iterator<Item = Consumer>) -> Self {
        Self {
            consumers: consumers.map(CachePadded::new).collect(),
            first: 0,
            frames: Vec::with_capacity(FRAMES_EXPECTED),
        }
    }

    /// Takes up to `max` packets and returns how many; they are left in place until the release.
    #[inline]
    pub(crate) fn poll(&mut self, max: usize) -> usize {
        debug_assert!(self.frames.is_empty(), "a batch is released before the next");
        let rings = self.consumers.len();
        let mut index = self.first;
        for _ in 0..rings {
            while let Some(frame) = self.consumers[index].take() {
                self.frames.push(frame);
                if self.frames.len() == max {
                    self.first = index;
                    return max;
                }
            }
            index = if index + 1 < rings { index + 1 } else { 0 };
        }
        self.first = if self.first + 1 < rings { self.first + 1 } else { 0 };
        self.frames.len()
    }

    /// The bytes of packet `index` since the last release.
    #[inline(always)]
    pub(crate) fn packet(&self, index: usize) -> Bytes<'_> {
        self.frames[index].bytes()
    }

    /// Gives the room of all packets taken back to the senders.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.frames.clear();
        for consumer in &mut self.consumers {
            if consumer.taken {
                consumer.taken = false;
                // Release: pairs with the Acquire in Producer::has_room().
                consumer.shared.head.store(consumer.head, Ordering::Release);
            }
        }
    }

    /// Whether a packet waits.
    pub(crate) fn has_packets(&self) -> bool {
        // Acquire: as in take().
        let waits =
            |consumer: &Consumer| consumer.head != consumer.shared.tail.load(Ordering::Acquire);
        self.consumers.iter().any(|consumer| waits(consumer))
    }
}

#[cfg(not(loom))]
mod memory {
    use std::cell::UnsafeCell;

    pub(super) type Bytes<'a> = &'a [u8];

    /// The ring's bytes, as words so that they are aligned.
    pub(super) struct Memory {
        words: Box<[UnsafeCell<u64>]>,
    }

    // SAFETY: the two ends touch disjoint ranges, handed over with release and acquire; see the
    // facts at the top of the file.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub(super) fn new(capacity: usize) -> Self {
            Self { words: (0..capacity / 8).map(|_| UnsafeCell::new(0)).collect() }
        }

        #[inline(always)]
        pub(super) fn capacity(&self) -> usize {
            self.words.len() * 8
        }

        #[inline(always)]
        fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
            assert!(offset + bytes <= self.capacity(), "a frame lies inside the ring");
            // One pointer derived from the whole slice may reach all of it.
            self.words.as_ptr().cast::<u8>().cast_mut().wrapping_add(offset)
        }

        /// Called by the producer alone, on a range that the consumer does not read.
        #[inline(always)]
        pub(super) fn write_u64(&self, offset: usize, word: u64) {
            self.write(self.at(offset, 8), &word.to_le_bytes());
        }

        /// Called by the producer alone, on a range that the consumer does not read.
        #[inline(always)]
        pub(super) fn write_frame(&self, offset: usize, packet: &[u8]) {
            let to = self.at(offset, 8 + packet.len());
            self.write(to, &(packet.len() as u64).to_le_bytes());
            self.write(to.wrapping_add(8), packet);
        }

        /// `to` comes from `at`, for a range that has `bytes` from there on.
        #[inline(always)]
        fn write(&self, to: *mut u8, bytes: &[u8]) {
            // SAFETY: `to` is valid for `bytes.len()` bytes inside the allocation (asserted in
            // `at`), which is writable through UnsafeCell; the range is the producer's alone until
            // it publishes, so nothing reads it and it cannot overlap `bytes`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }

        /// Called by the consumer alone, on a published range.
        #[inline(always)]
        pub(super) fn frame(&self, offset: usize, bytes: usize) -> Frame {
            Frame { first: self.at(offset, bytes), bytes }
        }

        /// Called by the consumer alone, on a published range.
        #[inline(always)]
        pub(super) fn read_u64(&self, offset: usize) -> u64 {
            u64::from_le_bytes(self.frame(offset, 8).bytes().try_into().expect("8 bytes"))
        }
    }

    /// A packet in a ring.
    #[derive(Clone, Copy)]
    pub(super) struct Frame {
        first: *const u8,
        bytes: usize,
    }

    // SAFETY: a frame is only dereferenced by the set of consumers that took it, which moves between
    // threads as a whole, with the rings that it points into.
    unsafe impl Send for Frame {}

    impl Frame {
        #[inline(always)]
        pub(super) fn bytes(&self) -> Bytes<'_> {
            // SAFETY: `first` is valid for `bytes` initialised bytes of a ring that the set's
            // consumer keeps alive (asserted in `at`); the producer does not write them until the
            // set is released, which forgets the frame and needs `&mut` while this borrow is alive.
            unsafe { std::slice::from_raw_parts(self.first, self.bytes) }
        }
    }
}

/// Under loom, relaxed atomics: a missing release or acquire shows as a stale word.
#[cfg(loom)]
mod memory {
    use loom::sync::atomic::{AtomicU64, Ordering};

    pub(super) type Bytes<'a> = Vec<u8>;

    pub(super) struct Memory {
        words: Box<[AtomicU64]>,
    }

    impl Memory {
        pub(super) fn new(capacity: usize) -> Self {
            Self { words: (0..capacity / 8).map(|_| AtomicU64::new(0)).collect() }
        }

        pub(super) fn capacity(&self) -> usize {
            self.words.len() * 8
        }

        pub(super) fn write_u64(&self, offset: usize, word: u64) {
            self.words[offset / 8].store(word, Ordering::Relaxed);
        }

        pub(super) fn write_frame(&self, offset: usize, packet: &[u8]) {
            self.write_u64(offset, packet.len() as u64);
            self.write(offset + 8, packet);
        }

        fn write(&self, offset: usize, bytes: &[u8]) {
            for (index, chunk) in bytes.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.words[offset / 8 + index].store(u64::from_le_bytes(word), Ordering::Relaxed);
            }
        }

        pub(super) fn frame(&self, offset: usize, bytes: usize) -> Frame {
            let words = offset / 8..(offset + bytes).div_ceil(8);
            let mut read: Vec<u8> = words
                .flat_map(|word| self.words[word].load(Ordering::Relaxed).to_le_bytes())
                .collect();
            read.truncate(bytes);
            Frame(read)
        }

        pub(super) fn read_u64(&self, offset: usize) -> u64 {
            self.words[offset / 8].load(Ordering::Relaxed)
        }
    }

    /// A packet, copied when it was taken.
    pub(super) struct Frame(Vec<u8>);

    impl Frame {
        pub(super) fn bytes(&self) -> Bytes<'_> {
            self.0.clone()
        }
    }
}

use memory::{Bytes, Frame, Memory};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn packets_come_out_as_they_went_in(
            steps in proptest::collection::vec((any::<bool>(), 0_usize..50), 1..200),
        ) {
            let (mut producer, consumer) = ring(128);
            let mut consumers = ConsumerSet::new(std::iter::once(consumer));
            let mut expected = VecDeque::new();
            let mut next = 0_u8;
            for (push, bytes) in steps {
                if push {
                    let packet = vec![next; bytes];
                    next = next.wrapping_add(1);
                    if producer.push(&packet) {
                        expected.push_back(packet);
                    } else {
                        prop_assert!(!expected.is_empty(), "an empty ring takes any packet of half");
                    }
                    producer.publish();
                } else {
                    let max = 1 + bytes / 25;
                    let count = consumers.poll(max);
                    prop_assert_eq!(count, max.min(expected.len()));
                    for index in 0..count {
                        let packet = consumers.packet(index).to_vec();
                        prop_assert_eq!(Some(packet), expected.pop_front());
                    }
                    consumers.release();
                }
            }
        }
    }

    #[test]
    fn an_empty_ring_takes_packets_of_any_size_wherever_it_stands() {
        let (mut producer, consumer) = ring(64 << 10);
        let mut consumers = ConsumerSet::new(std::iter::once(consumer));
        for step in 0..2_000_usize {
            let packet = vec![1; (step * 7919) % (16 << 10)];
            assert!(producer.push(&packet), "packet {step} of {} bytes", packet.len());
            producer.publish();
            assert_eq!(consumers.poll(1), 1);
            assert_eq!(consumers.packet(0), packet);
            consumers.release();
        }
    }

    #[test]
    fn a_message_that_found_no_room_finds_it_when_it_comes_again() {
        // Fragments of 16 KiB with a shorter one behind them, as a retransmission sends them.
        for last in (8..(16 << 10)).step_by(1_000) {
            for at in (0..(64 << 10)).step_by(4 << 10) {
                let (mut producer, consumer) = ring(64 << 10);
                let mut consumers = ConsumerSet::new(std::iter::once(consumer));
                let mut receive = |producer: &mut Producer| {
                    producer.publish();
                    let count = consumers.poll(9);
                    consumers.release();
                    count
                };
                assert!(
                    at < (4 << 10)
                        || (0..at >> 12).all(|_| {
                            let taken = producer.push(&[0; (4 << 10) - 8]);
                            taken && receive(&mut producer) == 1
                        })
                );
                let window = [16 << 10, 16 << 10, last].map(|bytes| vec![1; bytes]);
                let fits = (0..3).any(|_| {
                    let taken = window.iter().filter(|packet| producer.push(packet)).count();
                    receive(&mut producer) == taken && taken == 3
                });
                assert!(fits, "at {at}, {last} bytes at the end");
            }
        }
    }

    #[test]
    fn nothing_is_seen_before_the_doorbell() {
        let (mut producer, consumer) = ring(64);
        let mut consumers = ConsumerSet::new(std::iter::once(consumer));
        assert!(producer.push(b"packet"));
        assert_eq!(consumers.poll(1), 0);
        producer.publish();
        assert_eq!(consumers.poll(1), 1);
        assert_eq!(consumers.packet(0), b"packet");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn packets_cross_threads_whole_and_in_order() {
        loom::model(|| {
            let (mut producer, consumer) = ring(32);
            let mut consumers = ConsumerSet::new(std::iter::once(consumer));
            let sender = loom::thread::spawn(move || {
                for value in 1..=3_u64 {
                    while !producer.push(&value.to_le_bytes()) {
                        loom::thread::yield_now();
                    }
                    producer.publish();
                }
            });
            let mut expected = 1_u64;
            while expected <= 3 {
                if consumers.poll(1) == 0 {
                    loom::thread::yield_now();
                    continue;
                }
                assert_eq!(consumers.packet(0), expected.to_le_bytes());
                consumers.release();
                expected += 1;
            }
            sender.join().unwrap();
        });
    }

    /// A client that repeats its requests, and the session that answers them on another thread.
    #[test]
    fn a_session_runs_each_request_once() {
        use crate::session::{Admission, Session};
        loom::model(|| {
            let (mut producer, consumer) = ring(64);
            let mut consumers = ConsumerSet::new(std::iter::once(consumer));
            let client = loom::thread::spawn(move || {
                for sequence in [1_u64, 1, 2, 1] {
                    while !producer.push(&sequence.to_le_bytes()) {
                        loom::thread::yield_now();
                    }
                    producer.publish();
                }
            });
            let mut session = Session::default();
            let mut admitted = Vec::new();
            while admitted.len() < 4 {
                if consumers.poll(1) == 0 {
                    loom::thread::yield_now();
                    continue;
                }
                let sequence = u64::from_le_bytes(consumers.packet(0).try_into().unwrap());
                admitted.push(session.admit(sequence));
                consumers.release();
            }
            let expected = [Admission::Run, Admission::Resend, Admission::Run, Admission::Drop];
            assert_eq!(admitted, expected);
            client.join().unwrap();
        });
    }
}
