//! A ring of packets from one worker thread to one other, in this process or in another one.
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
//! *Invariants*: there is one [`Producer`] and one [`Consumer`] of a ring, neither of which can be
//! cloned; a [`ConsumerSet`] remembers a frame only from its poll to its release, which both take
//! `&mut self`, and packets are borrowed from it, so no packet is read after its room was given back.
//! A sender that dies leaves a ring as it was at its last doorbell; another process that takes its place goes on there. The receiver
//! drops the packets of a sender that writes invalid frames, and takes those of all others.
//!
//! *Source*: the single-producer queue of Lamport (Specifying Concurrent Program Modules, 1983),
//! with each side's last view of the other's position kept beside its own.

pub(crate) mod memory;

#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;

use crossbeam::utils::CachePadded;

#[cfg(not(loom))]
use memory::Segment;
use memory::{Bytes, Frame, Memory};

use crate::message::padded;

const FRAME_HEADER_BYTES: usize = 8;
const SKIP: u64 = u64::MAX;
/// How far into an otherwise empty ring a sender goes before it returns to the start.
const RESTART_BYTES: usize = 4 << 10;
/// Packets that a set has room for before its list grows.
const FRAMES_EXPECTED: usize = 64;

/// The sending end.
pub(crate) struct Producer {
    memory: Memory,
    /// Where the next frame goes; beyond the published tail until [`Producer::publish`].
    tail: u64,
    /// The tail at the last doorbell.
    published: u64,
    /// The receiver's position when this end last looked.
    head_seen: u64,
}

/// The receiving end.
pub(crate) struct Consumer {
    memory: Memory,
    /// The next frame to look at; beyond the published head until the set is released.
    head: u64,
    /// The sender's position when this end last looked.
    tail_seen: u64,
    /// Whether frames were taken since the last release.
    taken: bool,
    /// The sender has written an invalid frame: the ring is not read any more.
    is_broken: bool,
}

/// The receiving ends of several rings, polled in turn.
pub(crate) struct ConsumerSet {
    consumers: Vec<CachePadded<Consumer>>,
    /// The ring to look at first, so that a busy peer does not starve the others.
    first: usize,
    /// Packets taken since the last release.
    frames: Vec<Frame>,
}

/// The two ends of the ring at an offset of a segment. The ring has `capacity` bytes, a power of two, behind the words of its
/// positions.
#[cfg(not(loom))]
pub(crate) fn ring_in(
    segment: &Arc<Segment>,
    offset: usize,
    capacity: usize,
) -> (Producer, Consumer) {
    ends(Memory::new(segment, offset, capacity))
}

/// A ring of `capacity` bytes, a power of two.
#[cfg(test)]
fn ring(capacity: usize) -> (Producer, Consumer) {
    ends(Memory::alone(capacity))
}

fn ends(memory: Memory) -> (Producer, Consumer) {
    let capacity = memory.capacity();
    assert!(capacity.is_power_of_two() && capacity >= 16, "a ring's capacity is a power of two");
    // Relaxed: if there was another sender, it has ended, and what has told of its end orders what it has written.
    let (tail, head) =
        (memory.tail().load(Ordering::Relaxed), memory.head().load(Ordering::Relaxed));
    (
        Producer { memory: memory.clone(), tail, published: tail, head_seen: head },
        Consumer { memory, head, tail_seen: head, taken: false, is_broken: false },
    )
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an offset is below the capacity")]
fn offset(position: u64, capacity: usize) -> usize {
    position as usize & (capacity - 1)
}

impl Producer {
    /// Copies a packet into the ring; `false` if there is no room. Unseen until [`Self::publish`].
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: &[u8]) -> bool {
        let capacity = self.memory.capacity();
        let frame = FRAME_HEADER_BYTES + padded(packet.len());
        let at = offset(self.tail, capacity);
        if at >= RESTART_BYTES || at + frame > capacity {
            return self.push_far_on(packet);
        }
        self.push_at(at, frame, packet)
    }

    /// As [`Self::push`], where the ring is perhaps begun anew.
    #[cold]
    fn push_far_on(&mut self, packet: &[u8]) -> bool {
        let capacity = self.memory.capacity();
        let frame = FRAME_HEADER_BYTES + padded(packet.len());
        let at = offset(self.tail, capacity);
        // A restart gives up the rest of the ring, which the packets of a large message may need.
        let may_restart = at >= RESTART_BYTES && frame <= RESTART_BYTES;
        if at + frame <= capacity && !(may_restart && self.is_empty()) {
            return self.push_at(at, frame, packet);
        }
        let rest = capacity - at;
        if !self.has_room(rest + frame) {
            return false;
        }
        self.memory.write_u64(at, SKIP);
        self.tail += rest as u64;
        self.push_at(0, frame, packet)
    }

    #[inline(always)]
    fn push_at(&mut self, at: usize, frame: usize, packet: &[u8]) -> bool {
        let has_room = self.has_room(frame);
        if has_room {
            self.memory.write_frame(at, packet);
            self.tail += frame as u64;
        }
        has_room
    }

    #[inline]
    fn has_room(&mut self, needed: usize) -> bool {
        let end = self.tail + needed as u64;
        let capacity = self.memory.capacity() as u64;
        if end.wrapping_sub(self.head_seen) > capacity {
            // Acquire: pairs with the Release in Consumer::release(): what it released is not read
            // any more and may be overwritten.
            self.head_seen = self.memory.head().load(Ordering::Acquire);
        }
        end.wrapping_sub(self.head_seen) <= capacity
    }

    /// Whether the receiver has released everything; looked at once per doorbell.
    #[inline]
    fn is_empty(&mut self) -> bool {
        if self.published != self.tail {
            return false;
        }
        // Acquire: as in has_room().
        self.head_seen = self.memory.head().load(Ordering::Acquire);
        self.head_seen == self.tail
    }

    /// Makes the packets pushed so far visible: the doorbell.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: pairs with the Acquire in Consumer::pop().
        self.memory.tail().store(self.tail, Ordering::Release);
        self.published = self.tail;
    }
}

