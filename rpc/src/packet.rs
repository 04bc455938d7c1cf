//! The packet header: one fixed layout on every transport.
//!
//! ```text
//!  0 u32 CRC-32C of bytes 4..       0 where the transport wants none
//!  4 u32 cluster id
//!  8 u32 epoch
//! 12 u16 source node | 14 u16 destination node
//! 16 u32 source incarnation
//! 20 u32 destination incarnation
//! 24 u16 worker                     the same at both ends
//! 26 u16 coroutine                  session = source node, incarnation, worker, coroutine
//! 28 u8 kind (1 request, 2 response, 3 and 4 continue)
//! 29 u8 again                       1 in a request that was sent before, and in the response to it
//! 30 u16 messages                   coalesced in this packet
//! 32 u64 sequence                   rises with each batch of the session
//! 40 u16 fragment | 42 u16 fragments
//! 44 u32 message bytes              of all fragments together
//! 48 messages                       see `message.rs`
//! ```
//! Little-endian. A response repeats session and sequence of its request, source and destination
//! exchanged.
//!
//! *Source*: FaSST section 4 (requests coalesced per destination, peer threads); `docs/architecture.md`,
//! "RPC", for the fields that make sessions exact over lossy networks.

/// Bytes of a packet header.
pub const HEADER_BYTES: usize = 48;

/// What a packet contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Requests of one coroutine's batch.
    Request = 1,
    /// The responses to them, in the same order.
    Response = 2,
    /// To the sender of requests: go on with this fragment, those before it have arrived.
    ContinueRequest = 3,
    /// To the sender of responses: the same.
    ContinueResponse = 4,
}

/// Cluster, epoch, sender and receiver of a packet: the same for all packets from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
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
}

/// What a packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Worker at both ends.
    pub worker: u16,
    /// Coroutine whose batch this is, of the requesting node in both directions.
    pub coroutine: u16,
    /// Request or response.
    pub kind: Kind,
    /// A request that was sent before; a response says whether it is to such a one.
    pub again: bool,
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

/// Bytes of a route in a header.
const ROUTE_BYTES: usize = 24;

impl Route {
    /// Reads the route of a packet.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each field is shifted to the low bits")]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let words = RouteWords::parse(packet)?.0;
        Some(Self {
            cluster_id: (words[0] >> 32) as u32,
            epoch: words[1] as u32,
            source: (words[1] >> 32) as u16,
            destination: (words[1] >> 48) as u16,
            source_incarnation: words[2] as u32,
            destination_incarnation: (words[2] >> 32) as u32,
        })
    }
}

/// A route as it lies in a header, the checksum as 0: to be written, or compared with the one that
/// is expected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteWords([u64; 3]);

impl From<Route> for RouteWords {
    fn from(route: Route) -> Self {
        Self([
            u64::from(route.cluster_id) << 32,
            u64::from(route.epoch)
                | u64::from(route.source) << 32
                | u64::from(route.destination) << 48,
            u64::from(route.source_incarnation) | u64::from(route.destination_incarnation) << 32,
        ])
    }
}

impl PartialEq for RouteWords {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let [a, b] = [self.0, other.0];
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) == 0
    }
}

impl RouteWords {
    /// The same route in another epoch.
    pub(crate) fn in_epoch(self, epoch: u32) -> Self {
        let Self([first, second, third]) = self;
        Self([first, second & !0xffff_ffff | u64::from(epoch), third])
    }

    /// Writes the route into a packet's header.
    ///
    /// # Panics
    /// If `packet` is shorter than a header.
    #[inline(always)]
    pub(crate) fn write(&self, packet: &mut [u8]) {
        let header: &mut [u8; HEADER_BYTES] =
            packet.first_chunk_mut().expect("a packet has room for its header");
        for (bytes, word) in header.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = word.to_le_bytes();
        }
    }

    /// The route of a packet, without its checksum.
    #[inline(always)]
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = packet.first_chunk()?;
        let words = header.as_chunks::<8>().0;
        let word = |index: usize| u64::from_le_bytes(words[index]);
        Some(Self([word(0) & !0xffff_ffff, word(1), word(2)]))
    }

    /// The node that sent it, as it says.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the field is shifted to the low bits")]
    pub(crate) fn source(&self) -> u16 {
        (self.0[1] >> 32) as u16
    }
}

/// Contents as the words of a header. They are compared, and copied into a response, without being decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentsWords {
    batch: u64,
    /// Number of the batch within the session.
    pub(crate) sequence: u64,
    extent: u64,
}

