//! The watch of one kill: when it happened, which partitions have committed again, and how many commits fell into each interval.
//!
//! ```text
//! commits, per 10 ms    ···│·│·│·│·│ 0 │ 0 │·│·│·│·│·│·│·│···
//!                       500 ms before  └ the kill          1.5 s after
//! ```
//! *Invariants*: a partition is back when a write commits that began after the death. So a write that was under way at the kill
//! does not count.
//!
//! *Not here*: the writes themselves (`one_process`, and the command for processes).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gannet_engine::{Clock, MonotonicClock};

/// The interval in which commits are counted together.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long before the kill a report of commits begins.
pub const BEFORE: Duration = Duration::from_millis(500);
/// How long after the kill it ends.
pub const AFTER: Duration = Duration::from_millis(1_500);
/// How much later than planned a kill may be, and still have all of its intervals.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether all partitions are back.
const LOOK: Duration = Duration::from_millis(1);
/// The moment of something that has not happened.
const NEVER: u64 = u64::MAX;

/// What the threads of one kill share.
pub struct Watch {
    clock: MonotonicClock,
    started_ns: u64,
    killed_ns: AtomicU64,
    is_dead: AtomicBool,
    is_over: AtomicBool,
    /// By partition: when a write that began after the death has committed.
    back_ns: Vec<AtomicU64>,
    /// By lane: commits of each interval.
    lanes: Vec<Vec<AtomicU64>>,
}

/// What became of a kill.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// Time from the kill until each partition had committed a write again; none if one did not.
    pub time: Option<Duration>,
    /// The partitions that have not.
    pub missing: Vec<u16>,
    /// Commits per interval, from [`BEFORE`] the kill to [`AFTER`] it.
    pub commits: Vec<u64>,
}

impl Watch {
    /// A watch of some partitions. Commits are counted in some lanes, for as long as the warm-up and a kill take; a lane is for a
    /// thread, so that threads do not write to the same memory.
    #[must_use]
    pub fn new(partitions: usize, lanes: usize, warmup: Duration) -> Self {
        let clock = MonotonicClock::new();
        let counters = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let intervals = intervals(warmup + AFTER + DELAY_MAX);
        Self {
            started_ns: clock.now_ns(),
            clock,
            killed_ns: AtomicU64::new(NEVER),
            is_dead: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            back_ns: (0..partitions).map(|_| AtomicU64::new(NEVER)).collect(),
            lanes: (0..lanes).map(|_| counters(intervals)).collect(),
        }
    }

    /// Kills, and takes the time before. Writes that begin later count.
    pub fn kill<T>(&self, kill: impl FnOnce() -> T) -> T {
        self.killed_ns.store(self.clock.now_ns(), Ordering::Release);
        let result = kill();
        self.is_dead.store(true, Ordering::Release);
        result
    }

