//! Blocking an idle worker thread, and waking it when a packet or work arrives.
//!
//! The sleeper announces itself, looks at all its queues once more, and only then blocks; a waker
//! first fills a queue and then looks for the announcement. With a sequentially consistent fence on
//! both sides at least one of them sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use crossbeam::sync::{Parker, Unparker};

struct Shared {
    sleeping: AtomicBool,
    unparker: Unparker,
}

/// The thread's side.
pub struct Parking {
    parker: Parker,
    shared: Arc<Shared>,
}

/// Wakes a thread; cheap while the thread is awake.
#[derive(Clone)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Parking {
    /// A place for one thread to sleep.
    #[must_use]
    pub fn new() -> Self {
        let parker = Parker::new();
        let shared = Arc::new(Shared {
            sleeping: AtomicBool::new(false),
            unparker: parker.unparker().clone(),
        });
        Self { parker, shared }
    }

    /// A waker for this thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { shared: Arc::clone(&self.shared) }
    }

    /// Sleeps until woken or for `timeout`, unless `has_work` finds something to do.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        // Relaxed: ordered by the fence, which pairs with the one in wake().
        self.shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            self.parker.park_timeout(timeout);
        }
        self.shared.sleeping.store(false, Ordering::Relaxed);
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
            self.shared.unparker.unpark();
        }
    }

    /// Whether both wake the same thread.
    #[must_use]
    pub fn wakes_same_thread(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}
