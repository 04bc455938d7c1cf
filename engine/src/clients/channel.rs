//! The stream between a client and a node: a handshake, and then messages.
//!
//! ```text
//! hello, each way       "gannet" | u8 version | u8 1 if sealed, 2 if refused | 16 bytes: nonce
//! message               u32 length | text | 16 bytes: tag of AES-256-GCM, if sealed
//! ```
//! Little-endian. The key of each direction is derived from the cluster key, the sender's side, and both nonces, so that nothing
//! that was said can be played again or back, and the number of a message is its nonce. Both begin with an empty message:
//! it shows that they have the key.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use gannet_rpc::ClusterKey;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::accept::LimitedReader;
use crate::clients::MESSAGE_BYTES;

const MAGIC: [u8; 6] = *b"gannet";
/// Version of everything that clients and nodes say to each other.
const VERSION: u8 = 1;
const HELLO_BYTES: usize = 24;
const NONCE_BYTES: usize = 16;
type Hello = [u8; HELLO_BYTES];
const TAG_BYTES: usize = 16;
/// Longest message. A message ends after the value that fills it, which has up to 1 MiB.
const TEXT_BYTES_MAX: usize = 8 * MESSAGE_BYTES;
/// Longest wait for the other's part of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads of the other's part of the handshake, which is short.
const HANDSHAKE_READS_MAX: u32 = 8;
/// TCP keepalive: time without a packet before the first probe, number of probes, and time between two.
const KEEPALIVE: (Duration, u32, Duration) = (Duration::from_secs(60), 6, Duration::from_secs(10));

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

/// The sender of a message.
#[derive(Clone, Copy, Debug)]
enum Side {
    Client,
    Node,
}

/// The mode that a hello names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Clear = 0,
    Sealed = 1,
    Refused = 2,
}

fn hello(mode: Mode) -> io::Result<Hello> {
    let mut hello = [0; HELLO_BYTES];
    hello[..6].copy_from_slice(&MAGIC);
    hello[6..8].copy_from_slice(&[VERSION, mode as u8]);
    getrandom::fill(&mut hello[8..]).map_err(io::Error::other)?;
    Ok(hello)
}

