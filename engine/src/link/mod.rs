//! The link between two processes: members of a cluster, or a client and a node.
//!
//! ```text
//! Delivery   outlives connections: numbers messages, and says again what was not heard        delivery.rs
//! Session    one connection as a state machine: handshake, opening, welcome, messages         session.rs
//!   ├─ prefaces in clear: version, role, whether there is a key                                preface.rs
//!   ├─ handshake: Noise NNpsk0, or NN without a key                                            handshake.rs
//!   └─ frames: sealed parts of messages                                                        frame.rs
//! Connection the socket of a session                                                           stream.rs
//! ```
//! Messages are encoded by `postcard`. A user of the link is a [`User`]: it names its role and the types of what is said.
//!
//! Clients have a `Connection` each; a member drives the sessions with all other members itself.
//!
//! *Invariants*: only `stream.rs` knows sockets, and nothing here knows a clock: a simulation drives sessions over streams
//! of its own. Every length is bounded before anything is allocated. A key of one role opens nothing of another.
//!
//! *Not here*: who calls whom and when, in `clients` and `members`; how many connections may be pending, in `pending`.

mod delivery;
mod frame;
mod handshake;
mod preface;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use delivery::Delivery;
pub(crate) use session::{Session, decoded, encoded};
pub(crate) use stream::{Connection, LinkEnd, ReceiveHalf, keep_alive};

/// Version of everything that members and clients say to each other, over links and in datagrams.
pub(crate) const VERSION: u8 = 21;

/// What the caller is to the called process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Another node of the cluster.
    Member = 1,
    /// A program beside the cluster.
    Client = 2,
}

impl Role {
    /// The purpose of the key that is derived for this role.
    fn purpose(self) -> &'static [u8] {
        match self {
            Self::Member => b"members",
            Self::Client => b"clients",
        }
    }
}

/// A user of the link, at the end that answers calls of its role, or at either end.
pub(crate) trait User {
    /// What the caller is.
    const ROLE: Role;
    /// What the caller says at the start.
    type Opening: Serialize + DeserializeOwned;
    /// What the called process answers, which may be a refusal.
    type Welcome: Serialize + DeserializeOwned;
    /// What is heard from then on.
    type Message: DeserializeOwned;

    /// Does what a message is for.
    ///
    /// # Errors
    /// Why the connection must end.
    fn hear(&mut self, message: Self::Message) -> Result<(), LinkError>;

    /// What the end of a connection means: whether the link waits for another connection.
    fn outlives(&self, end: &LinkError) -> bool;
}

/// Why a connection gives nothing more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the other has ended the connection")]
    Ended,
    #[error("no answer within the time-out")]
    TimedOut,
    #[error("the connection has broken: {0}")]
    Broken(io::Error),
    #[error("it has another key, or what it said was damaged")]
    Key,
    #[error("what it said was damaged")]
    Damaged,
    #[error("it needs a key, and none was given")]
    KeyWanted,
    #[error("it trusts its network and takes no key, and one was given")]
    NoKeyWanted,
    #[error("it speaks version {0} of the protocol, and this is version {VERSION}")]
    Version(u8),
    #[error("the port is for other connections: members and clients have ports of their own")]
    Role,
    #[error("it does not speak this protocol")]
    Malformed,
    #[error("a message is longer than any may be")]
    TooLong,
    #[error("it has not heard what it was told for too long")]
    Silent,
    #[error("the ciphers have failed: {0}")]
    Cipher(String),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Ended,
            // What Linux says of a time-out.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Broken(error),
        }
    }
}
