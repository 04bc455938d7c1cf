//! How a thread waits: it polls, yields its core, or sleeps.
//!
//! A wake-up costs the thread and its waker several microseconds each. Most answers through memory take less. So the thread polls
//! for such an answer, within a budget of time that follows the lengths of earlier waits:
//!
//! ```text
//! wait begins ── polls ──► POLLED_NS ── polls, gives up its core in between ──► budget ── sleeps
//!                                       │ another thread had the core: sleeps
//! a wait that ended soon after the budget doubles the budget; one that took longer halves it
//! ```
//! Only a thread that waits for an answer, or for a job of its own process, has a budget. If clients come through sockets, polling
//! would make the core look busy, and the system would not run their threads there.
//!
//! To poll a socket is a system call, and the system wakes a thread that sleeps at a socket by itself. Such a thread yields its core
//! once if it expects an answer: threads that share the core run, and what they send needs no wake-up. Then the thread sleeps.
//!
//! *Source*: halt polling of hypervisors (Linux, `Documentation/virt/kvm/halt-polling.rst`): a budget that grows and shrinks.
//!
//! *Invariants*: time comes from the caller, and nothing here waits.
//!
//! *Not here*: sleeping, in `gannet_rpc::Parking`.

use std::sync::atomic::{AtomicUsize, Ordering};

use gannet_rpc::Port;

/// A thread polls so long before it first gives up its core, nanoseconds.
const POLLED_NS: u64 = 2_000;
/// Longest budget, and the least but 0, nanoseconds.
const BUDGET_NS_MAX: u64 = 50_000;
const BUDGET_NS_MIN: u64 = 5_000;
/// Polling would have paid for a wait that took less, wake-up included, nanoseconds.
const WORTHWHILE_NS: u64 = 2 * BUDGET_NS_MAX;
/// Longest time between two polls if no other thread ran in between, nanoseconds.
const ALONE_NS: u64 = 5_000;

/// Threads of this process that wait for its workers in [`crate::block_on`].
static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// A thread that waits for workers of its process, as long as this is there.
pub(crate) struct NearClient(());

impl NearClient {
    pub(crate) fn new() -> Self {
        // Relaxed: the count says how to wait, and orders nothing.
        CLIENTS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Whether there is one.
    pub(crate) fn exists() -> bool {
        CLIENTS.load(Ordering::Relaxed) > 0
    }
}

impl Drop for NearClient {
    fn drop(&mut self) {
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What tells a thread that its wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Words of memory, which are polled for next to nothing.
    Memory,
    /// Sockets, or what else is polled by a system call.
    Sockets,
}

impl Medium {
    /// What a poll of a transport looks at.
    pub(crate) fn of<P: Port>() -> Self {
        if P::POLL_IS_SYSTEM_CALL { Self::Sockets } else { Self::Memory }
    }
}

/// What a thread does next that has found nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Looks again at once.
    Poll,
    /// Gives up its core once, and looks again.
    Yield,
    /// Sleeps until it is woken.
    Sleep,
}

/// What a thread knows of its waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    medium: Medium,
    budget_ns: u64,
    wait: Option<Wait>,
}

/// A wait that has not ended.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began_ns: u64,
    /// When the thread last found nothing.
    looked_ns: u64,
    /// Whether the thread had a budget for it, and has spent that.
    has_slept: bool,
}

impl Waiting {
    pub(crate) fn new(medium: Medium) -> Self {
        Self { medium, budget_ns: BUDGET_NS_MAX, wait: None }
    }

    /// The thread has found something to do.
    #[inline]
    pub(crate) fn progressed(&mut self, now_ns: u64) {
        if let Some(wait) = self.wait.take()
            && wait.has_slept
        {
            self.learn(now_ns.saturating_sub(wait.began_ns));
        }
    }

