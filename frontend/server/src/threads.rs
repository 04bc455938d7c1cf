//! The threads that serve connections.
//!
//! If all nodes of a cluster are in this process, these are the threads that drive the workers: a statement goes from the
//! socket to a worker and back without a switch of threads. Otherwise the server has threads of its own.
//!
//! *Invariants*: a connection stays on its thread.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use gannet_engine::{Driver, ThreadHost};
use tokio::runtime::{Builder, Handle, Runtime};

/// Shorter waits are polled, because the runtime's timers have a resolution of a millisecond.
const POLLED_MAX: Duration = Duration::from_micros(100);
/// Maximum number of the server's own threads.
const OWN_THREADS_MAX: usize = 4;

/// Threads that drive a cluster's workers and serve connections.
pub struct ServerThreads {
    handles: Vec<Handle>,
    /// One for each thread, which takes its own.
    runtimes: Vec<Mutex<Option<Runtime>>>,
    next: AtomicUsize,
}

/// A runtime that accepts connections, and unless `accepts_only` also serves them.
pub(super) fn runtime(accepts_only: bool) -> io::Result<Runtime> {
    let mut builder = if accepts_only {
        Builder::new_current_thread()
    } else {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cores.min(OWN_THREADS_MAX)).thread_name("gannet-serve");
        builder
    };
    builder.enable_all().build()
}

impl ServerThreads {
    /// The runtimes for `count` threads of a cluster.
    ///
    /// # Errors
    /// If the system has no more descriptors for this process.
    pub fn new(count: usize) -> io::Result<Self> {
        let runtime = |_| Builder::new_current_thread().enable_all().build();
        let runtimes = (0..count).map(runtime).collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            handles: runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
            runtimes: runtimes.into_iter().map(|runtime| Mutex::new(Some(runtime))).collect(),
            next: AtomicUsize::new(0),
        })
    }

    /// The thread for the next connection.
    pub(super) fn next(&self) -> &Handle {
        // Relaxed: any thread will do.
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.handles[next % self.handles.len()]
    }
}

impl ThreadHost for ServerThreads {
    fn run(&self, thread: usize, mut driver: Pin<&mut dyn Driver>) {
        // No code panics while it holds this lock.
        let runtime = self.runtimes[thread].lock().unwrap_or_else(PoisonError::into_inner).take();
        let runtime = runtime.expect("there is a runtime for each thread, which runs once");
        runtime.block_on(async {
            let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
            poll_fn(|context| {
                if driver.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                match driver.sleep_max() {
                    None => return Poll::Pending,
                    Some(wait) if wait > POLLED_MAX => {
                        sleep.set(tokio::time::sleep(wait));
                        if sleep.as_mut().poll(context).is_pending() {
                            return Poll::Pending;
                        }
                    }
                    Some(_) => std::thread::yield_now(),
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        });
    }
}
