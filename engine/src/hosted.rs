//! Workers on a thread that has other tasks as well, such as a server's connections.
//!
//! ```text
//! runtime ─┬─ a task per connection ── spawn ──► steps of the workers, until the job is done ──► the task goes on
//!          └─ the driver, a task too: steps of the workers while there is something to do, else it sleeps
//! ```
//! To hand a job to another thread and to be woken with its result takes two switches of threads, more than most jobs take.
//! Here a task that spawns a job has the workers of its own thread run it at once. What is not done then, as it waits for
//! something, is left to the driver.
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

use gannet_rpc::Waker;

use crate::crew::{Crew, End, Step};
use crate::driver::{Port, Shared};

/// Steps of the workers between two looks at the other tasks, at most.
const STEPS_PER_TURN: u32 = 64;
/// Time after which no further step is taken before that, nanoseconds: a step may take long.
const TURN_NS_MAX: u64 = 500_000;

/// Runs tasks of its own on the threads that drive a cluster's workers.
///
/// Its tasks must not block on what the cluster does, as nobody else would do it, nor drop the last handle of the cluster, which
/// waits for its threads.
pub trait ThreadHost: Send + Sync {
    /// Runs `driver` to its end, on the calling thread, which is that with this number from 0.
    fn run(&self, thread: usize, driver: Pin<&mut dyn Driver>);
}

/// What drives the workers of a thread: a task that ends when the cluster has closed or halted.
pub trait Driver: Future<Output = ()> {
    /// How long after it was pending it is to be polled at the latest, though nobody has woken it; none if it has woken itself.
    fn sleep_max(&self) -> Option<Duration>;
}

thread_local! {
    /// The workers that this thread drives beside other tasks.
    static HERE: RefCell<Option<Rc<dyn Help>>> = const { RefCell::new(None) };
}

/// The workers of this thread, as its other tasks see them.
pub(crate) trait Help {
    /// Whether they are workers of the cluster that this belongs to.
    fn are_of(&self, shared: &Arc<Shared>) -> bool;
    /// The number, among the workers of the process, of one of them, in this range if there is one: each in turn.
    fn next_place(&self, wanted: &Range<usize>) -> usize;
    /// Has them work until `is_done`, or until there is nothing to do at once.
    fn help(&self, is_done: &dyn Fn() -> bool);
}

/// The workers of the cluster that `shared` belongs to which this thread drives beside other tasks.
pub(crate) fn here(shared: &Arc<Shared>) -> Option<Rc<dyn Help>> {
    let here = HERE.with_borrow(Clone::clone);
    here.filter(|here| here.are_of(shared))
}

/// Runs a crew until the cluster closes or halts.
pub(crate) fn run<P: Port>(
    crew: Crew<P>,
    host: &dyn ThreadHost,
    thread: usize,
    places: Vec<usize>,
) {
    let hosted = Rc::new(Hosted {
        places,
        next: Cell::new(0),
        waker: crew.waker(),
        shared: Arc::clone(crew.shared()),
        sleep_max: Cell::new(None),
        crew: RefCell::new(Some(crew)),
    });
    HERE.set(Some(Rc::clone(&hosted) as Rc<dyn Help>));
    let driver = HostedDriver(Rc::clone(&hosted));
    // What it says in a panic was printed.
    let _ = catch_unwind(AssertUnwindSafe(|| host.run(thread, pin!(driver))));
    HERE.set(None);
    // Only a host that has given up leaves workers.
    hosted.end(Err(Box::new("the host has ended")));
}

struct Hosted<P: Port> {
    /// None when it has ended.
    crew: RefCell<Option<Crew<P>>>,
    /// The numbers of its workers, at least one.
    places: Vec<usize>,
    /// Whose turn it is among them.
    next: Cell<usize>,
    waker: Waker,
    shared: Arc<Shared>,
    sleep_max: Cell<Option<Duration>>,
}

impl<P: Port> Hosted<P> {
    /// Steps until one does not progress, `is_done`, or it is time for other tasks.
    fn turn(crew: &mut Crew<P>, is_done: impl Fn() -> bool) -> thread::Result<Step> {
        catch_unwind(AssertUnwindSafe(|| {
            let end_ns = crew.time_ns() + TURN_NS_MAX;
            for _ in 0..STEPS_PER_TURN {
                match crew.step() {
                    Step::Progressed if is_done() || crew.time_ns() >= end_ns => break,
                    Step::Progressed => {}
                    step => return step,
                }
            }
            Step::Progressed
        }))
    }

    fn end(&self, result: thread::Result<End>) {
        if let Some(crew) = self.crew.take() {
            crew.end(result);
        }
    }
}

impl<P: Port> Help for Hosted<P> {
    fn are_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    fn next_place(&self, wanted: &Range<usize>) -> usize {
        let next = self.next.get();
        self.next.set(next.wrapping_add(1));
        let (before, from_next) = self.places.split_at(next % self.places.len());
        let mut in_turn = from_next.iter().chain(before).copied();
        in_turn.find(|place| wanted.contains(place)).unwrap_or(from_next[0])
    }

    fn help(&self, is_done: &dyn Fn() -> bool) {
        // Jobs inside of coroutines find it borrowed: the workers are at work.
        let Ok(mut crew) = self.crew.try_borrow_mut() else { return };
        let Some(working) = crew.as_mut() else { return };
        match Self::turn(working, is_done) {
            Ok(_) if working.is_idle() => {}
            // The driver goes on, or ends as its own step tells.
            Ok(_) => self.waker.wake(),
            Err(panic) => {
                drop(crew);
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
        let mut crew = hosted.crew.borrow_mut();
        let Some(working) = crew.as_mut() else { return Poll::Ready(()) };
        working.rise();
        let result = match Hosted::turn(working, || false) {
            Ok(Step::Idle) if !hosted.shared.busy_poll && working.sleeps(context.waker()) => {
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
        drop(crew);
        hosted.end(result);
        Poll::Ready(())
    }
}

impl<P: Port> Driver for HostedDriver<P> {
    fn sleep_max(&self) -> Option<Duration> {
        self.0.sleep_max.get()
    }
}
