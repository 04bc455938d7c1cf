//! The bytes of rings, and where two processes see the same; the memory fence of this crate.
//!
//! ```text
//! segment: whatever its owner lays out, from multiples of 128 bytes on
//! ring:    head, 128 bytes | tail, 128 bytes | capacity bytes
//! ```
//! A segment is a mapping of this process alone, or of a file that others map too: zeroed when it is made, and never
//! shorter afterwards. Under loom a ring has words of its own.
//!
//! Facts that the unsafe code rests on:
//! - a mapping is readable, writable and of fixed length, and whatever points into it holds its [`Segment`];
//! - a byte of a segment is only ever accessed as part of the same atomic word, or only ever as ring bytes, of which the
//!   headers of frames are atomic words too;
//! - a ring has one producer and one consumer at a time, in one process or in two: of a segment's rings a process makes the ends
//!   once, the members of a cluster agree on their numbers, and a process takes a number when the one before has ended;
//! - the producer writes only to positions in `tail .. head + capacity`, where `head` was loaded with Acquire; the
//!   consumer reads only positions in `head .. tail`, where `tail` was loaded with Acquire; the two ranges never overlap.
//!   A process that breaks this has lost its memory to a bug; what others read of it may be any bytes, inside the ring.
//!   That it does not change a packet while it is read is trusted, as everything else about one's own processes.
#![allow(unsafe_code, reason = "the fence around packet memory; see the facts above")]

/// Room of a ring besides its bytes.
#[cfg(not(loom))]
pub(crate) const CONTROL_BYTES: usize = 2 * LINE_BYTES;
/// Words that different threads write are this far apart.
#[cfg(not(loom))]
pub(crate) const LINE_BYTES: usize = 128;

#[cfg(loom)]
pub(super) use in_loom::{Bytes, Frame, Memory};
#[cfg(not(loom))]
pub(super) use mapped::{Bytes, Frame, Memory};
#[cfg(not(loom))]
pub(crate) use mapped::{Segment, SharedWord};

#[cfg(not(loom))]
mod mapped {
    use std::fs::File;
    use std::io;
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use memmap2::{MmapOptions, MmapRaw};

    use super::{CONTROL_BYTES, LINE_BYTES};

    pub(in super::super) type Bytes<'a> = &'a [u8];

    /// Zeroed memory of this process, or of several.
    pub(crate) struct Segment {
        mapping: MmapRaw,
        /// Held, so that other processes find it.
        _file: Option<File>,
    }

    impl Segment {
        /// Memory of this process alone.
        pub(crate) fn private(bytes: usize) -> io::Result<Arc<Self>> {
            let mapping = MmapOptions::new().len(bytes).map_anon()?.into();
            Ok(Arc::new(Self { mapping, _file: None }))
        }

        /// Memory of all processes that map the file, which has so many bytes.
        pub(crate) fn of(file: File, bytes: usize) -> io::Result<Arc<Self>> {
            let mapping = MmapOptions::new().len(bytes).map_raw(&file)?;
            Ok(Arc::new(Self { mapping, _file: Some(file) }))
        }

        fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
            let end = offset.checked_add(bytes);
            assert!(end.is_some_and(|end| end <= self.mapping.len()), "it lies inside the segment");
            assert!(offset.is_multiple_of(8), "words are aligned");
            NonNull::new(self.mapping.as_mut_ptr().wrapping_add(offset))
                .expect("a mapping has an address")
        }

