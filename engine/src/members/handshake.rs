//! The handshake of two members: each sends its identity and its settings, and the one that was called compares them.
//!
//! ```text
//! caller (the greater number)    Hello ──────────────────────▶  called: right key, right settings, not there yet
//!                                ◀────────────── Hello, or Refused, TooLate, WillCall
//!                                Confirmed ──────────────────▶
//!                                ◀────────────────── Confirmed
//! ```
//! A member whose settings differ is refused; the error names the setting and both values. A process that is refused ends with the
//! reason, and the called member waits on. A broken connection is replaced by a handshake, too: then the caller names the
//! incarnation that it was connected with.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use gannet_rpc::ClusterKey;

use crate::accept::LimitedReader;
use crate::members::frame::{self, Frame, FrameError, Hello, Seal};

/// Longest wait for the other's part of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads of one frame of a handshake, which is short.
const READS_MAX: u32 = 16;

/// A connection to a member, after the handshake.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) hello: Hello,
    pub(super) stream: TcpStream,
    /// Of the frames that this member sends.
    pub(super) sending: Seal,
    /// Of the frames that the other sends.
    pub(super) receiving: Seal,
}

/// How a call ended that gave no connection.
#[derive(Debug)]
pub(super) enum CallError {
    /// No process answers, or not now.
    Unreachable,
    /// No process listens at the address.
    NobodyListens,
    /// The member there stops, and has passed the points below.
    Leaving { passed: u64 },
    /// The process there refuses this member.
    Refused(String),
    /// The members there have begun without this one.
    TooLate(String),
}

impl Connection {
    fn new(key: Option<&ClusterKey>, own: &Hello, hello: Hello, stream: TcpStream) -> Self {
        let sending = Seal::between(key, own, &hello);
        let receiving = Seal::between(key, &hello, own);
        Self { hello, stream, sending, receiving }
    }

    /// Shows the other that its part of the handshake was heard just now.
    fn confirm(&mut self) -> Result<(), FrameError> {
        Ok(frame::write(&mut self.stream, &Frame::Confirmed, Some(&mut self.sending))?)
    }

    /// Waits until the other has shown the same; from then on it may be silent.
    fn be_confirmed(&mut self) -> Result<(), FrameError> {
        let mut reader = LimitedReader { stream: &self.stream, reads_left: READS_MAX };
        match frame::read(&mut reader, &mut self.receiving)? {
            Frame::Confirmed => Ok(self.stream.set_read_timeout(None)?),
            _ => Err(FrameError::Malformed),
        }
    }
}

/// Why a caller is rejected.
pub(super) enum Rejection {
    /// It does not fit.
    Refuse(String),
    /// All have come.
    TooLate(String),
    /// It will be called.
    WillCall,
    /// This member stops, and has passed the points below.
    Leaving { passed: u64 },
}

/// Calls the member `node` at an address.
pub(super) fn call(
    node: usize,
    address: SocketAddr,
    own: &Hello,
    key: Option<&ClusterKey>,
) -> Result<Connection, CallError> {
    let unreachable = |_| CallError::Unreachable;
    let connected = TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT);
    let mut stream = connected.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => CallError::NobodyListens,
        _ => CallError::Unreachable,
    })?;
    if stream.local_addr().is_ok_and(|own| own == address) {
        // Where nobody listens, the system may take the same port for the caller, and connect it to itself.
        return Err(CallError::NobodyListens);
    }
    prepare(&stream).map_err(unreachable)?;
    let mut seal = Seal::new(key);
    frame::write(&mut stream, &Frame::Hello(own.clone()), Some(&mut seal)).map_err(unreachable)?;
    let mut reader = LimitedReader { stream: &stream, reads_left: READS_MAX };
    match frame::read(&mut reader, &mut Seal::new(key)) {
        Ok(Frame::Hello(hello)) if hello.node == node => {
            let mut connection = Connection::new(key, own, hello, stream);
            connection.confirm().and_then(|()| connection.be_confirmed()).map_err(|error| {
                match error {
                    FrameError::Key => CallError::Refused(error.to_string()),
                    _ => CallError::Unreachable,
                }
            })?;
            Ok(connection)
        }
        Ok(Frame::Hello(hello)) => {
            Err(CallError::Refused(format!("it is node {} and not {node}", hello.node)))
        }
        Ok(Frame::Refused { reason }) => Err(CallError::Refused(reason)),
        Ok(Frame::TooLate { reason }) => Err(CallError::TooLate(reason)),
        Ok(Frame::WillCall) => Err(CallError::Unreachable),
        Ok(Frame::Leaving { passed }) => Err(CallError::Leaving { passed }),
        Ok(_) => Err(CallError::Refused(FrameError::Malformed.to_string())),
        Err(FrameError::Ended | FrameError::Broken(_)) => Err(CallError::Unreachable),
        Err(error) => Err(CallError::Refused(error.to_string())),
    }
}

