//! The OS threads that drive the workers of a process.
//!
//! Thread i drives worker i of every node: the nodes of one process then exchange packets without
//! crossing cores, and no thread waits for one that is not running. With a topology of a core per
//! node each worker has a thread of its own.
//!
//! An idle thread polls for some microseconds and then sleeps until a packet or a job arrives; before that it goes on for a
//! while if nobody else wants its core (`yielding.rs`). Clients outside often share the cores: a thread that polled for long
//! would keep them from sending what it waits for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use gannet_rpc::{
    Clock, Endpoint, Identity, MemoryPort, MemoryReceiver, MemorySender, MonotonicClock,
    PacketReceiver, PacketSender, Parking, UdpPort, UdpReceiver, UdpSender,
};
use gannet_storage::{CommitLog, LogObserver};

use crate::node::Node;
use crate::statistics::Board;
use crate::worker::{Job, Worker, WorkerParts};
use crate::yielding::Yielding;

/// Polls that find nothing before a thread lets others have its core, or sleeps.
const IDLE_POLLS_MAX: u32 = 50;
/// Polls between two times that a thread writes its statistics; it also does before it sleeps.
const POLLS_PER_REPORT: u32 = 4_096;
/// Longest sleep: a thread looks at everything at least this often.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// What a worker is made of before it is on its thread, but for its transport.
pub(crate) struct Seat {
    pub(crate) node: Arc<Node>,
    pub(crate) identity: Identity,
    pub(crate) jobs: Arc<ArrayQueue<Job>>,
    pub(crate) board: Arc<Board>,
    pub(crate) seed: u64,
    pub(crate) observer: Option<Arc<dyn LogObserver>>,
}

/// What the threads of a cluster share.
pub(crate) struct Shared {
    /// Set once: finish the jobs and end.
    pub(crate) closing: AtomicBool,
    /// Set once: another process of the cluster has gone, and what waits for it will not end.
    pub(crate) halted: AtomicBool,
    /// Threads that still have jobs; the others go on serving them.
    pub(crate) busy_threads: AtomicUsize,
    pub(crate) busy_poll: bool,
}

impl Shared {
    /// One thread fewer has jobs.
    fn count_out(&self) {
        // AcqRel: the last thread to count itself out has seen what the others did before. None is
        // left to count out where a thread has stopped because of a bug.
        let _ = self
            .busy_threads
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |threads| threads.checked_sub(1));
    }
}

/// One worker's part of a transport before it is on its thread.
pub(crate) trait Port: Send + 'static {
    type Sender: PacketSender;
    type Receiver: PacketReceiver;

    fn split(self) -> (Self::Sender, Self::Receiver);

    /// Whether a packet waits, but for those that the system holds and wakes the thread for.
    fn has_packets(receiver: &Self::Receiver) -> bool;
}

impl Port for MemoryPort {
    type Sender = MemorySender;
    type Receiver = MemoryReceiver;

    fn split(self) -> Self {
        self
    }

    fn has_packets(receiver: &MemoryReceiver) -> bool {
        receiver.has_packets()
    }
}

impl Port for UdpPort {
    type Sender = UdpSender;
    type Receiver = UdpReceiver;

    fn split(self) -> (UdpSender, UdpReceiver) {
        self.split()
    }

    fn has_packets(receiver: &UdpReceiver) -> bool {
        receiver.has_packets()
    }
}

#[cfg(feature = "verbs")]
impl Port for gannet_rpc::VerbsPort {
    type Sender = gannet_rpc::VerbsSender;
    type Receiver = gannet_rpc::VerbsReceiver;

    fn split(self) -> (gannet_rpc::VerbsSender, gannet_rpc::VerbsReceiver) {
        self.split()
    }

    fn has_packets(receiver: &gannet_rpc::VerbsReceiver) -> bool {
        receiver.has_packets()
    }
}

