//! Workers on a thread that has other tasks as well, such as a server's connections.
//!
//! ```text
//! runtime ─┬─ a task per connection ── spawn ──► steps of the workers, until the job is done ──► the task goes on
//!          └─ the driver, a task too: steps of the workers while there is something to do, else it sleeps
//! ```
//! A job on another thread takes two thread switches, to start it and to return its result. That is more than most jobs take. On a
//! hosted thread a task that spawns a job lets the workers of its own thread run it at once. If the job then waits, the driver
//! continues it.
//!
//! *Not here*: any runtime; it is given as a [`ThreadHost`].

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use gannet_rpc::{Port, Waker};

use crate::cluster_state::ClusterState;
use crate::worker_group::{End, Step, WorkerGroup};

/// Steps of the workers between two looks at the other tasks, at most.
const STEPS_PER_TURN: u32 = 64;
/// Time after which no further step is taken before that, nanoseconds: a step may take long.
const TURN_NS_MAX: u64 = 500_000;

/// Runs tasks of its own on the threads that drive a cluster's workers.
///
/// Its tasks must not block until a job is done, because no other thread would run the job. They must not drop the last handle of the
/// cluster, which waits for its threads.
pub trait ThreadHost: Send + Sync {
    /// Runs `driver` to its end, on the calling thread, which is that with this number from 0.
    fn run(&self, thread: usize, driver: Pin<&mut dyn Driver>);
}

/// What drives the workers of a thread: a task that ends when the cluster has closed or halted.
pub trait Driver: Future<Output = ()> {
    /// How long after it returned `Pending` it must be polled at the latest, even if it was not woken. `None` if it has woken itself.
    fn sleep_max(&self) -> Option<Duration>;
}

thread_local! {
    /// The workers that this thread drives beside other tasks.
    static LOCAL_WORKERS: RefCell<Option<Rc<dyn LocalWorkers>>> = const { RefCell::new(None) };
}

/// The workers of this thread, as its other tasks see them.
pub(crate) trait LocalWorkers {
    /// Whether they are workers of the cluster that this belongs to.
    fn belong_to(&self, state: &Arc<ClusterState>) -> bool;
    /// Whether a worker of the process is one of them.
    fn drives(&self, worker: usize) -> bool;
    /// The number, among the workers of the process, of one of them, in this range if there is one: each in turn.
    fn next_worker(&self, wanted: &Range<usize>) -> usize;
    /// Has them work until `is_done`, or until there is nothing to do at once.
    fn run_until(&self, is_done: &dyn Fn() -> bool);
}

/// The workers of the cluster that `state` belongs to which this thread drives beside other tasks.
pub(crate) fn local_workers(state: &Arc<ClusterState>) -> Option<Rc<dyn LocalWorkers>> {
    let local = LOCAL_WORKERS.with_borrow(Clone::clone);
    local.filter(|local| local.belong_to(state))
}

/// Runs a group until the cluster closes or halts.
pub(crate) fn run<P: Port>(
    group: WorkerGroup<P>,
    host: &dyn ThreadHost,
    thread: usize,
    workers: Vec<usize>,
) {
    let hosted = Rc::new(Hosted {
        workers,
        next: Cell::new(0),
        waker: group.waker(),
        state: Arc::clone(group.state()),
        sleep_max: Cell::new(None),
        group: RefCell::new(Some(group)),
    });
    LOCAL_WORKERS.set(Some(Rc::clone(&hosted) as Rc<dyn LocalWorkers>));
    let driver = HostedDriver(Rc::clone(&hosted));
    // The message of a panic was printed.
    let _ = catch_unwind(AssertUnwindSafe(|| host.run(thread, pin!(driver))));
    LOCAL_WORKERS.set(None);
    // Only a host that ended early leaves workers.
    hosted.end(Err(Box::new("the host has ended")));
}

struct Hosted<P: Port> {
    /// None when it has ended.
    group: RefCell<Option<WorkerGroup<P>>>,
    /// The numbers of its workers, at least one.
    workers: Vec<usize>,
    /// The turns so far. They tell which of the workers is next.
    next: Cell<usize>,
    waker: Waker,
    state: Arc<ClusterState>,
    sleep_max: Cell<Option<Duration>>,
}

impl<P: Port> Hosted<P> {
    /// Steps until one does not progress, `is_done`, or it is time for other tasks.
    fn turn(group: &mut WorkerGroup<P>, is_done: impl Fn() -> bool) -> thread::Result<Step> {
        catch_unwind(AssertUnwindSafe(|| {
            let end_ns = group.time_ns() + TURN_NS_MAX;
            for _ in 0..STEPS_PER_TURN {
                match group.step() {
                    Step::Progressed if is_done() || group.time_ns() >= end_ns => break,
                    Step::Progressed => {}
                    step => return step,
                }
            }
            Step::Progressed
        }))
    }

    fn end(&self, result: thread::Result<End>) {
        if let Some(group) = self.group.take() {
            group.end(result);
        }
    }
}

impl<P: Port> LocalWorkers for Hosted<P> {
    fn belong_to(&self, state: &Arc<ClusterState>) -> bool {
        Arc::ptr_eq(&self.state, state)
    }

    fn drives(&self, worker: usize) -> bool {
        self.workers.contains(&worker)
    }

    fn next_worker(&self, wanted: &Range<usize>) -> usize {
        let next = self.next.get();
        self.next.set(next.wrapping_add(1));
        let (before, from_next) = self.workers.split_at(next % self.workers.len());
        let mut in_turn = from_next.iter().chain(before).copied();
        in_turn.find(|worker| wanted.contains(worker)).unwrap_or(from_next[0])
    }

    fn run_until(&self, is_done: &dyn Fn() -> bool) {
        // A job inside of a coroutine finds the group borrowed: its workers run already.
        let Ok(mut group) = self.group.try_borrow_mut() else { return };
        let Some(working) = group.as_mut() else { return };
        match Self::turn(working, is_done) {
            Ok(_) if working.is_idle() => {}
            // The driver goes on, or ends as its own step tells.
            Ok(_) => self.waker.wake(),
            Err(panic) => {
                drop(group);
                self.waker.wake();
                self.end(Err(panic));
            }
        }
    }
}

/// The task that the host runs.
struct HostedDriver<P: Port>(Rc<Hosted<P>>);

impl<P: Port> Future for HostedDriver<P> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let hosted = &self.0;
        let mut group = hosted.group.borrow_mut();
        let Some(working) = group.as_mut() else { return Poll::Ready(()) };
        working.end_sleep();
        let result = match Hosted::turn(working, || false) {
            Ok(Step::Idle) if !hosted.state.busy_poll && working.sleeps(context.waker()) => {
                hosted.sleep_max.set(Some(working.sleep_max()));
                return Poll::Pending;
            }
            Ok(Step::Idle | Step::Progressed) => {
                hosted.sleep_max.set(None);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(Step::Ended(end)) => Ok(end),
            Err(panic) => Err(panic),
        };
        drop(group);
        hosted.end(result);
        Poll::Ready(())
    }
}

impl<P: Port> Driver for HostedDriver<P> {
    fn sleep_max(&self) -> Option<Duration> {
        self.0.sleep_max.get()
    }
}
