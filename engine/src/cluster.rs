//! A cluster: the nodes that are in this process, and their threads.
//!
//! *Not here*: its tables, in `tables`; submission of jobs by other threads, in `spawn`; how a process becomes a node of a cluster of processes, in `join`;
//! membership changes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crossbeam::queue::ArrayQueue;
use gannet_rpc::{Identity, MemoryFabric, Parking, Port, Waker};
use gannet_storage::{LogObserver, Owner, Partitioning, StorageError};

use crate::change::ChangeError;
use crate::configuration::Configuration;
use crate::driver::{ClusterState, ThreadOptions, WorkerBuilder, drive};
use crate::host_memory::HostMemory;
use crate::hosted::ThreadHost;
use crate::loader::Loader;
use crate::members::{JoinError, Members};
use crate::node::Node;
use crate::statistics::{NodeState, NodeStatus, PublishedStatistics, Reporter};
use crate::view::View;
use crate::worker::Job;

/// Cluster id in the packets of a cluster in one process.
const CLUSTER_ID: u32 = 0x6741_6e74;
/// Largest packet: a commit record of three of the largest values fits.
pub(crate) const MTU_BYTES: usize = 16 << 10;
/// Bytes of each ring.
pub(crate) const RING_BYTES: usize = 64 << 10;
/// Share of the free memory that the tables may use by default, in percent.
const MEMORY_PERCENT: usize = 70;
/// Assumed where the system does not tell how much memory is free.
const MEMORY_BYTES_UNKNOWN: usize = 1 << 30;

/// Which OS thread drives which worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// OS thread i drives worker i of every node; messages stay on their core.
    ThreadPerWorkerNumber,
    /// Every worker of every node has its own OS thread; messages cross cores.
    ThreadPerWorker,
}

/// A function that is called when a worker has died, with the reason.
pub type OnFailure = Arc<dyn Fn(&str) + Send + Sync>;

/// How a cluster is opened. The default is three nodes with three copies on all cores.
#[derive(Clone)]
pub struct ClusterOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// Copies of each row, at most one per node.
    pub replicas: usize,
    /// Workers of each node.
    pub threads: usize,
    /// Coroutines of each worker: transactions that it has in flight.
    pub coroutines: usize,
    /// Partitions of the key space, a power of two.
    pub partitions: usize,
    /// Table memory of each node in bytes. By default it is a share of the free memory. Nodes that join a cluster may have different
    /// limits: a partition then takes no more than the smallest share that a node which holds it has.
    pub memory_limit_bytes: Option<usize>,
    /// Jobs that wait for each worker before [`ClusterError::Busy`].
    pub queued_jobs_max: usize,
    /// Keep idle threads polling instead of sleeping.
    pub busy_poll: bool,
    /// Which OS thread drives which worker.
    pub topology: Topology,
    /// A host that runs other tasks on these threads. Jobs that those tasks spawn run on the workers of their thread. Only for a
    /// cluster whose nodes are all in this process: the threads of [`Cluster::join`] run no other tasks.
    pub host: Option<Arc<dyn ThreadHost>>,
    /// Seed of the random waits after conflicts.
    pub seed: u64,
    /// Sees every commit record that is stored on any node.
    pub log_observer: Option<Arc<dyn LogObserver>>,
    /// Called with the reason when a worker of this process has died of a bug, on that worker's thread. The cluster has halted then.
    pub on_failure: Option<OnFailure>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            replicas: 3,
            threads: cores(),
            coroutines: 20,
            partitions: 16,
            memory_limit_bytes: None,
            queued_jobs_max: 1024,
            busy_poll: false,
            topology: Topology::ThreadPerWorkerNumber,
            host: None,
            seed: 1,
            log_observer: None,
            on_failure: None,
        }
    }
}

