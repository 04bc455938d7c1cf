//! The stream between a client and a node: a greeting, and then messages.
//!
//! ```text
//! greeting, each way    "gannet" | u8 version | u8 1 if sealed, 2 if refused | 16 bytes: nonce
//! message               u32 length | text | 16 bytes: tag of AES-256-GCM, if sealed
//! ```
//! Little-endian. The key of each direction is made of the cluster key and both nonces, so that no stream can be played
//! again, and the number of a message is its nonce. Both begin with an empty message: it shows that they have the key.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use gannet_rpc::ClusterKey;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clients::MESSAGE_BYTES;

const MAGIC: [u8; 6] = *b"gannet";
/// Version of everything that clients and nodes say to each other.
const VERSION: u8 = 1;
const GREETING_BYTES: usize = 24;
const NONCE_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// Longest message: what is sent at once is full behind its largest value, of 1 MiB.
const TEXT_BYTES_MAX: usize = 8 * MESSAGE_BYTES;
/// Longest wait for the other's part of the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no further message.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("the other has ended the connection")]
    Ended,
    #[error("no answer within the time-out")]
    TimedOut,
    #[error("the connection has broken: {0}")]
    Broken(io::Error),
    #[error("the other has another cluster key, or what it said was damaged")]
    Key,
    #[error("it needs the cluster key, and none was given")]
    KeyWanted,
    #[error("it trusts its network and takes no cluster key, and one was given")]
    NoKeyWanted,
    #[error("it has as many clients as it takes; wait, or raise its limit")]
    Full,
    #[error("it speaks version {0} of the protocol, and this is version {VERSION}")]
    Version(u8),
    #[error("it does not speak the protocol of clients")]
    Malformed,
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Ended,
            // What Linux says of a time-out.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Broken(error),
        }
    }
}

/// What is said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Clear = 0,
    Sealed = 1,
    Refused = 2,
}

fn greeting(mode: Mode) -> io::Result<[u8; GREETING_BYTES]> {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..6].copy_from_slice(&MAGIC);
    greeting[6..8].copy_from_slice(&[VERSION, mode as u8]);
    getrandom::fill(&mut greeting[8..]).map_err(io::Error::other)?;
    Ok(greeting)
}

fn mode(greeting: &[u8; GREETING_BYTES]) -> Result<Mode, ChannelError> {
    match greeting[6..8] {
        _ if greeting[..6] != MAGIC => Err(ChannelError::Malformed),
        [VERSION, 0] => Ok(Mode::Clear),
        [VERSION, 1] => Ok(Mode::Sealed),
        [VERSION, 2] => Ok(Mode::Refused),
        [VERSION, _] => Err(ChannelError::Malformed),
        [version, ..] => Err(ChannelError::Version(version)),
        [] => Err(ChannelError::Malformed),
    }
}

/// The key and the number of the next message in one direction.
struct Seal {
    key: LessSafeKey,
    number: u64,
}

impl Seal {
    /// Of what `from` says to `to`, each by the nonce of its greeting.
    fn new(
        key: &ClusterKey,
        from: &[u8; GREETING_BYTES],
        to: &[u8; GREETING_BYTES],
    ) -> Result<Self, ChannelError> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key.derived(b"clients"));
        let nonces = [&from[GREETING_BYTES - NONCE_BYTES..], &to[GREETING_BYTES - NONCE_BYTES..]];
        let key = UnboundKey::new(&AES_256_GCM, hmac::sign(&key, &nonces.concat()).as_ref());
        Ok(Self { key: LessSafeKey::new(key.map_err(|_| ChannelError::Key)?), number: 0 })
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// A stream whose ends know each other.
pub(super) struct Channel {
    stream: TcpStream,
    sending: Option<Seal>,
    receiving: Option<Seal>,
    bytes: Vec<u8>,
}

impl Channel {
    /// Greets a node. Later it is waited for up to `timeout`.
    pub(super) fn call(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        timeout: Duration,
    ) -> Result<Self, ChannelError> {
        prepare(&stream)?;
        let own = greeting(if key.is_some() { Mode::Sealed } else { Mode::Clear })?;
        (&stream).write_all(&own)?;
        let mut other = [0; GREETING_BYTES];
        (&stream).read_exact(&mut other)?;
        match (mode(&other)?, key) {
            (Mode::Clear, None) | (Mode::Sealed, Some(_)) => {}
            (Mode::Clear, Some(_)) => return Err(ChannelError::NoKeyWanted),
            (Mode::Sealed, None) => return Err(ChannelError::KeyWanted),
            (Mode::Refused, _) => return Err(ChannelError::Full),
        }
        let mut channel = Self::new(stream, key, &own, &other)?;
        channel.say(&())?;
        // A node to which this is nothing but noise ends the connection.
        channel.hear::<()>(0).map_err(|error| match error {
            ChannelError::Ended if key.is_some() => ChannelError::Key,
            error => error,
        })?;
        channel.stream.set_read_timeout(Some(timeout))?;
        channel.stream.set_write_timeout(Some(timeout))?;
        Ok(channel)
    }

    /// Answers a client, or refuses it because there are too many.
    pub(super) fn answer(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        is_full: bool,
    ) -> Result<Self, ChannelError> {
        prepare(&stream)?;
        let mut other = [0; GREETING_BYTES];
        (&stream).read_exact(&mut other)?;
        let own = match key {
            _ if is_full => greeting(Mode::Refused)?,
            Some(_) => greeting(Mode::Sealed)?,
            None => greeting(Mode::Clear)?,
        };
        // Also to somebody of another version, who finds this one in it.
        (&stream).write_all(&own)?;
        match (mode(&other)?, key) {
            _ if is_full => return Err(ChannelError::Full),
            (Mode::Clear, None) | (Mode::Sealed, Some(_)) => {}
            (Mode::Clear, Some(_)) => return Err(ChannelError::NoKeyWanted),
            (Mode::Sealed, None) => return Err(ChannelError::KeyWanted),
            (Mode::Refused, _) => return Err(ChannelError::Malformed),
        }
        let mut channel = Self::new(stream, key, &own, &other)?;
        channel.hear::<()>(0)?;
        channel.say(&())?;
        channel.stream.set_read_timeout(None)?;
        Ok(channel)
    }

