//! The workers of one OS thread, and a step of all of them.
//!
//! *Invariant*: workers stay on the thread that made them, because the values on their coroutines' stacks may not move.
//!
//! *Not here*: what the thread does while there is nothing to do, in `driver` and `hosted`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task;
use std::thread;
use std::time::Duration;

use gannet_rpc::{BootClock, Clock, MonotonicClock, Parking, Port, TimeOfDay, Waker};

use crate::cluster_state::ClusterState;
use crate::fence::Fenced;
use crate::member::{Assignment, WorkerClocks};
use crate::worker::Worker;

/// Steps between two publications of a thread's statistics; it also publishes them before it sleeps.
const STEPS_PER_REPORT: u32 = 4_096;
/// Longest sleep. A thread is woken at once when there is work for it; this bounds the delay of what does not wake it.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How often a thread without jobs looks whether the others of a cluster that closes have none either, nanoseconds.
const CLOSING_LOOK_NS: u64 = 1_000_000;

/// What a step has come to.
pub(crate) enum Step {
    Progressed,
    /// There was nothing to do.
    Idle,
    Ended(End),
}

/// Why a thread stops.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Closed,
    Halted,
}

/// The workers of one thread.
pub(crate) struct WorkerGroup<P: Port> {
    workers: Vec<Worker<Fenced<P::Sender>, P::Receiver>>,
    /// In the same order.
    assigned: Vec<Assignment>,
    clock: Rc<dyn Clock>,
    parking: Parking,
    state: Arc<ClusterState>,
    steps: u32,
    /// When the last step began.
    now_ns: u64,
    counted_out: bool,
}

impl<P: Port> WorkerGroup<P> {
    pub(crate) fn new(
        assignments: Vec<(Assignment, P)>,
        parking: Parking,
        state: Arc<ClusterState>,
    ) -> Self {
        let clock: Rc<dyn Clock> = Rc::new(MonotonicClock::new());
        let (mut workers, mut assigned) = (Vec::new(), Vec::new());
        for (assignment, port) in assignments {
            let (sender, receiver) = port.split();
            let Assignment { member, worker, .. } = &assignment;
            let clock = Rc::clone(&clock);
            let (lease_clock, time_of_day) = (Rc::new(BootClock), Rc::new(TimeOfDay));
            let clocks = WorkerClocks { clock, lease_clock, time_of_day };
            workers.push(member.start_worker(*worker, clocks, sender, receiver));
            assigned.push(assignment);
        }
        Self { workers, assigned, clock, parking, state, steps: 0, now_ns: 0, counted_out: false }
    }

    pub(crate) fn state(&self) -> &Arc<ClusterState> {
        &self.state
    }

    pub(crate) fn waker(&self) -> Waker {
        self.parking.waker()
    }

