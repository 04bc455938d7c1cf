//! Frames: the messages between members besides requests, on a stream.
//!
//! ```text
//! u32 length of the text | u8 1 if sealed | text: JSON | 32 bytes: HMAC-SHA-256, or zeros
//! ```
//! Little-endian. With a cluster key every frame is sealed, but for a [`Frame::Refused`] to a process that has another key:
//! that is believed. At worst it keeps a process from starting, or a member from renewing a connection. Whoever can send it can
//! break connections anyway. The first frame each way is sealed with the cluster
//! key itself; those behind it with a key made of it and of both members' nonces, over their number too. A handshake
//! ends with such frames both ways, so that frames of another connection that are replayed do not make a member.
//!
//! *Not here*: the order of frames, in `handshake` and in `mod`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use gannet_rpc::ClusterKey;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::change::ChangeMessage;
use crate::statistics::NodeReport;

/// Longest text.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Longest text of a first frame, which anybody can send.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;
const TAG_BYTES: usize = 32;
const HEADER_BYTES: usize = 5;

/// A message of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Frame {
    /// Its identity and its settings.
    Hello(Hello),
    /// The hello was received.
    Confirmed,
    /// The other cannot be a member.
    Refused { reason: String },
    /// All members have come: the other is none of them, or has lost its memory.
    TooLate { reason: String },
    /// The other is to wait until it is called.
    WillCall,
    /// It has come to a point where all members meet, to do `what`; `said` is its part there.
    Arrived { point: u64, what: String, said: String },
    /// Its part in a change of the configuration.
    Change(ChangeMessage),
    /// Its report, every second.
    Report(NodeReport),
    /// It stops. All members have come to the points below `passed`; the other may not have received that from all of them.
    Leaving { passed: u64 },
}

/// The identity and the settings of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) node: usize,
    /// A random number of this start of the process.
    pub(super) incarnation: u32,
    /// Another one in each connection, so that no two of them have the same keys.
    pub(super) nonce: [u8; 16],
    /// The incarnation of the called member with which a connection has broken, if this one is to replace it.
    pub(super) resumes: Option<u32>,
    /// What all members must agree on, by name.
    pub(super) settings: BTreeMap<String, String>,
}

/// The key and the number of the next frame in one direction.
#[derive(Clone, Debug)]
pub(super) struct Seal {
    key: Option<hmac::Key>,
    number: u64,
}

impl Seal {
    /// The seal of a first frame.
    pub(super) fn new(key: Option<&ClusterKey>) -> Self {
        Self { key: key.map(member_key), number: 0 }
    }

    /// The seal of what `from` says to the other behind the first frames.
    pub(super) fn between(key: Option<&ClusterKey>, from: &Hello, to: &Hello) -> Self {
        let nonces = [from.nonce, to.nonce].concat();
        let derived = |key: &ClusterKey| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&member_key(key), &nonces).as_ref())
        };
        Self { key: key.map(derived), number: 1 }
    }

    fn sealed(&self, text: &[u8]) -> Vec<u8> {
        [&self.number.to_le_bytes(), text].concat()
    }

    /// The tag of the next frame.
    fn tag(&mut self, text: &[u8]) -> [u8; TAG_BYTES] {
        let mut tag = [0; TAG_BYTES];
        if let Some(key) = &self.key {
            tag.copy_from_slice(hmac::sign(key, &self.sealed(text)).as_ref());
        }
        self.number += 1;
        tag
    }

    /// Whether the next frame has the right tag.
    fn opens(&mut self, text: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        let opens = match &self.key {
            Some(key) => hmac::verify(key, &self.sealed(text), tag).is_ok(),
            None => *tag == [0; TAG_BYTES],
        };
        self.number += u64::from(opens);
        opens
    }
}

fn member_key(key: &ClusterKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &key.derived(b"members"))
}

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("its process has ended")]
    Ended,
    #[error("the connection has broken: {0}")]
    Broken(io::Error),
    #[error("what it said is not sealed with the cluster key, or is damaged")]
    Key,
    #[error("it does not speak the protocol of members of a cluster")]
    Malformed,
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Ended } else { Self::Broken(error) }
    }
}