impl Consumer {
    /// Takes the next packet; it is left in place.
    #[inline(always)]
    fn take(&mut self) -> Option<Frame> {
        if self.head == self.tail_seen {
            if self.is_broken {
                return None;
            }
            // Acquire: pairs with the Release in Producer::publish().
            self.tail_seen = self.memory.tail().load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
            if self.tail_seen.wrapping_sub(self.head) > self.memory.capacity() as u64 {
                return self.give_up();
            }
        }
        let capacity = self.memory.capacity();
        let mut at = offset(self.head, capacity);
        let mut head = self.head;
        let mut bytes = self.memory.read_u64(at);
        if bytes == SKIP {
            head += (capacity - at) as u64;
            at = 0;
            bytes = self.memory.read_u64(at);
        }
        let Some(frame) = self.memory.frame(at, bytes) else {
            return self.give_up();
        };
        head += (FRAME_HEADER_BYTES + padded(frame.len())) as u64;
        if head > self.tail_seen {
            return self.give_up();
        }
        self.head = head;
        self.taken = true;
        Some(frame)
    }

    /// The ring holds bytes that no sender of packets has written.
    #[cold]
    fn give_up(&mut self) -> Option<Frame> {
        tracing::error!(
            "a ring holds what no sender of packets has written: nothing more is taken from it, and what needs its sender \
             waits; stop all nodes and start them again"
        );
        self.head = self.tail_seen;
        self.is_broken = true;
        None
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
        let Self { consumers, first, frames } = self;
        let rings = consumers.len();
        let mut index = *first;
        for _ in 0..rings {
            let consumer = &mut consumers[index];
            index = if index + 1 < rings { index + 1 } else { 0 };
            while let Some(frame) = consumer.take() {
                frames.push(frame);
                if frames.len() == max {
                    *first = index;
                    return max;
                }
            }
        }
        *first = if *first + 1 < rings { *first + 1 } else { 0 };
        frames.len()
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
                consumer.memory.head().store(consumer.head, Ordering::Release);
            }
        }
    }

    /// Rings from which nothing is taken any more.
    #[cfg(not(loom))]
    pub(crate) fn broken(&self) -> usize {
        self.consumers.iter().filter(|consumer| consumer.is_broken).count()
    }

    /// Whether a packet waits.
    #[cfg(not(loom))]
    pub(crate) fn has_packets(&self) -> bool {
        // Acquire: as in take().
        let waits = |consumer: &Consumer| {
            consumer.head != consumer.memory.tail().load(Ordering::Acquire) && !consumer.is_broken
        };
        self.consumers.iter().any(|consumer| waits(consumer))
    }
}

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
    fn another_sender_goes_on_where_the_one_before_has_ended() {
        let memory = Memory::alone(128);
        let (mut first, consumer) = ends(memory.clone());
        let mut consumers = ConsumerSet::new(std::iter::once(consumer));
        assert!(first.push(b"heard"));
        first.publish();
        assert_eq!(consumers.poll(9), 1);
        consumers.release();
        assert!(first.push(b"waits"));
        first.publish();
        // It ends before its doorbell.
        assert!(first.push(b"never sent"));
        drop(first);
        let (mut second, _) = ends(memory);
        assert!(second.push(b"by another"));
        second.publish();
        assert_eq!(consumers.poll(9), 2);
        assert_eq!((consumers.packet(0), consumers.packet(1)), (&b"waits"[..], &b"by another"[..]));
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
    fn nonsense_is_not_read_and_harms_no_other_ring() {
        // A length beyond the ring, beyond what was published, and positions that no sender reaches.
        for (length, tail) in [(1 << 40, 16), (48, 16), (SKIP, 8), (8, 8), (8, u64::MAX), (0, 3)] {
            let ((mut good, good_end), (bad, bad_end)) = (ring(64), ring(64));
            let mut consumers = ConsumerSet::new([bad_end, good_end].into_iter());
            bad.memory.write_u64(0, length);
            bad.memory.tail().store(tail, Ordering::Release);
            for _ in 0..9 {
                assert!(good.push(b"packet"));
                good.publish();
                let packets: Vec<_> =
                    (0..consumers.poll(99)).map(|index| consumers.packet(index).to_vec()).collect();
                assert!(packets.contains(&b"packet".to_vec()), "{length} {tail}: {packets:?}");
                consumers.release();
            }
            assert!(!consumers.has_packets());
            assert_eq!(consumers.broken(), 1);
        }
        // A receiver that says it has released what was never sent.
        let (mut sender, receiver) = ring(64);
        receiver.memory.head().store(u64::MAX - 7, Ordering::Release);
        assert!((0..9).map(|_| sender.push(&[1; 24])).any(|pushed| !pushed));
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
