//! The terms of a cluster: what all nodes agree on, and where each is found.
//!
//! *Invariants*: two members are not connected unless all of `settings` are equal; the refusal names the setting.
//! Addresses are no setting: each node tells those that it knows. A process that joins takes the terms as they are told,
//! and decides for itself on all else.
//!
//! *Source*: `docs/protocol.md`, "Nodes that are added".
//!
//! *Not here*: how a process that joins gets to know them, in `asking.rs`; the terms of a process that was told by its
//! own settings, in `join`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use gannet_rpc::ClusterKey;
use serde::{Deserialize, Serialize};

use crate::members::membership::{Invitation, Membership, Transport};

/// What all nodes of a cluster agree on, and where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterTerms {
    pub(crate) transport: Transport,
    pub(crate) cluster: String,
    /// Those that were named when the cluster began, by node.
    pub(crate) members: Vec<SocketAddr>,
    pub(crate) first_nodes: usize,
    /// How many nodes there can be.
    pub(crate) nodes: usize,
    pub(crate) replicas: usize,
    pub(crate) threads: usize,
    pub(crate) coroutines: usize,
    pub(crate) partitions: usize,
    pub(crate) mtu: Option<usize>,
    pub(crate) lease: Duration,
    /// By node: where it is found, as far as is known.
    pub(crate) addresses: Vec<Option<SocketAddr>>,
}

impl ClusterTerms {
    /// What members must agree on, by name.
    pub(crate) fn settings(&self) -> BTreeMap<String, String> {
        let members: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        let all = [
            ("transport", self.transport.name().to_owned()),
            ("cluster name", self.cluster.clone()),
            ("members", members.join(",")),
            ("nodes", self.nodes.to_string()),
            ("first nodes", self.first_nodes.to_string()),
            ("replicas", self.replicas.to_string()),
            ("threads", self.threads.to_string()),
            ("coroutines", self.coroutines.to_string()),
            ("partitions", self.partitions.to_string()),
            ("mtu", self.mtu.map_or_else(|| "automatic".to_owned(), |mtu| mtu.to_string())),
            ("lease", format!("{:?}", self.lease)),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The membership of a process that joins as a node which is found at `address`, with defaults for what nodes decide for themselves.
    #[must_use]
    pub fn membership(
        self,
        node: usize,
        address: SocketAddr,
        key: Option<ClusterKey>,
    ) -> Membership {
        Membership {
            node,
            transport: self.transport,
            addresses: self.members,
            invitation: Some(Invitation { address, known: self.addresses }),
            first_nodes: self.first_nodes,
            key,
            cluster: self.cluster,
            mtu: self.mtu,
            lease: self.lease,
            ..Membership::default()
        }
    }
}
