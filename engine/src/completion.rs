//! The result of a job on another thread: a thread blocks on it, or a task awaits it.
//!
//! *Invariant*: a [`Completion`] always ends. A job that is dropped without a result ends it with [`Lost`], which tells whether the job
//! had begun.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use gannet_rpc::{Clock, MonotonicClock};

use crate::waiting::{Decision, Medium, NearClient, Waiting};

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The cluster was closed or has halted before the job began: it has done nothing.
    #[error("the job did not begin: the cluster was closed or has halted before")]
    NotBegun,
    /// The job had begun. Its closure panicked, or did not end when the cluster halted; its transactions may have committed.
    #[error("the job ended without a result: it panicked, or did not end when the cluster halted")]
    Unfinished,
}

struct State<T> {
    result: Option<Result<T, Lost>>,
    /// Whether there was a result, which may have been taken since.
    completed: bool,
    waker: Option<Waker>,
}

struct CompletionCell<T> {
    state: Mutex<State<T>>,
}

/// Wakes a thread that blocks.
struct Unpark {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: pairs with the Acquire in wait_for().
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs a future on this thread until it is ready.
///
/// For futures that wait for a cluster of this process, whose answers come within microseconds. While no other thread wants the
/// cores, this thread and the workers poll before they sleep. A future that needs a runtime, such as tokio's, cannot run so.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let _client = NearClient::new();
    let clock = MonotonicClock::new();
    wait_for(future, |waiting| waiting.idle(clock.now_ns(), true))
}

/// Runs a future; `decide` says, whenever it is not ready, what the thread does.
fn wait_for<F: Future>(future: F, decide: impl Fn(&mut Waiting) -> Decision) -> F::Output {
    let thread = std::thread::current();
    let unpark = Arc::new(Unpark { is_woken: AtomicBool::new(false), thread });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let mut waiting = Waiting::new(Medium::Memory);
        // Acquire: what was done before the wake-up is seen.
        while !unpark.is_woken.swap(false, Ordering::Acquire) {
            match decide(&mut waiting) {
                // The worker that the thread waits for may want the same core.
                Decision::Poll | Decision::Yield => std::thread::yield_now(),
                Decision::Sleep => std::thread::park(),
            }
        }
    }
}

impl<T> CompletionCell<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a job, now or later.
pub struct Completion<T> {
    cell: Arc<CompletionCell<T>>,
}

/// The other end, held by the work.
pub(crate) struct Completer<T> {
    cell: Arc<CompletionCell<T>>,
    /// What the result is if the work is dropped now.
    lost: Lost,
}

/// Both ends of a result.
pub(crate) fn completion<T>() -> (Completer<T>, Completion<T>) {
    let state = Mutex::new(State { result: None, completed: false, waker: None });
    let cell = Arc::new(CompletionCell { state });
    (Completer { cell: Arc::clone(&cell), lost: Lost::NotBegun }, Completion { cell })
}

impl<T> Completer<T> {
    /// The work begins.
    pub(crate) fn begin(&mut self) {
        self.lost = Lost::Unfinished;
    }

    pub(crate) fn complete(self, value: T) {
        self.set(Ok(value));
    }

    fn set(&self, result: Result<T, Lost>) {
        let mut state = self.cell.lock();
        if !state.completed {
            state.completed = true;
            state.result = Some(result);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        // Reached after complete() too, whose result then stands.
        self.set(Err(self.lost));
    }
}

impl<T> Completion<T> {
    /// Whether there is a result.
    pub(crate) fn is_complete(&self) -> bool {
        self.cell.lock().completed
    }

    /// Blocks until the result is there.
    ///
    /// # Errors
    /// [`Lost`] if there will be none.
    pub fn wait(self) -> Result<T, Lost> {
        wait_for(self, |_| Decision::Sleep)
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T, Lost>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.cell.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_waited_for() {
        let (completer, completion) = completion();
        let worker = std::thread::spawn(move || completer.complete(5));
        assert_eq!(completion.wait(), Ok(5));
        worker.join().unwrap();
    }

    #[test]
    fn a_dropped_completer_is_a_lost_result() {
        for (begins, lost) in [(false, Lost::NotBegun), (true, Lost::Unfinished)] {
            let (mut completer, completion) = completion::<u8>();
            if begins {
                completer.begin();
            }
            drop(completer);
            assert_eq!(completion.wait(), Err(lost));
        }
    }

    #[test]
    fn a_future_is_woken() {
        struct Count(std::sync::atomic::AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(std::sync::atomic::AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let (completer, completion) = completion();
        let mut completion = std::pin::pin!(completion);
        let mut context = Context::from_waker(&waker);
        assert_eq!(completion.as_mut().poll(&mut context), Poll::Pending);
        completer.complete("done");
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(completion.as_mut().poll(&mut context), Poll::Ready(Ok("done")));
    }
}