// The first bits of the fields of `ContentsWords::batch` behind the worker.
const COROUTINE_BIT: u32 = 16;
const KIND_BIT: u32 = 32;
const AGAIN_BIT: u32 = 40;
const MESSAGES_BIT: u32 = 48;
const KIND_MASK: u64 = 0xff << KIND_BIT;
// The same of `ContentsWords::extent` behind the fragment.
const FRAGMENTS_BIT: u32 = 16;
const BYTES_BIT: u32 = 32;

/// The extent of a message in one packet, fragment 0 of 1.
#[inline(always)]
fn extent_of_one(message_bytes: u32) -> u64 {
    1 << FRAGMENTS_BIT | u64::from(message_bytes) << BYTES_BIT
}

impl ContentsWords {
    /// Those of requests in one packet, which have not been sent before.
    #[inline(always)]
    pub(crate) fn request(
        (worker, coroutine, sequence): (u16, u16, u64),
        messages: u16,
        message_bytes: u32,
    ) -> Self {
        let session = u64::from(worker) | u64::from(coroutine) << COROUTINE_BIT;
        let kind = (Kind::Request as u64) << KIND_BIT;
        let batch = session | kind | u64::from(messages) << MESSAGES_BIT;
        Self { batch, sequence, extent: extent_of_one(message_bytes) }
    }

    /// Those of the response to requests that have these: as many messages.
    #[inline(always)]
    pub(crate) fn response(self, message_bytes: u32) -> Self {
        let batch = self.batch & !KIND_MASK | (Kind::Response as u64) << KIND_BIT;
        Self { batch, extent: extent_of_one(message_bytes), ..self }
    }

    /// Writes the contents' part of a packet's header.
    ///
    /// # Panics
    /// If `packet` is shorter than a header.
    #[inline(always)]
    pub(crate) fn write(&self, packet: &mut [u8]) {
        let header: &mut [u8; HEADER_BYTES] =
            packet.first_chunk_mut().expect("a packet has room for its header");
        let behind_route = header[ROUTE_BYTES..].as_chunks_mut::<8>().0;
        for (bytes, word) in behind_route.iter_mut().zip([self.batch, self.sequence, self.extent]) {
            *bytes = word.to_le_bytes();
        }
    }

    /// Reads the contents' part; `None` if the packet is too short or of no known kind.
    #[inline(always)]
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = packet.first_chunk()?;
        let words = header.as_chunks::<8>().0;
        let word = |index: usize| u64::from_le_bytes(words[index]);
        let contents = Self { batch: word(3), sequence: word(4), extent: word(5) };
        // The byte behind the kind is 0, or 1 of what was sent before.
        let kind = contents.batch & (KIND_MASK | (0xff & !1) << AGAIN_BIT);
        let kinds =
            (Kind::Request as u64) << KIND_BIT..=(Kind::ContinueResponse as u64) << KIND_BIT;
        kinds.contains(&kind).then_some(contents)
    }

    /// Whether this is a message of `message_bytes` in one packet.
    #[inline(always)]
    pub(crate) fn is_one_packet(&self, message_bytes: usize) -> bool {
        u32::try_from(message_bytes).is_ok_and(|bytes| self.extent == extent_of_one(bytes))
    }

    /// Whether this is a fragment of several, whatever their size.
    #[inline(always)]
    pub(crate) fn is_fragment(&self) -> bool {
        let Contents { fragment, fragments, .. } = Contents::from(*self);
        fragments > 1 && fragment < fragments
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the field is shifted to the low bits")]
    fn kind_byte(&self) -> u8 {
        (self.batch >> KIND_BIT) as u8
    }

    /// Whether it is of this kind.
    #[inline(always)]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind_byte() == kind as u8
    }

    /// Worker at both ends.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the field is in the low bits")]
    pub(crate) fn worker(&self) -> u16 {
        self.batch as u16
    }

    /// Coroutine whose batch this is.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the field is shifted to the low bits")]
    pub(crate) fn coroutine(&self) -> u16 {
        (self.batch >> COROUTINE_BIT) as u16
    }

    /// Messages in the packet.
    #[inline(always)]
    pub(crate) fn messages(&self) -> u16 {
        (self.batch >> MESSAGES_BIT) as u16
    }

    /// Whether the request was sent before.
    #[inline(always)]
    pub(crate) fn is_again(&self) -> bool {
        self.batch >> AGAIN_BIT & 1 == 1
    }

    /// The same, of a request that was sent before.
    pub(crate) fn again(self) -> Self {
        Self { batch: self.batch | 1 << AGAIN_BIT, ..self }
    }
}

