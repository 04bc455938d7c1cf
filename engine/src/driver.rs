//! The OS threads that drive the workers of a process.
//!
//! Thread i drives worker i of every node: the nodes of one process then exchange packets without
//! crossing cores, and no thread waits for one that is not running. With a topology of a core per
//! node each worker has a thread of its own.
//!
//! An idle thread polls for a while, and then sleeps until a packet or a job arrives; `waiting.rs` decides how long it polls.
//! Clients often share the cores with it: a thread that polled for long would delay the requests that it waits for.
//!
//! *Not here*: a thread that has other tasks beside its workers, in `hosted.rs`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam::queue::ArrayQueue;
use gannet_rpc::{Clock, Endpoint, Identity, PacketReceiver, PacketSender, Parking, Port};
use gannet_storage::{CommitLog, LogObserver};

use crate::coordinator::panic_message;
use crate::hosted::{self, ThreadHost};
use crate::node::Node;
use crate::statistics::PublishedStatistics;
use crate::waiting::{Decision, Medium, NearClient, Waiting};
use crate::worker::{Job, Worker, WorkerParts};
use crate::worker_group::{Step, WorkerGroup};

/// The parts of a worker before it is on its thread, without its transport.
pub(crate) struct WorkerBuilder {
    /// Its number among the workers of this process.
    pub(crate) index: usize,
    pub(crate) node: Arc<Node>,
    pub(crate) identity: Identity,
    pub(crate) jobs: Arc<ArrayQueue<Job>>,
    pub(crate) published: Arc<PublishedStatistics>,
    pub(crate) seed: u64,
    pub(crate) observer: Option<Arc<dyn LogObserver>>,
}

/// An action when a worker has died; it gets the reason.
pub(crate) type FailureAction = Box<dyn FnOnce(&str) + Send>;

/// The state that the threads of a cluster share: whether it closes or has halted.
pub(crate) struct ClusterState {
    /// Set once: finish the jobs and end.
    pub(crate) closing: AtomicBool,
    /// Set once: another process of the cluster has gone, or a worker has died. A job that waits for it does not end.
    pub(crate) halted: AtomicBool,
    /// Why a worker of this process has died.
    pub(crate) failure: OnceLock<String>,
    /// What to do when one has; each is done once.
    pub(crate) on_failure: Mutex<Vec<FailureAction>>,
    /// Threads that still have jobs; the others go on serving them.
    pub(crate) busy_threads: AtomicUsize,
    pub(crate) busy_poll: bool,
}

impl ClusterState {
    /// One thread fewer has jobs.
    pub(crate) fn count_out(&self) {
        // AcqRel: the last thread to count itself out sees what the others did before. The count is 0 already if a
        // thread has stopped because of a bug.
        let _ = self
            .busy_threads
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |threads| threads.checked_sub(1));
    }

    /// A worker has died of a bug: nothing that waits for it ends, so the cluster halts.
    pub(crate) fn fail(&self, panic: &(dyn Any + Send)) {
        let bug = panic_message(panic);
        let reason =
            format!("a worker has failed: {bug}. This is a bug of Gannet; start the cluster again");
        let reason = self.failure.get_or_init(|| reason);
        // Release: pairs with the Acquire of the threads.
        self.halted.store(true, Ordering::Release);
        // They wait for this one no longer.
        self.busy_threads.store(0, Ordering::Release);
        // Nothing panics while it is held.
        let actions =
            std::mem::take(&mut *self.on_failure.lock().unwrap_or_else(PoisonError::into_inner));
        actions.into_iter().for_each(|act| act(reason));
    }
}

/// Where the workers of a thread run.
pub(crate) struct ThreadOptions {
    /// The thread's number, from 0.
    pub(crate) number: usize,
    /// The core that it stays on, by its index among those that the process may use, if any.
    pub(crate) core: Option<usize>,
    /// The host that the thread is shared with, if it is.
    pub(crate) host: Option<Arc<dyn ThreadHost>>,
}

/// Runs the workers of one thread until the cluster closes or halts.
pub(crate) fn drive<P: Port>(
    builders: Vec<(WorkerBuilder, P)>,
    parking: Parking,
    options: &ThreadOptions,
    state: &Arc<ClusterState>,
) {
    let queues: Vec<_> = builders.iter().map(|(builder, _)| Arc::clone(&builder.jobs)).collect();
    let workers = builders.iter().map(|(builder, _)| builder.index).collect();
    let group =
        catch_unwind(AssertUnwindSafe(|| WorkerGroup::new(builders, parking, Arc::clone(state))));
    match (group, &options.host) {
        (Err(panic), _) => state.fail(&*panic),
        (Ok(group), None) => {
            // Where the host does not allow it, the scheduler decides.
            let cores = core_affinity::get_core_ids().unwrap_or_default();
            if let Some(&core) = options.core.and_then(|index| cores.get(index)) {
                core_affinity::set_for_current(core);
            }
            poll_until_ended(group);
        }
        (Ok(group), Some(host)) => hosted::run(group, &**host, options.number, workers),
    }
    // Pairs with the one in Cluster::put().
    fence(Ordering::SeqCst);
    for queue in queues {
        while queue.pop().is_some() {}
    }
}

fn poll_until_ended<P: Port>(mut group: WorkerGroup<P>) {
    let busy_poll = group.state().busy_poll;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut waiting = Waiting::new(Medium::of::<P>());
        loop {
            match group.step() {
                Step::Progressed => waiting.progressed(group.now_ns()),
                Step::Ended(end) => return end,
                Step::Idle if busy_poll => std::hint::spin_loop(),
                Step::Idle => {
                    let expects = group.awaits_answers() || NearClient::exists();
                    match waiting.idle(group.now_ns(), expects) {
                        Decision::Poll => std::hint::spin_loop(),
                        Decision::Yield => std::thread::yield_now(),
                        Decision::Sleep => group.sleep(),
                    }
                }
            }
        }
    }));
    group.end(result);
}

impl WorkerBuilder {
    pub(crate) fn build<S: PacketSender, R: PacketReceiver>(
        self,
        clock: Rc<dyn Clock>,
        sender: S,
        receiver: R,
    ) -> Worker<S, R> {
        let Self { index: _, node, identity, jobs, published: _, seed, observer } = self;
        let (worker, coroutines) = (identity.worker, identity.coroutines);
        let log = CommitLog::new(identity.incarnations.len(), usize::from(coroutines), observer);
        let endpoint = Endpoint::new(identity, sender, receiver);
        Worker::new(WorkerParts { node, endpoint, log, worker, coroutines, jobs, clock, seed })
    }
}
