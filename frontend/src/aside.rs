//! A pool of threads for long computations of statements: compiling patterns, functions of large values, texts of large
//! arrays, and freeing much memory.
//!
//! ```text
//! session or coroutine ── submit(job) ─► queue ─► thread ── result ─► Pending::poll
//!                         dispose(content) ─►            drops the content
//! ```
//!
//! *Invariants*: the stack of a thread suffices for every recursion over user input. A job whose statement has ended does not
//! begin; a running job that looks at its flag ends early. The number of threads is bounded.
//!
//! *Not here*: parsing and planning, which have a thread of their own (`parser`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::SqlError;
use crate::parser;

/// Bytes that a worker's thread may process at once: more take about a millisecond.
pub const HELD_BYTES_MAX: usize = 256 << 10;
/// Prefix of the threads' names.
const NAME: &str = "gannet-aside";
/// Maximum number of threads; a long job holds one of them.
const THREADS_MAX: usize = 4;
/// A thread's stack: many times the need of the deepest pattern's compilation.
const STACK_BYTES: usize = 16 << 20;

type Task = Box<dyn FnOnce() + Send>;

/// The pool.
#[derive(Debug)]
pub(crate) struct Aside {
    tasks: Sender<Task>,
    /// Jobs that were submitted.
    #[cfg(test)]
    jobs: std::sync::atomic::AtomicUsize,
}

/// A submitted job. Dropping this abandons the job.
pub(crate) struct Pending<T> {
    result: Receiver<Result<T, SqlError>>,
    abandoned: Arc<AtomicBool>,
}

impl Aside {
    /// Starts the threads. They end when the pool is dropped.
    ///
    /// # Errors
    /// SQLSTATE 53000 if the system refuses a thread.
    pub(crate) fn start() -> Result<Self, SqlError> {
        let (tasks, queue) = channel::<Task>();
        let queue = Arc::new(Mutex::new(queue));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for number in 0..cores.clamp(2, THREADS_MAX) {
            let queue = Arc::clone(&queue);
            let run = move || {
                loop {
                    // No code panics while it holds this lock.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(task) = next else { return };
                    // A panic drops the sender, which ends the statement, and not the thread.
                    let _ = catch_unwind(AssertUnwindSafe(task));
                }
            };
            std::thread::Builder::new()
                .name(format!("{NAME}-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(run)
                .map_err(|error| {
                    SqlError::new("53000", format!("no thread to compute on: {error}"))
                })?;
        }
        Ok(Self {
            tasks,
            #[cfg(test)]
            jobs: Default::default(),
        })
    }

    #[cfg(test)]
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Drops a value on one of the threads, because that may take long.
    pub(crate) fn dispose(&self, content: impl Send + 'static) {
        // The threads outlive this pool; a task that cannot be sent is dropped here.
        let _ = self.tasks.send(Box::new(move || drop(content)));
    }

    /// Submits a job. The job gets a flag, which is set when the job is abandoned.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&AtomicBool) -> Result<T, SqlError> + Send + 'static,
    ) -> Pending<T> {
        #[cfg(test)]
        self.jobs.fetch_add(1, Ordering::Relaxed);
        let (sender, result) = channel();
        let abandoned = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&abandoned);
        let task = Box::new(move || {
            // Relaxed: the flag carries nothing but itself.
            if !flag.load(Ordering::Relaxed) {
                // The receiver is gone if the job was abandoned.
                let _ = sender.send(job(&flag));
            }
        });
        // The threads outlive this pool; a task that cannot be sent drops its sender, which is an error for the receiver.
        let _ = self.tasks.send(task);
        Pending { result, abandoned }
    }
}

/// Asserts in debug builds that a worker's thread does not process more bytes than it may.
pub(crate) fn check(bytes: usize) {
    let is_beside = |name: &str| name.starts_with(NAME) || name == parser::THREAD;
    let is_aside = || std::thread::current().name().is_some_and(is_beside);
    debug_assert!(bytes <= HELD_BYTES_MAX || is_aside(), "{bytes} bytes hold a worker's thread");
}

impl<T> Pending<T> {
    /// The result once the job has ended; an error if the job panicked.
    pub(crate) fn poll(&self) -> Option<Result<T, SqlError>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(SqlError::new("XX000", "the statement could not be computed")))
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T>(pending: &Pending<T>) -> Result<T, SqlError> {
        loop {
            match pending.poll() {
                Some(result) => return result,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_job_gives_its_result_and_a_panic_is_an_error() {
        let aside = Aside::start().unwrap();
        assert_eq!(wait(&aside.submit(|_| Ok(7))), Ok(7));
        let panicking = aside.submit(|_| -> Result<(), _> { panic!("in a job") });
        assert_eq!(wait(&panicking).unwrap_err().code, "XX000");
        assert_eq!(wait(&aside.submit(|_| Ok(8))), Ok(8));
    }

    #[test]
    fn an_abandoned_job_sees_its_flag() {
        let aside = Aside::start().unwrap();
        let (told, hears) = channel();
        let pending = aside.submit(move |abandoned| {
            while !abandoned.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            told.send(()).unwrap();
            Ok(())
        });
        drop(pending);
        // A job that has not begun never begins, and drops its sender.
        let _ = hears.recv();
    }
}
