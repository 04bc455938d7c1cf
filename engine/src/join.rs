//! Joining: a process becomes a node of a cluster of processes.
//!
//! ```text
//! sockets, queue pairs, or memory to share ─ the other members come (`members`) ─ tables' memory ─ threads ─ all have started
//! ```
//! *Invariants*: nothing is sent before the incarnations of all members are known, and [`Cluster::join`] returns when
//! all have started.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gannet_rpc::{Parking, Port, SharedRings, UdpOptions, UdpPort};
#[cfg(feature = "verbs")]
use gannet_rpc::{VerbsOptions, VerbsPort};

use crate::cluster::{
    Cluster, ClusterError, ClusterOptions, MTU_BYTES, RING_BYTES, check_memory, configuration,
    memory_limit_bytes,
};
use crate::completion::Lost;
use crate::member::Assignment;
#[cfg(feature = "verbs")]
use crate::members::RdmaPort;
use crate::members::{JoinError, Members, Membership, Transport, refused};
use crate::threads::{ThreadPlan, Threads, cores};

/// Version of everything that members say to each other: of packets, requests, records and frames.
const PROTOCOL: u32 = 3;

impl Cluster {
    /// Joins a cluster of processes as one of its nodes; blocks until all have come.
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
        let mut configuration = configuration(&options)?;
        let node = membership.node;
        if node >= options.nodes || membership.addresses.len() != options.nodes {
            return Err(ClusterError::Option {
                option: "the node's number",
                value: node,
                allowed: format!("one from 0 that has an address, and {} of them", options.nodes),
            });
        }
        check_addresses(options.threads, membership)?;
        let own_address = membership.addresses[node].ip();
        let is_on_this_host = |address: &SocketAddr| address.ip() == own_address;
        let count_on_this_host = |members: &[SocketAddr]| {
            members.iter().filter(|address| is_on_this_host(address)).count()
        };
        let nodes_of_host = count_on_this_host(&membership.addresses);
        let own_limit = memory_limit_bytes(&options, nodes_of_host);
        check_memory(&[own_limit])?;
        let ports = Ports::open(options.threads, membership)?;
        let mut members = Members::gather(membership, settings(&options, membership))?;
        // The core of the first worker. Members that share cores take them in turn: left to itself, the scheduler may put all
        // of them on one. A member with a thread for each core leaves the choice to the scheduler, unless it is alone on its host.
        let has_choice = options.threads < cores() || nodes_of_host * options.threads <= cores();
        let first_core =
            has_choice.then(|| count_on_this_host(&membership.addresses[..node]) * options.threads);
        configuration.incarnations = members.incarnations().to_vec();
        let limits = agreed_limits(&members, own_limit)?;
        let by_address = limits.iter().zip(&membership.addresses);
        let of_host =
            by_address.filter(|(_, address)| is_on_this_host(address)).map(|(limit, _)| *limit);
        check_memory(&of_host.collect::<Vec<_>>())?;
        let mut cluster = Self::with_nodes(options, configuration, node..node + 1, &limits)?;
        match ports {
            Ports::Udp(ports) => cluster.start_node(watched(ports)?, first_core)?,
            #[cfg(feature = "verbs")]
            Ports::Verbs(ports) => {
                let ports = connected(ports, &members)?;
                cluster.start_node(watched(ports)?, first_core)?;
            }
            Ports::Memory(rings) => {
                let handles = members.meet("sharing memory", rings.handle())?;
                cluster.start_node(rings.connect(&handles)?, first_core)?;
            }
        }
        let (state, member) = (Arc::clone(&cluster.state), Arc::clone(&cluster.members[0]));
        members.on_halt(move || {
            // Release: pairs with the Acquire of the threads.
            state.halted.store(true, Ordering::Release);
            member.wake_all();
        });
        // The others hear at once that this process is of no use any more.
        let leave = members.leaver();
        cluster.state.first_on_failure(Box::new(move |_| leave()));
        members.keep_reporting(Arc::clone(&cluster.members[0]))?;
        members.follow_changes(cluster.configuration(), cluster.local_members())?;
        cluster.others = Some(members);
        cluster.meet("starting", String::new())?;
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

    /// Waits until every process of the cluster has come to the same point, where all do `what`; what each has said
    /// there, by node. Returns at once if all nodes are in this process.
    ///
    /// # Errors
    /// [`ClusterError::Join`] if another process has come to a different point, or one has gone.
    pub fn meet(&self, what: &str, said: String) -> Result<Vec<String>, ClusterError> {
        match &self.others {
            Some(members) => Ok(members.meet(what, said)?),
            None => Ok(vec![said]),
        }
    }