/// Why a cluster could not be opened or used. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// An option is out of range.
    #[error("{option} is {value}; use {allowed}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What was requested.
        value: usize,
        /// What is possible.
        allowed: String,
    },
    /// The nodes of this host would have more table memory than there is.
    #[error(
        "table memory of {} MiB for {} is too much: {host}; set less",
        .limits.iter().fold(0_usize, |sum, limit| sum.saturating_add(*limit)) >> 20,
        if .limits.len() == 1 { "a node".to_owned() } else { format!("{} nodes of one host", .limits.len()) }
    )]
    Memory {
        /// By node of this host: its memory limit in bytes.
        limits: Vec<usize>,
        /// The host's memory, and where that number comes from.
        host: String,
    },
    /// A table could not be created or loaded.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A change of the configuration was not possible.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// There is a table of that name which is not as it is wanted.
    #[error(
        "there is a table named {0} with other sizes or kinds of rows; open it with those, or use another name"
    )]
    TableDiffers(String),
    /// A table was dropped while it was opened.
    #[error("the table {0} was dropped while it was opened; open it again")]
    TableDropped(String),
    /// The operating system refused a thread.
    #[error("the operating system refused a thread: {0}; use fewer threads")]
    Thread(std::io::Error),
    /// The queues are full.
    #[error("the job queues are full; wait for some jobs to finish and try again")]
    Busy,
    /// There is no such worker in this process.
    #[error(
        "there is no worker {worker} of node {node} in this process; look at the cluster's options"
    )]
    NoSuchWorker {
        /// The node requested.
        node: usize,
        /// The worker requested.
        worker: usize,
    },
    /// This process could not become a node of a cluster, or the cluster has halted.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] gannet_rpc::UdpError),
    /// Memory could not be shared with other processes.
    #[error(transparent)]
    SharedMemory(#[from] gannet_rpc::SharedRingsError),
    /// An RDMA device cannot be used.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Rdma(#[from] gannet_rpc::VerbsError),
    /// The Cargo feature is off.
    #[error(
        "the transport verbs is not in this build: build it with `--features verbs`, or use udp"
    )]
    WithoutVerbs,
    /// The job will not give a result.
    #[error(transparent)]
    Lost(#[from] crate::completion::Lost),
}

/// A worker of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerId {
    /// Node, from 0.
    pub node: usize,
    /// Worker, from 0.
    pub worker: usize,
}

/// A cluster: all of its nodes, or the one that this process is. Closes when dropped, after the jobs that were accepted.
pub struct Cluster {
    pub(crate) options: ClusterOptions,
    /// Those of this process.
    nodes: Vec<Arc<Node>>,
    /// Number of the first of them.
    pub(crate) first_node: usize,
    /// By node of this process, then worker.
    pub(crate) jobs: Vec<Arc<ArrayQueue<Job>>>,
    /// In the same order.
    published: Vec<Arc<PublishedStatistics>>,
    pub(crate) wakers: Vec<Waker>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) state: Arc<ClusterState>,
    /// The other processes, if there are any.
    pub(crate) members: Option<Members>,
    /// The worker that gets the next job which may go to several, in turn.
    pub(crate) next_worker: AtomicUsize,
    pub(crate) changing: Mutex<()>,
}

impl Cluster {
    /// Opens a cluster: maps its memory and starts its threads.
    ///
    /// # Errors
    /// [`ClusterError::Option`] for sizes that are not possible, [`ClusterError::Storage`] if there
    /// is no memory, [`ClusterError::Thread`] if there are no threads.
    ///
    /// # Panics
    /// Never: every size is checked first.
    pub fn open(options: ClusterOptions) -> Result<Self, ClusterError> {
        let mut cluster = Self::unstarted(options)?;
        cluster.start_threads()?;
        Ok(cluster)
    }

    /// A cluster without threads, whose workers the caller drives; see [`Self::worker_builder`].
    pub(crate) fn unstarted(options: ClusterOptions) -> Result<Self, ClusterError> {
        let configuration = configuration(&options)?;
        let nodes = options.nodes;
        let limits = vec![memory_limit_bytes(&options, nodes); nodes];
        check_memory(&limits)?;
        Self::with_nodes(options, configuration, 0..nodes, &limits)
    }

    /// The part of a cluster that this process has, its workers not driven yet; with the memory limits of all its nodes.
    pub(crate) fn with_nodes(
        options: ClusterOptions,
        configuration: Configuration,
        local: Range<usize>,
        limit_bytes: &[usize],
    ) -> Result<Self, ClusterError> {
        let configuration = Arc::new(configuration);
        let first_node = local.start;
        let new_node = |id| {
            let id = u16::try_from(id).expect("checked");
            Ok(Arc::new(Node::new(id, Arc::clone(&configuration), limit_bytes)?))
        };
        let nodes = local.map(new_node).collect::<Result<Vec<_>, StorageError>>()?;
        let workers = nodes.len() * options.threads;
        let told = options.on_failure.clone();
        let tell = told.map(|told| Box::new(move |reason: &str| told(reason)) as Box<_>);
        let jobs: Vec<_> =
            (0..workers).map(|_| Arc::new(ArrayQueue::new(options.queued_jobs_max))).collect();
        Ok(Self {
            nodes,
            first_node,
            members: None,
            published: jobs.iter().map(|_| Arc::default()).collect(),
            jobs,
            wakers: Vec::new(),
            threads: Vec::new(),
            state: Arc::new(ClusterState {
                closing: AtomicBool::new(false),
                halted: AtomicBool::new(false),
                failure: OnceLock::new(),
                on_failure: Mutex::new(tell.into_iter().collect()),
                busy_threads: AtomicUsize::new(0),
                busy_poll: options.busy_poll,
            }),
            next_worker: AtomicUsize::new(0),
            changing: Mutex::new(()),
            options,
        })
    }

