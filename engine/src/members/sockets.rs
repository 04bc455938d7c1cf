//! The sockets of a member: one thread waits for all of them, gives the group what has come, and does what it says.
//!
//! ```text
//! poll(2) ── listener: accept     ─▶ Group::accepted
//!         ── streams: read        ─▶ Group::take
//!         ── eventfd: another thread has told the group something
//!         ── deadline             ─▶ Group::advance  ─▶ actions: call, send, close
//! ```
//! *Invariants*: no call here blocks but poll(2). What a stream does not take yet is kept for it, up to [`UNSENT_BYTES_MAX`]. Connections
//! whose handshake has not ended are bounded, by address and in all.
//!
//! *Not here*: what is said, in `group.rs` and `calls.rs`.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use gannet_rpc::{BootClock, Clock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::accept::{PAUSE, admit};
use crate::link::keep_alive;
use crate::members::SharedState;
use crate::members::calls::Input;
use crate::members::group::Action;
use crate::pending::{PendingConnection, PendingConnections};

/// Connections of one address, and of all, whose handshake has not ended; for a further one the oldest is evicted.
const HANDSHAKES_MAX: (usize, usize) = (64, 256);
/// Bytes that are read of a stream at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes that wait for a stream; one that takes none for so long is ended.
const UNSENT_BYTES_MAX: usize = 32 << 20;
/// Longest time that sent bytes wait for the other host's acknowledgement; a member reports every second.
const UNACKNOWLEDGED_MAX_MS: u32 = 10_000;
/// Connections that are accepted before the others are heard again.
const ACCEPTS_AT_ONCE: usize = 64;

/// The sockets of a member.
pub(super) struct Sockets {
    shared: Arc<SharedState>,
    listener: TcpListener,
    /// By number of the connection.
    streams: BTreeMap<u64, Stream>,
    pending: Arc<PendingConnections>,
    /// When connections are accepted again: not now if too many files are open.
    accepts_from_ns: u64,
    read: Vec<u8>,
}

struct Stream {
    socket: TcpStream,
    is_connecting: bool,
    unsent: Vec<u8>,
    /// Until the handshake has ended.
    _pending: Option<PendingConnection>,
}

impl Stream {
    fn new(socket: TcpStream, is_connecting: bool, pending: Option<PendingConnection>) -> Self {
        Self { socket, is_connecting, unsent: Vec::new(), _pending: pending }
    }

    /// Sends what it takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() && !self.is_connecting {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unsent.len() > UNSENT_BYTES_MAX { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// How a call that was under way has ended.
    fn connected(&mut self) -> Input<'static> {
        self.is_connecting = false;
        match self.socket.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return failed_call(&error),
        }
        // Where nobody listens, the system may take the same port for the caller, and connect it to itself.
        let ends = (self.socket.local_addr(), self.socket.peer_addr());
        match ends {
            (Ok(own), Ok(other)) if own == other => Input::NobodyListens,
            (Ok(_), Ok(_)) if prepare(&self.socket).is_ok() => Input::Connected,
            _ => Input::Unreachable,
        }
    }
}

/// Has the system notice soon when the other host has gone.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    keep_alive(socket)?;
    Ok(sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MAX_MS)?)
}

fn failed_call(error: &io::Error) -> Input<'static> {
    match error.kind() {
        ErrorKind::ConnectionRefused => Input::NobodyListens,
        _ => Input::Unreachable,
    }
}

