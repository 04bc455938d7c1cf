//! Blocking an idle worker thread, and waking it when a packet or work arrives.
//!
//! The sleeper announces itself, looks at all its queues once more, and only then blocks; a waker
//! first fills a queue and then looks for the announcement. With a sequentially consistent fence on
//! both sides at least one of them sees the other.
//!
//! A thread whose packets come through sockets blocks in poll(2), on the sockets and on an eventfd that its
//! wakers write to. A socket stays readable until its packets are taken, so that none is missed.
//! On a thread of an asynchronous runtime a task sleeps instead of the thread.
//! Any other thread blocks on a futex, which costs less and may lie in memory of several processes.

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
/// A waker of one process is about to wake the thread, so that the other wakers of that process need not. Wakers of other
/// processes wake it, too, as that process may end before it does.
const WAKING: u32 = 2;

/// What a thread and its wakers share.
struct ParkingState {
    word: Word,
    mechanism: WakeMechanism,
}

/// How a waker wakes the thread when the word says that it sleeps.
enum WakeMechanism {
    /// The word, as a futex.
    Word,
    /// Where the thread blocks on sockets.
    Event(EventFd),
    /// Of a runtime: what wakes the task that sleeps, if it ever has. Nothing panics while the lock is held.
    Task(Mutex<Option<task::Waker>>),
}

impl WakeMechanism {
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
    state: Arc<ParkingState>,
}

/// Wakes a thread; cheap while the thread is awake.
#[derive(Clone)]
pub struct Waker {
    state: Arc<ParkingState>,
}

impl Parking {
    /// For one thread, whose packets come from threads that wake it.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Vec::new(), WakeMechanism::Word)
    }

    /// For a task of a runtime, which shares its thread with other tasks.
    #[must_use]
    pub fn for_task() -> Self {
        Self::with(Vec::new(), WakeMechanism::Task(Mutex::new(None)))
    }

    fn with(sockets: Vec<OwnedFd>, mechanism: WakeMechanism) -> Self {
        let word = Word::Own(AtomicU32::new(AWAKE));
        Self { sockets, state: Arc::new(ParkingState { word, mechanism }) }
    }

    /// For one thread, whose packets also come through `sockets`.
    ///
    /// # Errors
    /// If the system has no more descriptors for this process.
    pub fn watching(sockets: &[impl AsFd]) -> io::Result<Self> {
        let duplicate = |socket: &_| AsFd::as_fd(socket).try_clone_to_owned();
        let sockets = sockets.iter().map(duplicate).collect::<io::Result<_>>()?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self::with(sockets, WakeMechanism::Event(EventFd::from_flags(flags)?)))
    }

    /// For one thread, whose packets come from threads of other processes.
    #[cfg(not(loom))]
    pub(crate) fn at(word: SharedWord) -> Self {
        Self { sockets: Vec::new(), state: Waker::at(word).state }
    }

    /// A waker for this thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { state: Arc::clone(&self.state) }
    }

    /// Sleeps until woken, until a socket has a packet, or for `timeout`, unless `has_work` finds
    /// something to do. If it is [for a task](Self::for_task), it only returns at once.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        if self.announce(has_work) {
            self.block(timeout);
        }
        self.end_sleep();
    }

    /// Puts the task with this waker to sleep, until it is woken or calls [`Self::end_sleep`]. Returns `false`, and does not, if
    /// `has_work` finds something to do. Only if it is [for a task](Self::for_task).
    pub fn sleeps(&self, waker: &task::Waker, has_work: impl FnOnce() -> bool) -> bool {
        let WakeMechanism::Task(task) = &self.state.mechanism else { return false };
        let mut task = WakeMechanism::lock(task);
        match &mut *task {
            Some(known) => known.clone_from(waker),
            unknown => *unknown = Some(waker.clone()),
        }
        drop(task);
        let sleeps = self.announce(has_work);
        if !sleeps {
            self.end_sleep();
        }
        sleeps
    }

    /// Ends the sleep of a task.
    pub fn end_sleep(&self) {
        self.state.word.get().store(AWAKE, Ordering::Relaxed);
    }

    /// Announces the sleep to wakers. Returns whether there is nothing to do.
    fn announce(&self, has_work: impl FnOnce() -> bool) -> bool {
        // Relaxed: ordered by the fence, which pairs with the one in wake().
        self.state.word.get().store(SLEEPING, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !has_work()
    }

    fn block(&self, timeout: Duration) {
        // A signal ends the sleep early, which does no harm.
        let event = match &self.state.mechanism {
            WakeMechanism::Event(event) => event,
            WakeMechanism::Task(_) => return,
            WakeMechanism::Word => {
                let word = &self.state.word;
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
        // Takes the event, if there is one.
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
        Self {
            state: Arc::new(ParkingState {
                word: Word::Mapped(word),
                mechanism: WakeMechanism::Word,
            }),
        }
    }

    /// Wakes the thread if it sleeps. The caller has already put the work where the thread looks.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.state.word.get().load(Ordering::Relaxed) != AWAKE {
            self.state.notify();
        }
    }

    /// Whether both wake the same thread.
    #[must_use]
    pub fn wakes_same_thread(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl ParkingState {
    #[cold]
    fn notify(&self) {
        if let WakeMechanism::Event(event) = &self.mechanism {
            // It fails only if 2^64 - 2 events were not taken.
            let _ = event.write(1);
            return;
        }
        // Relaxed: a thread that wakes up looks at all its queues. The word changes, so that a thread that is about to block does not.
        let word = self.word.get();
        let first = word.compare_exchange(SLEEPING, WAKING, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err() && !self.word.is_of_several_processes() {
            return;
        }
        match &self.mechanism {
            WakeMechanism::Task(task) => {
                let waker = WakeMechanism::lock(task).clone();
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
