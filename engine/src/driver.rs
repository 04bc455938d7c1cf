//! The OS threads that drive the workers of a process.
//!
//! Thread i drives worker i of every node: the nodes of one process then exchange packets without
//! crossing cores, and no thread waits for one that is not running. With a topology of a core per
//! node each worker has a thread of its own.
//!
//! An idle thread polls for some microseconds and then sleeps until a packet or a job arrives; before that it goes on for a
//! while if nobody else wants its core (`yielding.rs`). Clients outside often share the cores: a thread that polled for long
//! would keep them from sending what it waits for. A thread that has other tasks beside its workers is in `hosted.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use crossbeam::queue::ArrayQueue;
use gannet_rpc::{
    Clock, Endpoint, Identity, MemoryPort, MemoryReceiver, MemorySender, PacketReceiver,
    PacketSender, Parking, UdpPort, UdpReceiver, UdpSender,
};
use gannet_storage::{CommitLog, LogObserver};

use crate::crew::{Crew, Step};
use crate::hosted::{self, ThreadHost};
use crate::node::Node;
use crate::statistics::Board;
use crate::worker::{Job, Worker, WorkerParts};
use crate::yielding::Yielding;

/// Polls that find nothing before a thread lets others have its core, or sleeps.
const IDLE_POLLS_MAX: u32 = 50;

/// What a worker is made of before it is on its thread, but for its transport.
pub(crate) struct Seat {
    /// Its number among the workers of this process.
    pub(crate) place: usize,
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
    pub(crate) fn count_out(&self) {
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

/// Where the workers of a thread run.
pub(crate) struct ThreadPlace {
    /// The thread's number, from 0.
    pub(crate) number: usize,
    /// The core that it stays on, unless it is shared: clients then run on the same cores.
    pub(crate) core: Option<usize>,
    /// Who has the thread wait, if it is shared.
    pub(crate) host: Option<Arc<dyn ThreadHost>>,
}

/// Runs the workers of one thread until the cluster closes or halts.
pub(crate) fn drive<P: Port>(
    seats: Vec<(Seat, P)>,
    parking: Parking,
    place: &ThreadPlace,
    shared: &Arc<Shared>,
) {
    let queues: Vec<_> = seats.iter().map(|(seat, _)| Arc::clone(&seat.jobs)).collect();
    let places = seats.iter().map(|(seat, _)| seat.place).collect();
    let crew = Crew::new(seats, parking, Arc::clone(shared));
    match &place.host {
        None => {
            if let Some(id) = place.core {
                // Where the host does not allow it, the scheduler decides.
                core_affinity::set_for_current(core_affinity::CoreId { id });
            }
            poll_until_ended(crew);
        }
        Some(host) => hosted::run(crew, &**host, place.number, places),
    }
    // Pairs with the one in Cluster::put().
    fence(Ordering::SeqCst);
    for queue in queues {
        while queue.pop().is_some() {}
    }
}

fn poll_until_ended<P: Port>(mut crew: Crew<P>) {
    let busy_poll = crew.shared().busy_poll;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut idle_polls = 0;
        let mut yielding = Yielding::default();
        loop {
            match crew.step() {
                Step::Progressed => idle_polls = 0,
                Step::Ended(end) => return end,
                Step::Idle => {
                    idle_polls += 1;
                    if busy_poll || idle_polls <= IDLE_POLLS_MAX {
                        yielding = Yielding::default();
                        std::hint::spin_loop();
                    } else if !yielding.yields(crew.now_ns()) {
                        crew.sleep();
                    }
                }
            }
        }
    }));
    crew.end(result);
}

impl Seat {
    pub(crate) fn build<S: PacketSender, R: PacketReceiver>(
        self,
        clock: Rc<dyn Clock>,
        sender: S,
        receiver: R,
    ) -> Worker<S, R> {
        let Self { place: _, node, identity, jobs, board: _, seed, observer } = self;
        let (worker, coroutines) = (identity.worker, identity.coroutines);
        let log = CommitLog::new(identity.incarnations.len(), usize::from(coroutines), observer);
        let endpoint = Endpoint::new(identity, sender, receiver);
        Worker::new(WorkerParts { node, endpoint, log, worker, coroutines, jobs, clock, seed })
    }
}
