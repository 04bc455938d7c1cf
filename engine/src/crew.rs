//! The workers of one OS thread, and a step of all of them.
//!
//! *Invariant*: they stay on the thread that they were made on, as what their coroutines run may.
//!
//! *Not here*: what the thread does while there is nothing to do, in `driver` and `hosted`.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task;
use std::thread;
use std::time::Duration;

use gannet_rpc::{Clock, MonotonicClock, Parking, Waker};

use crate::driver::{Port, Seat, Shared};
use crate::statistics::Board;
use crate::worker::Worker;

/// Steps between two times that a thread writes its statistics; it also does before it sleeps.
const STEPS_PER_REPORT: u32 = 4_096;
/// Longest sleep: a thread looks at everything at least this often. Whoever has something for it wakes it at once.
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
pub(crate) struct Crew<P: Port> {
    workers: Vec<Worker<P::Sender, P::Receiver>>,
    boards: Vec<Arc<Board>>,
    clock: Rc<dyn Clock>,
    parking: Parking,
    shared: Arc<Shared>,
    steps: u32,
    /// When the last step began.
    now_ns: u64,
    counted_out: bool,
}

impl<P: Port> Crew<P> {
    pub(crate) fn new(seats: Vec<(Seat, P)>, parking: Parking, shared: Arc<Shared>) -> Self {
        let clock: Rc<dyn Clock> = Rc::new(MonotonicClock::new());
        let boards = seats.iter().map(|(seat, _)| Arc::clone(&seat.board)).collect();
        let build = |(seat, port): (Seat, P)| {
            let (sender, receiver) = port.split();
            seat.build(Rc::clone(&clock), sender, receiver)
        };
        let workers = seats.into_iter().map(build).collect();
        Self { workers, boards, clock, parking, shared, steps: 0, now_ns: 0, counted_out: false }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
            if self.shared.halted.load(Ordering::Relaxed) {
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
            self.shared.count_out();
        }
        if self.counted_out && self.shared.busy_threads.load(Ordering::Acquire) == 0 {
            return Step::Ended(End::Closed);
        }
        Step::Idle
    }

    fn is_halted(&self) -> bool {
        // Acquire: pairs with the Release where it is set.
        self.shared.halted.load(Ordering::Acquire)
    }

    /// Whether the cluster closes, and this thread has finished its jobs since.
    fn can_count_out(&self) -> bool {
        // Acquire: pairs with the Release in Cluster::end_threads().
        !self.counted_out && self.shared.closing.load(Ordering::Acquire) && self.is_idle()
    }

    fn report(&self) {
        let statistics = self.workers.iter().map(Worker::statistics);
        self.boards.iter().zip(statistics).for_each(|(board, of_worker)| board.write(&of_worker));
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
    pub(crate) fn rise(&self) {
        self.parking.rise();
    }

    /// How long it may sleep after the last step: until there is something to do without a packet or a job, and no longer
    /// than it may not look.
    pub(crate) fn sleep_max(&self) -> Duration {
        // Nobody wakes those that wait for others to finish their jobs.
        let look = self.counted_out.then(|| self.now_ns + CLOSING_LOOK_NS);
        let deadlines = self.workers.iter().filter_map(Worker::next_deadline_ns);
        let deadline = deadlines.chain(look).min();
        let wait = deadline.map(|deadline| deadline.saturating_sub(self.now_ns).max(1));
        wait.map_or(SLEEP_MAX, |wait| Duration::from_nanos(wait).min(SLEEP_MAX))
    }

    /// Whether there is something to do at once, which whoever wakes the thread has left for it.
    fn has_work(&self) -> bool {
        let is_to_end = self.is_halted() || self.can_count_out();
        is_to_end
            || self
                .workers
                .iter()
                .any(|worker| P::has_packets(worker.receiver()) || worker.has_work())
    }

    /// Ends the workers; a result without an end is the panic of one of them.
    pub(crate) fn end(mut self, result: thread::Result<End>) {
        match result {
            Ok(End::Closed) => self.workers.iter_mut().for_each(Worker::close),
            // What the coroutines ran is dropped with them: whoever waits hears that it is lost.
            Ok(End::Halted) => {}
            // The same, and so are jobs that wait: the cluster has halted before they are dropped.
            Err(panic) => self.shared.fail(&*panic),
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
        type Event = fn(&Shared);
        let halt: Event = |shared| shared.halted.store(true, Ordering::Release);
        let close: Event = |shared| shared.closing.store(true, Ordering::Release);
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
            let shared = Arc::clone(&cluster.shared);
            shared.busy_threads.store(1, Ordering::Release);
            let seats = vec![(cluster.seat(0, 0), port)];
            let mut crew = Crew::new(seats, parking, Arc::clone(&shared));
            assert!(matches!(crew.step(), Step::Idle) && !crew.has_work());
            event(&shared);
            wakers[0].wake();
            assert!(crew.has_work(), "it would sleep for {SLEEP_MAX:?}");
            assert!(matches!(crew.step(), Step::Ended(_)));
        }
    }
}