    /// Learns from a wait that took longer than its budget.
    fn learn(&mut self, took_ns: u64) {
        self.budget_ns = if took_ns < WORTHWHILE_NS {
            (2 * self.budget_ns).clamp(BUDGET_NS_MIN, BUDGET_NS_MAX)
        } else {
            // Below the least one there is none.
            Some(self.budget_ns / 2).filter(|&budget_ns| budget_ns >= BUDGET_NS_MIN).unwrap_or(0)
        };
    }

    /// The thread has found nothing to do; `expects`: whether an answer or a job is on its way.
    #[inline]
    pub(crate) fn idle(&mut self, now_ns: u64, expects: bool) -> Decision {
        let begins = self.wait.is_none();
        let wait =
            self.wait.get_or_insert(Wait { began_ns: now_ns, looked_ns: now_ns, has_slept: false });
        if self.medium == Medium::Sockets {
            return if expects && begins { Decision::Yield } else { Decision::Sleep };
        }
        let is_alone = now_ns.saturating_sub(wait.looked_ns) < ALONE_NS;
        wait.looked_ns = now_ns;
        let waited_ns = now_ns.saturating_sub(wait.began_ns);
        if waited_ns < POLLED_NS {
            Decision::Poll
        } else if expects && is_alone && !wait.has_slept && waited_ns < self.budget_ns {
            Decision::Yield
        } else {
            wait.has_slept = expects;
            Decision::Sleep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every 500 ns from 0 on: when the thread first sleeps.
    fn sleeps_at(waiting: &mut Waiting, expects: bool) -> u64 {
        let mut times = (0..).step_by(500);
        times.find(|&now_ns| waiting.idle(now_ns, expects) == Decision::Sleep).unwrap()
    }

    #[test]
    fn the_budget_follows_what_waits_took() {
        let mut waiting = Waiting::new(Medium::Memory);
        let mut budgets = Vec::new();
        for took_ns in [200_000, 200_000, 200_000, 200_000, 200_000, 60_000, 60_000, 99_000] {
            budgets.push(sleeps_at(&mut waiting, true));
            waiting.progressed(took_ns);
        }
        assert_eq!(budgets, [50_000, 25_000, 12_500, 6_500, 2_000, 2_000, 5_000, 10_000]);
        // What is found within the budget teaches nothing.
        assert_eq!(waiting.idle(0, true), Decision::Poll);
        waiting.progressed(1_000);
        assert_eq!(sleeps_at(&mut waiting, true), 20_000);
    }

    #[test]
    fn who_expects_nothing_sleeps_soon_and_learns_nothing() {
        let mut waiting = Waiting::new(Medium::Memory);
        for _ in 0..9 {
            assert_eq!(sleeps_at(&mut waiting, false), POLLED_NS);
            waiting.progressed(1_000_000_000);
        }
        assert_eq!(sleeps_at(&mut waiting, true), BUDGET_NS_MAX);
    }

    #[test]
    fn a_core_that_others_want_is_left_to_them() {
        let mut waiting = Waiting::new(Medium::Memory);
        let times = [0, 1_000, 2_500, 4_000, 10_000, 11_000];
        let found = times.map(|now_ns| waiting.idle(now_ns, true));
        use Decision::{Poll, Sleep, Yield};
        assert_eq!(found, [Poll, Poll, Yield, Yield, Sleep, Sleep]);
        waiting.progressed(12_000);
        assert_eq!(waiting.idle(20_000, true), Poll, "a wait of its own");
    }

    #[test]
    fn sockets_are_slept_at_after_one_yield_for_an_answer() {
        let mut waiting = Waiting::new(Medium::Sockets);
        for _ in 0..3 {
            assert_eq!(waiting.idle(5, true), Decision::Yield);
            assert_eq!(waiting.idle(6, true), Decision::Sleep);
            assert_eq!(waiting.idle(1_000_000, true), Decision::Sleep);
            waiting.progressed(1_000_001);
        }
        assert_eq!(waiting.idle(2_000_000, false), Decision::Sleep, "nothing is expected");
    }
}
