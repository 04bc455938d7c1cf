//! Waiting without sleep, as long as nobody else wants the core.
//!
//! To be woken takes a thread and its waker several microseconds, more than most answers take. A thread that gives up its
//! core and has it back at once is alone there, and may look again; one that has it back later has kept somebody waiting.
//!
//! It is for a process whose own threads wait for its workers. Where clients come through sockets, a core that looks busy
//! keeps the system from putting their threads there: select-only pgbench is a fifth slower.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Times that a thread gives up its core before it sleeps.
const YIELDS_MAX: u32 = 200;
/// From one yield to the next where nobody else ran in between, nanoseconds.
const ALONE_NS: u64 = 3_000;

/// Threads of this process that wait for its workers in [`crate::block_on`].
static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// A thread that waits for workers of its process, as long as this is there.
pub(crate) struct NearClient(());

impl NearClient {
    pub(crate) fn new() -> Self {
        // Relaxed: it says how to wait, and orders nothing.
        CLIENTS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for NearClient {
    fn drop(&mut self) {
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One wait of a thread.
#[derive(Default)]
pub(crate) struct Yielding {
    yields: u32,
    last_ns: Option<u64>,
}

impl Yielding {
    /// Gives up the core once; no, having done nothing, if the thread should sleep. `now_ns`: the time, read since the last call.
    #[inline]
    pub(crate) fn yields(&mut self, now_ns: u64) -> bool {
        let is_alone = self.last_ns.is_none_or(|last_ns| now_ns.saturating_sub(last_ns) < ALONE_NS);
        if self.yields == YIELDS_MAX || !is_alone || CLIENTS.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.yields += 1;
        self.last_ns = Some(now_ns);
        std::thread::yield_now();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_after_some_yields_and_when_others_ran() {
        let client = NearClient::new();
        let mut alone = Yielding::default();
        assert_eq!((0..).take_while(|number| alone.yields(number * 500)).count(), 200);
        let mut crowded = Yielding::default();
        assert!(crowded.yields(1_000) && crowded.yields(2_000) && !crowded.yields(9_000));
        drop(client);
    }
}
