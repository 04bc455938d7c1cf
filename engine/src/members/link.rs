//! The connection to one other member, which is made anew when it breaks.
//!
//! ```text
//!               the greater number                  the smaller number
//! receive       both receive until the connection breaks, or the other says that it stops
//! renew         calls until it is answered          waits to be called, and probes the other's port for whether it still runs
//! send again    both send what the other may not have received
//! ```
//! *Invariants*: a link is with one incarnation of the other. It ends when the other says that it stops, is another
//! incarnation, or nobody listens at its port. After any other failure a new connection replaces the old one. Each member keeps
//! its last two arrivals to send them again: a member that has come to a point has received all arrivals at the point before. The same
//! holds for the last messages about changes. What is received twice counts once.
//!
//! *Not here*: how two members get to know each other, in `handshake`; what becomes of the cluster, in `mod`.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::members::GroupState;
use crate::members::frame::{self, Frame, FrameError, Seal};
use crate::members::gather::Handshaker;
use crate::members::handshake::{CallError, Connection};

/// Between two attempts to make a connection anew.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(100);
/// Arrivals that the other may not have received.
const ARRIVALS_KEPT: usize = 2;
/// The same of messages about changes: an abandoned round, the next one, and two answers. Each further message follows one of the
/// other, which has received all before.
const CHANGES_KEPT: usize = 4;

/// The connection to one other member.
pub(super) struct Link {
    pub(super) node: usize,
    pub(super) address: SocketAddr,
    /// Of the other.
    pub(super) incarnation: u32,
    state: Mutex<LinkState>,
    changed: Condvar,
}

#[derive(Default)]
struct LinkState {
    /// The sending half; none while the connection is broken.
    sending: Option<(TcpStream, Seal)>,
    /// A connection that the other has made since.
    renewed: Option<Connection>,
    /// The arrivals that the other may not have received.
    arrivals: VecDeque<Frame>,
    /// The same of messages about changes.
    changes: VecDeque<Frame>,
    /// The other has lost the connection, and requests to be called.
    is_wanted: bool,
}

/// The receiving half of a connection.
type ReceiveHalf = (TcpStream, Seal);

/// Why nothing more is received.
enum Ending {
    Left,
    Broken(FrameError),
}