fn mode(hello: &Hello) -> Result<Mode, ChannelError> {
    match hello[6..8] {
        _ if hello[..6] != MAGIC => Err(ChannelError::Malformed),
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
    /// Of what `side` says, by the hellos of the client and of the node.
    fn new(key: &ClusterKey, side: Side, hellos: [&Hello; 2]) -> Result<Self, ChannelError> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key.derived(b"clients"));
        let mut parts = vec![side as u8];
        for hello in hellos {
            parts.extend_from_slice(&hello[HELLO_BYTES - NONCE_BYTES..]);
        }
        let key = UnboundKey::new(&AES_256_GCM, hmac::sign(&key, &parts).as_ref());
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
    /// Performs the handshake as a client. After it the node's answers are waited for up to `timeout`.
    pub(super) fn call(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        timeout: Duration,
    ) -> Result<Self, ChannelError> {
        prepare(&stream)?;
        let own = hello(if key.is_some() { Mode::Sealed } else { Mode::Clear })?;
        (&stream).write_all(&own)?;
        let other = receive_hello(&stream)?;
        if mode(&other)? == Mode::Refused {
            return Err(ChannelError::Full);
        }
        agree(mode(&other)?, key)?;
        let mut channel = Self::new(stream, key, Side::Client, [&own, &other])?;
        channel.send(&())?;
        // A node to which this is nothing but noise ends the connection.
        channel.receive_at_most::<()>(0, HANDSHAKE_READS_MAX).map_err(|error| match error {
            ChannelError::Ended if key.is_some() => ChannelError::Key,
            error => error,
        })?;
        channel.stream.set_read_timeout(Some(timeout))?;
        channel.stream.set_write_timeout(Some(timeout))?;
        Ok(channel)
    }

    /// Performs the handshake as a node, or refuses the client because there are too many. After it the client may be silent for
    /// `idle_timeout`.
    pub(super) fn answer(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        is_full: bool,
        idle_timeout: Option<Duration>,
    ) -> Result<Self, ChannelError> {
        prepare(&stream)?;
        let other = receive_hello(&stream)?;
        let own = match key {
            _ if is_full => hello(Mode::Refused)?,
            Some(_) => hello(Mode::Sealed)?,
            None => hello(Mode::Clear)?,
        };
        // Also to a client of another version, which reads this node's version from it.
        (&stream).write_all(&own)?;
        if is_full {
            return Err(ChannelError::Full);
        }
        agree(mode(&other)?, key)?;
        let mut channel = Self::new(stream, key, Side::Node, [&other, &own])?;
        channel.receive_at_most::<()>(0, HANDSHAKE_READS_MAX)?;
        channel.send(&())?;
        channel.stream.set_read_timeout(idle_timeout)?;
        Ok(channel)
    }

    fn new(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        own: Side,
        hellos: [&Hello; 2],
    ) -> Result<Self, ChannelError> {
        let other = match own {
            Side::Client => Side::Node,
            Side::Node => Side::Client,
        };
        let seal = |side| key.map(|key| Seal::new(key, side, hellos)).transpose();
        Ok(Self { stream, sending: seal(own)?, receiving: seal(other)?, bytes: Vec::new() })
    }

    /// The stream, for a thread that will shut it down.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether nothing has arrived without a request, such as the end of the connection.
    pub(super) fn is_quiet(&self) -> bool {
        let look = || {
            self.stream.set_nonblocking(true)?;
            let looked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            looked
        };
        look().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
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

    /// Receives the next message, of any length that the protocol allows.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        self.receive_at_most(TEXT_BYTES_MAX, u32::MAX)
    }

    fn receive_at_most<T: DeserializeOwned>(
        &mut self,
        text_bytes_max: usize,
        reads_left: u32,
    ) -> Result<T, ChannelError> {
        let Self { stream, receiving, bytes, .. } = self;
        let mut stream = LimitedReader { stream, reads_left };
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

fn receive_hello(stream: &TcpStream) -> io::Result<Hello> {
    let mut hello = [0; HELLO_BYTES];
    LimitedReader { stream, reads_left: HANDSHAKE_READS_MAX }.read_exact(&mut hello)?;
    Ok(hello)
}

/// Whether both have a key, or neither.
fn agree(other: Mode, key: Option<&ClusterKey>) -> Result<(), ChannelError> {
    match (other, key) {
        (Mode::Clear, None) | (Mode::Sealed, Some(_)) => Ok(()),
        (Mode::Clear, Some(_)) => Err(ChannelError::NoKeyWanted),
        (Mode::Sealed, None) => Err(ChannelError::KeyWanted),
        (Mode::Refused, _) => Err(ChannelError::Malformed),
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    let (idle, probes, interval) = KEEPALIVE;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// The results of a handshake with these keys, at both ends.
    fn handshake(
        client: Option<[u8; 32]>,
        node: Option<[u8; 32]>,
    ) -> (Result<Channel, ChannelError>, Result<Channel, ChannelError>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (client, node) = (client.map(ClusterKey::new), node.map(ClusterKey::new));
        std::thread::scope(|scope| {
            let answered = scope.spawn(|| {
                Channel::answer(listener.accept().unwrap().0, node.as_ref(), false, None)
            });
            (Channel::call(stream, client.as_ref(), TIMEOUT), answered.join().unwrap())
        })
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        for key in [None, Some([3; 32])] {
            let (client, node) = handshake(key, key);
            let (mut client, mut node) = (client.unwrap(), node.unwrap());
            let long = vec![7_u8; 3 << 20];
            client.send(&("first", 1_u64)).unwrap();
            assert_eq!(node.receive::<(String, u64)>().unwrap(), ("first".to_owned(), 1));
            std::thread::scope(|scope| {
                scope.spawn(|| client.send(&long).unwrap());
                assert_eq!(node.receive::<Vec<u8>>().unwrap(), long);
            });
            node.send(&"answer").unwrap();
            assert_eq!(client.receive::<String>().unwrap(), "answer");
            drop(client);
            assert!(matches!(node.receive::<u8>(), Err(ChannelError::Ended)));
        }
    }

    #[test]
    fn who_has_another_key_is_told_so() {
        let error = |client, node| {
            let (client, node) = handshake(client, node);
            (client.err().unwrap(), node.err().unwrap())
        };
        use ChannelError::{Key, KeyWanted, NoKeyWanted};
        assert!(matches!(error(Some([3; 32]), Some([4; 32])), (Key, Key)));
        assert!(matches!(error(None, Some([4; 32])), (KeyWanted, NoKeyWanted)));
        assert!(matches!(error(Some([4; 32]), None), (NoKeyWanted, KeyWanted)));
    }

    #[test]
    fn who_only_repeats_what_it_hears_has_no_key() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut echo = listener.accept().unwrap().0;
        std::thread::scope(|scope| {
            scope.spawn(move || io::copy(&mut echo.try_clone().unwrap(), &mut echo));
            let called = Channel::call(stream, Some(&ClusterKey::new([3; 32])), TIMEOUT);
            assert!(matches!(called.err(), Some(ChannelError::Key)));
        });
    }

    #[test]
    fn what_is_damaged_or_said_again_is_refused() {
        let (client, node) = handshake(Some([3; 32]), Some([3; 32]));
        let (mut client, mut node) = (client.unwrap(), node.unwrap());
        client.send(&1_u64).unwrap();
        let said = client.bytes.clone();
        assert_eq!(node.receive::<u64>().unwrap(), 1);
        (&client.stream).write_all(&said).unwrap();
        assert!(matches!(node.receive::<u64>(), Err(ChannelError::Key)));
        (&client.stream).write_all(&[255; 64]).unwrap();
        assert!(matches!(node.receive::<u64>(), Err(ChannelError::Malformed)));
    }
}
