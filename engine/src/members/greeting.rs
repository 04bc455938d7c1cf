//! How two members get to know each other: each says who it is and how it is set up, and the one that was called compares.
//!
//! ```text
//! caller (the greater number)    Hello ──────────────────────▶  called: right key, right settings, not there yet
//!                                ◀────────────── Hello, or Refused
//! ```
//! Whoever is refused ends with the reason; the called one goes on waiting for the right ones.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use gannet_rpc::ClusterKey;

use crate::members::frame::{self, Frame, FrameError, Hello, Seal};

/// Longest wait for the other's part of a greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a member that was greeted.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) hello: Hello,
    pub(super) stream: TcpStream,
    /// Of what this member says.
    pub(super) sending: Seal,
    /// Of what the other says.
    pub(super) receiving: Seal,
}

/// How a call ended that gave no connection.
#[derive(Debug)]
pub(super) enum CallError {
    /// Nobody is there yet.
    Unreachable,
    /// Whoever is there does not take this member.
    Refused(String),
}

impl Greeted {
    fn new(key: Option<&ClusterKey>, own: &Hello, hello: Hello, stream: TcpStream) -> Self {
        let sending = Seal::between(key, own, &hello);
        let receiving = Seal::between(key, &hello, own);
        Self { hello, stream, sending, receiving }
    }
}

/// Calls the member `node` at an address.
pub(super) fn call(
    node: usize,
    address: SocketAddr,
    own: &Hello,
    key: Option<&ClusterKey>,
) -> Result<Greeted, CallError> {
    let unreachable = |_| CallError::Unreachable;
    let mut stream = TcpStream::connect_timeout(&address, GREETING_TIMEOUT).map_err(unreachable)?;
    prepare(&stream).map_err(unreachable)?;
    let mut seal = Seal::new(key);
    frame::write(&mut stream, &Frame::Hello(own.clone()), Some(&mut seal)).map_err(unreachable)?;
    match frame::read(&mut stream, &mut Seal::new(key)) {
        Ok(Frame::Hello(hello)) if hello.node == node => {
            let _ = stream.set_read_timeout(None);
            Ok(Greeted::new(key, own, hello, stream))
        }
        Ok(Frame::Hello(hello)) => {
            Err(CallError::Refused(format!("it is node {} and not {node}", hello.node)))
        }
        Ok(Frame::Refused { reason }) => Err(CallError::Refused(reason)),
        Ok(_) => Err(CallError::Refused(FrameError::Malformed.to_string())),
        Err(FrameError::Ended | FrameError::Broken(_)) => Err(CallError::Unreachable),
        Err(error) => Err(CallError::Refused(error.to_string())),
    }
}

/// Answers a call; a reason if the caller was refused.
///
/// `objection` is what else there is against a caller that says who it is.
pub(super) fn answer(
    mut stream: TcpStream,
    own: &Hello,
    key: Option<&ClusterKey>,
    objection: impl FnOnce(&Hello) -> Option<String>,
) -> Result<Greeted, String> {
    prepare(&stream).map_err(|error| error.to_string())?;
    let reason = match frame::read(&mut stream, &mut Seal::new(key)) {
        Ok(Frame::Hello(hello)) => match objection(&hello) {
            None => {
                let mut seal = Seal::new(key);
                let answered =
                    frame::write(&mut stream, &Frame::Hello(own.clone()), Some(&mut seal));
                answered.map_err(|error| error.to_string())?;
                let _ = stream.set_read_timeout(None);
                return Ok(Greeted::new(key, own, hello, stream));
            }
            Some(reason) => reason,
        },
        Ok(_) | Err(FrameError::Malformed) => FrameError::Malformed.to_string(),
        Err(FrameError::Key) => {
            format!(
                "its cluster key is not that of node {}: give all nodes the same file",
                own.node
            )
        }
        Err(error @ (FrameError::Ended | FrameError::Broken(_))) => return Err(error.to_string()),
    };
    // The caller may be gone already.
    let _ = frame::write(&mut stream, &Frame::Refused { reason: reason.clone() }, None);
    Err(reason)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING_TIMEOUT))?;
    stream.set_read_timeout(Some(GREETING_TIMEOUT))
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