/// Writes a frame; without a seal, in clear.
pub(super) fn write(
    stream: &mut impl Write,
    frame: &Frame,
    seal: Option<&mut Seal>,
) -> io::Result<()> {
    let text = serde_json::to_vec(frame).map_err(io::Error::other)?;
    let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= TEXT_BYTES_MAX);
    let length =
        length.ok_or_else(|| io::Error::other("more was to be said than a frame holds"))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.push(u8::from(seal.is_some()));
    bytes.extend_from_slice(&text);
    let tag = seal.map_or([0; TAG_BYTES], |seal| seal.tag(&text));
    bytes.extend_from_slice(&tag);
    stream.write_all(&bytes)
}

/// Reads a frame. In clear only a refusal is taken, as the first one.
pub(super) fn read(stream: &mut impl Read, seal: &mut Seal) -> Result<Frame, FrameError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let [a, b, c, d, is_sealed] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let is_first = seal.number == 0;
    let allowed = if is_first { HANDSHAKE_BYTES_MAX } else { TEXT_BYTES_MAX };
    if length > allowed || is_sealed > 1 {
        return Err(FrameError::Malformed);
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    let mut tag = [0; TAG_BYTES];
    stream.read_exact(&mut tag)?;
    if is_sealed == 1 && !seal.opens(&text, &tag) {
        return Err(FrameError::Key);
    }
    let frame = serde_json::from_slice(&text).map_err(|_| FrameError::Malformed)?;
    match frame {
        Frame::Refused { .. } if is_first => Ok(frame),
        _ if is_sealed == 1 => Ok(frame),
        _ => Err(FrameError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: usize, nonce: u8) -> Hello {
        let settings = BTreeMap::new();
        Hello { node, incarnation: 7, nonce: [nonce; 16], resumes: None, settings }
    }

    #[test]
    fn frames_are_read_as_they_were_written_and_only_once_with_the_same_key() {
        let (key, other) = (ClusterKey::new([3; 32]), ClusterKey::new([4; 32]));
        let key = Some(&key);
        let (a, b) = (hello(0, 1), hello(1, 2));
        let mut written = Seal::between(key, &a, &b);
        let mut bytes = Vec::new();
        let frames = [
            Frame::Arrived { point: 1, what: "table".to_owned(), said: String::new() },
            Frame::Leaving { passed: 2 },
        ];
        for frame in &frames {
            write(&mut bytes, frame, Some(&mut written)).unwrap();
        }
        let mut seal = Seal::between(key, &a, &b);
        let mut rest = &bytes[..];
        for frame in &frames {
            assert_eq!(read(&mut rest, &mut seal).unwrap(), *frame);
        }
        assert!(matches!(read(&mut rest, &mut seal), Err(FrameError::Ended)));
        assert!(matches!(read(&mut &bytes[..], &mut seal), Err(FrameError::Key)), "said again");
        let others = [
            Seal::between(Some(&other), &a, &b),
            Seal::between(key, &b, &a),
            Seal::between(key, &hello(0, 9), &b),
            Seal::new(key),
        ];
        for mut other in others {
            assert!(matches!(read(&mut &bytes[..], &mut other), Err(FrameError::Key)));
        }
        for at in HEADER_BYTES..bytes.len() / 2 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let mut seal = Seal::between(key, &a, &b);
            assert!(read(&mut &changed[..], &mut seal).is_err(), "byte {at}");
        }
    }

    #[test]
    fn in_clear_only_a_refusal_is_taken() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Frame::Leaving { passed: 0 }, None).unwrap();
        let mut seal = Seal::new(Some(&ClusterKey::new([3; 32])));
        assert!(matches!(read(&mut &bytes[..], &mut seal), Err(FrameError::Malformed)));
        let refused = Frame::Refused { reason: "no".to_owned() };
        let mut bytes = Vec::new();
        write(&mut bytes, &refused, None).unwrap();
        assert_eq!(read(&mut &bytes[..], &mut seal).unwrap(), refused);
        assert!(matches!(read(&mut &[255; 64][..], &mut seal), Err(FrameError::Malformed)));
    }
}