        /// A word that stands where rings are not.
        pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
            // SAFETY: aligned, inside the mapping that `self` holds (asserted in `at`), and only accessed as this word.
            unsafe { AtomicU64::from_ptr(self.at(offset, 8).as_ptr().cast()) }
        }
    }

    /// Half a word of a segment, that threads of several processes wait at.
    pub(crate) struct SharedWord {
        word: NonNull<AtomicU32>,
        /// Keeps the word mapped.
        _segment: Arc<Segment>,
    }

    // SAFETY: it is a shared reference to an atomic number, which the segment keeps alive.
    unsafe impl Send for SharedWord {}
    // SAFETY: as above.
    unsafe impl Sync for SharedWord {}

    impl SharedWord {
        pub(crate) fn new(segment: &Arc<Segment>, offset: usize) -> Self {
            Self { word: segment.at(offset, 8).cast(), _segment: Arc::clone(segment) }
        }
    }

    impl Deref for SharedWord {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            // SAFETY: aligned and inside of the mapping (asserted in `at`), which is held; only accessed as this word.
            unsafe { self.word.as_ref() }
        }
    }

    /// One end's view of a ring.
    #[derive(Clone)]
    pub(in super::super) struct Memory {
        head: NonNull<AtomicU64>,
        tail: NonNull<AtomicU64>,
        bytes: NonNull<u8>,
        /// A power of two.
        capacity: usize,
        /// The bits that a word's place in the ring may have: places are multiples of 8 below the capacity.
        header_mask: usize,
        /// Keeps all of it mapped.
        _segment: Arc<Segment>,
    }

    // SAFETY: the two ends touch disjoint ranges, handed over with release and acquire; see the
    // facts at the top of the file.
    unsafe impl Send for Memory {}

    impl Memory {
        /// A ring in a segment, which holds nothing else there.
        pub(in super::super) fn new(
            segment: &Arc<Segment>,
            offset: usize,
            capacity: usize,
        ) -> Self {
            assert!(
                capacity.is_power_of_two() && capacity >= 8,
                "a ring's capacity is a power of two"
            );
            let room = segment.at(offset, CONTROL_BYTES + capacity);
            let line = |number: usize| segment.at(offset + number * LINE_BYTES, 8).cast();
            Self {
                head: line(0),
                tail: line(1),
                // Derived from the mapping's address, so that it may reach all of the ring.
                bytes: NonNull::new(room.as_ptr().wrapping_add(CONTROL_BYTES)).expect("inside"),
                capacity,
                header_mask: capacity - 8,
                _segment: Arc::clone(segment),
            }
        }

        /// A ring in a segment of its own.
        ///
        /// # Panics
        /// If the system has no memory for it.
        #[cfg(test)]
        pub(in super::super) fn alone(capacity: usize) -> Self {
            let segment = Segment::private(CONTROL_BYTES + capacity).expect("there is memory");
            Self::new(&segment, 0, capacity)
        }

        /// What the receiver has released.
        #[inline(always)]
        pub(in super::super) fn head(&self) -> &AtomicU64 {
            // SAFETY: inside of the mapping, which is held; only accessed as this word.
            unsafe { self.head.as_ref() }
        }

        /// What the sender has published.
        #[inline(always)]
        pub(in super::super) fn tail(&self) -> &AtomicU64 {
            // SAFETY: as above.
            unsafe { self.tail.as_ref() }
        }

        #[inline(always)]
        pub(in super::super) fn capacity(&self) -> usize {
            self.capacity
        }

        #[inline(always)]
        fn at(&self, offset: usize) -> *mut u8 {
            self.bytes.as_ptr().wrapping_add(offset)
        }

        /// Called by the producer alone, on a range that the consumer does not read.
        #[inline(always)]
        pub(in super::super) fn write_u64(&self, offset: usize, word: u64) {
            self.header(offset).store(word, Ordering::Relaxed);
        }

        /// What precedes a packet: read once, whatever another process writes there meanwhile.
        #[inline(always)]
        fn header(&self, offset: usize) -> &AtomicU64 {
            let place = offset & self.header_mask;
            debug_assert_eq!(place, offset, "frames begin at words of the ring");
            // SAFETY: `header_mask` makes the word one of the ring's, which are aligned and inside the mapping that is held; it is
            // shared with atomic accesses and with packet bytes of the same place at other times, before which and after which
            // the ends synchronise.
            unsafe { AtomicU64::from_ptr(self.at(place).cast::<u64>()) }
        }

        /// Called by the producer alone, on a range that the consumer does not read.
        #[inline(always)]
        pub(in super::super) fn write_frame(&self, offset: usize, packet: &[u8]) {
            assert!(offset + 8 + packet.len() <= self.capacity, "a frame lies inside the ring");
            self.write_u64(offset, packet.len() as u64);
            let to = self.at(offset + 8);
            // SAFETY: `to` is valid for so many bytes inside the mapping (asserted above), which is writable; the range is
            // the producer's alone until it publishes, so nothing reads it and it cannot overlap `packet`.
            unsafe { std::ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len()) };
        }

        /// The frame that begins at `offset`, if it lies inside the ring. Called by the consumer alone, on a published range.
        #[inline(always)]
        pub(in super::super) fn frame(&self, offset: usize, bytes: u64) -> Option<Frame> {
            let bytes = usize::try_from(bytes).ok()?;
            let room = self.capacity.checked_sub(offset + 8)?;
            (bytes <= room).then(|| Frame { first: self.at(offset + 8), bytes })
        }

        /// Called by the consumer alone, on a published range.
        #[inline(always)]
        pub(in super::super) fn read_u64(&self, offset: usize) -> u64 {
            self.header(offset).load(Ordering::Relaxed)
        }
    }

    /// A packet in a ring.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Frame {
        first: *const u8,
        bytes: usize,
    }

    // SAFETY: a frame is only dereferenced by the set of consumers that took it, which moves between
    // threads as a whole, with the rings that it points into.
    unsafe impl Send for Frame {}

    impl Frame {
        /// Length of the packet.
        #[inline(always)]
        pub(in super::super) fn len(&self) -> usize {
            self.bytes
        }

        #[inline(always)]
        pub(in super::super) fn bytes(&self) -> Bytes<'_> {
            // SAFETY: `first` is valid for `bytes` initialised bytes of a ring that the set's
            // consumer keeps alive (checked in `Memory::frame`); the producer does not write them until the
            // set is released, which forgets the frame and needs `&mut` while this borrow is alive.
            unsafe { std::slice::from_raw_parts(self.first, self.bytes) }
        }
    }
}

