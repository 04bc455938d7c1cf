//! Deferred transactions at a node without a lease.

use std::time::Duration;

use super::Deferred;
use crate::cluster::{Cluster, ClusterOptions};
use crate::coordinator::Coordinator;
use crate::lease::{ENDLESS, LeaseTerms};
use crate::outcome::Abort;

#[test]
fn a_transaction_that_only_reads_ends_when_the_lease_is_held() {
    let options = ClusterOptions {
        nodes: 1,
        replicas: 1,
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_ordered_table("lines", 10).unwrap();
    let (key, value) = (b"key".to_vec(), b"value".to_vec());
    let (own_key, own_value) = (key.clone(), value.clone());
    let write = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        deferred.insert(table, own_key, own_value);
        deferred.commit(coordinator)
    };
    cluster.spawn_anywhere(write).unwrap().wait().unwrap().unwrap();
    let node = cluster.node(0).unwrap();
    node.require_lease(LeaseTerms::new(Duration::from_millis(100)));
    let read = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        let found = deferred.get_many(coordinator, table, std::slice::from_ref(&key))?;
        deferred.commit(coordinator)?;
        Ok::<_, Abort>(found)
    };
    let reads = cluster.spawn_anywhere(read).unwrap();
    // The worker begins its jobs in their order. A transaction that has read nothing needs no lease.
    let empty = |coordinator: &mut Coordinator<'_>| Deferred::new().commit(coordinator);
    cluster.spawn_anywhere(empty).unwrap().wait().unwrap().unwrap();
    assert!(!reads.is_complete(), "an answer without a lease");
    node.lease().extend(ENDLESS - 1);
    assert_eq!(reads.wait().unwrap().unwrap(), [Some(value)]);
}