    /// The transport of packets between its processes; none if all nodes are in this one.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        self.others.as_ref().map(Members::transport)
    }

    /// Why the cluster has halted, if it has: another of its processes has gone, or a worker of this one has died.
    #[must_use]
    pub fn halted(&self) -> Option<String> {
        self.state.failure.get().cloned().or_else(|| self.others.as_ref()?.halted())
    }

    /// Tells the other processes that this one stops; for them the cluster halts.
    pub fn leave(&self) {
        if let Some(members) = &self.others {
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

/// The memory limits of all nodes, by node. They may differ, as by default they do between hosts: each node tells its own, and
/// all derive the same shares of partitions from them (rule C9).
fn agreed_limits(members: &Members, own: usize) -> Result<Vec<usize>, JoinError> {
    let said = members.meet("agreeing on memory limits", own.to_string())?;
    let limit = |(node, said): (usize, &String)| {
        let reason = format!("its memory limit is \"{said}\", which is no number of bytes");
        said.parse().map_err(|_| JoinError::Elsewhere { node, reason })
    };
    said.iter().enumerate().map(limit).collect()
}

/// Each member has ports of its own: one by TCP, and one for each worker by UDP.
fn check_addresses(threads: usize, membership: &Membership) -> Result<(), JoinError> {
    let ports = if membership.transport == Transport::Udp { threads } else { 1 };
    for (second, b) in membership.addresses.iter().enumerate() {
        for (first, a) in membership.addresses[..second].iter().enumerate() {
            if a.ip() == b.ip() && usize::from(a.port().abs_diff(b.port())) < ports {
                let (first_address, second_address) = (*a, *b);
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
    fn open(threads: usize, membership: &Membership) -> Result<Self, ClusterError> {
        let narrow = |value: usize| u16::try_from(value).expect("checked");
        let udp = |worker| UdpOptions {
            node: narrow(membership.node),
            worker: narrow(worker),
            addresses: membership.addresses.clone(),
            mtu: membership.mtu,
            key: membership.key.clone(),
        };
        Ok(match membership.transport {
            Transport::Udp => {
                let ports = (0..threads).map(|worker| UdpPort::open(&udp(worker)));
                Self::Udp(ports.collect::<Result<_, _>>()?)
            }
            Transport::Memory => {
                let count = (membership.addresses.len(), threads);
                Self::Memory(SharedRings::create(membership.node, count, MTU_BYTES, RING_BYTES)?)
            }
            Transport::Verbs => Self::open_verbs(threads, membership)?,
        })
    }

    #[cfg(feature = "verbs")]
    fn open_verbs(threads: usize, membership: &Membership) -> Result<Self, ClusterError> {
        let RdmaPort { device, port, gid } = membership.rdma.clone();
        let options = VerbsOptions {
            node: u16::try_from(membership.node).expect("checked"),
            nodes: membership.addresses.len(),
            device,
            port,
            gid: gid.map(|gid| gid.parse()).transpose()?,
            mtu: membership.mtu,
            key: membership.key.clone(),
        };
        let ports = (0..threads).map(|_| VerbsPort::open(&options));
        Ok(Self::Verbs(ports.collect::<Result<_, _>>()?))
    }

    #[cfg(not(feature = "verbs"))]
    fn open_verbs(_: usize, _: &Membership) -> Result<Self, ClusterError> {
        Err(ClusterError::WithoutVerbs)
    }
}

/// Exchanges the addresses of the queue pairs with all members, and connects the pairs.
#[cfg(feature = "verbs")]
fn connected(mut ports: Vec<VerbsPort>, members: &Members) -> Result<Vec<VerbsPort>, ClusterError> {
    let own: Vec<_> = ports.iter().map(VerbsPort::address).collect();
    let all = members.meet("connecting queue pairs", own.join("\n"))?;
    for (worker, port) in ports.iter_mut().enumerate() {
        let of_worker = |node: &String| node.lines().nth(worker).unwrap_or("").to_owned();
        port.connect(&all.iter().map(of_worker).collect::<Vec<_>>())?;
    }
    Ok(ports)
}

/// A [`Parking`] for the thread of each port.
fn watched<P: AsFd>(ports: Vec<P>) -> Result<Vec<(Parking, P)>, ClusterError> {
    let with_parking = |port| Ok((Parking::watching(&[&port])?, port));
    let watched = ports.into_iter().map(with_parking).collect::<std::io::Result<_>>();
    Ok(watched.map_err(refused("a descriptor"))?)
}

/// What members must agree on.
fn settings(options: &ClusterOptions, membership: &Membership) -> BTreeMap<String, String> {
    let members: Vec<_> = membership.addresses.iter().map(ToString::to_string).collect();
    let mtu = membership.mtu.map_or_else(|| "automatic".to_owned(), |mtu| mtu.to_string());
    let all = [
        ("protocol version", PROTOCOL.to_string()),
        ("transport", membership.transport.name().to_owned()),
        ("cluster name", membership.cluster.clone()),
        ("members", members.join(",")),
        ("nodes", options.nodes.to_string()),
        ("replicas", options.replicas.to_string()),
        ("threads", options.threads.to_string()),
        ("coroutines", options.coroutines.to_string()),
        ("partitions", options.partitions.to_string()),
        ("mtu", mtu),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