/// Relaxed atomics: a missing release or acquire shows as a stale word.
#[cfg(loom)]
mod in_loom {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    pub(in super::super) type Bytes<'a> = Vec<u8>;

    #[derive(Clone)]
    pub(in super::super) struct Memory(Arc<Words>);

    struct Words {
        head: AtomicU64,
        tail: AtomicU64,
        words: Box<[AtomicU64]>,
    }

    impl Memory {
        pub(in super::super) fn alone(capacity: usize) -> Self {
            let words = (0..capacity / 8).map(|_| AtomicU64::new(0)).collect();
            Self(Arc::new(Words { head: AtomicU64::new(0), tail: AtomicU64::new(0), words }))
        }

        pub(in super::super) fn head(&self) -> &AtomicU64 {
            &self.0.head
        }

        pub(in super::super) fn tail(&self) -> &AtomicU64 {
            &self.0.tail
        }

        pub(in super::super) fn capacity(&self) -> usize {
            self.0.words.len() * 8
        }

        pub(in super::super) fn write_u64(&self, offset: usize, word: u64) {
            self.0.words[offset / 8].store(word, Ordering::Relaxed);
        }

        pub(in super::super) fn write_frame(&self, offset: usize, packet: &[u8]) {
            self.write_u64(offset, packet.len() as u64);
            for (index, chunk) in packet.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                let word = u64::from_le_bytes(word);
                self.0.words[offset / 8 + 1 + index].store(word, Ordering::Relaxed);
            }
        }

        pub(in super::super) fn frame(&self, offset: usize, bytes: u64) -> Option<Frame> {
            let bytes = usize::try_from(bytes).ok()?;
            let words = self.0.words.get(offset / 8 + 1..)?.get(..bytes.div_ceil(8))?;
            let bytes_of = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes();
            let mut read: Vec<u8> = words.iter().flat_map(bytes_of).collect();
            read.truncate(bytes);
            Some(Frame(read))
        }

        pub(in super::super) fn read_u64(&self, offset: usize) -> u64 {
            self.0.words[offset / 8].load(Ordering::Relaxed)
        }
    }

    /// A packet, copied when it was taken.
    pub(in super::super) struct Frame(Vec<u8>);

    impl Frame {
        pub(in super::super) fn len(&self) -> usize {
            self.0.len()
        }

        pub(in super::super) fn bytes(&self) -> Bytes<'_> {
            self.0.clone()
        }
    }
}
