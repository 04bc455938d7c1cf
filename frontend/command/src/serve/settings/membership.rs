//! The part of the settings that makes a process a node: of a cluster of its own, of one that begins, or of one that it
//! joins.
//!
//! *Invariants*: settings that contradict each other are an error that names them. A process that joins is told the
//! settings that all nodes have in common, and may set none of them. A node of a cluster of processes has a key or a
//! trusted network; over RDMA the network is trusted, beside a key or without. Only a process that joins waits here, at
//! most for its join time-out. By default there are 3 copies, and over UDP room for 16 nodes.
//!
//! *Source*: `docs/operations.md`, "A cluster of processes".
//!
//! *Not here*: the settings, in `settings.rs`; what follows, in `gannet_engine`.

use std::net::SocketAddr;

use gannet_engine::{ClusterKey, ClusterOptions, Membership, RdmaPort, Transport, ask_members};

use crate::processes::TransportName;
use crate::serve::settings::{Settings, SettingsError, named, resolved};
/// Default number of copies of every row.
const REPLICAS: usize = 3;
/// Default number of nodes of a cluster in one process.
const NODES: usize = 3;
/// Default number of nodes that a cluster over UDP can have: some more may join it.
const NODES_MAX: usize = 16;
/// Packet sizes in bytes that RDMA devices support and that hold a request.
const VERBS_MTUS: [usize; 3] = [1024, 2048, 4096];
/// Settings that all nodes of a cluster have in common.
const OF_CLUSTERS: [&str; 9] = [
    "members",
    "first-nodes",
    "nodes-max",
    "cluster-name",
    "transport",
    "mtu",
    "lease",
    "replicas",
    "threads",
];
/// Settings of clusters of processes only.
const OF_PROCESSES: [&str; 15] = [
    "cluster-key",
    "trusted-network",
    "cluster-name",
    "transport",
    "mtu",
    "join-timeout",
    "lease",
    "confirm-reads",
    "copies-after",
    "copy-rate",
    "first-nodes",
    "manager-data",
    "zone",
    "address",
    "nodes-max",
];

impl Settings {
    /// The cluster's options, and this process's membership in a cluster of processes.
    ///
    /// One that joins a cluster waits here until a member tells the terms.
    pub(crate) fn cluster(&self) -> Result<(ClusterOptions, Option<Membership>), SettingsError> {
        let defaults = ClusterOptions::default();
        let own = ClusterOptions {
            memory_limit_bytes: self.memory,
            token_ttl: self.token_ttl.unwrap_or(defaults.token_ttl),
            ..defaults
        };
        if let Some(join) = &self.join {
            let (options, membership) = self.joining(join, own)?;
            return Ok((options, Some(membership)));
        }
        let membership = self.membership()?;
        let (first, nodes) = match &membership {
            None => (self.nodes.unwrap_or(NODES), self.nodes.unwrap_or(NODES)),
            Some(Membership { transport, addresses, first_nodes, .. }) => {
                let more = if *transport == Transport::Udp { NODES_MAX } else { 0 };
                let nodes = self.nodes_max.unwrap_or(addresses.len().max(more));
                (*first_nodes, nodes)
            }
        };
        let options = ClusterOptions {
            nodes,
            replicas: self.replicas.unwrap_or(REPLICAS.min(first)),
            threads: self.threads.unwrap_or(own.threads),
            ..own
        };
        Ok((options, membership))
    }

    /// The options and the membership of a process that joins a cluster which has begun.
    fn joining(
        &self,
        join: &[String],
        own: ClusterOptions,
    ) -> Result<(ClusterOptions, Membership), SettingsError> {
        let (Some(node), Some(address)) = (self.node, &self.address) else {
            let text = "join needs node and address: the number of this node, and where the others find it";
            return Err(self.contradiction(text, &["join"]));
        };
        let is_told = [
            self.members.is_some(),
            self.first_nodes.is_some(),
            self.nodes_max.is_some(),
            self.cluster_name.is_some(),
            self.transport.is_some(),
            self.mtu.is_some(),
            self.lease.is_some(),
            self.replicas.is_some(),
            self.threads.is_some(),
        ];
        if is_told.contains(&true) {
            let text = "members, first-nodes, nodes-max, cluster-name, transport, mtu, lease, replicas and threads are told by the members \
                        of the cluster: leave them out beside join";
            return Err(self.contradiction(text, &OF_CLUSTERS));
        }
        let address = named("address", address)?;
        let asked = join.iter().map(|address| named("join", address));
        let (asked, key) = (asked.collect::<Result<Vec<_>, _>>()?, self.key()?);
        let join_timeout = self.join_timeout.unwrap_or(Membership::JOIN_TIMEOUT);
        let terms = ask_members(&asked, key.as_ref(), join_timeout)?;
        let options = terms.options(own);
        Ok((options, self.own_part(terms.membership(node, address, key))))
    }

    /// What a node decides for itself.
    fn own_part(&self, membership: Membership) -> Membership {
        let copy_rate = self.copy_rate.map(|bytes| bytes as u64);
        Membership {
            zone: self.zone.clone().unwrap_or_default(),
            join_timeout: self.join_timeout.unwrap_or(Membership::JOIN_TIMEOUT),
            confirm_reads: self.confirm_reads == Some(true),
            copies_after: self.copies_after.unwrap_or(Membership::COPIES_AFTER),
            copy_bytes_per_second: copy_rate.unwrap_or(Membership::COPY_BYTES_PER_SECOND),
            manager_data: self.manager_data.clone(),
            begin_anew: self.begin_anew,
            ..membership
        }
    }

