//! Joining: a process becomes a node of a cluster of processes.
//!
//! ```text
//! sockets, queue pairs, or memory to share ─▶ the other members come (`members`)
//!                                          ─▶ node 0 proposes the first change: it names all members (`change`)
//!                                          ─▶ prepare: tables' memory, connections of ports, threads ─▶ decided: joined
//! the others are a cluster already         ─▶ the decider admits the process (`newcomers`) ─▶ prepare ─▶ decided: joined
//! ```
//! *Invariants*: nothing is sent before the incarnations of all members are known, and [`Cluster::join`] returns when
//! all have started. If one of them cannot start, none joins, and each tells the reason. A process that cannot come back leaves the cluster
//! as it is.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use gannet_manager::{Directory, DirectoryError};
use gannet_rpc::{Parking, Port, SharedRings, UdpOptions, UdpPort};
#[cfg(feature = "verbs")]
use gannet_rpc::{VerbsOptions, VerbsPort};

use crate::cluster::{
    Cluster, ClusterError, ClusterOptions, MTU_BYTES, RING_BYTES, check_memory, configuration,
    memory_limit_bytes,
};
use crate::completion::Lost;
use crate::configuration::{Configuration, MemberEntry};
use crate::lease::LeaseTerms;
use crate::member::Assignment;
#[cfg(feature = "verbs")]
use crate::members::RdmaPort;
use crate::members::{
    ClusterTerms, JoinError, Members, Membership, Predecessor, Transport, heartbeat, refused,
};
use crate::starting::Starting;
use crate::threads::{ThreadPlan, Threads, cores};

/// Longest wait for the last steps of workers when the cluster halts: one that is the calling thread's own cannot be waited for.
const LAST_STEP: Duration = Duration::from_millis(20);

impl Cluster {
    /// Joins a cluster of processes as one of its nodes; blocks until all have come. If the others have been a cluster with another process
    /// in this one's place, and have removed that one, they let this one in: it is filled with rows while it works.
    ///
    /// Each process has a thread per worker.
    ///
    /// # Errors
    /// [`ClusterError::Option`], [`ClusterError::Storage`] and [`ClusterError::Thread`] as [`Self::open`];
    /// [`ClusterError::Socket`] for addresses that cannot be used; [`ClusterError::SharedMemory`] if there is none;
    /// `ClusterError::Rdma` for what is missing of an RDMA device, and [`ClusterError::WithoutVerbs`] if they are not in
    /// this build; [`ClusterError::Join`] if a member does not come or does not take this one.
    ///
    /// # Panics
    /// Never: every size is checked first.
    pub fn join(options: ClusterOptions, membership: &Membership) -> Result<Self, ClusterError> {
        let Membership { node, first_nodes, .. } = *membership;
        check_membership(&options, membership)?;
        // Further nodes come later.
        let first = ClusterOptions { nodes: first_nodes, ..options.clone() };
        let configuration = configuration(&first)?.with_spares(options.nodes);
        let terms = terms(&options, membership);
        let own = terms.addresses[node];
        let is_of_host = |address: &&SocketAddr| own.is_some_and(|own| own.ip() == address.ip());
        let of_host = terms.addresses.iter().flatten().filter(is_of_host);
        let own_limit = memory_limit_bytes(&options, of_host.count());
        check_memory(&[own_limit])?;
        let ports = Ports::open(&terms, membership)?;
        let entry = MemberEntry {
            incarnation: getrandom::u32().map_err(refused("random bytes"))?,
            memory_limit_bytes: own_limit as u64,
            ports: ports.told(own),
            keeps_log: membership.manager_data.is_some(),
            address: own,
            zone: membership.zone.clone(),
        };
        let lease =
            LeaseTerms::new(membership.lease).with_confirmed_reads(membership.confirm_reads);
        let copy_bytes_per_second = membership.copy_bytes_per_second;
        let (started, outcome) = channel();
        let manager_data = ManagerData::of(membership, configuration.clone().unformed())?;
        let predecessor = manager_data.predecessor.clone();
        let starting = Starting::new(started, move |configuration| {
            manager_data.begin(configuration)?;
            let cluster = start(options, configuration, (node, lease), ports)?;
            let learning = cluster.members[0].node().learning();
            learning.set_bytes_per_second(copy_bytes_per_second);
            Ok(cluster)
        });
        let members = Members::start(
            membership,
            terms,
            (entry, predecessor),
            configuration.unformed(),
            starting,
        )?;
        if let Err(error) = members.wait_until_joined() {
            let leave = members.leaver();
            leave(&format!("it could not join: {error}"));
            // What has failed in this process is told by its own error.
            return Err(outcome.try_iter().find_map(Result::err).unwrap_or(error.into()));
        }
        let mut cluster = outcome.recv().map_err(|_| Lost::NotBegun)??;
        let (state, member) = (Arc::clone(&cluster.state), Arc::clone(&cluster.members[0]));
        members.on_halt(move || {
            // Release: pairs with the Acquire of the threads.
            state.halted.store(true, Ordering::Release);
            // Before the others go on without this node, it answers nobody.
            member.node().lease().give_up();
            member.node().end();
            member.wake_all();
            member.node().wait_for_stop(u64::MAX, LAST_STEP);
        });
        let state = Arc::clone(&cluster.state);
        members.on_removal(move |reason| state.end(reason.to_owned()));
        // The others hear at once that this process is of no use any more.
        let leave = members.leaver();
        cluster.state.first_on_failure(Box::new(move |reason| leave(reason)));
        members.keep_reporting(Arc::clone(&cluster.members[0]));
        let members = Arc::new(members);
        cluster.manager = Arc::new(Arc::clone(&members));
        cluster.others = Some(members);
        Ok(cluster)
    }