/// Runs the workers of one thread until the cluster closes or halts.
pub(crate) fn drive<P: Port>(
    seats: Vec<(Seat, P)>,
    parking: &Parking,
    core: Option<usize>,
    shared: &Shared,
) {
    if let Some(id) = core {
        // Where the host does not allow it, the scheduler decides.
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let clock: Rc<dyn Clock> = Rc::new(MonotonicClock::new());
    let queues: Vec<_> = seats.iter().map(|(seat, _)| Arc::clone(&seat.jobs)).collect();
    let boards: Vec<_> = seats.iter().map(|(seat, _)| Arc::clone(&seat.board)).collect();
    let mut workers: Vec<_> = seats
        .into_iter()
        .map(|(seat, port)| {
            let (sender, receiver) = port.split();
            seat.build(Rc::clone(&clock), sender, receiver)
        })
        .collect();
    let result = catch_unwind(AssertUnwindSafe(|| {
        poll_until_closed::<P>(&mut workers, &boards, &*clock, parking, shared)
    }));
    match result {
        Ok(End::Closed) => workers.iter_mut().for_each(Worker::close),
        // What the coroutines ran is dropped with them: whoever waits hears that it is lost.
        Ok(End::Halted) => drop(workers),
        // A bug stopped a worker and was printed. What its coroutines ran is dropped with them, and
        // so are the jobs below, so that whoever waits hears that they are lost.
        Err(_) => {
            shared.busy_threads.store(0, Ordering::Release);
            drop(workers);
        }
    }
    // Pairs with the one in Cluster::enqueue().
    fence(Ordering::SeqCst);
    for queue in queues {
        while queue.pop().is_some() {}
    }
}

/// Why a thread stops.
enum End {
    Closed,
    Halted,
}

fn poll_until_closed<P: Port>(
    workers: &mut [Worker<P::Sender, P::Receiver>],
    boards: &[Arc<Board>],
    clock: &dyn Clock,
    parking: &Parking,
    shared: &Shared,
) -> End {
    let report = |workers: &[Worker<P::Sender, P::Receiver>]| {
        let statistics = workers.iter().map(Worker::statistics);
        boards.iter().zip(statistics).for_each(|(board, of_worker)| board.write(&of_worker));
    };
    let mut polls = 0_u32;
    let mut idle_polls = 0;
    let mut counted_out = false;
    let mut yielding = Yielding::default();
    loop {
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(POLLS_PER_REPORT) {
            report(workers);
            // Relaxed: it is looked at again.
            if shared.halted.load(Ordering::Relaxed) {
                return End::Halted;
            }
        }
        let now_ns = clock.now_ns();
        let mut progressed = false;
        for worker in workers.iter_mut() {
            progressed |= worker.poll(now_ns);
        }
        if progressed {
            idle_polls = 0;
            continue;
        }
        // Acquire: pairs with the Release where it is set.
        if shared.halted.load(Ordering::Acquire) {
            return End::Halted;
        }
        // Acquire: pairs with the Release in Cluster::close().
        if shared.closing.load(Ordering::Acquire) && workers.iter().all(Worker::is_idle) {
            if !counted_out {
                counted_out = true;
                shared.count_out();
            }
            if shared.busy_threads.load(Ordering::Acquire) == 0 {
                return End::Closed;
            }
        }
        idle_polls += 1;
        if shared.busy_poll || idle_polls <= IDLE_POLLS_MAX {
            yielding = Yielding::default();
            std::hint::spin_loop();
        } else if !yielding.yields(now_ns) {
            report(workers);
            sleep::<P>(workers, parking, now_ns);
        }
    }
}

fn sleep<P: Port>(workers: &[Worker<P::Sender, P::Receiver>], parking: &Parking, now_ns: u64) {
    let deadline = workers.iter().filter_map(|worker| worker.next_deadline_ns()).min();
    let wait = deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now_ns)));
    let has_work =
        || workers.iter().any(|worker| P::has_packets(worker.receiver()) || worker.has_jobs());
    parking.sleep(wait.map_or(SLEEP_MAX, |wait| wait.min(SLEEP_MAX)), has_work);
}

impl Seat {
    pub(crate) fn build<S: PacketSender, R: PacketReceiver>(
        self,
        clock: Rc<dyn Clock>,
        sender: S,
        receiver: R,
    ) -> Worker<S, R> {
        let Self { node, identity, jobs, board: _, seed, observer } = self;
        let (worker, coroutines) = (identity.worker, identity.coroutines);
        let log = CommitLog::new(identity.incarnations.len(), usize::from(coroutines), observer);
        let endpoint = Endpoint::new(identity, sender, receiver);
        Worker::new(WorkerParts { node, endpoint, log, worker, coroutines, jobs, clock, seed })
    }
}
