//! The identity of an endpoint, and which packets are meant for it.
//!
//! *Invariant*: a packet is accepted only if cluster, epoch, both nodes and both incarnations are as expected; any other packet
//! is counted by what is wrong.

use crate::counters::Counters;
use crate::packet::Route;

/// The identity of an endpoint and of its peers.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Cluster that packets must name.
    pub cluster_id: u32,
    /// Epoch that packets must name.
    pub epoch: u32,
    /// Own node.
    pub node: u16,
    /// Own worker; the peers' too.
    pub worker: u16,
    /// Coroutines of every worker of the cluster.
    pub coroutines: u16,
    /// Incarnation of each node.
    pub incarnations: Vec<u32>,
}

impl Identity {
    /// The number of a session.
    #[inline(always)]
    pub(crate) fn session(&self, source: u16, coroutine: u16) -> usize {
        usize::from(source) * usize::from(self.coroutines) + usize::from(coroutine)
    }

    /// The route from one node to another.
    pub(crate) fn route(&self, source: u16, destination: u16) -> Route {
        Route {
            cluster_id: self.cluster_id,
            epoch: self.epoch,
            source,
            destination,
            source_incarnation: self.incarnations[usize::from(source)],
            destination_incarnation: self.incarnations[usize::from(destination)],
        }
    }

    /// Counts a packet that is not from a peer to this endpoint, by what is wrong with it.
    #[cold]
    pub(crate) fn count_stranger(&self, packet: &[u8], counters: &mut Counters) {
        let counter = match Route::parse(packet) {
            None => &mut counters.malformed,
            Some(route) if route.cluster_id != self.cluster_id => &mut counters.wrong_cluster,
            Some(route) if route.epoch != self.epoch => &mut counters.wrong_epoch,
            Some(_) => &mut counters.wrong_incarnation,
        };
        *counter += 1;
    }
}