/// Answers a call; a reason if the caller was refused, none if it will be called.
///
/// `rejection` tells why a caller with this identity is rejected, if it is.
pub(super) fn answer(
    mut stream: TcpStream,
    own: &Hello,
    key: Option<&ClusterKey>,
    rejection: impl FnOnce(&Hello) -> Option<Rejection>,
) -> Result<Connection, Option<String>> {
    let failed = |error: FrameError| Some(error.to_string());
    prepare(&stream).map_err(|error| failed(error.into()))?;
    let mut reader = LimitedReader { stream: &stream, reads_left: READS_MAX };
    let heard = frame::read(&mut reader, &mut Seal::new(key));
    let mut seal = Seal::new(key);
    let (reply, seal) = match heard {
        Ok(Frame::Hello(hello)) => match rejection(&hello) {
            None => {
                frame::write(&mut stream, &Frame::Hello(own.clone()), Some(&mut seal))
                    .map_err(|error| failed(error.into()))?;
                let mut connection = Connection::new(key, own, hello, stream);
                connection.be_confirmed().and_then(|()| connection.confirm()).map_err(failed)?;
                return Ok(connection);
            }
            Some(Rejection::Refuse(reason)) => (Frame::Refused { reason }, Some(&mut seal)),
            Some(Rejection::TooLate(reason)) => (Frame::TooLate { reason }, Some(&mut seal)),
            Some(Rejection::WillCall) => (Frame::WillCall, Some(&mut seal)),
            Some(Rejection::Leaving { passed }) => (Frame::Leaving { passed }, Some(&mut seal)),
        },
        Ok(_) | Err(FrameError::Malformed) => {
            let reason = "it does not speak the protocol of members of a cluster".to_owned();
            (Frame::Refused { reason }, None)
        }
        Err(FrameError::Key) => (Frame::Refused { reason: other_key(own, key) }, None),
        Err(error) => return Err(failed(error)),
    };
    // The caller may be gone already.
    let _ = frame::write(&mut stream, &reply, seal);
    match reply {
        Frame::Refused { reason } | Frame::TooLate { reason } => Err(Some(reason)),
        _ => Err(None),
    }
}

/// The reason for a caller whose frame does not open.
fn other_key(own: &Hello, key: Option<&ClusterKey>) -> String {
    match key {
        Some(_) => format!(
            "its cluster key is not that of node {}, or it has none: give all nodes the same file",
            own.node
        ),
        None => format!(
            "it has a cluster key, and node {} trusts the network: tell all nodes the same",
            own.node
        ),
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))
}

/// What two members do not agree on, from the called one's view.
pub(super) fn difference(own: &Hello, other: &Hello) -> Option<String> {
    let names = own.settings.keys().chain(other.settings.keys());
    let setting = |of: &Hello, name: &str| of.settings.get(name).cloned();
    let mut differing = names.filter(|name| setting(own, name) != setting(other, name));
    let name = differing.next()?;
    let said = |of: &Hello| setting(of, name).unwrap_or_else(|| "nothing".to_owned());
    Some(format!(
        "{name}: node {} has {} and node {} has {}; give all nodes the same",
        own.node,
        said(own),
        other.node,
        said(other)
    ))
}
