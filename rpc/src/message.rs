//! Messages: the requests or responses that one packet coalesces.
//!
//! ```text
//!  0 u16 kind of a request, status of a response | 2 u16 0 | 4 u32 payload bytes
//!  8 payload, padded to 8 bytes
//! ```
//!
//! *Source*: FaSST section 4.2, "Request batching".

use crate::buffer::Buffer;
use crate::fragments::MESSAGE_BYTES_MAX;

pub(crate) const MESSAGE_HEADER_BYTES: usize = 8;
/// Largest payload of one request, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - MESSAGE_HEADER_BYTES;

/// Bytes that a message with a payload of `payload_bytes` takes in a packet.
#[inline]
pub(crate) fn message_bytes(payload_bytes: usize) -> usize {
    MESSAGE_HEADER_BYTES + padded(payload_bytes)
}

/// A length padded to words of 8 bytes, without the comparison of `next_multiple_of`.
#[inline(always)]
pub(crate) const fn padded(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// One message of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Kind of a request or status of a response; what it means is the user's choice.
    pub kind: u16,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

/// Iterator over the messages of a packet; ends early where the bytes are malformed.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    bytes: &'a [u8],
    left: u16,
}

impl<'a> Messages<'a> {
    /// The first `count` messages in `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8], count: u16) -> Self {
        Self { bytes, left: count }
    }

    /// Whether `bytes` are exactly `count` well-formed messages.
    #[must_use]
    pub fn are_well_formed(bytes: &'a [u8], count: u16) -> bool {
        let mut messages = Self::new(bytes, count);
        messages.by_ref().count() == usize::from(count) && messages.is_at_end()
    }

    /// Whether nothing follows the messages taken so far.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the kind is the word's low 16 bits")]
    fn next(&mut self) -> Option<Message<'a>> {
        self.left = self.left.checked_sub(1)?;
        let header: &[u8; MESSAGE_HEADER_BYTES] = self.bytes.first_chunk()?;
        let header = u64::from_le_bytes(*header);
        let kind = header as u16;
        let length = (header >> 32) as usize;
        let payload = self.bytes.get(MESSAGE_HEADER_BYTES..MESSAGE_HEADER_BYTES + length)?;
        self.bytes = self.bytes.get(message_bytes(length)..)?;
        Some(Message { kind, payload })
    }
}

/// Appends messages to a packet.
pub struct ResponseWriter<'a> {
    out: &'a mut Buffer,
}

impl<'a> ResponseWriter<'a> {
    pub(crate) fn new(out: &'a mut Buffer) -> Self {
        Self { out }
    }

    /// Bytes of the messages appended so far.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// Appends a message without a payload.
    #[inline]
    pub fn push(&mut self, status: u16) {
        self.push_with(0, |_| (status, 0));
    }

    /// Appends a message whose status and length `fill` decides; it may write `capacity` bytes,
    /// which start with unspecified contents.
    ///
    /// # Panics
    /// If `fill` says that it wrote more than `capacity` bytes.
    #[inline]
    pub fn push_with(&mut self, capacity: usize, fill: impl FnOnce(&mut [u8]) -> (u16, usize)) {
        append(self.out, capacity, fill);
    }
}

/// Appends one message to `out`; see [`ResponseWriter::push_with`].
#[inline(always)]
pub(crate) fn append(
    out: &mut Buffer,
    capacity: usize,
    fill: impl FnOnce(&mut [u8]) -> (u16, usize),
) {
    let start = out.len();
    let room = out.claim(message_bytes(capacity));
    let (header, payload) = room.split_at_mut(MESSAGE_HEADER_BYTES);
    let (kind, length) = fill(&mut payload[..capacity]);
    assert!(length <= capacity, "a message of {length} bytes was given room for {capacity}");
    header.copy_from_slice(&(u64::from(kind) | (length as u64) << 32).to_le_bytes());
    if length % 8 != 0 {
        // What pads a message is part of the packet, and must not be left over from another.
        payload[length..padded(length)].fill(0);
    }
    if length < capacity {
        out.truncate(start + message_bytes(length));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_parsed(
            messages in proptest::collection::vec(
                (any::<u16>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
        ) {
            let mut buffer = Buffer::default();
            let mut writer = ResponseWriter::new(&mut buffer);
            for (kind, payload) in &messages {
                writer.push_with(payload.len() + 3, |out| {
                    out[..payload.len()].copy_from_slice(payload);
                    (*kind, payload.len())
                });
            }
            let count = u16::try_from(messages.len()).unwrap();
            let bytes = buffer.as_slice();
            prop_assert!(Messages::are_well_formed(bytes, count));
            let parsed: Vec<_> = Messages::new(bytes, count)
                .map(|message| (message.kind, message.payload.to_vec()))
                .collect();
            prop_assert_eq!(parsed, messages);
            prop_assert!(!Messages::are_well_formed(bytes, count + 1));
            if !bytes.is_empty() {
                prop_assert!(!Messages::are_well_formed(&bytes[..bytes.len() - 1], count));
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100), count: u16,
        ) {
            let _ = Messages::are_well_formed(&bytes, count);
        }
    }
}
