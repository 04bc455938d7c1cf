//! Connections to a listener, taken on a thread of its own until nobody wants them any more, and their first words.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::callers::{Caller, Callers};

/// Calls that end the wait for calls.
const LAST_CALLS_MAX: usize = 20;
/// Longest wait for one of them to be taken.
const LAST_CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// How long nobody is let in when there are too many.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Takes connections. When it has been dropped, another may listen at the address.
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
                // Relaxed: a call at the moment of the change is taken, or not.
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

/// The address of the other end of `stream`, and its place among the callers: the stream ends if another one needs the place.
/// `None` if the stream has ended, or if too many files are open: then after a pause.
pub(crate) fn place(callers: &Arc<Callers>, stream: &TcpStream) -> Option<(SocketAddr, Caller)> {
    let from = stream.peer_addr().ok()?;
    let Ok(to_dismiss) = stream.try_clone() else {
        std::thread::park_timeout(PAUSE);
        return None;
    };
    let caller = callers.enter(from.ip(), move || {
        // It may have ended.
        let _ = to_dismiss.shutdown(Shutdown::Both);
    });
    Some((from, caller))
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let Some(accepting) = self.accepting.take() else { return };
        // The thread waits for a call.
        for _ in 0..LAST_CALLS_MAX {
            let called = TcpStream::connect_timeout(&self.address, LAST_CALL_TIMEOUT);
            if called.is_ok() || accepting.is_finished() {
                let _ = accepting.join();
                return;
            }
        }
        tracing::error!("{} stays in use until somebody calls there", self.address);
    }
}

/// A stream of a greeting: so many reads, each of which may take its time, and no more.
pub(crate) struct Patient<'s> {
    pub(crate) stream: &'s TcpStream,
    pub(crate) reads_left: u32,
}

impl Read for Patient<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let timed_out = || io::Error::other("the greeting takes too long");
        self.reads_left = self.reads_left.checked_sub(1).ok_or_else(timed_out)?;
        self.stream.read(bytes)
    }
}
