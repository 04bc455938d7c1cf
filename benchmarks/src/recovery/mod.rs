//! How long a cluster takes to serve all partitions again after the death of a node, under load.
//!
//! ```text
//! for each kill:  a fresh cluster ─ load ─ clients and probes ─ warm-up ─ kill ─ every partition has committed again ─ end
//! ```
//! A probe writes one row of its partition again and again, from a node that lives on. Nodes are killed in turn, so that each is
//! killed equally often.
//!
//! *Not here*: nodes in processes of their own, which the command starts and whose clients it has.

mod one_process;
mod report;
mod watch;

pub use one_process::{RecoverySettings, run};
pub use report::{KillReport, NodeKills, RecoveryReport, Times};
pub use watch::{AFTER, BEFORE, Recovery, Watch};

use gannet_storage::Partitioning;

/// A key of each partition, in tables whose keys are numbers.
///
/// # Panics
/// Unless a cluster can have so many partitions.
#[must_use]
pub fn keys_of_partitions(partitions: usize) -> Vec<u64> {
    let partitioning = Partitioning::new(partitions).expect("a cluster has so many partitions");
    let key_in = |partition: u16| {
        let mut keys = 0_u64..;
        let found = keys.find(|key| partitioning.partition(*key) == partition);
        found.expect("keys spread over all partitions")
    };
    (0..=u16::MAX).take(partitions).map(key_in).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_has_its_key() {
        let keys = keys_of_partitions(16);
        let partitioning = Partitioning::new(16).unwrap();
        let partitions = keys.iter().map(|key| partitioning.partition(*key));
        assert!(partitions.eq(0..16));
    }
}