    /// Whether something is set that only clusters of processes have.
    fn is_of_processes(&self) -> bool {
        let is_set = [
            self.cluster_key.is_some(),
            self.trusted_network == Some(true) && self.clients.is_none(),
            self.cluster_name.is_some(),
            self.transport.is_some(),
            self.mtu.is_some(),
            self.join_timeout.is_some(),
            self.lease.is_some(),
            self.confirm_reads.is_some(),
            self.copies_after.is_some(),
            self.copy_rate.is_some(),
            self.first_nodes.is_some(),
            self.manager_data.is_some(),
            self.zone.is_some(),
            self.address.is_some(),
            self.nodes_max.is_some(),
        ];
        is_set.contains(&true)
    }

    fn membership(&self) -> Result<Option<Membership>, SettingsError> {
        let contradiction = |text, names: &[&str]| Err(self.contradiction(text, names));
        let rdma = self.rdma()?;
        let (node, members) = match (self.node, &self.members) {
            (Some(node), Some(members)) => (node, members),
            (Some(_), None) => {
                let text = "node needs members: the addresses of all nodes, or join: those of some of a cluster that has begun";
                return contradiction(text, &["node"]);
            }
            (None, Some(_)) => {
                return contradiction(
                    "members needs node: which of them this process is, from 0",
                    &["members"],
                );
            }
            (None, None) => {
                if self.is_of_processes() {
                    return contradiction(
                        "cluster-key, trusted-network, cluster-name, transport, mtu, join-timeout, lease, confirm-reads, \
                         copies-after, copy-rate, first-nodes, manager-data, zone, address and nodes-max are for a cluster of processes: give node and members too, or node and join (trusted-network is \
                         also for clients, whose key is clients-key)",
                        &OF_PROCESSES,
                    );
                }
                return Ok(None);
            }
        };
        if self.nodes.is_some() {
            return contradiction(
                "nodes is for a cluster in one process: leave it out, or node and members",
                &["nodes", "node", "members"],
            );
        }
        if self.mtu.is_some() && self.transport == Some(TransportName::Memory) {
            return contradiction(
                "mtu is for networks: leave it out with memory",
                &["mtu", "transport"],
            );
        }
        let is_verbs = self.transport == Some(TransportName::Verbs);
        if is_verbs && self.mtu.is_some_and(|mtu| !VERBS_MTUS.contains(&mtu)) {
            return contradiction(
                "over verbs a packet has 1024, 2048 or 4096 bytes: give one of them as mtu, or leave it out",
                &["mtu", "transport"],
            );
        }
        if self.address.is_some() {
            let text = "address is for a process that joins: give join, or leave it out beside members, which has it";
            return contradiction(text, &["address", "members"]);
        }
        Ok(Some(self.own_part(Membership {
            node,
            transport: self.transport.map_or_else(Transport::default, Transport::from),
            addresses: (0..).zip(members).map(member).collect::<Result<_, _>>()?,
            first_nodes: self.first_nodes.unwrap_or(members.len()),
            key: self.key()?,
            cluster: self.cluster_name.clone().unwrap_or_else(|| "gannet".to_owned()),
            mtu: self.mtu,
            rdma,
            lease: self.lease.unwrap_or(Membership::LEASE),
            ..Membership::default()
        })))
    }

    /// The key of the members' messages over TCP, and of packets over UDP.
    fn key(&self) -> Result<Option<ClusterKey>, SettingsError> {
        let is_verbs = self.transport == Some(TransportName::Verbs);
        let is_trusted = self.trusted_network == Some(true);
        match &self.cluster_key {
            _ if is_verbs && !is_trusted => Err(self.contradiction(
                "packets over RDMA are neither encrypted nor authenticated: give trusted-network if only trusted \
                 hosts are on its network; a cluster-key beside it authenticates the members' messages over TCP",
                &["transport"],
            )),
            Some(_) if is_trusted && !is_verbs => {
                Err(self.contradiction(
                    "give one of cluster-key and trusted-network",
                    &["cluster-key", "trusted-network"],
                ))
            }
            Some(path) => Ok(Some(ClusterKey::read(path)?)),
            None if is_trusted => Ok(None),
            None => Err(self.contradiction(
                "give cluster-key, a file with 64 hexadecimal digits from `openssl rand -hex 32`, \
                 or trusted-network if only the members use their network",
                &[],
            )),
        }
    }

    /// The RDMA device and port.
    fn rdma(&self) -> Result<RdmaPort, SettingsError> {
        let (device, port, gid) = (self.rdma_device.clone(), self.rdma_port, self.rdma_gid.clone());
        let is_set = device.is_some() || port.is_some() || gid.is_some();
        if is_set && self.transport != Some(TransportName::Verbs) {
            return Err(self.contradiction(
                "rdma-device, rdma-port and rdma-gid are for the transport verbs: give transport too",
                &["rdma-device", "rdma-port", "rdma-gid", "transport"],
            ));
        }
        Ok(RdmaPort { device, port, gid })
    }
}

fn member((number, address): (usize, &String)) -> Result<SocketAddr, SettingsError> {
    resolved(address).map_err(|reason| {
        let address = address.clone();
        SettingsError::Address { number, address, reason }
    })
}
