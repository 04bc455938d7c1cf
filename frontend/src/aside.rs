//! Threads for the parts of statements that compute for longer than a worker's thread may be held: patterns that are compiled,
//! functions of large values, texts of large arrays, and memory that is given back.
//!
//! *Invariants*: such a thread's stack suffices for everything that recurses over user input; a job whose statement has ended is
//! not begun, and one that looks at its flag ends early; the number of threads is bounded.
//! *Not here*: parsing and planning, whose thread waits for nobody else's statement (`parser`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::SqlError;
use crate::parser;

/// Bytes that may be worked through on a worker's thread: more take about a millisecond.
pub(crate) const HELD_BYTES_MAX: usize = 256 << 10;
/// What the threads' names begin with.
const NAME: &str = "gannet-aside";
/// Threads at most; a long job holds one of them.
const THREADS_MAX: usize = 4;
/// A thread's stack: many times what compiling the deepest pattern takes.
const STACK_BYTES: usize = 16 << 20;

type Task = Box<dyn FnOnce() + Send>;

/// The threads.
#[derive(Debug)]
pub(crate) struct Aside {
    tasks: Sender<Task>,
    /// Jobs that it was given.
    #[cfg(test)]
    jobs: std::sync::atomic::AtomicUsize,
}

/// A job that was handed over. When this is dropped, its result is not wanted any more.
pub(crate) struct Pending<T> {
    result: Receiver<Result<T, SqlError>>,
    abandoned: Arc<AtomicBool>,
}

impl Aside {
    /// Starts the threads; they end when this is dropped.
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
                    // Nothing panics while it is held.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(task) = next else { return };
                    // A panic ends the statement, whose sender is dropped, and not the thread.
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

    /// Drops something, which may take long.
    pub(crate) fn dispose(&self, content: impl Send + 'static) {
        // The threads end after this alone; if they do not take the task, it is dropped here.
        let _ = self.tasks.send(Box::new(move || drop(content)));
    }

    /// Has a job done. It is given a flag that is set when nobody waits for its result any more.
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
                // Nobody may be waiting any more.
                let _ = sender.send(job(&flag));
            }
        });
        // The threads end after this alone; if they do not take the task, its sender is dropped, which is an error.
        let _ = self.tasks.send(task);
        Pending { result, abandoned }
    }
}

/// In builds with assertions, a bug if so many bytes are worked through on a worker's thread.
pub(crate) fn check(bytes: usize) {
    let is_beside = |name: &str| name.starts_with(NAME) || name == parser::THREAD;
    let is_aside = || std::thread::current().name().is_some_and(is_beside);
    debug_assert!(bytes <= HELD_BYTES_MAX || is_aside(), "{bytes} bytes hold a worker's thread");
}

impl<T> Pending<T> {
    /// The result, if it is there; an error if the job panicked.
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
    fn an_abandoned_job_is_told() {
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
        // A job that was not begun before is not begun at all, and drops its sender.
        let _ = hears.recv();
    }
}
