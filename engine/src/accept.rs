//! Accepts TCP connections on a thread of its own, and bounds handshakes.
//!
//! *Invariants*: a thread that hands connections over does not wait for any of them. After an [`Acceptor`] is dropped another one
//! may listen at its address. A peer has a bounded number of reads for its handshake.
//!
//! *Not here*: who may connect, in `clients`; the listener of members, in `members`; how many pending connections there may be, in `pending`.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::pending::{PendingConnection, PendingConnections};

/// Attempts to connect that end the acceptor's own wait.
const LAST_CALLS_MAX: usize = 20;
/// Longest wait for one of them.
const LAST_CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause of the acceptor when the process has too many open files.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections. After it is dropped another may listen at the address.
pub(crate) struct Acceptor {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Hands every connection to `take`, which must not keep the next one waiting.
    ///
    /// # Errors
    /// Those of the operating system, which may have no thread.
    pub(crate) fn start(
        name: &str,
        listener: TcpListener,
        mut take: impl FnMut(TcpStream) + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let accept = move || {
            for stream in listener.incoming() {
                // Relaxed: a connection at the moment of the change is taken, or not.
                if closed.load(Ordering::Relaxed) {
                    return;
                }
                match stream {
                    Ok(stream) => take(stream),
                    // Too many files are open.
                    Err(_) => std::thread::park_timeout(PAUSE),
                }
            }
        };
        let accepting = std::thread::Builder::new().name(name.to_owned()).spawn(accept)?;
        Ok(Self { address, is_closed, accepting: Some(accepting) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The address of the other end of `stream`, admitted among the pending connections: the stream is shut down if it is evicted.
/// `None` if the stream has ended.
///
/// # Errors
/// Too many files are open: the caller accepts nothing for [`PAUSE`].
pub(crate) fn admit(
    pending: &Arc<PendingConnections>,
    stream: &TcpStream,
) -> io::Result<Option<(SocketAddr, PendingConnection)>> {
    let Ok(from) = stream.peer_addr() else { return Ok(None) };
    let to_close = stream.try_clone()?;
    let connection = pending.admit(from.ip(), move || {
        // It may have ended.
        let _ = to_close.shutdown(Shutdown::Both);
    });
    Ok(Some((from, connection)))
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let Some(accepting) = self.accepting.take() else { return };
        // The thread waits in accept(2): a connection ends its wait.
        for _ in 0..LAST_CALLS_MAX {
            let called = TcpStream::connect_timeout(&self.address, LAST_CALL_TIMEOUT);
            if called.is_ok() || accepting.is_finished() {
                let _ = accepting.join();
                return;
            }
        }
        tracing::error!("{} stays in use until something connects there", self.address);
    }
}

/// A stream during its handshake: it permits a bounded number of reads, each of which has the stream's time-out.
pub(crate) struct LimitedReader<'s> {
    pub(crate) stream: &'s TcpStream,
    pub(crate) reads_left: u32,
}

impl Read for LimitedReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let timed_out = || io::Error::other("the handshake takes too long");
        self.reads_left = self.reads_left.checked_sub(1).ok_or_else(timed_out)?;
        self.stream.read(bytes)
    }
}