    /// Starts the threads of the node that this process is, one for each port.
    fn start_node<P: Port>(
        &mut self,
        ports: Vec<(Parking, P)>,
        first_core: Option<usize>,
    ) -> Result<(), ClusterError> {
        let plan = |(worker, (parking, port)): (usize, (Parking, P))| {
            let member = Arc::clone(&self.members[0]);
            ThreadPlan {
                workers: vec![(Assignment { member, worker, index: worker }, port)],
                parking,
            }
        };
        let plans = ports.into_iter().enumerate().map(plan).collect();
        let started = Threads::start(&self.members, &self.state, plans, first_core, None);
        self.threads = Some(started.map_err(ClusterError::Thread)?);
        Ok(())
    }

    /// The transport of packets between its processes; none if all nodes are in this one.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        self.others.as_ref().map(|others| others.transport())
    }

    /// Why the cluster has halted, if it has: another of its processes has gone, or a worker of this one has died.
    #[must_use]
    pub fn halted(&self) -> Option<String> {
        self.state.failure.get().cloned().or_else(|| self.others.as_ref()?.halted())
    }

    /// Tells the other processes that this one stops; they go on without its node. A node that is drained and holds nothing leaves by a
    /// change that they decide on, for which this call waits up to two seconds.
    pub fn leave(&self) {
        if let Some(members) = &self.others {
            if self.configuration().may_part(self.members[0].node().id()) {
                members.part();
            }
            members.leave();
        }
    }

    /// Why a job has given no result: another process has gone, or what the completion knows.
    #[must_use]
    pub fn loss(&self, lost: Lost) -> ClusterError {
        self.halted().map_or(lost.into(), |reason| JoinError::Halted(reason).into())
    }

    /// Why a job is not accepted.
    pub(crate) fn refusal(&self) -> ClusterError {
        self.halted().map_or(ClusterError::Busy, |reason| JoinError::Halted(reason).into())
    }
}

/// Starts the node of this process, as the first configuration says. The memory limits of nodes may differ, as by default they do
/// between hosts: all nodes derive the same shares of partitions from them (rule C9).
fn start(
    options: ClusterOptions,
    configuration: &Configuration,
    (node, terms): (usize, LeaseTerms),
    ports: Ports,
) -> Result<Cluster, ClusterError> {
    let limits = configuration.memory_limits_bytes();
    let host = |member: &MemberEntry| member.address.map(|address| address.ip());
    let members = &configuration.members;
    let is_on_this_host = |member: &MemberEntry| host(member) == host(&members[node]);
    let of_host = limits.iter().zip(members).filter(|(_, member)| is_on_this_host(member));
    let of_host: Vec<_> = of_host.map(|(limit, _)| *limit).collect();
    check_memory(&of_host)?;
    // The core of the first worker. Members that share cores take them in turn: left to itself, the scheduler may put all
    // of them on one. A member with a thread for each core leaves the choice to the scheduler, unless it is alone on its host.
    let has_choice = options.threads < cores() || of_host.len() * options.threads <= cores();
    let before = members[..node].iter().filter(|member| is_on_this_host(member)).count();
    let first_core = has_choice.then(|| before * options.threads);
    let mut cluster = Cluster::with_nodes(options, configuration.clone(), node..node + 1)?;
    cluster.members[0].node().require_lease(terms);
    let told: Vec<_> = (0..=u16::MAX)
        .zip(&configuration.members)
        .map(|(node, member)| configuration.is_member(node).then(|| member.ports.clone()))
        .collect();
    match ports {
        Ports::Udp(mut ports) => {
            ports.iter_mut().try_for_each(|port| port.connect(&told))?;
            cluster.start_node(watched(ports)?, first_core)?;
        }
        #[cfg(feature = "verbs")]
        Ports::Verbs(mut ports) => {
            ports.iter_mut().try_for_each(|port| port.connect(&told))?;
            cluster.start_node(watched(ports)?, first_core)?;
        }
        Ports::Memory(rings) => cluster.start_node(rings.connect(&told)?, first_core)?,
    }
    Ok(cluster)
}