    /// When the last step began, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The time, in nanoseconds.
    pub(crate) fn time_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Whether no job runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.workers.iter().all(Worker::is_idle)
    }

    /// Whether a job waits for answers to its requests.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.workers.iter().any(Worker::awaits_answers)
    }

    /// Polls every worker once.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_PER_REPORT) {
            self.report();
            // Relaxed: it is looked at again.
            if self.state.halted.load(Ordering::Relaxed) {
                return Step::Ended(End::Halted);
            }
        }
        self.now_ns = self.clock.now_ns();
        let mut progressed = false;
        for worker in &mut self.workers {
            progressed |= worker.poll(self.now_ns);
        }
        if progressed { Step::Progressed } else { self.without_progress() }
    }

    fn without_progress(&mut self) -> Step {
        if self.is_halted() {
            return Step::Ended(End::Halted);
        }
        if self.can_count_out() {
            self.counted_out = true;
            self.state.count_out();
        }
        if self.counted_out && self.state.busy_threads.load(Ordering::Acquire) == 0 {
            return Step::Ended(End::Closed);
        }
        Step::Idle
    }

    fn is_halted(&self) -> bool {
        // Acquire: pairs with the Release where it is set.
        self.state.halted.load(Ordering::Acquire)
    }

    /// Whether the cluster closes, and this thread has finished its jobs since.
    fn can_count_out(&self) -> bool {
        // Acquire: pairs with the Release in Threads::end().
        !self.counted_out && self.state.closing.load(Ordering::Acquire) && self.is_idle()
    }

    fn report(&self) {
        for (Assignment { member, worker, .. }, driven) in self.assigned.iter().zip(&self.workers) {
            member.publish(*worker, &driven.statistics());
        }
    }

    /// Sleeps until there is something to do.
    pub(crate) fn sleep(&self) {
        self.report();
        self.parking.sleep(self.sleep_max(), || self.has_work());
    }

    /// As [`Self::sleep`], for a task with this waker: whether it sleeps from now on.
    pub(crate) fn sleeps(&self, waker: &task::Waker) -> bool {
        self.report();
        self.parking.sleeps(waker, || self.has_work())
    }

    /// Ends the sleep of a task.
    pub(crate) fn end_sleep(&self) {
        self.parking.end_sleep();
    }

    /// How long it may sleep after the last step: until there is something to do without a packet or a job, and no longer
    /// than it may not look.
    pub(crate) fn sleep_max(&self) -> Duration {
        // A thread that waits for others to finish their jobs is not woken by them.
        let look = self.counted_out.then(|| self.now_ns + CLOSING_LOOK_NS);
        let deadlines = self.workers.iter().filter_map(Worker::next_deadline_ns);
        let deadline = deadlines.chain(look).min();
        let wait = deadline.map(|deadline| deadline.saturating_sub(self.now_ns).max(1));
        wait.map_or(SLEEP_MAX, |wait| Duration::from_nanos(wait).min(SLEEP_MAX))
    }

    /// Whether there is something to do at once.
    fn has_work(&self) -> bool {
        let is_to_end = self.is_halted() || self.can_count_out();
        is_to_end || self.workers.iter().any(|worker| worker.has_packets() || worker.has_work())
    }

    /// Ends the workers; a result without an end is the panic of one of them.
    pub(crate) fn end(mut self, result: thread::Result<End>) {
        match result {
            Ok(End::Closed) => self.workers.iter_mut().for_each(Worker::close),
            Ok(End::Halted) => self.halt(),
            // The cluster has halted before jobs are told so.
            Err(panic) => {
                self.state.fail(&*panic);
                self.halt();
            }
        }
    }

    /// Settles what is under way, and ends all jobs.
    fn halt(&mut self) {
        for worker in &mut self.workers {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.halt())) {
                // Its jobs are dropped with it.
                self.state.fail(&*panic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, ClusterOptions};
    use gannet_rpc::MemoryFabric;

    #[test]
    fn what_comes_before_a_thread_sleeps_keeps_it_awake() {
        type Event = fn(&ClusterState);
        let halt: Event = |state| state.halted.store(true, Ordering::Release);
        let close: Event = |state| state.closing.store(true, Ordering::Release);
        for event in [halt, close] {
            let options = ClusterOptions {
                nodes: 1,
                replicas: 1,
                threads: 1,
                memory_limit_bytes: Some(16 << 20),
                ..ClusterOptions::default()
            };
            let cluster = Cluster::unstarted(options).unwrap();
            let parking = Parking::new();
            let wakers = [parking.waker()];
            let port = MemoryFabric::new(1, 1, 1_500, 64 << 10).take(0, 0, &wakers[0], &wakers);
            let state = Arc::clone(&cluster.state);
            state.busy_threads.store(1, Ordering::Release);
            let member = Arc::clone(&cluster.members[0]);
            let assignments = vec![(Assignment { member, worker: 0, index: 0 }, port)];
            let mut group = WorkerGroup::new(assignments, parking, Arc::clone(&state));
            assert!(matches!(group.step(), Step::Idle) && !group.has_work());
            event(&state);
            wakers[0].wake();
            assert!(group.has_work(), "it would sleep for {SLEEP_MAX:?}");
            assert!(matches!(group.step(), Step::Ended(_)));
        }
    }
}
