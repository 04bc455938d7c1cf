//! Blocking an idle worker thread, and waking it when a packet or work arrives.
//!
//! The sleeper announces itself, looks at all its queues once more, and only then blocks; a waker
//! first fills a queue and then looks for the announcement. With a sequentially consistent fence on
//! both sides at least one of them sees the other.
//!
//! Where packets come through sockets the thread blocks in poll(2), on them and on an eventfd that its
//! wakers write to; a socket stays readable until its packets were taken, so that none is missed.
//! Where the thread is an asynchronous runtime's, a task of that sleeps in its stead.
//! Elsewhere it blocks on a futex, which costs less, and may lie where other processes wake it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::thread::futex;

#[cfg(not(loom))]
use crate::ring::memory::SharedWord;

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
/// Somebody is about to wake the thread, whom others of the process leave it to. Those of other processes do it, too, as that
/// process may end before.
const WAKING: u32 = 2;

/// What a thread and its wakers share.
struct Shared {
    word: Word,
    bell: Bell,
}

/// What is rung when the word says that the thread sleeps.
enum Bell {
    /// The word, as a futex.
    Word,
    /// Where the thread blocks on sockets.
    Event(EventFd),
    /// Of a runtime: what wakes the task that sleeps, if it ever has. Nothing panics while the lock is held.
    Task(Mutex<Option<task::Waker>>),
}

impl Bell {
    fn lock(task: &Mutex<Option<task::Waker>>) -> MutexGuard<'_, Option<task::Waker>> {
        task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says whether the thread sleeps.
enum Word {
    Own(AtomicU32),
    /// Of several processes.
    #[cfg(not(loom))]
    Mapped(SharedWord),
}

impl Word {
    #[inline]
    fn get(&self) -> &AtomicU32 {
        match self {
            Self::Own(word) => word,
            #[cfg(not(loom))]
            Self::Mapped(word) => word,
        }
    }

    fn is_of_several_processes(&self) -> bool {
        !matches!(self, Self::Own(_))
    }

    fn flags(&self) -> futex::Flags {
        match self {
            Self::Own(_) => futex::Flags::PRIVATE,
            #[cfg(not(loom))]
            Self::Mapped(_) => futex::Flags::empty(),
        }
    }
}

/// The thread's side.
pub struct Parking {
    sockets: Vec<OwnedFd>,
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
        Self::with(Vec::new(), Bell::Word)
    }

    /// A place for a task to sleep, in a runtime that other tasks share the thread with.
    #[must_use]
    pub fn of_task() -> Self {
        Self::with(Vec::new(), Bell::Task(Mutex::new(None)))
    }

    fn with(sockets: Vec<OwnedFd>, bell: Bell) -> Self {
        let word = Word::Own(AtomicU32::new(AWAKE));
        Self { sockets, shared: Arc::new(Shared { word, bell }) }
    }

    /// A place for one thread to sleep, whose packets also come through `sockets`.
    ///
    /// # Errors
    /// If the system has no more descriptors for this process.
    pub fn watching(sockets: &[impl AsFd]) -> io::Result<Self> {
        let duplicate = |socket: &_| AsFd::as_fd(socket).try_clone_to_owned();
        let sockets = sockets.iter().map(duplicate).collect::<io::Result<_>>()?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self::with(sockets, Bell::Event(EventFd::from_flags(flags)?)))
    }

    /// A place for one thread to sleep, whose packets come from threads of other processes.
    #[cfg(not(loom))]
    pub(crate) fn at(word: SharedWord) -> Self {
        Self { sockets: Vec::new(), shared: Waker::at(word).shared }
    }

    /// A waker for this thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { shared: Arc::clone(&self.shared) }
    }

    /// Sleeps until woken, until a socket has a packet, or for `timeout`, unless `has_work` finds
    /// something to do. In a place for a task it only returns at once.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        if self.announce(has_work) {
            self.block(timeout);
        }
        self.rise();
    }

    /// Whether the task that is polled, whose waker this is, sleeps from now on, until it is woken or calls [`Self::rise`];
    /// no, if `has_work` finds something to do. Only in a place for a task.
    pub fn sleeps(&self, waker: &task::Waker, has_work: impl FnOnce() -> bool) -> bool {
        let Bell::Task(task) = &self.shared.bell else { return false };
        let mut task = Bell::lock(task);
        match &mut *task {
            Some(known) => known.clone_from(waker),
            unknown => *unknown = Some(waker.clone()),
        }
        drop(task);
        let sleeps = self.announce(has_work);
        if !sleeps {
            self.rise();
        }
        sleeps
    }

    /// Ends the sleep of a task.
    pub fn rise(&self) {
        self.shared.word.get().store(AWAKE, Ordering::Relaxed);
    }

    /// From now on wakers ring; whether there is nothing to do.
    fn announce(&self, has_work: impl FnOnce() -> bool) -> bool {
        // Relaxed: ordered by the fence, which pairs with the one in wake().
        self.shared.word.get().store(SLEEPING, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !has_work()
    }

    fn block(&self, timeout: Duration) {
        // An interruption is a wake-up for nothing.
        let event = match &self.shared.bell {
            Bell::Event(event) => event,
            Bell::Task(_) => return,
            Bell::Word => {
                let word = &self.shared.word;
                let timeout = timeout.try_into().ok();
                // Returns at once if the word has changed since it was set.
                let _ = futex::wait(word.get(), word.flags(), SLEEPING, timeout.as_ref());
                return;
            }
        };
        let watch = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let sockets = self.sockets.iter().map(AsFd::as_fd);
        let mut watched: Vec<_> =
            std::iter::once(event.as_fd()).chain(sockets).map(watch).collect();
        let _ = ppoll(&mut watched, Some(timeout.into()), None);
        // The event is taken back, if it is there.
        let _ = event.read();
    }
}

impl Default for Parking {
    fn default() -> Self {
        Self::new()
    }
}

impl Waker {
    /// Wakes a thread of another process.
    #[cfg(not(loom))]
    pub(crate) fn at(word: SharedWord) -> Self {
        Self { shared: Arc::new(Shared { word: Word::Mapped(word), bell: Bell::Word }) }
    }

    /// Wakes the thread if it sleeps. The caller has already put the work where the thread looks.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.shared.word.get().load(Ordering::Relaxed) != AWAKE {
            self.shared.ring();
        }
    }

    /// Whether both wake the same thread.
    #[must_use]
    pub fn wakes_same_thread(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Shared {
    #[cold]
    fn ring(&self) {
        if let Bell::Event(event) = &self.bell {
            // It fails only where 2^64 - 2 events were not taken back.
            let _ = event.write(1);
            return;
        }
        // Relaxed: whoever wakes up looks at everything. The word changes, so that a thread that is about to block does not.
        let word = self.word.get();
        let first = word.compare_exchange(SLEEPING, WAKING, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err() && !self.word.is_of_several_processes() {
            return;
        }
        match &self.bell {
            Bell::Task(task) => {
                let waker = Bell::lock(task).clone();
                waker.into_iter().for_each(task::Waker::wake);
            }
            _ => drop(futex::wake(word, self.word.flags(), 1)),
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
