//! The socket of a session, and the end of a link that has one connection after the other.
//!
//! *Invariants*: a read or a write during the handshake waits for a bounded time, and a handshake permits a bounded number of reads.
//! A message that could not be sent whole is the last one of its connection.
//!
//! *Not here*: what is said, in `session.rs` and `delivery.rs`; who calls again when a connection has broken, in the link's users.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_rpc::ClusterKey;
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::accept::LimitedReader;
use crate::link::frame::{Opener, Sealer};
use crate::link::{Delivery, LinkError, Session, User, decoded, encoded};

/// Longest wait for the other's part of the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads of the other's part of the handshake, which is short.
const HANDSHAKE_READS_MAX: u32 = 32;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// TCP keepalive: time without a packet before the first probe, number of probes, and time between two.
const KEEPALIVE: (Duration, u32, Duration) = (Duration::from_secs(60), 6, Duration::from_secs(10));

/// A connection whose ends know each other.
pub(crate) struct Connection {
    stream: TcpStream,
    session: Session,
}

impl Connection {
    /// Calls: says the opening of a user, and hears the welcome.
    pub(crate) fn call<U: User>(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        opening: &U::Opening,
    ) -> Result<(Self, U::Welcome), LinkError> {
        let session = Session::call(U::ROLE, key, opening)?;
        Self::begin(stream, session)
    }

    /// Answers: hears the opening of a user. The service that it is for decides about the welcome, which is said next.
    pub(crate) fn answer<U: User>(
        stream: TcpStream,
        key: Option<&ClusterKey>,
    ) -> Result<(Self, U::Opening), LinkError> {
        Self::begin(stream, Session::answer(U::ROLE, key))
    }

    /// Performs the handshake, and hears the first message of the other.
    fn begin<T: DeserializeOwned>(
        stream: TcpStream,
        session: Session,
    ) -> Result<(Self, T), LinkError> {
        prepare(&stream)?;
        let mut connection = Self { stream, session };
        let first = connection.receive_within(HANDSHAKE_READS_MAX)?;
        Ok((connection, decoded(&first)?))
    }

    /// Answers the opening. Afterwards the caller is trusted, and may be silent for as long as is given.
    pub(crate) fn welcome(
        &mut self,
        welcome: &impl Serialize,
        silence: Option<Duration>,
    ) -> Result<(), LinkError> {
        self.session.trust();
        self.stream.set_read_timeout(silence)?;
        self.send(&encoded(welcome)?)
    }

    /// The stream, for a thread that will shut it down.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether nothing has arrived without a request, such as the end of the connection.
    pub(crate) fn is_quiet(&self) -> bool {
        let look = || {
            self.stream.set_nonblocking(true)?;
            let looked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            looked
        };
        look().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<(), LinkError> {
        self.session.say(message)?;
        Ok(self.stream.write_all(&self.session.take_said())?)
    }

    /// Waits for the next message.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>, LinkError> {
        self.receive_within(u32::MAX)
    }

    fn receive_within(&mut self, reads_left: u32) -> Result<Vec<u8>, LinkError> {
        let mut reader = LimitedReader { stream: &self.stream, reads_left };
        let mut bytes = [0; READ_BYTES];
        loop {
            (&self.stream).write_all(&self.session.take_said())?;
            if let Some(message) = self.session.next()? {
                return Ok(message);
            }
            let count = reader.read(&mut bytes)?;
            if count == 0 {
                return Err(LinkError::Ended);
            }
            if let Err(error) = self.session.hear(&bytes[..count]) {
                // It may be gone already.
                let _ = (&self.stream).write_all(&self.session.take_said());
                return Err(error);
            }
        }
    }

    /// The two directions, for a thread each.
    fn split(self) -> Result<(SendHalf, ReceiveHalf), LinkError> {
        let Self { stream, session } = self;
        let (sealer, opener) = session.split()?;
        let sending = SendHalf { stream: stream.try_clone()?, sealer, sealed: Vec::new() };
        Ok((sending, ReceiveHalf { stream, opener, connection: 0 }))
    }
}

