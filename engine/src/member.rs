//! A member: one node with its workers. Threads of a process drive the workers, or a simulator does.
//!
//! ```text
//! Member ── Node: memory, tables, views
//!   └─ by worker: the queue of its jobs, its statistics, the waker of its thread
//!
//! start   `start_worker`, on the thread that is to drive the worker
//! stop    the jobs end, then `Worker::close`
//! halt    `Worker::halt`: the commits under way are settled, the code of the jobs is told how; jobs that have not begun are dropped
//! kill    `Worker::kill`, as the end of a process does; `take_jobs` leaves jobs that have not begun to another member
//! ```
//! *Invariant*: a worker stays on the thread that has started it. All else of a member may be used by any thread.
//!
//! *Not here*: a worker, in `worker`; which thread drives which workers, in `threads`; the members in other processes, in `members`.

use std::ops::Add;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use crossbeam::queue::ArrayQueue;
use gannet_rpc::{BootClock, Clock, Endpoint, PacketReceiver, PacketSender, Waker};
use gannet_storage::{CommitLog, LogObserver};

use crate::fence::{Fenced, WorkerLease};
use crate::fold::FoldPrograms;
use crate::node::Node;
use crate::statistics::{ChangeCounts, NodeReport, PublishedStatistics, Statistics};
use crate::worker::{Job, Worker, WorkerParts};

/// What all workers of the members of a process have in common.
#[derive(Clone)]
pub(crate) struct WorkerOptions {
    /// Workers of each member.
    pub(crate) workers: u16,
    /// Coroutines of each worker.
    pub(crate) coroutines: u16,
    /// Jobs that wait for each worker.
    pub(crate) queued_jobs_max: usize,
    /// Seed of the random waits after conflicts.
    pub(crate) seed: u64,
    pub(crate) log_observer: Option<Arc<dyn LogObserver>>,
    pub(crate) programs: FoldPrograms,
}

/// The clocks that a worker reads.
pub(crate) struct WorkerClocks {
    /// That of its coordinators.
    pub(crate) clock: Rc<dyn Clock>,
    /// That of its node's lease.
    pub(crate) lease_clock: Rc<dyn Clock>,
    /// That by which its tokens end: nanoseconds since 1970.
    pub(crate) time_of_day: Rc<dyn Clock>,
}

/// A worker, as other threads see it.
struct WorkerHandle {
    jobs: Arc<ArrayQueue<Job>>,
    published: PublishedStatistics,
    /// Of the thread that drives the worker, if there is one.
    waker: OnceLock<Waker>,
}

/// One node with its workers; see the module's text.
pub(crate) struct Member {
    node: Arc<Node>,
    options: WorkerOptions,
    /// By number.
    workers: Vec<WorkerHandle>,
}

/// A worker of a member that a thread drives.
#[derive(Clone)]
pub(crate) struct Assignment {
    pub(crate) member: Arc<Member>,
    /// The worker's number within the member.
    pub(crate) worker: usize,
    /// Its number among the workers of the process.
    pub(crate) index: usize,
}

impl Member {
    pub(crate) fn new(node: Arc<Node>, options: WorkerOptions) -> Self {
        let handle = |_| WorkerHandle {
            jobs: Arc::new(ArrayQueue::new(options.queued_jobs_max)),
            published: PublishedStatistics::default(),
            waker: OnceLock::new(),
        };
        Self { workers: (0..options.workers).map(handle).collect(), node, options }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Starts a worker, on the calling thread, which is to drive it.
    pub(crate) fn start_worker<S: PacketSender, R: PacketReceiver>(
        &self,
        worker: usize,
        WorkerClocks { clock, lease_clock, time_of_day }: WorkerClocks,
        sender: S,
        receiver: R,
    ) -> Worker<Fenced<S>, R> {
        let WorkerOptions { workers, coroutines, seed, log_observer, programs, .. } = &self.options;
        let jobs = Arc::clone(&self.workers[worker].jobs);
        let node = Arc::clone(&self.node);
        let worker = u16::try_from(worker).expect("a member has its number of workers");
        let view = node.view();
        // One more, which grows tables.
        let coroutines = coroutines + 1;
        let identity = view.identity(worker, coroutines);
        let slots = usize::from(coroutines);
        let log = CommitLog::new(view.configuration().nodes(), slots, log_observer.clone());
        let number = u64::from(node.id()) * u64::from(*workers) + u64::from(worker);
        let lease = WorkerLease::new(Arc::clone(&node), lease_clock, Rc::clone(&clock));
        let lease = Rc::new(lease);
        let sender = Fenced::new(sender, Rc::clone(&lease));
        Worker::new(WorkerParts {
            node,
            endpoint: Endpoint::new(identity, sender, receiver),
            lease,
            log,
            worker,
            coroutines,
            jobs,
            clock,
            time_of_day,
            seed: seed ^ number << 32,
            programs: programs.clone(),
        })
    }

    /// The thread of a worker is woken from now on when there is something to do.
    pub(crate) fn set_waker(&self, worker: usize, waker: Waker) {
        // Each worker starts once.
        let _ = self.workers[worker].waker.set(waker);
    }

    /// Wakes the thread of a worker; a simulator needs no wake-up.
    pub(crate) fn wake(&self, worker: usize) {
        if let Some(waker) = self.workers[worker].waker.get() {
            waker.wake();
        }
    }

    /// Wakes the threads of all workers.
    pub(crate) fn wake_all(&self) {
        (0..self.workers.len()).for_each(|worker| self.wake(worker));
    }

    /// Whether threads drive the workers.
    pub(crate) fn has_threads(&self) -> bool {
        self.workers.iter().any(|worker| worker.waker.get().is_some())
    }

    /// Puts a job where the worker finds it.
    ///
    /// # Errors
    /// The job, if the queue is full.
    pub(crate) fn put(&self, worker: usize, job: Job) -> Result<(), Job> {
        self.workers[worker].jobs.push(job)
    }

    /// Jobs that wait for a worker.
    pub(crate) fn queued(&self, worker: usize) -> usize {
        self.workers[worker].jobs.len()
    }

    /// Takes the jobs that a worker has not begun.
    pub(crate) fn take_jobs(&self, worker: usize) -> Vec<Job> {
        std::iter::from_fn(|| self.workers[worker].jobs.pop()).collect()
    }

    /// Publishes what a worker has done.
    pub(crate) fn publish(&self, worker: usize, statistics: &Statistics) {
        self.workers[worker].published.write(statistics);
    }

    /// What the member says of itself.
    pub(crate) fn report(&self) -> NodeReport {
        let of_workers = self.workers.iter().map(|worker| worker.published.read());
        NodeReport {
            statistics: of_workers.fold(Statistics::default(), Add::add),
            memory_bytes: self.node.used_bytes() as u64,
            memory_reserved_bytes: self.node.reserved_bytes() as u64,
            memory_limit_bytes: self.node.limit_bytes() as u64,
            gaps: self.node.gaps(),
            lease_ms: self.node.lease().left(BootClock.now_ns()).milliseconds(),
            changes: ChangeCounts {
                copied_bytes: self.node.learning().bytes(),
                copies_given_up: self.node.copies_given_up(),
                ..self.node.changes().read()
            },
            lessons: self.node.lessons(),
            manager: None,
        }
    }
}