    /// Whether the node is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Whether clients end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // Relaxed: a few transactions more or less do not matter.
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the clients.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Counts a commit of this moment in a lane.
    #[inline]
    pub fn count(&self, lane: usize) {
        let passed = self.clock.now_ns().saturating_sub(self.started_ns);
        let interval = usize::try_from(passed / interval_ns()).unwrap_or(usize::MAX);
        // Long after the kill nobody looks at the counts.
        if let Some(count) = self.lanes[lane].get(interval) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A write that began after the death has committed in a partition.
    pub fn is_back(&self, partition: u16) {
        let back = &self.back_ns[usize::from(partition)];
        let now = self.clock.now_ns();
        // A failure means that the partition was back before.
        let _ = back.compare_exchange(NEVER, now, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Waits for a time, or until the clients end.
    pub fn pause(&self, time: Duration) {
        let until = self.clock.now_ns().saturating_add(nanoseconds(time));
        while !self.is_over() && self.rest(until) {}
    }

    /// Waits until all partitions are back, or the clients end, at most for a time. Returns whether all are.
    pub fn wait_until_back(&self, timeout: Duration) -> bool {
        let until = self.clock.now_ns().saturating_add(nanoseconds(timeout));
        while !self.is_over() && !self.missing().is_empty() {
            if self.clock.now_ns() >= until {
                return false;
            }
            std::thread::park_timeout(LOOK);
        }
        self.missing().is_empty()
    }

    /// Waits until all intervals of a report have passed.
    pub fn wait_for_report(&self) {
        let killed_ns = self.killed_ns.load(Ordering::Acquire);
        let until = killed_ns.saturating_add(nanoseconds(AFTER + INTERVAL));
        while !self.is_over() && self.rest(until) {}
    }

    /// Sleeps towards a moment. Returns whether the moment has not come.
    fn rest(&self, until_ns: u64) -> bool {
        let left = until_ns.saturating_sub(self.clock.now_ns());
        // It may return earlier.
        std::thread::park_timeout(Duration::from_nanos(left));
        left > 0
    }

    /// The partitions that are not back.
    fn missing(&self) -> Vec<u16> {
        let is_missing = |back: &AtomicU64| back.load(Ordering::Acquire) == NEVER;
        let partitions = (0..=u16::MAX).zip(&self.back_ns);
        partitions.filter(|(_, back)| is_missing(back)).map(|(partition, _)| partition).collect()
    }

    /// What became of the kill.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        let killed_ns = self.killed_ns.load(Ordering::Acquire);
        let missing = self.missing();
        let last_ns = self.back_ns.iter().map(|back| back.load(Ordering::Acquire)).max();
        let time = last_ns.filter(|_| missing.is_empty());
        let time = time.map(|last_ns| Duration::from_nanos(last_ns.saturating_sub(killed_ns)));
        let killed = killed_ns.saturating_sub(self.started_ns) / interval_ns();
        let killed = usize::try_from(killed).unwrap_or(usize::MAX);
        let first = killed.saturating_sub(intervals(BEFORE));
        let of_all = |at: usize| {
            let counts = self.lanes.iter().filter_map(|lane| lane.get(at));
            counts.map(|count| count.load(Ordering::Relaxed)).sum::<u64>()
        };
        let commits = (first..).take(intervals(BEFORE + AFTER)).map(of_all).collect();
        Recovery { time, missing, commits }
    }
}

fn interval_ns() -> u64 {
    nanoseconds(INTERVAL)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Intervals in a time.
fn intervals(time: Duration) -> usize {
    usize::try_from(time.as_nanos() / INTERVAL.as_nanos()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_back_when_all_have_committed() {
        let watch = Watch::new(3, 2, BEFORE);
        watch.pause(BEFORE);
        watch.count(1);
        assert!(!watch.is_dead());
        assert_eq!(watch.kill(|| 7), 7);
        assert!(watch.is_dead());
        watch.is_back(2);
        watch.is_back(0);
        assert!(!watch.wait_until_back(Duration::from_millis(1)));
        let recovery = watch.recovery();
        assert_eq!((recovery.time, &recovery.missing[..]), (None, &[1][..]));
        watch.is_back(1);
        let first = watch.recovery();
        assert!(watch.wait_until_back(Duration::ZERO));
        // What is back once is not back later.
        watch.is_back(1);
        assert_eq!(watch.recovery().time, first.time);
        assert!(first.time.is_some_and(|time| !time.is_zero()) && first.missing.is_empty());
        assert_eq!(first.commits.len(), 200);
        assert_eq!(first.commits.iter().sum::<u64>(), 1);
    }

    #[test]
    fn clients_that_end_are_not_waited_for() {
        let watch = Watch::new(1, 1, BEFORE);
        watch.end();
        watch.pause(Duration::from_secs(3_600));
        watch.wait_for_report();
        assert!(watch.is_over() && !watch.wait_until_back(Duration::from_secs(3_600)));
    }
}