/// What this end of a connection says.
struct SendHalf {
    stream: TcpStream,
    sealer: Sealer,
    sealed: Vec<u8>,
}

impl SendHalf {
    fn send(&mut self, message: &[u8]) -> Result<(), LinkError> {
        self.sealed.clear();
        self.sealer.seal(message, &mut self.sealed)?;
        Ok(self.stream.write_all(&self.sealed)?)
    }
}

/// What this end of a connection hears.
pub(crate) struct ReceiveHalf {
    stream: TcpStream,
    opener: Opener,
    /// Number of the connection among those of its link.
    connection: u64,
}

impl ReceiveHalf {
    fn receive(&mut self) -> Result<Vec<u8>, LinkError> {
        let mut bytes = [0; READ_BYTES];
        loop {
            if let Some(message) = self.opener.next()? {
                return Ok(message);
            }
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Err(LinkError::Ended);
            }
            self.opener.hear(&bytes[..count]);
        }
    }
}

/// This end of a link, whatever connection it has at the moment.
#[derive(Default)]
pub(crate) struct LinkEnd(Mutex<EndState>);

#[derive(Default)]
struct EndState {
    delivery: Delivery,
    /// Number of the present connection, or of the last one.
    connection: u64,
    /// None while the connection is broken.
    sending: Option<SendHalf>,
}

impl LinkEnd {
    fn lock(&self) -> MutexGuard<'_, EndState> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a new connection, on which the other has told the number that it has heard last; says again what follows. A called
    /// end says its welcome first, which `welcome` makes of the number that this end has heard last.
    pub(crate) fn connect<W: Serialize>(
        &self,
        mut connection: Connection,
        heard: u64,
        welcome: impl FnOnce(u64) -> Option<(W, Option<Duration>)>,
    ) -> Result<ReceiveHalf, LinkError> {
        let mut state = self.lock();
        state.disconnect();
        if let Some((welcome, silence)) = welcome(state.delivery.heard()) {
            connection.welcome(&welcome, silence)?;
        }
        let (mut sending, mut receiving) = connection.split()?;
        for message in state.delivery.again(heard)? {
            sending.send(message)?;
        }
        state.connection += 1;
        receiving.connection = state.connection;
        state.sending = Some(sending);
        Ok(receiving)
    }

    /// Says a message, again on later connections until the other has heard it.
    pub(crate) fn say(&self, body: &impl Serialize) -> Result<(), LinkError> {
        let state = &mut *self.lock();
        let message = state.delivery.keep(body)?;
        let Some(sending) = &mut state.sending else { return Ok(()) };
        let sent = sending.send(message);
        if sent.is_err() {
            // Part of a message may be under way, which nothing can follow. The receiving thread notices the end.
            state.disconnect();
        }
        Ok(())
    }

    /// Hears a message of the other on a connection; none if it was heard before.
    fn hear<T: DeserializeOwned>(
        &self,
        connection: u64,
        message: &[u8],
    ) -> Result<Option<T>, LinkError> {
        let mut state = self.lock();
        // What came on an earlier connection is said again on the present one.
        if connection != state.connection {
            return Err(LinkError::Ended);
        }
        state.delivery.hear(message)
    }

    /// Hears on a connection until its end, which it tells the user, and why.
    pub(crate) fn serve<U: User>(&self, mut receiving: ReceiveHalf, user: &mut U) -> LinkError {
        loop {
            let heard = receiving
                .receive()
                .and_then(|message| self.hear(receiving.connection, &message))
                .and_then(|message| message.map_or(Ok(()), |message| user.hear(message)));
            if let Err(error) = heard {
                let mut state = self.lock();
                if state.connection == receiving.connection {
                    state.disconnect();
                }
                return error;
            }
        }
    }
}

impl EndState {
    fn disconnect(&mut self) {
        if let Some(sending) = self.sending.take() {
            // It may have ended already.
            let _ = sending.stream.shutdown(Shutdown::Both);
        }
    }
}

/// Has the system notice when the other host has gone, and send what is said at once.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (idle, probes, interval) = KEEPALIVE;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    stream.set_nodelay(true)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    keep_alive(stream)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))
}
