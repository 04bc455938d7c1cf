//! Messages above the MTU: cut into fragments, and put together again.
//!
//! ```text
//! messages: | MTU - header | MTU - header | ... | rest |      each with a packet header of its own:
//!           fragment 0       fragment 1           n - 1        same session, sequence, message bytes
//!
//! sender: a window of fragments ────────────► receiver: keeps them
//!         the next window       ◄──────────── continue with the first one that is missing
//! ```
//! A window fits the smallest buffers on the way, so that a message of any size gets through. A requester that
//! misses an answer for too long sends its present window again. If part of the response has arrived, it
//! requests the fragments that follow instead.
//!
//! *Invariants*: fragments of two messages never mix. The bytes that a session gathers are bounded by
//! [`MESSAGE_BYTES_MAX`]. A complete message does not change before it is taken.

use crate::buffer::Buffer;
use crate::packet::{Contents, ContentsWords, HEADER_BYTES, seal};
use crate::transport::PacketSender;

/// Largest message, in bytes: several values of a MiB, if one request has them all.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes of the requests of a batch to one destination, or of the responses expected, beyond
/// which the batch takes no further request: a receiver runs them without a pause.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Fragments sent at once: a ring of the `memory` transport holds as many of the largest packets.
pub(crate) const WINDOW: u16 = 3;

/// Packets under way at once of a message that takes `bytes`, header included.
#[inline(always)]
pub(crate) fn packets_of(bytes: usize, mtu: usize) -> usize {
    if bytes <= mtu { 1 } else { usize::from(WINDOW) }
}

/// Queues a message, which follows the room for a header, with the route that is in it: as one
/// packet, or its first window, which is built in `scratch`.
#[inline(always)]
pub(crate) fn queue_message<S: PacketSender>(
    sender: &mut S,
    scratch: &mut Buffer,
    destination: u16,
    packet: &mut [u8],
    contents: ContentsWords,
) {
    contents.write(packet);
    if packet.len() <= sender.mtu() {
        if sender.wants_checksum() {
            seal(packet);
        }
        sender.queue(destination, packet);
    } else {
        queue_window(sender, scratch, destination, packet, 0);
    }
}

/// Queues a message again whose header was written before: its window from fragment `first` on.
#[cold]
pub(crate) fn queue_window<S: PacketSender>(
    sender: &mut S,
    scratch: &mut Buffer,
    destination: u16,
    packet: &[u8],
    first: u16,
) {
    let mtu = sender.mtu();
    if packet.len() <= mtu {
        return sender.queue(destination, packet);
    }
    let Some(contents) = Contents::parse(packet) else { return };
    let (header, messages) = packet.split_at(HEADER_BYTES);
    let parts = messages.chunks(mtu - HEADER_BYTES);
    let fragments = u16::try_from(parts.len()).expect("a message has fewer than 2^16 fragments");
    // Windows end at multiples of their size, wherever they begin.
    let count = usize::from(WINDOW - first % WINDOW);
    for (fragment, part) in (first..).zip(parts.skip(usize::from(first)).take(count)) {
        scratch.clear();
        let out = scratch.claim(HEADER_BYTES + part.len());
        out[..HEADER_BYTES].copy_from_slice(header);
        out[HEADER_BYTES..].copy_from_slice(part);
        Contents { fragment, fragments, ..contents }.write(out);
        if sender.wants_checksum() {
            seal(out);
        }
        sender.queue(destination, out);
    }
}

/// Whether a receiver answers fragment `fragment` by requesting more: once for each window.
pub(crate) fn ends_window(contents: &Contents) -> bool {
    contents.fragment % WINDOW == WINDOW - 1 || contents.fragment + 1 == contents.fragments
}

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The message is complete, by this fragment.
    Complete,
    /// Some fragments are missing.
    Partial,
    /// It was there before.
    Known,
    /// It does not fit the message that it says it is part of.
    Malformed,
}

/// A message that is being put together.
#[derive(Default)]
pub(crate) struct Assembly {
    sequence: u64,
    message_bytes: u32,
    /// Fragments that are missing; 0 for a complete message, and at the start.
    missing: u16,
    /// One bit for each fragment that is there.
    present: Vec<u64>,
    bytes: Buffer,
    /// Complete, and not taken yet.
    waits: bool,
}