    fn start_threads(&mut self) -> Result<(), ClusterError> {
        let (nodes, workers) = (self.options.nodes, self.options.threads);
        let thread_of = |node: usize, worker: usize| match self.options.topology {
            Topology::ThreadPerWorkerNumber => worker,
            Topology::ThreadPerWorker => node * workers + worker,
        };
        let count = thread_of(nodes - 1, workers - 1) + 1;
        let new_parking =
            if self.options.host.is_some() { Parking::for_task } else { Parking::new };
        let parkings: Vec<_> = (0..count).map(|_| new_parking()).collect();
        self.wakers = (0..nodes * workers)
            .map(|index| parkings[thread_of(index / workers, index % workers)].waker())
            .collect();
        let mut fabric = MemoryFabric::new(nodes, workers, MTU_BYTES, RING_BYTES);
        let mut builders: Vec<_> = (0..count).map(|_| Vec::new()).collect();
        for index in 0..nodes * workers {
            let (node, worker) = (index / workers, index % workers);
            let peers: Vec<_> =
                (0..nodes).map(|peer| self.wakers[peer * workers + worker].clone()).collect();
            let transport = fabric.take(node, worker, &peers[node], &peers);
            builders[thread_of(node, worker)].push((self.worker_builder(node, worker), transport));
        }
        let first_core = (count <= cores()).then_some(0);
        let host = self.options.host.clone();
        self.start(builders.into_iter().zip(parkings).collect(), first_core, host)
    }

    /// Starts a thread for each list of builders, each on a core from the first one on, if there is one and no host.
    pub(crate) fn start<P: Port>(
        &mut self,
        threads: Vec<(Vec<(WorkerBuilder, P)>, Parking)>,
        first_core: Option<usize>,
        host: Option<Arc<dyn ThreadHost>>,
    ) -> Result<(), ClusterError> {
        let count = threads.len();
        self.state.busy_threads.store(count, Ordering::Release);
        let wakers = self.wakers.clone();
        let mut on_failure = self.state.on_failure.lock().unwrap_or_else(PoisonError::into_inner);
        on_failure.insert(0, Box::new(move |_| wakers.iter().for_each(Waker::wake)));
        drop(on_failure);
        for (number, (builders, parking)) in threads.into_iter().enumerate() {
            let state = Arc::clone(&self.state);
            let core = first_core.map(|first| (first + number) % cores());
            let options = ThreadOptions { number, core, host: host.clone() };
            let thread = std::thread::Builder::new()
                .name(format!("gannet-{number}"))
                .spawn(move || drive(builders, parking, &options, &state))
                .map_err(|error| {
                    // The threads that run already wait for no others.
                    self.state.busy_threads.store(0, Ordering::Release);
                    ClusterError::Thread(error)
                })?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// What the worker `worker` of `node`, which is in this process, is made of.
    pub(crate) fn worker_builder(&self, node: usize, worker: usize) -> WorkerBuilder {
        let index = (node - self.first_node) * self.options.threads + worker;
        let narrow = |value: usize| u16::try_from(value).expect("checked when the cluster opened");
        let configuration = self.configuration();
        WorkerBuilder {
            index,
            node: Arc::clone(&self.nodes[node - self.first_node]),
            identity: Identity {
                cluster_id: configuration.cluster_id,
                epoch: configuration.epoch,
                node: narrow(node),
                worker: narrow(worker),
                coroutines: narrow(self.options.coroutines),
                incarnations: configuration.incarnations.clone(),
            },
            jobs: Arc::clone(&self.jobs[index]),
            published: Arc::clone(&self.published[index]),
            seed: self.options.seed ^ ((node * self.options.threads + worker) as u64) << 32,
            observer: self.options.log_observer.clone(),
        }
    }

    /// The options that the cluster was opened with.
    #[must_use]
    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// Membership and placement, as they are now.
    #[must_use]
    pub fn configuration(&self) -> Arc<Configuration> {
        self.view().shared_configuration()
    }

    /// The configuration and the tables, as the first node of this process has them now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.nodes[0].view()
    }

    /// The nodes that are in this process.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The node with that number, if it is in this process.
    #[must_use]
    pub fn node(&self, number: usize) -> Option<&Arc<Node>> {
        self.nodes.get(self.local_index(number)?)
    }

    /// The number of a node among those of this process, if it is one of them.
    pub(crate) fn local_index(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.first_node).filter(|index| *index < self.nodes.len())
    }