/// Begins to connect.
fn call(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

impl Sockets {
    /// The sockets of a member that is called through this listener.
    pub(super) fn new(shared: Arc<SharedState>, listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            shared,
            listener,
            streams: BTreeMap::new(),
            pending: PendingConnections::new(HANDSHAKES_MAX.0, HANDSHAKES_MAX.1),
            accepts_from_ns: 0,
            read: vec![0; READ_BYTES],
        })
    }

    /// Serves the group until its owner needs it no more.
    pub(super) fn serve(mut self) {
        while let Some((actions, deadline_ns)) = self.shared.turn() {
            let is_quiet = actions.is_empty();
            actions.into_iter().for_each(|action| self.act(action));
            if is_quiet && let Err(error) = self.wait(deadline_ns) {
                tracing::error!("the members could not be heard: {error}");
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Call { connection, node, address } => match call(address) {
                Ok(socket) => {
                    tracing::trace!(node, %address, "calls");
                    self.streams.insert(connection, Stream::new(socket, true, None));
                }
                Err(error) => self.shared.take(connection, &failed_call(&error)),
            },
            Action::Send { connection, bytes } => {
                if let Some(stream) = self.streams.get_mut(&connection) {
                    stream.unsent.extend_from_slice(&bytes);
                    self.flush(connection);
                }
            }
            Action::Admit { connection } => {
                if let Some(stream) = self.streams.get_mut(&connection) {
                    stream._pending = None;
                }
            }
            // What it has not taken is lost with it.
            Action::Close { connection } => drop(self.streams.remove(&connection)),
        }
    }

    fn flush(&mut self, connection: u64) {
        let stream = self.streams.get_mut(&connection);
        if stream.is_some_and(|stream| stream.flush().is_err()) {
            self.end(connection);
        }
    }

    fn end(&mut self, connection: u64) {
        self.streams.remove(&connection);
        self.shared.take(connection, &Input::Ended);
    }

    /// Waits until something has come, or for a deadline, and handles what has.
    fn wait(&mut self, deadline_ns: u64) -> io::Result<()> {
        let now_ns = BootClock.now_ns();
        let (deadline_ns, accepts) = match self.accepts_from_ns > now_ns {
            true => (deadline_ns.min(self.accepts_from_ns), PollFlags::empty()),
            false => (deadline_ns, PollFlags::IN),
        };
        let wanted = |stream: &Stream| match (stream.is_connecting, stream.unsent.is_empty()) {
            (true, _) => PollFlags::OUT,
            (false, true) => PollFlags::IN,
            (false, false) => PollFlags::IN | PollFlags::OUT,
        };
        let numbers: Vec<_> = self.streams.keys().copied().collect();
        let ready: Vec<_> = {
            let own = [
                PollFd::from_borrowed_fd(self.shared.woken.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), accepts),
            ];
            let streams = self.streams.values();
            let streams = streams
                .map(|stream| PollFd::from_borrowed_fd(stream.socket.as_fd(), wanted(stream)));
            let mut all: Vec<_> = own.into_iter().chain(streams).collect();
            let wait_ns = deadline_ns.saturating_sub(now_ns);
            let wait = Timespec {
                tv_sec: i64::try_from(wait_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(wait_ns % 1_000_000_000).unwrap_or(0),
            };
            match poll(&mut all, Some(&wait)) {
                Ok(_) => all.iter().map(PollFd::revents).collect(),
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        };
        if !ready[0].is_empty() {
            self.shared.hear_wakes();
        }
        for (number, ready) in numbers.into_iter().zip(&ready[2..]) {
            if !ready.is_empty() {
                self.hear(number);
            }
        }
        if !ready[1].is_empty() {
            self.accept();
        }
        Ok(())
    }

    /// Reads what a stream has, and sends what it takes.
    fn hear(&mut self, connection: u64) {
        let Some(stream) = self.streams.get_mut(&connection) else { return };
        if stream.is_connecting {
            let connected = stream.connected();
            self.shared.take(connection, &connected);
            return;
        }
        match stream.socket.read(&mut self.read) {
            Ok(count @ 1..) => self.shared.take(connection, &Input::Heard(&self.read[..count])),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(_) | Err(_) => return self.end(connection),
        }
        self.flush(connection);
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_ONCE {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    if socket.set_nonblocking(true).and_then(|()| prepare(&socket)).is_err() {
                        continue;
                    }
                    let Ok(admitted) = admit(&self.pending, &socket) else {
                        return self.pause_accepting();
                    };
                    let Some((from, pending)) = admitted else { continue };
                    let number = self.shared.accepted(from);
                    self.streams.insert(number, Stream::new(socket, false, Some(pending)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Too many files are open, or the caller has gone.
                Err(_) => return self.pause_accepting(),
            }
        }
    }

    /// Accepts nothing for a while; all else goes on.
    fn pause_accepting(&mut self) {
        let pause_ns = u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX);
        self.accepts_from_ns = BootClock.now_ns() + pause_ns;
    }
}