    fn new(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        own: &[u8; GREETING_BYTES],
        other: &[u8; GREETING_BYTES],
    ) -> Result<Self, ChannelError> {
        let sending = key.map(|key| Seal::new(key, own, other)).transpose()?;
        let receiving = key.map(|key| Seal::new(key, other, own)).transpose()?;
        Ok(Self { stream, sending, receiving, bytes: Vec::new() })
    }

    /// Sends a message.
    pub(super) fn say(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        let Self { stream, sending, bytes, .. } = self;
        bytes.clear();
        bytes.extend_from_slice(&[0; 4]);
        let encoded = postcard::to_extend(message, std::mem::take(bytes));
        *bytes = encoded.map_err(|error| ChannelError::Broken(io::Error::other(error)))?;
        let length = u32::try_from(bytes.len() - 4).ok();
        let length = length.filter(|length| *length as usize <= TEXT_BYTES_MAX);
        let too_long = || ChannelError::Broken(io::Error::other("a message is too long"));
        bytes[..4].copy_from_slice(&length.ok_or_else(too_long)?.to_le_bytes());
        if let Some(seal) = sending {
            let nonce = seal.next_nonce();
            let text = &mut bytes[4..];
            let tag = seal.key.seal_in_place_separate_tag(nonce, Aad::empty(), text);
            bytes.extend_from_slice(tag.map_err(|_| ChannelError::Key)?.as_ref());
        }
        Ok(stream.write_all(bytes)?)
    }

    /// The next message, of any length that is possible.
    pub(super) fn hear_any<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        self.hear(TEXT_BYTES_MAX)
    }

    fn hear<T: DeserializeOwned>(&mut self, text_bytes_max: usize) -> Result<T, ChannelError> {
        let Self { stream, receiving, bytes, .. } = self;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > text_bytes_max {
            return Err(ChannelError::Malformed);
        }
        bytes.resize(length + if receiving.is_some() { TAG_BYTES } else { 0 }, 0);
        stream.read_exact(bytes)?;
        let text = match receiving {
            None => &bytes[..],
            Some(seal) => {
                let nonce = seal.next_nonce();
                let opened = seal.key.open_in_place(nonce, Aad::empty(), bytes);
                opened.map_err(|_| ChannelError::Key)?
            }
        };
        let (message, rest) =
            postcard::take_from_bytes(text).map_err(|_| ChannelError::Malformed)?;
        if rest.is_empty() { Ok(message) } else { Err(ChannelError::Malformed) }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING_TIMEOUT))?;
    stream.set_read_timeout(Some(GREETING_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// What both ends say of a greeting with these keys.
    fn greeted(
        client: Option<[u8; 32]>,
        node: Option<[u8; 32]>,
    ) -> (Result<Channel, ChannelError>, Result<Channel, ChannelError>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (client, node) = (client.map(ClusterKey::new), node.map(ClusterKey::new));
        std::thread::scope(|scope| {
            let answered =
                scope.spawn(|| Channel::answer(listener.accept().unwrap().0, node.as_ref(), false));
            (Channel::call(stream, client.as_ref(), TIMEOUT), answered.join().unwrap())
        })
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        for key in [None, Some([3; 32])] {
            let (client, node) = greeted(key, key);
            let (mut client, mut node) = (client.unwrap(), node.unwrap());
            let long = vec![7_u8; 3 << 20];
            client.say(&("first", 1_u64)).unwrap();
            assert_eq!(node.hear_any::<(String, u64)>().unwrap(), ("first".to_owned(), 1));
            std::thread::scope(|scope| {
                scope.spawn(|| client.say(&long).unwrap());
                assert_eq!(node.hear_any::<Vec<u8>>().unwrap(), long);
            });
            node.say(&"answer").unwrap();
            assert_eq!(client.hear_any::<String>().unwrap(), "answer");
            drop(client);
            assert!(matches!(node.hear_any::<u8>(), Err(ChannelError::Ended)));
        }
    }

    #[test]
    fn who_has_another_key_is_told_so() {
        let error = |client, node| {
            let (client, node) = greeted(client, node);
            (client.err().unwrap(), node.err().unwrap())
        };
        use ChannelError::{Key, KeyWanted, NoKeyWanted};
        assert!(matches!(error(Some([3; 32]), Some([4; 32])), (Key, Key)));
        assert!(matches!(error(None, Some([4; 32])), (KeyWanted, NoKeyWanted)));
        assert!(matches!(error(Some([4; 32]), None), (NoKeyWanted, KeyWanted)));
    }

    #[test]
    fn what_is_damaged_or_said_again_is_refused() {
        let (client, node) = greeted(Some([3; 32]), Some([3; 32]));
        let (mut client, mut node) = (client.unwrap(), node.unwrap());
        client.say(&1_u64).unwrap();
        let said = client.bytes.clone();
        assert_eq!(node.hear_any::<u64>().unwrap(), 1);
        (&client.stream).write_all(&said).unwrap();
        assert!(matches!(node.hear_any::<u64>(), Err(ChannelError::Key)));
        (&client.stream).write_all(&[255; 64]).unwrap();
        assert!(matches!(node.hear_any::<u64>(), Err(ChannelError::Malformed)));
    }
}
