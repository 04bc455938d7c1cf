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
pub trait ThreadHost: Send + Sync {
    /// Runs `driver` to its end, on the calling thread, which is that with this number from 0.
    fn run(&self, thread: usize, driver: Pin<&mut dyn Driver>);
}

/// What drives the workers of a thread: a task that ends when the cluster has closed or halted.
pub trait Driver: Future<Output = ()> {
    /// When it is to be polled though nobody has woken it: so long after it was pending. More than zero.
    fn deadline(&self) -> Option<Duration>;
}

thread_local! {
    /// The workers that this thread drives beside other tasks.
    static HERE: RefCell<Option<Rc<dyn Help>>> = const { RefCell::new(None) };
}

/// The workers of this thread, as its other tasks see them.
pub(crate) trait Help {
    /// Whether they are workers of the cluster that this belongs to.
    fn are_of(&self, shared: &Arc<Shared>) -> bool;
    /// Their numbers among the workers of the process; there is one at least.
    fn places(&self) -> &[usize];
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
        waker: crew.waker(),
        shared: Arc::clone(crew.shared()),
        deadline: Cell::new(None),
        crew: RefCell::new(Some(crew)),
    });
    HERE.set(Some(Rc::clone(&hosted) as Rc<dyn Help>));
    host.run(thread, pin!(HostedDriver(Rc::clone(&hosted))));
    HERE.set(None);
    // Only a host that has given up leaves one.
    if let Some(crew) = hosted.crew.take() {
        crew.end(Err(Box::new("the host has ended")));
    }
}

struct Hosted<P: Port> {
    /// None when it has ended.
    crew: RefCell<Option<Crew<P>>>,
    places: Vec<usize>,
    waker: Waker,
    shared: Arc<Shared>,
    deadline: Cell<Option<Duration>>,
}

impl<P: Port> Hosted<P> {
    /// Steps until one does not progress, `is_done`, or it is time for other tasks.
    fn turn(crew: &mut Crew<P>, is_done: impl Fn() -> bool) -> thread::Result<Step> {
        catch_unwind(AssertUnwindSafe(|| {
            let mut began_ns = None;
            for _ in 0..STEPS_PER_TURN {
                match crew.step() {
                    Step::Progressed if is_done() => break,
                    Step::Progressed => {}
                    step => return step,
                }
                let began_ns = *began_ns.get_or_insert(crew.now_ns());
                if crew.now_ns() - began_ns >= TURN_NS_MAX {
                    break;
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

    fn places(&self) -> &[usize] {
        &self.places
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
                self.end(Err(panic));
                self.waker.wake();
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
        match Hosted::turn(working, || false) {
            Ok(Step::Idle) if !hosted.shared.busy_poll && working.sleeps(context.waker()) => {
                hosted.deadline.set(working.deadline());
                Poll::Pending
            }
            Ok(Step::Idle | Step::Progressed) => {
                hosted.deadline.set(None);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(Step::Ended(end)) => {
                drop(crew);
                hosted.end(Ok(end));
                Poll::Ready(())
            }
            Err(panic) => {
                drop(crew);
                hosted.end(Err(panic));
                Poll::Ready(())
            }
        }
    }
}

impl<P: Port> Driver for HostedDriver<P> {
    fn deadline(&self) -> Option<Duration> {
        self.0.deadline.get()
    }
}