impl Assembly {
    /// Adds a fragment of at most `fragment_bytes`, all but the last of which have as many.
    pub(crate) fn add(&mut self, contents: &Contents, part: &[u8], fragment_bytes: usize) -> Added {
        let total = contents.message_bytes as usize;
        let index = usize::from(contents.fragment);
        let start = index * fragment_bytes;
        let fits = total <= MESSAGE_BYTES_MAX
            && total.div_ceil(fragment_bytes) == usize::from(contents.fragments)
            && start < total
            && part.len() == fragment_bytes.min(total - start);
        if !fits {
            return Added::Malformed;
        }
        if contents.sequence > self.sequence && !self.waits {
            self.sequence = contents.sequence;
            self.message_bytes = contents.message_bytes;
            self.missing = contents.fragments;
            self.present.clear();
            self.present.resize(usize::from(contents.fragments).div_ceil(64), 0);
            self.bytes.clear();
            self.bytes.claim(total);
        }
        if contents.sequence != self.sequence || self.missing == 0 {
            return Added::Known;
        }
        if contents.message_bytes != self.message_bytes {
            return Added::Malformed;
        }
        let (word, bit) = (index / 64, 1 << (index % 64));
        if self.present[word] & bit != 0 {
            return Added::Known;
        }
        self.present[word] |= bit;
        self.bytes.as_mut_slice()[start..start + part.len()].copy_from_slice(part);
        self.missing -= 1;
        self.waits = self.missing == 0;
        if self.waits { Added::Complete } else { Added::Partial }
    }

    /// The first fragment that is missing of message `sequence`; none if nothing of it has arrived.
    pub(crate) fn first_missing(&self, sequence: u64) -> Option<u16> {
        if self.sequence != sequence || self.missing == 0 {
            return None;
        }
        let ones = |word: &u64| word.trailing_ones();
        let full = self.present.iter().take_while(|&word| ones(word) == 64).count();
        let rest = self.present.get(full).map_or(0, ones);
        u16::try_from(64 * full + rest as usize).ok()
    }

    /// The complete message.
    pub(crate) fn messages(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// Gives the complete message up; the next may come.
    pub(crate) fn take(&mut self) {
        self.waits = false;
        self.bytes.clear();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::packet::Kind;
    use proptest::prelude::*;

    const FRAGMENT_BYTES: usize = 100;

    fn contents(sequence: u64, fragment: usize, total: usize) -> Contents {
        Contents {
            worker: 0,
            coroutine: 0,
            kind: Kind::Request,
            again: false,
            messages: 1,
            sequence,
            fragment: u16::try_from(fragment).unwrap(),
            fragments: u16::try_from(total.div_ceil(FRAGMENT_BYTES)).unwrap(),
            message_bytes: u32::try_from(total).unwrap(),
        }
    }

    proptest! {
        /// Fragments of several messages, doubled and in any order: each message is put together at
        /// most once, whole, and never an older one after a newer one.
        #[test]
        fn messages_are_put_together_whole(
            sizes in proptest::collection::vec(101_usize..900, 1..5),
            picks in proptest::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..120),
        ) {
            let messages: Vec<Vec<u8>> = (1_u8..)
                .zip(&sizes)
                .map(|(number, &size)| (0..=250).map(|at| number ^ at).cycle().take(size).collect())
                .collect();
            let mut assembly = Assembly::default();
            let mut last = 0;
            for (message, fragment) in picks {
                let sequence = message.index(messages.len());
                let bytes = &messages[sequence];
                let fragment = fragment.index(bytes.len().div_ceil(FRAGMENT_BYTES));
                let start = fragment * FRAGMENT_BYTES;
                let part = &bytes[start..bytes.len().min(start + FRAGMENT_BYTES)];
                let number = sequence as u64 + 1;
                let contents = contents(number, fragment, bytes.len());
                match assembly.add(&contents, part, FRAGMENT_BYTES) {
                    Added::Complete => {
                        prop_assert!(number > last, "{number} after {last}");
                        last = number;
                        prop_assert_eq!(assembly.messages(), &bytes[..]);
                        assembly.take();
                    }
                    Added::Partial | Added::Known => {}
                    Added::Malformed => prop_assert!(false, "a well-formed fragment"),
                }
            }
        }

        #[test]
        fn arbitrary_fragments_do_no_harm(
            fragments in proptest::collection::vec(
                (any::<u8>(), any::<u16>(), any::<u16>(), any::<u32>(), 0_usize..200), 0..50),
        ) {
            let mut assembly = Assembly::default();
            for (sequence, fragment, fragments, message_bytes, bytes) in fragments {
                let contents = Contents {
                    fragment,
                    fragments,
                    message_bytes,
                    ..contents(u64::from(sequence), 0, 1)
                };
                if assembly.add(&contents, &vec![0; bytes], FRAGMENT_BYTES) == Added::Complete {
                    prop_assert_eq!(assembly.messages().len(), message_bytes as usize);
                    assembly.take();
                }
            }
        }
    }

    #[test]
    fn a_complete_message_stays_until_it_is_taken() {
        let mut assembly = Assembly::default();
        let part = [1; FRAGMENT_BYTES];
        assert_eq!(assembly.add(&contents(1, 0, 150), &part, FRAGMENT_BYTES), Added::Partial);
        let last = [2; 50];
        assert_eq!(assembly.add(&contents(1, 1, 150), &last, FRAGMENT_BYTES), Added::Complete);
        assert_eq!(assembly.add(&contents(2, 0, 150), &part, FRAGMENT_BYTES), Added::Known);
        assert_eq!(assembly.messages(), [&part[..], &last].concat());
    }
}
