//! The packet header: one fixed layout on every transport.
//!
//! ```text
//!  0 u32 CRC-32C of bytes 4..       0 where the transport does not ask for one
//!  4 u32 cluster id
//!  8 u32 epoch
//! 12 u16 source node | 14 u16 destination node
//! 16 u32 source incarnation
//! 20 u32 destination incarnation
//! 24 u16 worker                     the same at both ends
//! 26 u16 coroutine                  session = source node, incarnation, worker, coroutine
//! 28 u16 kind (1 request, 2 response)
//! 30 u16 messages                   coalesced in this packet
//! 32 u64 sequence                   rises with each batch of the session
//! 40 u16 fragment | 42 u16 fragments
//! 44 u32 message bytes              of all fragments together
//! 48 messages                       see `message.rs`
//! ```
//! Little-endian. A response repeats session and sequence of its request, source and destination
//! exchanged.
//!
//! *Source*: FaSST section 4 (requests coalesced per destination, peer threads); `architecture.md`,
//! "RPC", for the fields that make sessions exact over lossy networks.

/// Bytes of a packet header.
pub const HEADER_BYTES: usize = 48;

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Requests of one coroutine's batch.
    Request = 1,
    /// The responses to them, in the same order.
    Response = 2,
}

/// A packet header in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// Cluster that the packet belongs to.
    pub cluster_id: u32,
    /// Membership epoch of the sender; an opaque number that is compared.
    pub epoch: u32,
    /// Sending node.
    pub source: u16,
    /// Receiving node.
    pub destination: u16,
    /// Incarnation of the sending node.
    pub source_incarnation: u32,
    /// Incarnation that the sender believes the receiver to have.
    pub destination_incarnation: u32,
    /// Worker at both ends.
    pub worker: u16,
    /// Coroutine whose batch this is, of the requesting node in both directions.
    pub coroutine: u16,
    /// Request or response.
    pub kind: Kind,
    /// Messages in the packet.
    pub messages: u16,
    /// Number of the batch within the session; from 1.
    pub sequence: u64,
    /// Index of this fragment.
    pub fragment: u16,
    /// Number of fragments.
    pub fragments: u16,
    /// Bytes of the messages in all fragments.
    pub message_bytes: u32,
}

impl PacketHeader {
    /// Writes the header into the first [`HEADER_BYTES`] of `packet`, the checksum as 0.
    #[inline]
    pub fn write(&self, packet: &mut [u8]) {
        let header: &mut [u8; HEADER_BYTES] =
            (&mut packet[..HEADER_BYTES]).try_into().expect("a slice of that length");
        header[0..4].copy_from_slice(&[0; 4]);
        header[4..8].copy_from_slice(&self.cluster_id.to_le_bytes());
        header[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        header[12..14].copy_from_slice(&self.source.to_le_bytes());
        header[14..16].copy_from_slice(&self.destination.to_le_bytes());
        header[16..20].copy_from_slice(&self.source_incarnation.to_le_bytes());
        header[20..24].copy_from_slice(&self.destination_incarnation.to_le_bytes());
        header[24..26].copy_from_slice(&self.worker.to_le_bytes());
        header[26..28].copy_from_slice(&self.coroutine.to_le_bytes());
        header[28..30].copy_from_slice(&(self.kind as u16).to_le_bytes());
        header[30..32].copy_from_slice(&self.messages.to_le_bytes());
        header[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        header[40..42].copy_from_slice(&self.fragment.to_le_bytes());
        header[42..44].copy_from_slice(&self.fragments.to_le_bytes());
        header[44..48].copy_from_slice(&self.message_bytes.to_le_bytes());
    }

    /// Reads the header of `packet`; `None` if it is too short or of no known kind.
    #[inline]
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = packet.first_chunk()?;
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let kind = match u16_at(28) {
            1 => Kind::Request,
            2 => Kind::Response,
            _ => return None,
        };
        Some(Self {
            cluster_id: u32_at(4),
            epoch: u32_at(8),
            source: u16_at(12),
            destination: u16_at(14),
            source_incarnation: u32_at(16),
            destination_incarnation: u32_at(20),
            worker: u16_at(24),
            coroutine: u16_at(26),
            kind,
            messages: u16_at(30),
            sequence: u64_at(32),
            fragment: u16_at(40),
            fragments: u16_at(42),
            message_bytes: u32_at(44),
        })
    }
}

/// Writes the checksum of a finished packet into its header.
pub(crate) fn seal(packet: &mut [u8]) {
    let crc = crc32c::crc32c(&packet[4..]);
    packet[0..4].copy_from_slice(&crc.to_le_bytes());
}

/// Whether a packet's checksum is right.
pub(crate) fn is_intact(packet: &[u8]) -> bool {
    packet.len() >= HEADER_BYTES && packet[0..4] == crc32c::crc32c(&packet[4..]).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn header()(
            (cluster_id, epoch, source, destination) in any::<(u32, u32, u16, u16)>(),
            (source_incarnation, destination_incarnation) in any::<(u32, u32)>(),
            (worker, coroutine, request, messages) in any::<(u16, u16, bool, u16)>(),
            (sequence, fragment, fragments, message_bytes) in any::<(u64, u16, u16, u32)>(),
        ) -> PacketHeader {
            PacketHeader {
                cluster_id, epoch, source, destination, source_incarnation,
                destination_incarnation, worker, coroutine,
                kind: if request { Kind::Request } else { Kind::Response },
                messages, sequence, fragment, fragments, message_bytes,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed(header in header(), flip: prop::sample::Index) {
            let mut packet = vec![0xAA; HEADER_BYTES + 8];
            header.write(&mut packet);
            prop_assert_eq!(PacketHeader::parse(&packet), Some(header));
            prop_assert_eq!(PacketHeader::parse(&packet[..HEADER_BYTES - 1]), None);
            seal(&mut packet);
            prop_assert!(is_intact(&packet));
            let at = flip.index(packet.len());
            packet[at] ^= 1;
            prop_assert!(!is_intact(&packet));
        }
    }
}
