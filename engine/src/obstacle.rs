//! What keeps jobs from going on: the node has no lease, or other nodes do not answer its workers.
//!
//! ```text
//! worker ── a node is silent ─▶ Silences of the jobs that wait for it ─┐
//! lease ─── over, since when ──────────────────────────────────────────┴─▶ Cluster::obstacle() ─▶ the waiter of a job
//! ```
//! *Invariants*: workers note a silence only when they send something again. A node whose silence nobody notes any more is
//! forgotten.
//!
//! *Not here*: who is removed because of it, in `members/leases.rs`; what a worker does without a lease, in `fence`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::Ordering;
use std::time::Duration;

use gannet_rpc::{BootClock, Clock};

use crate::cancellation::CancellationToken;
use crate::cluster::Cluster;
use crate::configuration::Configuration;
use crate::lease::LeaseTerms;
use crate::silences::Silence;

/// Why a job may not go on now. Its text is for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The node has no lease, so it answers nobody.
    NoLease {
        /// For how long.
        lasted: Duration,
    },
    /// Nodes do not answer its workers.
    Silent(Vec<SilentNode>),
}

/// A node that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentNode {
    /// Its number.
    pub node: usize,
    /// For how long it has not answered.
    pub lasted: Duration,
    /// What it is asked about; nothing while it is to log commits.
    pub partitions: Vec<u16>,
}

impl Obstacle {
    /// For how long it has been there.
    #[must_use]
    pub fn lasted(&self) -> Duration {
        match self {
            Self::NoLease { lasted } => *lasted,
            Self::Silent(nodes) => nodes.iter().map(|node| node.lasted).max().unwrap_or_default(),
        }
    }
}

impl Display for Obstacle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLease { lasted } => write!(
                f,
                "this node has had no lease for {}: no majority of the nodes that decide on the membership confirms it",
                Rounded(*lasted)
            ),
            Self::Silent(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "; " };
                    write!(f, "{separator}{node}")?;
                }
                Ok(())
            }
        }
    }
}

impl Display for SilentNode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { node, lasted, partitions } = self;
        let lasted = Rounded(*lasted);
        match &partitions[..] {
            [] => write!(f, "commits wait for node {node}, which has not answered for {lasted}"),
            [partition] => write!(
                f,
                "partition {partition} waits for node {node}, which has not answered for {lasted}"
            ),
            [most @ .., last] => {
                let most: Vec<_> = most.iter().map(u16::to_string).collect();
                let most = most.join(", ");
                write!(
                    f,
                    "partitions {most} and {last} wait for node {node}, which has not answered for {lasted}"
                )
            }
        }
    }
}

/// A duration in whole seconds, or in milliseconds if it is shorter than one.
struct Rounded(Duration);

impl Display for Rounded {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0 => write!(f, "{} ms", self.0.as_millis()),
            seconds => write!(f, "{seconds} s"),
        }
    }
}

impl Cluster {
    /// Why this job may not go on now: what it waits for, or if it has no coroutine yet, what any job of this process's node waits for.
    /// None if it may, if all nodes are in this process, and if the cluster has halted, when all jobs end.
    #[must_use]
    pub fn obstacle(&self, job: &CancellationToken) -> Option<Obstacle> {
        let node = self.members[0].node();
        let terms = node.lease_terms()?;
        // Acquire: pairs with the Release of the thread that halts the cluster.
        if self.state.halted.load(Ordering::Acquire) {
            return None;
        }
        let now_ns = BootClock.now_ns();
        if let Some(over_ns) = node.lease().over_for_ns(now_ns) {
            return Some(Obstacle::NoLease { lasted: Duration::from_nanos(over_ns) });
        }
        let silences = job.silences().unwrap_or(node.silences());
        let nodes = silent_nodes(silences.present(now_ns, terms), &self.configuration(), now_ns);
        (!nodes.is_empty()).then_some(Obstacle::Silent(nodes))
    }

    /// Why jobs neither begin nor go on: the node has had no lease for longer than a lease lasts. This is cheap.
    #[must_use]
    pub fn obstacle_to_all(&self) -> Option<Obstacle> {
        let node = self.members[0].node();
        let refused_after_ns = node.lease_terms()?.refused_after_ns();
        let over_ns = node.lease().over_for_ns(BootClock.now_ns())?;
        // One that has halted gives its lease up, and its jobs end with the reason.
        let lasted = Duration::from_nanos(over_ns);
        (over_ns > refused_after_ns).then_some(Obstacle::NoLease { lasted })
    }

    /// How long a lease of this process's node lasts; none if it needs none.
    #[must_use]
    pub fn lease_length(&self) -> Option<Duration> {
        self.members[0].node().lease_terms().map(LeaseTerms::length)
    }
}

/// The members among silent nodes.
fn silent_nodes(
    silences: BTreeMap<u16, Silence>,
    configuration: &Configuration,
    now_ns: u64,
) -> Vec<SilentNode> {
    let members = silences.into_iter().filter(|(node, _)| configuration.is_member(*node));
    let silent_node = |(node, silence): (u16, Silence)| SilentNode {
        node: usize::from(node),
        lasted: Duration::from_nanos(now_ns.saturating_sub(silence.since_ns)),
        partitions: silence.partitions.into_iter().collect(),
    };
    members.map(silent_node).collect()
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;
    use crate::silences::Silences;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_text_names_partitions_and_nodes() {
        let configuration = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
        let (silences, terms) = (Silences::default(), LeaseTerms::new(Duration::from_secs(1)));
        [1, 9].iter().for_each(|node| silences.note(*node, &[2].into(), (5 * SECOND, terms)));
        let silent = silent_nodes(silences.present(6 * SECOND, terms), &configuration, 6 * SECOND);
        let lasted = Duration::from_secs(3);
        assert_eq!(silent, [SilentNode { node: 1, lasted, partitions: vec![2] }], "9 is no member");
        let node = |node, partitions: &[u16]| SilentNode {
            node,
            lasted: Duration::from_millis(5_400),
            partitions: partitions.to_vec(),
        };
        let obstacle = Obstacle::Silent(vec![node(2, &[3, 7]), node(1, &[4]), node(0, &[])]);
        assert_eq!(
            obstacle.to_string(),
            "partitions 3 and 7 wait for node 2, which has not answered for 5 s; \
             partition 4 waits for node 1, which has not answered for 5 s; \
             commits wait for node 0, which has not answered for 5 s"
        );
        let obstacle = Obstacle::NoLease { lasted: Duration::from_millis(300) };
        assert!(
            obstacle.to_string().starts_with("this node has had no lease for 300 ms: no majority")
        );
    }
}
