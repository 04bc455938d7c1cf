//! The OS threads of a process, which drive the workers of its members.
//!
//! Thread i drives worker i of every member: the members of one process then exchange packets without crossing cores, and no thread
//! waits for one that is not running. With a thread per worker each worker has a thread of its own, and messages cross cores.
//!
//! *Invariants*: when the threads have started, all workers are there. A thread ends when the cluster has closed or halted.
//! Threads that close first finish the jobs of all.
//!
//! *Not here*: what a thread does, in `driver`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use gannet_rpc::{MemoryFabric, Parking, Port};

use crate::cluster_state::ClusterState;
use crate::driver::{ThreadOptions, drive};
use crate::hosted::ThreadHost;
use crate::member::{Assignment, Member};

/// Which OS thread drives which worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// OS thread i drives worker i of every node; messages stay on their core.
    ThreadPerWorkerNumber,
    /// Every worker of every node has its own OS thread; messages cross cores.
    ThreadPerWorker,
}

/// What one thread drives: workers, each with its port, and how the thread sleeps.
pub(crate) struct ThreadPlan<P> {
    pub(crate) workers: Vec<(Assignment, P)>,
    pub(crate) parking: Parking,
}

/// The threads that drive the workers of a process.
pub(crate) struct Threads {
    state: Arc<ClusterState>,
    members: Vec<Arc<Member>>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts a thread for each plan, each on a core from the first one on, if there is one and no host.
    ///
    /// # Errors
    /// That of the operating system, which may have no thread, or no memory for the workers of one.
    pub(crate) fn start<P: Port>(
        members: &[Arc<Member>],
        state: &Arc<ClusterState>,
        plans: Vec<ThreadPlan<P>>,
        first_core: Option<usize>,
        host: Option<&Arc<dyn ThreadHost>>,
    ) -> std::io::Result<Self> {
        for ThreadPlan { workers, parking } in &plans {
            for (Assignment { member, worker, .. }, _) in workers {
                member.set_waker(*worker, parking.waker());
            }
        }
        state.busy_threads.store(plans.len(), Ordering::Release);
        let to_wake = members.to_vec();
        state.first_on_failure(Box::new(move |_| to_wake.iter().for_each(|it| it.wake_all())));
        let (members, state) = (members.to_vec(), Arc::clone(state));
        // Threads that run already end with it if a further one does not start.
        let mut threads = Self { state, members, handles: Vec::new() };
        let (started, all_started) = channel();
        for (number, ThreadPlan { workers, parking }) in plans.into_iter().enumerate() {
            let state = Arc::clone(&threads.state);
            let core = first_core.map(|first| (first + number) % cores());
            let options = ThreadOptions { number, core, host: host.cloned() };
            let started = started.clone();
            let thread = std::thread::Builder::new()
                .name(format!("gannet-{number}"))
                .spawn(move || drive(workers, parking, &options, &state, started));
            // The threads that run already wait for no others.
            let thread =
                thread.inspect_err(|_| threads.state.busy_threads.store(0, Ordering::Release))?;
            threads.handles.push(thread);
        }
        drop(started);
        if all_started.iter().count() < threads.handles.len() {
            let failure = threads.state.failure.get().cloned();
            return Err(std::io::Error::other(failure.unwrap_or_default()));
        }
        Ok(threads)
    }

    /// Starts threads for all members of a cluster in one process, whose packets are exchanged in its memory.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn in_one_process(
        members: &[Arc<Member>],
        state: &Arc<ClusterState>,
        workers: usize,
        topology: Topology,
        (mtu_bytes, ring_bytes): (usize, usize),
        host: Option<&Arc<dyn ThreadHost>>,
    ) -> std::io::Result<Self> {
        let nodes = members.len();
        let thread_of = |node: usize, worker: usize| match topology {
            Topology::ThreadPerWorkerNumber => worker,
            Topology::ThreadPerWorker => node * workers + worker,
        };
        let count = thread_of(nodes - 1, workers - 1) + 1;
        let new_parking = if host.is_some() { Parking::for_task } else { Parking::new };
        let new_plan = |_| ThreadPlan { workers: Vec::new(), parking: new_parking() };
        let mut plans: Vec<_> = (0..count).map(new_plan).collect();
        let mut fabric = MemoryFabric::new(nodes, workers, mtu_bytes, ring_bytes);
        for (node, member) in members.iter().enumerate() {
            for worker in 0..workers {
                let waker = |peer| plans[thread_of(peer, worker)].parking.waker();
                let peers: Vec<_> = (0..nodes).map(waker).collect();
                let port = fabric.take(node, worker, &peers[node], &peers);
                let (member, index) = (Arc::clone(member), node * workers + worker);
                let assignment = Assignment { member, worker, index };
                plans[thread_of(node, worker)].workers.push((assignment, port));
            }
        }
        let first_core = (count <= cores()).then_some(0);
        Self::start(members, state, plans, first_core, host)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// Finishes the accepted jobs and ends the threads.
    pub(crate) fn end(&mut self) {
        // Release: pairs with the Acquire in WorkerGroup::can_count_out(): jobs accepted before are seen.
        self.state.closing.store(true, Ordering::Release);
        self.members.iter().for_each(|member| member.wake_all());
        for thread in self.handles.drain(..) {
            // A worker that panicked has halted the cluster, which says why.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