impl Link {
    /// A link of a connection, and its receiving half.
    pub(super) fn new(
        address: SocketAddr,
        connection: Connection,
    ) -> Result<(Arc<Self>, ReceiveHalf), FrameError> {
        let (node, incarnation) = (connection.hello.node, connection.hello.incarnation);
        let (state, changed) = (Mutex::default(), Condvar::new());
        let link = Arc::new(Self { node, address, incarnation, state, changed });
        let receive_half = link.connect(connection)?;
        Ok((link, receive_half))
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame to the other. Arrivals and changes are sent again after a new connection; reports are lost while there is none.
    pub(super) fn send(&self, frame: &Frame) {
        let mut state = self.lock();
        if let Frame::Arrived { .. } = frame {
            state.arrivals.truncate(ARRIVALS_KEPT - 1);
            state.arrivals.push_front(frame.clone());
        }
        if let Frame::Change(_) = frame {
            state.changes.truncate(CHANGES_KEPT - 1);
            state.changes.push_front(frame.clone());
        }
        // The receiving thread notices a failure.
        let _ = state.send(frame);
    }

    /// Ends the present connection, if there is one.
    pub(super) fn disconnect(&self) {
        self.lock().disconnect();
    }

    /// The other has made a new connection: it has lost the present one, whatever this member still hears on that.
    pub(super) fn replace(&self, connection: Connection) {
        let mut state = self.lock();
        state.disconnect();
        state.renewed = Some(connection);
        self.changed.notify_all();
    }

    /// The other says that it has lost the connection. An attacker could replay that message, so it is believed only of a member
    /// that is silent otherwise.
    pub(super) fn want(&self) {
        self.lock().is_wanted = true;
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.lock().is_wanted
    }

    /// Uses a new connection, or a later one that the other has made since, and sends again what the other may not have received.
    pub(super) fn connect(&self, connection: Connection) -> Result<ReceiveHalf, FrameError> {
        let mut state = self.lock();
        // The other has lost this one if a later one has come since, even if this member sees no end of it.
        let connection = state.renewed.take().unwrap_or(connection);
        let Connection { hello: _, stream, sending, receiving } = connection;
        state.is_wanted = false;
        state.sending = Some((stream.try_clone()?, sending));
        let kept: Vec<_> =
            state.arrivals.iter().rev().chain(state.changes.iter().rev()).cloned().collect();
        for frame in kept {
            state.send(&frame)?;
        }
        Ok((stream, receiving))
    }

    /// Receives from the other, over one connection after the other, until it has gone. Returns how it went.
    pub(super) fn receive_until_gone(
        &self,
        receive_half: ReceiveHalf,
        handshaker: &Handshaker,
        group: &GroupState,
    ) -> String {
        let mut receive_half = Ok(receive_half);
        loop {
            let ending = match receive_half {
                Ok(receive_half) => self.receive(receive_half, group),
                Err(error) => Ending::Broken(error),
            };
            let error = match ending {
                Ending::Left => return "was stopped".to_owned(),
                Ending::Broken(error) => error,
            };
            self.disconnect();
            if !group.is_leaving() {
                tracing::warn!("the connection to node {} has broken: {error}", self.node);
            }
            receive_half = match self.renew(handshaker, group) {
                Ok(connection) => {
                    tracing::info!("node {} is connected again", self.node);
                    self.connect(connection)
                }
                Err(reason) => return reason,
            };
        }
    }

    fn receive(&self, (mut stream, mut seal): ReceiveHalf, group: &GroupState) -> Ending {
        loop {
            match frame::read(&mut stream, &mut seal) {
                Ok(Frame::Leaving { passed }) => {
                    group.pass(passed);
                    return Ending::Left;
                }
                Ok(frame) => {
                    if let Err(error) = group.receive(self.node, frame) {
                        return Ending::Broken(error);
                    }
                    self.lock().is_wanted = false;
                }
                Err(error) => return Ending::Broken(error),
            }
        }
    }

    /// Waits for a new connection to the same incarnation, and makes it if that is this member's part; why there is none.
    fn renew(&self, handshaker: &Handshaker, group: &GroupState) -> Result<Connection, String> {
        loop {
            let waited = self
                .changed
                .wait_timeout_while(self.lock(), RENEWAL_INTERVAL, |state| state.renewed.is_none());
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let renewed = state.renewed.take();
            drop(state);
            if let Some(connection) = renewed {
                return Ok(connection);
            }
            if group.is_leaving() {
                return Err("is not needed any more".to_owned());
            }
            match handshaker.call(self.node, self.address, Some(self.incarnation)) {
                Ok(connection) if connection.hello.incarnation == self.incarnation => {
                    return Ok(connection);
                }
                Ok(_) => return Err("was started again, and its memory was lost".to_owned()),
                Err(CallError::Refused(reason) | CallError::TooLate(reason)) => {
                    return Err(format!("is not the one that was there before: {reason}"));
                }
                Err(CallError::Leaving { passed }) => {
                    group.pass(passed);
                    return Err("was stopped".to_owned());
                }
                Err(CallError::NobodyListens) => {
                    return Err("is gone: its process has ended".to_owned());
                }
                // A member with a greater number has heard that it is to call.
                Err(CallError::Unreachable) => {}
            }
        }
    }
}

impl LinkState {
    fn send(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let Some((stream, seal)) = &mut self.sending else { return Ok(()) };
        let said = frame::write(stream, frame, Some(seal));
        if said.is_err() {
            // Part of a frame may be under way, which nothing can follow.
            self.disconnect();
        }
        Ok(said?)
    }

    fn disconnect(&mut self) {
        if let Some((stream, _)) = self.sending.take() {
            // It may have ended already. The receiving thread then sees its end.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
