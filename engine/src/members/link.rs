//! The connection to one other member, which is made anew when it breaks.
//!
//! ```text
//!               the greater number                  the smaller number
//! hear          both hear until the connection breaks, or the other says that it stops
//! renew         calls until it is answered          waits to be called, and asks at the other's port whether it still runs
//! say again     both say what the other may not have heard
//! ```
//! *Invariants*: a link is with one incarnation of the other. It ends when the other says that it stops, is another
//! incarnation, or nobody listens at its port; whatever else happens to a connection, a new one replaces it. Of what must be
//! heard each member keeps the last two arrivals: whoever has come to a point has heard of all that came to the one before.
//! To hear an arrival twice is to hear it once.
//!
//! *Not here*: how two members greet each other, in `greeting`; what becomes of the cluster, in `mod`.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::members::Shared;
use crate::members::frame::{self, Frame, FrameError, Seal};
use crate::members::gather::Greeter;
use crate::members::greeting::{CallError, Greeted};

/// Between two attempts to make a connection anew.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(100);
/// Arrivals that the other may not have heard.
const ARRIVALS_KEPT: usize = 2;

/// The connection to one other member.
pub(super) struct Link {
    pub(super) node: usize,
    pub(super) address: SocketAddr,
    /// Of the other.
    pub(super) incarnation: u32,
    talk: Mutex<Talk>,
    changed: Condvar,
}

#[derive(Default)]
struct Talk {
    /// Where this member speaks; none while the connection is broken.
    sending: Option<(TcpStream, Seal)>,
    /// A connection that the other has made since.
    renewed: Option<Greeted>,
    /// The arrivals that the other may not have heard.
    arrivals: VecDeque<Frame>,
    /// The other has lost the connection, and asks to be called.
    is_wanted: bool,
}

/// Where this member hears the other.
type Hearing = (TcpStream, Seal);

/// Why nothing more is heard.
enum Ending {
    Left,
    Broken(FrameError),
}

impl Link {
    /// A link of a connection, and where the other is heard.
    pub(super) fn new(
        address: SocketAddr,
        greeted: Greeted,
    ) -> Result<(Arc<Self>, Hearing), FrameError> {
        let (node, incarnation) = (greeted.hello.node, greeted.hello.incarnation);
        let (talk, changed) = (Mutex::default(), Condvar::new());
        let link = Arc::new(Self { node, address, incarnation, talk, changed });
        let hearing = link.connect(greeted)?;
        Ok((link, hearing))
    }

    fn lock(&self) -> MutexGuard<'_, Talk> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something to the other, now or once it is connected again; what it says regularly is lost in between.
    pub(super) fn say(&self, frame: &Frame) {
        let mut talk = self.lock();
        if let Frame::Arrived { .. } = frame {
            talk.arrivals.truncate(ARRIVALS_KEPT - 1);
            talk.arrivals.push_front(frame.clone());
        }
        // Whoever listens to the other hears of a failure.
        let _ = talk.say(frame);
    }

    /// Ends the present connection, if there is one.
    pub(super) fn hang_up(&self) {
        self.lock().hang_up();
    }

    /// The other has made a new connection: it has lost the present one, whatever is heard of that here.
    pub(super) fn replace(&self, greeted: Greeted) {
        let mut talk = self.lock();
        talk.hang_up();
        talk.renewed = Some(greeted);
        self.changed.notify_all();
    }

    /// The other says that it has lost the connection; anybody who has once heard it can repeat that, so it is only believed of
    /// a member that says nothing else.
    pub(super) fn want(&self) {
        self.lock().is_wanted = true;
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.lock().is_wanted
    }

    /// Takes a connection into use, and says again what the other may not have heard.
    fn connect(&self, greeted: Greeted) -> Result<Hearing, FrameError> {
        let Greeted { hello: _, stream, sending, receiving } = greeted;
        let mut talk = self.lock();
        talk.is_wanted = false;
        talk.sending = Some((stream.try_clone()?, sending));
        for arrival in talk.arrivals.clone().iter().rev() {
            talk.say(arrival)?;
        }
        Ok((stream, receiving))
    }

    /// Hears what the other says, over one connection after the other, until it has gone: how.
    pub(super) fn attend(&self, hearing: Hearing, greeter: &Greeter, shared: &Shared) -> String {
        let mut hearing = Ok(hearing);
        loop {
            let ending = match hearing {
                Ok(hearing) => self.hear(hearing, shared),
                Err(error) => Ending::Broken(error),
            };
            let error = match ending {
                Ending::Left => return "was stopped".to_owned(),
                Ending::Broken(error) => error,
            };
            self.hang_up();
            if !shared.is_leaving() {
                tracing::warn!("the connection to node {} has broken: {error}", self.node);
            }
            hearing = match self.renew(greeter, shared) {
                Ok(greeted) => {
                    tracing::info!("node {} is connected again", self.node);
                    self.connect(greeted)
                }
                Err(reason) => return reason,
            };
        }
    }

    fn hear(&self, (mut stream, mut seal): Hearing, shared: &Shared) -> Ending {
        loop {
            match frame::read(&mut stream, &mut seal) {
                Ok(Frame::Leaving { passed }) => {
                    shared.pass(passed);
                    return Ending::Left;
                }
                Ok(frame) => {
                    if let Err(error) = shared.hear(self.node, frame) {
                        return Ending::Broken(error);
                    }
                    self.lock().is_wanted = false;
                }
                Err(error) => return Ending::Broken(error),
            }
        }
    }

    /// Waits for a new connection to the same incarnation, and makes it if that is this member's part; why there is none.
    fn renew(&self, greeter: &Greeter, shared: &Shared) -> Result<Greeted, String> {
        loop {
            let waited = self
                .changed
                .wait_timeout_while(self.lock(), RENEWAL_INTERVAL, |talk| talk.renewed.is_none());
            let (mut talk, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let renewed = talk.renewed.take();
            drop(talk);
            if let Some(greeted) = renewed {
                return Ok(greeted);
            }
            if shared.is_leaving() {
                return Err("is not needed any more".to_owned());
            }
            match greeter.call(self.node, self.address, Some(self.incarnation)) {
                Ok(greeted) if greeted.hello.incarnation == self.incarnation => return Ok(greeted),
                Ok(_) => return Err("was started again, and its memory was lost".to_owned()),
                Err(CallError::Refused(reason) | CallError::TooLate(reason)) => {
                    return Err(format!("is not the one that was there before: {reason}"));
                }
                Err(CallError::Leaving { passed }) => {
                    shared.pass(passed);
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

impl Talk {
    fn say(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let Some((stream, seal)) = &mut self.sending else { return Ok(()) };
        let said = frame::write(stream, frame, Some(seal));
        if said.is_err() {
            // Part of a frame may be under way, which nothing can follow.
            self.hang_up();
        }
        Ok(said?)
    }

    fn hang_up(&mut self) {
        if let Some((stream, _)) = self.sending.take() {
            // It may have ended already. Whoever hears it now hears the end.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