/// The manager's directory of this node.
struct ManagerData {
    /// It has what an earlier process has left.
    left: Option<PathBuf>,
    /// The replica of that process, if what is left can be read.
    predecessor: Option<Arc<Predecessor>>,
    begin_anew: bool,
}

impl ManagerData {
    fn of(membership: &Membership, first: Configuration) -> Result<Self, JoinError> {
        let Membership { cluster, begin_anew, manager_data, .. } = membership;
        let node = u16::try_from(membership.node).expect("checked");
        let mut data = Self { left: None, predecessor: None, begin_anew: *begin_anew };
        let Some(path) = manager_data else { return Ok(data) };
        match Directory::left_in(path, cluster, node) {
            Ok(None) => return Ok(data),
            Ok(Some(id)) => {
                let (left, heartbeat) = ((id, path.clone()), heartbeat(membership.lease));
                let first = Arc::new(first);
                let predecessor = Predecessor::new(cluster.clone(), left, heartbeat, first);
                data.predecessor = Some(Arc::new(predecessor));
            }
            Err(
                error @ (DirectoryError::Format { .. }
                | DirectoryError::Damaged { .. }
                | DirectoryError::NoLog(_)),
            ) => tracing::warn!("what an earlier process has left is of no use: {error}"),
            Err(error) => return Err(error.into()),
        }
        if !begin_anew {
            tracing::info!(
                "{} is of an earlier process: this one waits for a cluster that it comes back to",
                path.display()
            );
        }
        data.left = Some(path.clone());
        Ok(data)
    }

    /// The node begins with this configuration. Where there is a cluster that it comes back to, its replica of the manager is another than
    /// that of the process before. Where there is none, what is left is of an earlier run, and is forgotten only on request.
    fn begin(self, configuration: &Configuration) -> Result<(), JoinError> {
        self.predecessor.iter().for_each(|it| it.end());
        let Some(path) = self.left else { return Ok(()) };
        if configuration.is_formed() {
            tracing::info!(
                "what the process before has left in {} is removed: the others have it",
                path.display()
            );
        } else if self.begin_anew {
            tracing::warn!("what an earlier run has left in {} is forgotten", path.display());
        } else {
            return Err(JoinError::EarlierRun(path));
        }
        Ok(Directory::clear(&path)?)
    }
}

/// Refuses what no process of a cluster can be.
fn check_membership(options: &ClusterOptions, membership: &Membership) -> Result<(), ClusterError> {
    let Membership { node, first_nodes, ref addresses, lease, .. } = *membership;
    let refused = |option, value, allowed| Err(ClusterError::Option { option, value, allowed });
    if first_nodes > addresses.len() {
        let allowed = format!("at most {}, which have addresses", addresses.len());
        return refused("the number of the first nodes", first_nodes, allowed);
    }
    if addresses.len() > options.nodes {
        let allowed = format!("at least {}, which have addresses", addresses.len());
        return refused("the number of nodes that there can be", options.nodes, allowed);
    }
    if node >= options.nodes || membership.own_address().is_none() {
        let allowed = format!("one from 0 that has an address, of at most {}", options.nodes);
        return refused("the node's number", node, allowed);
    }
    if lease < Membership::LEASE_MIN {
        return Err(JoinError::ShortLease(lease).into());
    }
    if membership.zone.len() > Membership::ZONE_BYTES_MAX {
        return Err(JoinError::LongZone(membership.zone.len()).into());
    }
    Ok(check_addresses(options, membership)?)
}