    /// Bytes of data that the cluster has room for, a copy of each partition counted: the same in every process.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.nodes[0].capacity_bytes()
    }

    /// What the report of a node of this process is made of.
    pub(crate) fn reporter(&self, index: usize) -> Reporter {
        let workers = self.options.threads;
        let published = self.published[index * workers..][..workers].to_vec();
        Reporter { node: Arc::clone(&self.nodes[index]), published }
    }

    /// How each node of the cluster is, as this process sees it.
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        let of_others = self.members.as_ref().map(Members::status).unwrap_or_default();
        let local = self.nodes.iter().enumerate().map(|(index, node)| NodeStatus {
            node: usize::from(node.id()),
            address: self.members.as_ref().map(Members::address),
            state: NodeState::Up,
            report: Some(self.reporter(index).report()),
        });
        let mut all: Vec<_> = local.chain(of_others).collect();
        all.sort_by_key(|status| status.node);
        all
    }

    /// OS threads that drive the workers.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// A loader for the first rows, before any transaction runs.
    pub fn loader(&self) -> Loader<'_> {
        Loader::new(self)
    }

    /// Finishes the accepted jobs and ends the threads.
    pub fn close(mut self) {
        self.end_threads();
    }

    fn end_threads(&mut self) {
        // Release: pairs with the Acquire in WorkerGroup::without_progress(): jobs accepted before are seen.
        self.state.closing.store(true, Ordering::Release);
        for waker in &self.wakers {
            waker.wake();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has halted the cluster, which says why.
            let _ = thread.join();
        }
        self.leave();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// The configuration that follows from the options, every size checked.
pub(crate) fn configuration(options: &ClusterOptions) -> Result<Configuration, ClusterError> {
    let range = |option, value: usize, max: usize, why: &str| {
        if (1..=max).contains(&value) {
            Ok(())
        } else {
            Err(ClusterError::Option { option, value, allowed: format!("1 to {max}{why}") })
        }
    };
    range("the number of nodes", options.nodes, Owner::NODES, "")?;
    range("the number of replicas", options.replicas, options.nodes, ", a copy per node at most")?;
    range("the number of threads", options.threads, Owner::WORKERS, "")?;
    range("the number of coroutines", options.coroutines, Owner::COROUTINES, "")?;
    range("the length of the job queues", options.queued_jobs_max, 1 << 20, "")?;
    let partitioning =
        Partitioning::new(options.partitions).ok_or_else(|| ClusterError::Option {
            option: "the number of partitions",
            value: options.partitions,
            allowed: format!("a power of two up to {}", Partitioning::PARTITIONS_MAX),
        })?;
    let nodes = u16::try_from(options.nodes).expect("checked above");
    Ok(Configuration::new(CLUSTER_ID, nodes, options.replicas, partitioning))
}

/// Table memory of a node that shares its host's memory with `nodes_of_host - 1` others.
pub(crate) fn memory_limit_bytes(options: &ClusterOptions, nodes_of_host: usize) -> usize {
    options.memory_limit_bytes.unwrap_or_else(|| {
        let free = HostMemory::read().map_or(MEMORY_BYTES_UNKNOWN, |host| host.free_bytes);
        free / 100 * MEMORY_PERCENT / nodes_of_host.max(1)
    })
}

/// Whether nodes of this host with these limits fit into its memory.
pub(crate) fn check_memory(limits: &[usize]) -> Result<(), ClusterError> {
    let sum = limits.iter().fold(0_usize, |sum, limit| sum.saturating_add(*limit));
    match HostMemory::read() {
        Some(host) if sum > host.total_bytes => {
            Err(ClusterError::Memory { limits: limits.to_vec(), host: host.to_string() })
        }
        _ => Ok(()),
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
