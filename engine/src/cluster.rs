//! A cluster, as programs use it: a handle of the members that are in this process, and of the threads that drive them.
//!
//! *Not here*: a member, in `member`; threads, in `threads`; tables, in `tables`; submission of jobs by other threads, in `spawn`; how a
//! process becomes a node of a cluster of processes, in `join`.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gannet_rpc::{BootClock, Clock};
use gannet_storage::{HashSeed, LogObserver, Owner, Partitioning, StorageError};

use crate::cluster_state::ClusterState;
use crate::configuration::{ChangeError, Configuration};
use crate::fold::FoldPrograms;
use crate::healing::Healer;
use crate::host_memory::HostMemory;
use crate::hosted::ThreadHost;
use crate::local_members::LocalMembers;
use crate::manager::Manager;
use crate::member::{Member, WorkerOptions};
use crate::members::{JoinError, Members, OverrideError};
use crate::membership_status::MembershipStatus;
use crate::node::Node;
use crate::statistics::{NodeState, NodeStatus};
use crate::threads::{Threads, Topology, cores};
use crate::view::View;

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

/// How long what became of a transaction under a token is kept by default.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 60 * 60);

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
    /// How long [`crate::Tokens`] keeps what became of a client's last transaction, at least. After that, a run under the same
    /// token is taken for a new one.
    pub token_ttl: Duration,
    /// Seed of the random waits after conflicts.
    pub seed: u64,
    /// What the programs of [`crate::Deferred::fold`] mean.
    pub programs: FoldPrograms,
    /// Sees every commit record that is stored on any node. Rows of loads have none.
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
            token_ttl: TOKEN_TTL,
            seed: 1,
            programs: FoldPrograms::default(),
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
    /// A majority is not given up.
    #[error(transparent)]
    Override(#[from] OverrideError),
    /// The operating system has no random bits for the seed of hashes.
    #[error("the operating system refused random bytes: {0}")]
    Random(io::Error),
    /// The operating system refused a thread.
    #[error("the operating system refused a thread: {0}; use fewer threads")]
    Thread(io::Error),
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
    /// Nodes are drained and removed as processes.
    #[error(
        "all nodes are in this process, so none can be drained or removed; start each as a process of its own"
    )]
    OneProcess,
    /// A node that runs is not removed.
    #[error(
        "node {0} runs; drain the node and stop its process instead, or stop its process if it cannot be drained"
    )]
    NodeRuns(u16),
    /// A node whose process cannot be restarted.
    #[error(
        "node {node} is not restarted: {why}; give it copies elsewhere, or --manager-data, or stop all nodes"
    )]
    NodeNeeded {
        /// The node.
        node: u16,
        /// What would be lost.
        why: String,
    },
    /// There is no such node to kill.
    #[error("there is no node {node} whose end this process could cause; look at Cluster::status")]
    NoSuchNode {
        /// The node requested.
        node: usize,
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
    pub(crate) members: Vec<Arc<Member>>,
    /// Number of the first of them.
    pub(crate) first_node: usize,
    pub(crate) state: Arc<ClusterState>,
    /// None in a simulation.
    pub(crate) threads: Option<Threads>,
    /// Decides on changes of the configuration.
    pub(crate) manager: Arc<dyn Manager>,
    /// The other processes, if there are any.
    pub(crate) others: Option<Arc<Members>>,
    /// The worker that gets the next job which may go to several, in turn.
    pub(crate) next_worker: AtomicUsize,
    pub(crate) changing: Arc<Mutex<()>>,
    pub(crate) healer: Healer,
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
        let ClusterOptions { threads, topology, ref host, .. } = cluster.options;
        let (members, state) = (&cluster.members, &cluster.state);
        let packets = (MTU_BYTES, RING_BYTES);
        let started =
            Threads::in_one_process(members, state, threads, topology, packets, host.as_ref());
        cluster.threads = Some(started.map_err(ClusterError::Thread)?);
        Ok(cluster)
    }

    /// A cluster without threads, whose members the caller drives.
    pub(crate) fn unstarted(options: ClusterOptions) -> Result<Self, ClusterError> {
        let mut configuration = configuration(&options)?;
        let seed = drawn_hash_seed().map_err(ClusterError::Random)?;
        configuration.partitioning = configuration.partitioning.with_seed(seed);
        let nodes = options.nodes;
        let limit = memory_limit_bytes(&options, nodes);
        check_memory(&vec![limit; nodes])?;
        for member in &mut configuration.members {
            member.memory_limit_bytes = limit as u64;
        }
        Self::with_nodes(options, configuration, 0..nodes)
    }

    /// The part of a cluster that this process has, its members not started yet.
    pub(crate) fn with_nodes(
        options: ClusterOptions,
        configuration: Configuration,
        local: Range<usize>,
    ) -> Result<Self, ClusterError> {
        let configuration = Arc::new(configuration);
        let first_node = local.start;
        let narrow = |value: usize| u16::try_from(value).expect("checked with the options");
        let worker_options = WorkerOptions {
            workers: narrow(options.threads),
            coroutines: narrow(options.coroutines),
            queued_jobs_max: options.queued_jobs_max,
            seed: options.seed,
            log_observer: options.log_observer.clone(),
            programs: options.programs.clone(),
        };
        let new_member = |id| {
            let node = Node::new(narrow(id), Arc::clone(&configuration))?;
            Ok(Arc::new(Member::new(Arc::new(node), worker_options.clone())))
        };
        let members = local.map(new_member).collect::<Result<Vec<_>, StorageError>>()?;
        Ok(Self::of_members(options, members, first_node))
    }

    /// A cluster of members, the first of which has this number. They decide on changes themselves.
    pub(crate) fn of_members(
        options: ClusterOptions,
        members: Vec<Arc<Member>>,
        first_node: usize,
    ) -> Self {
        let told = options.on_failure.clone();
        let tell = told.map(|told| Box::new(move |reason: &str| told(reason)) as Box<_>);
        let state = Arc::new(ClusterState::new(options.busy_poll, tell));
        let local = LocalMembers { members: members.clone(), state: Arc::clone(&state) };
        Self {
            members,
            first_node,
            state,
            threads: None,
            manager: Arc::new(local),
            others: None,
            next_worker: AtomicUsize::new(0),
            changing: Arc::default(),
            healer: Healer::default(),
            options,
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

    /// The configuration and the tables, as the first node of this process that was not killed has them now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        let living = self.members.iter().find(|member| !member.node().is_killed());
        living.unwrap_or(&self.members[0]).node().view()
    }

    /// The nodes that are in this process.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.members.iter().map(|member| Arc::clone(member.node())).collect()
    }

    /// The node with that number, if it is in this process.
    #[must_use]
    pub fn node(&self, number: usize) -> Option<&Arc<Node>> {
        Some(self.members.get(self.local_index(number)?)?.node())
    }

    /// The number of a node among those of this process, if it is one of them.
    pub(crate) fn local_index(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.first_node).filter(|index| *index < self.members.len())
    }

    /// Bytes of data that the cluster has room for, a copy of each partition counted: the same in every process.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.members[0].node().capacity_bytes()
    }

    /// How each node of the cluster is, as this process sees it.
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        let of_others = self.others.as_ref().map(|others| others.status()).unwrap_or_default();
        let local = self.members.iter().map(|member| NodeStatus {
            node: usize::from(member.node().id()),
            address: self.others.as_ref().map(|others| others.address()),
            state: if member.node().is_killed() { NodeState::Gone } else { NodeState::Up },
            report: Some(member.report()),
        });
        let mut all: Vec<_> = local.chain(of_others).collect();
        all.sort_by_key(|status| status.node);
        all
    }

    /// The epoch, who decides on the membership, and how many nodes can be lost, as this process sees it.
    #[must_use]
    pub fn membership(&self) -> MembershipStatus {
        let manager = self.others.as_ref().map(|others| others.manager_status());
        let lease = self.members[0].node().lease().left(BootClock.now_ns());
        MembershipStatus::new(&self.configuration(), manager, lease)
    }

    /// OS threads that drive the workers.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.as_ref().map_or(0, Threads::count)
    }

    /// Finishes the accepted jobs and ends the threads.
    pub fn close(mut self) {
        self.end_threads();
    }

    fn end_threads(&mut self) {
        self.healer.end();
        if let Some(threads) = &mut self.threads {
            self.members.iter().for_each(|member| member.node().learning().end());
            threads.end();
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
    range("the number of coroutines", options.coroutines, Owner::COROUTINES - 1, "")?;
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

/// A seed for the hashes of a new cluster's keys.
pub(crate) fn drawn_hash_seed() -> io::Result<HashSeed> {
    Ok(HashSeed::new(getrandom::u64()?))
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