/// Each member has ports of its own: one by TCP, and one for each worker by UDP.
fn check_addresses(options: &ClusterOptions, membership: &Membership) -> Result<(), JoinError> {
    let ports = if membership.transport == Transport::Udp { options.threads } else { 1 };
    let addresses = membership.known_addresses(options.nodes);
    let known = || addresses.iter().enumerate().filter_map(|(node, it)| Some((node, (*it)?)));
    for (second, b) in known() {
        for (first, a) in known().take_while(|(first, _)| *first < second) {
            if a.ip() == b.ip() && usize::from(a.port().abs_diff(b.port())) < ports {
                let (first_address, second_address) = (a, b);
                return Err(JoinError::Overlap {
                    first,
                    first_address,
                    second,
                    second_address,
                    ports,
                });
            }
        }
    }
    Ok(())
}

/// The ports of the workers, before the other members have come.
enum Ports {
    Udp(Vec<UdpPort>),
    Memory(SharedRings),
    #[cfg(feature = "verbs")]
    Verbs(Vec<VerbsPort>),
}

impl Ports {
    fn open(terms: &ClusterTerms, membership: &Membership) -> Result<Self, ClusterError> {
        let ClusterTerms { nodes, threads, .. } = *terms;
        let narrow = |value: usize| u16::try_from(value).expect("checked");
        let udp = |worker| UdpOptions {
            node: narrow(membership.node),
            worker: narrow(worker),
            addresses: terms.addresses.clone(),
            mtu: membership.mtu,
            key: membership.key.clone(),
        };
        Ok(match membership.transport {
            Transport::Udp => {
                let ports = (0..threads).map(|worker| UdpPort::open(&udp(worker)));
                Self::Udp(ports.collect::<Result<_, _>>()?)
            }
            Transport::Memory => {
                let count = (nodes, threads);
                Self::Memory(SharedRings::create(membership.node, count, MTU_BYTES, RING_BYTES)?)
            }
            Transport::Verbs => Self::open_verbs(terms, membership)?,
        })
    }

    /// What the other members must know to reach them, of a node that is found at `address`.
    fn told(&self, address: Option<SocketAddr>) -> String {
        match self {
            Self::Udp(_) => address.map(|address| address.to_string()).unwrap_or_default(),
            Self::Memory(rings) => rings.handle(),
            #[cfg(feature = "verbs")]
            Self::Verbs(ports) => {
                ports.iter().map(VerbsPort::address).collect::<Vec<_>>().join("\n")
            }
        }
    }

    #[cfg(feature = "verbs")]
    fn open_verbs(terms: &ClusterTerms, membership: &Membership) -> Result<Self, ClusterError> {
        let RdmaPort { device, port, gid } = membership.rdma.clone();
        let gid = gid.map(|gid| gid.parse()).transpose()?;
        let narrow = |value: usize| u16::try_from(value).expect("checked");
        let options = |worker| VerbsOptions {
            node: narrow(membership.node),
            worker: narrow(worker),
            nodes: terms.nodes,
            device: device.clone(),
            port,
            gid,
            mtu: membership.mtu,
            key: membership.key.clone(),
        };
        let ports = (0..terms.threads).map(|worker| VerbsPort::open(&options(worker)));
        Ok(Self::Verbs(ports.collect::<Result<_, _>>()?))
    }

    #[cfg(not(feature = "verbs"))]
    fn open_verbs(_: &ClusterTerms, _: &Membership) -> Result<Self, ClusterError> {
        Err(ClusterError::WithoutVerbs)
    }
}

/// A [`Parking`] for the thread of each port.
fn watched<P: AsFd>(ports: Vec<P>) -> Result<Vec<(Parking, P)>, ClusterError> {
    let with_parking = |port| Ok((Parking::watching(&[&port])?, port));
    let watched = ports.into_iter().map(with_parking).collect::<std::io::Result<_>>();
    Ok(watched.map_err(refused("a descriptor"))?)
}

/// What all nodes agree on, and where they are, as far as this process knows.
fn terms(options: &ClusterOptions, membership: &Membership) -> ClusterTerms {
    ClusterTerms {
        transport: membership.transport,
        cluster: membership.cluster.clone(),
        members: membership.addresses.clone(),
        first_nodes: membership.first_nodes,
        nodes: options.nodes,
        replicas: options.replicas,
        threads: options.threads,
        coroutines: options.coroutines,
        partitions: options.partitions,
        mtu: membership.mtu,
        lease: membership.lease,
        addresses: membership.known_addresses(options.nodes),
    }
}

impl ClusterTerms {
    /// The options of a process of this cluster, which decides for itself on the others of these.
    #[must_use]
    pub fn options(&self, own: ClusterOptions) -> ClusterOptions {
        ClusterOptions {
            nodes: self.nodes,
            replicas: self.replicas,
            threads: self.threads,
            coroutines: self.coroutines,
            partitions: self.partitions,
            ..own
        }
    }
}