impl From<Contents> for ContentsWords {
    fn from(contents: Contents) -> Self {
        let Contents { worker, coroutine, kind, again, messages, sequence, .. } = contents;
        let Contents { fragment, fragments, message_bytes, .. } = contents;
        Self {
            batch: u64::from(worker)
                | u64::from(coroutine) << COROUTINE_BIT
                | (kind as u64) << KIND_BIT
                | u64::from(again) << AGAIN_BIT
                | u64::from(messages) << MESSAGES_BIT,
            sequence,
            extent: u64::from(fragment)
                | u64::from(fragments) << FRAGMENTS_BIT
                | u64::from(message_bytes) << BYTES_BIT,
        }
    }
}

impl From<ContentsWords> for Contents {
    #[expect(clippy::cast_possible_truncation, reason = "each field is shifted to the low bits")]
    fn from(words: ContentsWords) -> Self {
        Self {
            worker: words.worker(),
            coroutine: words.coroutine(),
            kind: match words.kind_byte() {
                1 => Kind::Request,
                2 => Kind::Response,
                3 => Kind::ContinueRequest,
                // `parse` takes no others.
                _ => Kind::ContinueResponse,
            },
            again: words.is_again(),
            messages: words.messages(),
            sequence: words.sequence,
            fragment: words.extent as u16,
            fragments: (words.extent >> FRAGMENTS_BIT) as u16,
            message_bytes: (words.extent >> BYTES_BIT) as u32,
        }
    }
}

impl Contents {
    /// Writes the contents' part of a packet's header.
    ///
    /// # Panics
    /// If `packet` is shorter than a header.
    pub fn write(&self, packet: &mut [u8]) {
        ContentsWords::from(*self).write(packet);
    }

    /// Reads the contents' part; `None` if the packet is too short or of no known kind.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        ContentsWords::parse(packet).map(Self::from)
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
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn header()(
            (cluster_id, epoch, source, destination) in any::<(u32, u32, u16, u16)>(),
            (source_incarnation, destination_incarnation) in any::<(u32, u32)>(),
            (worker, coroutine, kind, again, messages) in
                (any::<u16>(), any::<u16>(), 0..4_usize, any::<bool>(), any::<u16>()),
            (sequence, fragment, fragments, message_bytes) in any::<(u64, u16, u16, u32)>(),
        ) -> (Route, Contents) {
            let kind = [
                Kind::Request, Kind::Response, Kind::ContinueRequest, Kind::ContinueResponse,
            ][kind];
            let route = Route {
                cluster_id, epoch, source, destination, source_incarnation, destination_incarnation,
            };
            let contents = Contents {
                worker, coroutine, kind, again, messages, sequence, fragment, fragments,
                message_bytes,
            };
            (route, contents)
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed((route, contents) in header(), flip: prop::sample::Index) {
            let mut packet = vec![0xAA; HEADER_BYTES + 8];
            RouteWords::from(route).write(&mut packet);
            contents.write(&mut packet);
            prop_assert_eq!(Route::parse(&packet), Some(route));
            prop_assert_eq!(Contents::parse(&packet), Some(contents));
            let too_short = &packet[..HEADER_BYTES - 1];
            prop_assert_eq!((Route::parse(too_short), Contents::parse(too_short)), (None, None));
            seal(&mut packet);
            prop_assert!(is_intact(&packet));
            let at = flip.index(packet.len());
            packet[at] ^= 1;
            prop_assert!(!is_intact(&packet));
        }

        #[test]
        fn words_say_what_contents_do((_, contents) in header(), bytes: u32, count: u16) {
            let words = ContentsWords::from(contents);
            let Contents { worker, coroutine, sequence, fragment, fragments, .. } = contents;
            prop_assert_eq!(
                words.is_one_packet(bytes as usize),
                (fragment, fragments, contents.message_bytes) == (0, 1, bytes)
            );
            prop_assert_eq!(words.is_fragment(), fragments > 1 && fragment < fragments);
            let one = Contents { messages: count, fragment: 0, fragments: 1, message_bytes: bytes, ..contents };
            prop_assert!(ContentsWords::from(one).is_one_packet(bytes as usize));
            let response = Contents { kind: Kind::Response, messages: contents.messages, ..one };
            prop_assert_eq!(response, words.response(bytes).into());
            let request = ContentsWords::request((worker, coroutine, sequence), count, bytes);
            let expected = Contents { kind: Kind::Request, again: false, ..one };
            prop_assert_eq!(expected, request.into());
            prop_assert_eq!(Contents { again: true, ..expected }, request.again().into());
        }

        #[test]
        fn no_other_kinds_are_parsed((_, contents) in header(), kind: u8, again: u8) {
            let mut packet = vec![0; HEADER_BYTES];
            contents.write(&mut packet);
            (packet[28], packet[29]) = (kind, again);
            let is_known = (1..=4).contains(&kind) && again <= 1;
            prop_assert_eq!(Contents::parse(&packet).is_some(), is_known);
        }
    }
}
