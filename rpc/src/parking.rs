//! Blocking an idle worker thread, and waking it when a packet or work arrives.
//!
//! The sleeper announces itself, looks at all its queues once more, and only then blocks; a waker
//! first fills a queue and then looks for the announcement. With a sequentially consistent fence on
//! both sides at least one of them sees the other.
//!
//! Where packets come through sockets the thread blocks in poll(2), on them and on an eventfd that its
//! wakers write to; a socket stays readable until its packets were taken, so that none is missed.
//! Elsewhere it blocks on a futex, which costs less.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use crossbeam::sync::{Parker, Unparker};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};

struct Shared {
    sleeping: AtomicBool,
    bell: Bell,
}

/// What a waker rings.
enum Bell {
    Futex(Unparker),
    Event(EventFd),
}

/// What a thread blocks on.
enum Bed {
    Futex(Parker),
    /// Sockets; and the bell's eventfd.
    Poll(Vec<OwnedFd>),
}

/// The thread's side.
pub struct Parking {
    bed: Bed,
    shared: Arc<Shared>,
}

/// Wakes a thread; cheap while the thread is awake.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Parking {
    /// A place for one thread to sleep, whose packets come from threads that wake it.
    #[must_use]
    pub fn new() -> Self {
        let parker = Parker::new();
        let bell = Bell::Futex(parker.unparker().clone());
        let shared = Arc::new(Shared { sleeping: AtomicBool::new(false), bell });
        Self { bed: Bed::Futex(parker), shared }
    }

    /// A place for one thread to sleep, whose packets also come through `sockets`.
    ///
    /// # Errors
    /// If the system has no more descriptors for this process.
    pub fn watching(sockets: &[impl AsFd]) -> io::Result<Self> {
        let duplicate = |socket: &_| AsFd::as_fd(socket).try_clone_to_owned();
        let sockets = sockets.iter().map(duplicate).collect::<io::Result<_>>()?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = Bell::Event(EventFd::from_flags(flags)?);
        let shared = Arc::new(Shared { sleeping: AtomicBool::new(false), bell });
        Ok(Self { bed: Bed::Poll(sockets), shared })
    }

    /// A waker for this thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { shared: Arc::clone(&self.shared) }
    }

    /// Sleeps until woken, until a socket has a packet, or for `timeout`, unless `has_work` finds
    /// something to do.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        // Relaxed: ordered by the fence, which pairs with the one in wake().
        self.shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            self.block(timeout);
        }
        self.shared.sleeping.store(false, Ordering::Relaxed);
    }

    fn block(&self, timeout: Duration) {
        match (&self.bed, &self.shared.bell) {
            (Bed::Futex(parker), _) => parker.park_timeout(timeout),
            (Bed::Poll(sockets), Bell::Event(event)) => {
                let watch = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
                let sockets = sockets.iter().map(AsFd::as_fd);
                let mut watched: Vec<_> =
                    std::iter::once(event.as_fd()).chain(sockets).map(watch).collect();
                // An interruption is a wake-up for nothing. The event is taken back, if it is there.
                let _ = ppoll(&mut watched, Some(timeout.into()), None);
                let _ = event.read();
            }
            (Bed::Poll(_), Bell::Futex(_)) => unreachable!("sockets come with an event"),
        }
    }
}

impl Default for Parking {
    fn default() -> Self {
        Self::new()
    }
}

impl Waker {
    /// Wakes the thread if it sleeps. The caller has already put the work where the thread looks.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::Relaxed) {
            self.shared.bell.ring();
        }
    }

    /// Whether both wake the same thread.
    #[must_use]
    pub fn wakes_same_thread(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Bell {
    fn ring(&self) {
        match self {
            Self::Futex(unparker) => unparker.unpark(),
            // It fails only where 2^64 - 2 events were not taken back.
            Self::Event(event) => drop(event.write(1)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicU32;

    /// A test that sleeps so long has failed to be woken, and says so by its number of steps.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn every_wake_ends_a_sleep() {
        let sockets = [UdpSocket::bind("127.0.0.1:0").unwrap()];
        for parking in [Parking::new(), Parking::watching(&sockets).unwrap()] {
            let (given, taken) = (AtomicU32::new(0), AtomicU32::new(0));
            let waker = parking.waker();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for step in 1..=2_000 {
                        given.store(step, Ordering::Release);
                        waker.wake();
                        while taken.load(Ordering::Acquire) < step {
                            std::thread::yield_now();
                        }
                    }
                });
                for step in 1..=2_000 {
                    while given.load(Ordering::Acquire) < step {
                        parking.sleep(LONG, || given.load(Ordering::Acquire) >= step);
                    }
                    taken.store(step, Ordering::Release);
                }
            });
        }
    }

    #[test]
    fn a_datagram_ends_a_sleep_and_nothing_makes_it_short() {
        let sockets: Vec<_> = (0..2).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let parking = Parking::watching(&sockets).unwrap();
        let clock = quanta::Clock::new();
        let start = clock.now();
        parking.sleep(Duration::from_millis(30), || false);
        assert!(start.elapsed() >= Duration::from_millis(30));
        parking.sleep(LONG, || true);
        for socket in &sockets {
            let mut buffer = [0; 9];
            socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
            parking.sleep(LONG, || false);
            assert_eq!(socket.recv(&mut buffer).unwrap(), 1);
        }
        parking.waker().wake();
        let start = clock.now();
        parking.sleep(Duration::from_millis(30), || false);
        assert!(start.elapsed() >= Duration::from_millis(30), "who is awake is not woken");
    }
}
