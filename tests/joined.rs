//! Nodes joined by `Cluster::join`, as in several processes. Here each node belongs to a thread.
//!
//! *Not here*: real processes (`tests/server/nodes.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use gannet::{
    Abort, Change, ChangeError, Cluster, ClusterError, ClusterKey, ClusterOptions, Failure,
    JoinError, LockMode, Membership, Misuse, Outcome, TableId, Transport,
};
use gannet_storage::{BucketSnapshot, StorageError, TableKind};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const NODES: usize = 2;

/// An address with free UDP and TCP ports, which neither the system nor this function assigns again.
fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = 10_000 + u16::try_from(random % 20_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let is_new = GIVEN.lock().unwrap().insert(port);
        if is_new && UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

fn memberships(transport: Transport) -> Vec<Membership> {
    memberships_of(NODES, transport)
}

fn memberships_of(nodes: usize, transport: Transport) -> Vec<Membership> {
    let addresses: Vec<_> = (0..nodes).map(|_| free_address()).collect();
    let membership = |node| Membership {
        node,
        transport,
        addresses: addresses.clone(),
        first_nodes: nodes,
        key: Some(ClusterKey::new([7; 32])),
        cluster: "joined".to_owned(),
        join_timeout: Duration::from_secs(60),
        // Threads of a busy machine stand still for less.
        lease: Duration::from_secs(2),
        ..Membership::default()
    };
    (0..nodes).map(membership).collect()
}

fn join(membership: &Membership) -> Result<Cluster, ClusterError> {
    let options = ClusterOptions {
        nodes: membership.addresses.len(),
        replicas: NODES,
        threads: 1,
        coroutines: 4,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    Cluster::join(options, membership)
}

/// Runs `act` for each node on a thread of its own, after all nodes have joined.
fn on_each(memberships: &[Membership], act: impl Fn(usize, &Cluster, &Barrier) + Sync) {
    let barrier = Barrier::new(memberships.len());
    std::thread::scope(|scope| {
        for (node, membership) in memberships.iter().enumerate() {
            let (act, barrier) = (&act, &barrier);
            scope.spawn(move || act(node, &join(membership).unwrap(), barrier));
        }
    });
}

#[test]
fn nodes_that_were_closed_join_again_at_the_same_addresses() {
    for transport in [Transport::Udp, Transport::Memory] {
        let memberships = memberships(transport);
        for _ in 0..3 {
            on_each(&memberships, |node, cluster, all| {
                assert_eq!(cluster.transport(), Some(transport));
                let table = cluster.open_table("t", 8, 1_000).unwrap();
                for key in (0..200).filter(|key| key % NODES as u64 == node as u64) {
                    let outcome = cluster.run(move |tx| tx.insert(table, key, &key.to_le_bytes()));
                    assert_eq!(outcome.unwrap(), Outcome::Committed(()), "{key}");
                }
                all.wait();
                for key in 0..200_u64 {
                    let outcome = cluster
                        .run(move |tx| Ok::<_, Abort>(tx.get(table, key)?.map(<[u8]>::to_vec)));
                    let expected = Some(key.to_le_bytes().to_vec());
                    assert_eq!(outcome.unwrap(), Outcome::Committed(expected), "{key}");
                }
                all.wait();
            });
        }
    }
}

#[test]
fn a_table_that_is_impossible_is_refused_and_the_cluster_goes_on() {
    on_each(&memberships(Transport::Memory), |node, cluster, barrier| {
        for (value_bytes, rows) in [(0, 1), (4_097, 1), (8, u64::MAX)] {
            let refused = cluster.create_table("impossible", value_bytes, rows);
            assert!(matches!(refused, Err(ClusterError::Storage(_))), "{refused:?}");
        }
        let refused = cluster.open_table(&"n".repeat(9 << 20), 8, 1);
        let refused = refused.err().map(|error| error.to_string());
        let expected = ChangeError::NameTooLong { bytes: 9 << 20, max: 255 };
        assert_eq!(refused, Some(expected.to_string()));
        cluster.create_table(&format!("of {node}"), 8, 1).unwrap();
        barrier.wait();
    });
}

#[test]
fn the_memory_of_a_node_goes_with_its_cluster() {
    let barrier = Barrier::new(NODES);
    std::thread::scope(|scope| {
        for membership in memberships(Transport::Memory) {
            let barrier = &barrier;
            scope.spawn(move || {
                let cluster = join(&membership).unwrap();
                let node = Arc::downgrade(&cluster.nodes()[0]);
                barrier.wait();
                drop(cluster);
                assert!(node.upgrade().is_none(), "something holds the node");
            });
        }
    });
}

#[test]
fn a_table_is_created_and_dropped_by_any_process_for_all() {
    for transport in [Transport::Udp, Transport::Memory] {
        let firsts = AtomicUsize::new(0);
        on_each(&memberships(transport), |node, cluster, all| {
            // Each node creates a table of its own, all at the same time. Of a name that all want, one node gets the table.
            let own = cluster.create_table(&format!("of {node}"), 8, 100).unwrap();
            match cluster.create_ordered_table("of one", 100) {
                Ok(_) => drop(firsts.fetch_add(1, Ordering::SeqCst)),
                Err(ClusterError::Change(
                    ChangeError::TableExists(name) | ChangeError::Refused { reason: name, .. },
                )) => assert!(name.contains("of one")),
                Err(error) => panic!("{error}"),
            }
            all.wait();
            assert_eq!(firsts.load(Ordering::SeqCst), 1);
            let of_others: Vec<_> =
                (0..NODES).map(|node| cluster.table(&format!("of {node}"))).collect();
            assert_eq!(of_others[node], Some(own));
            let numbers: BTreeSet<_> = of_others.iter().flatten().collect();
            assert_eq!(numbers.len(), NODES);
            let differs = cluster.open_table("of one", 8, 100);
            assert!(matches!(differs, Err(ClusterError::TableDiffers(_))), "{differs:?}");
            // Each node writes a row in the next node's table; then each drops its own table.
            let next = of_others[(node + 1) % NODES].unwrap();
            let written = cluster.run(move |tx| tx.insert(next, 7, &[1; 8]));
            assert_eq!(written.unwrap(), Outcome::Committed(()));
            all.wait();
            cluster.drop_table(own).unwrap();
            let missing = cluster.drop_table(own);
            let expected = ChangeError::NoSuchTable(own.number());
            assert!(matches!(missing, Err(ClusterError::Change(error)) if error == expected));
            all.wait();
            assert!((0..NODES).all(|node| cluster.table(&format!("of {node}")).is_none()));
            let read = cluster.run(move |tx| tx.get(next, 7).map(|_| ()));
            let gone = Abort::Misuse(Misuse::NoSuchTable { table: next.number() });
            assert_eq!(read.unwrap(), Outcome::Failed(gone));
            all.wait();
        });
    }
}

#[test]
fn a_process_can_join_after_a_timeout() {
    let memberships = memberships(Transport::Udp);
    let hasty = Membership { join_timeout: Duration::from_millis(300), ..memberships[1].clone() };
    for _ in 0..2 {
        let error = join(&hasty).err().unwrap();
        assert!(matches!(error, ClusterError::Join(JoinError::Missing { .. })), "{error}");
    }
    on_each(&memberships, |_, cluster, all| {
        assert!(cluster.halted().is_none());
        // The first to check must not end before the others have checked.
        all.wait();
    });
}

/// The memory limits of the nodes in the test that fills tables, with two copies of each row.
const LIMITS: [usize; 5] = [6 << 20, 3 << 20, 1 << 20, 4 << 20, 2 << 20];
/// Changes of each node.
const CHANGES: usize = 6_000;

/// A copy of a partition: for each bucket the version, and hashes with keys and values.
type Copied = Vec<(u64, Vec<(u64, Vec<u8>)>)>;

/// Changes rows until many changes were refused. Returns the numbers of refused and successful changes.
fn fill(node: usize, cluster: &Cluster, (rows, numbers): (TableId, TableId)) -> (usize, usize) {
    let mut random = SmallRng::seed_from_u64(node as u64);
    let mut here: BTreeSet<(bool, u64)> = BTreeSet::new();
    let (mut refused, mut done) = (0, 0);
    for change in 0..CHANGES {
        // Mostly inserts, then mostly deletes, and again.
        let is_filling = change / 1_500 % 2 == 0;
        let key = (random.random_bool(0.5), random.random_range(0..3_000) * 5 + node as u64);
        let is_there = here.contains(&key);
        if !is_there && !is_filling && random.random_bool(0.8) {
            continue;
        }
        let deletes = is_there && random.random_bool(if is_filling { 0.2 } else { 0.8 });
        // Sometimes a size that was rare before.
        let sizes = [8, 40, 200, 1_000, 3_000];
        let value = vec![1; sizes[(change / 700 + random.random_range(0..2)) % sizes.len()]];
        let outcome = cluster.run(move |tx| {
            if key.0 {
                let change = match (is_there, deletes) {
                    (false, _) => Change::Insert(&value),
                    (true, false) => Change::Update(&value),
                    (true, true) => Change::Delete,
                };
                tx.add_row_to_write_set(rows, &key.1.to_be_bytes(), change);
                return tx.execute();
            }
            match (is_there, deletes) {
                (false, _) => tx.insert(numbers, key.1, &[1; 300]),
                (true, true) => {
                    tx.add_to_write_set(numbers, key.1, LockMode::Delete);
                    tx.execute()
                }
                (true, false) => Ok(()),
            }
        });
        match outcome.unwrap() {
            Outcome::Committed(()) if deletes => assert!(here.remove(&key)),
            Outcome::Committed(()) => {
                here.insert(key);
                done += 1;
            }
            Outcome::Failed(Abort::Failure(Failure::TableFull { .. })) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    (refused, done)
}

/// A node's copies of both tables.
fn copies(cluster: &Cluster, tables: [TableId; 2]) -> BTreeMap<(u16, u16), Copied> {
    let (mut copies, mut snapshot) = (BTreeMap::new(), BucketSnapshot::default());
    let node = &cluster.nodes()[0];
    let view = node.view();
    for table in tables.map(|id| view.table(id.number()).unwrap()) {
        let number = u16::from(table.layout().kind == TableKind::Ordered);
        let partitions = 0..16_u16;
        let is_here = |p: &u16| cluster.configuration().copies(*p).contains(&node.id());
        for partition in partitions.filter(is_here) {
            let buckets = (0..table.bucket_count(partition)).map(|bucket| {
                table.snapshot(partition, bucket, &mut snapshot);
                let rows = snapshot.rows().map(|(key, value)| (key, value.to_vec()));
                (snapshot.version, rows.collect())
            });
            copies.insert((number, partition), buckets.collect());
        }
    }
    copies
}

#[test]
fn nodes_with_unequal_limits_are_filled_and_no_copy_overflows() {
    let addresses: Vec<_> = LIMITS.iter().map(|_| free_address()).collect();
    let first = Membership { addresses, ..memberships(Transport::Memory).remove(0) };
    let all: Mutex<Vec<BTreeMap<(u16, u16), Copied>>> = Mutex::default();
    let totals = Mutex::new((0, 0));
    let barrier = Barrier::new(LIMITS.len());
    std::thread::scope(|scope| {
        for (node, limit) in LIMITS.into_iter().enumerate() {
            let (all, totals, barrier) = (&all, &totals, &barrier);
            let membership = Membership { node, ..first.clone() };
            scope.spawn(move || {
                let options = ClusterOptions {
                    nodes: LIMITS.len(),
                    replicas: 2,
                    threads: 1,
                    coroutines: 4,
                    memory_limit_bytes: Some(limit),
                    ..ClusterOptions::default()
                };
                let cluster = Cluster::join(options, &membership).unwrap();
                let rows = cluster.open_ordered_table("rows", 1).unwrap();
                let numbers = cluster.open_table("numbers", 300, 1);
                // The largest node could hold the table, but the smallest cannot.
                assert!(cluster.create_table("huge", 300, 10_000).is_err());
                let numbers = numbers.unwrap();
                let (refused, done) = fill(node, &cluster, (rows, numbers));
                barrier.wait();
                assert!(cluster.nodes()[0].used_bytes() <= limit);
                assert_eq!(cluster.nodes()[0].gaps(), 0);
                all.lock().unwrap().push(copies(&cluster, [rows, numbers]));
                let mut totals = totals.lock().unwrap();
                *totals = (totals.0 + refused, totals.1 + done);
                drop(totals);
                barrier.wait();
            });
        }
    });
    let (refused, done) = totals.into_inner().unwrap();
    assert!(refused > 500 && done > 3_000, "{refused} refused, {done} done");
    let mut seen: BTreeMap<(u16, u16), Vec<Copied>> = BTreeMap::new();
    for (place, copied) in all.into_inner().unwrap().into_iter().flatten() {
        seen.entry(place).or_default().push(copied);
    }
    assert_eq!(seen.len(), 32);
    for (place, copies) in seen {
        assert_eq!(copies.len(), 2);
        assert!(copies[0] == copies[1], "the copies of {place:?} differ");
    }
}

#[test]
fn a_load_of_processes_that_meets_the_loss_of_one_fails_as_a_whole() {
    const ROWS: u64 = 400;
    let memberships = memberships_of(3, Transport::Memory);
    // Of the two that are left.
    let barrier = Barrier::new(2);
    on_each(&memberships, |node, cluster, all| {
        let table = cluster.open_table("rows", 8, ROWS).unwrap();
        let mut loader = cluster.loader();
        let mut add = |key: u64| loader.add(table, key, &key.to_le_bytes());
        (0..ROWS / 2).for_each(|key| add(key).unwrap());
        all.wait();
        if node == 2 {
            return;
        }
        let has_begun = (0..60_000).any(|_| {
            std::thread::park_timeout(Duration::from_millis(1));
            cluster.configuration().epoch > 1
        });
        assert!(has_begun, "the others go on without node 2");
        let refused = (ROWS / 2..ROWS).filter_map(|key| add(key).err());
        let refused: Vec<_> = refused.map(|error| error.to_string()).collect();
        let because = StorageError::MembersChanged.to_string();
        assert!(!refused.is_empty() && refused.iter().all(|why| *why == because), "{refused:?}");
        assert_eq!(loader.finish().err().map(|error| error.to_string()), Some(because));
        // The next load goes to those that are left.
        barrier.wait();
        if node == 0 {
            cluster.drop_table(table).unwrap();
        }
        barrier.wait();
        let table = cluster.open_table("rows", 8, ROWS).unwrap();
        let mut loader = cluster.loader();
        (0..ROWS).for_each(|key| loader.add(table, key, &key.to_le_bytes()).unwrap());
        loader.finish().unwrap();
        barrier.wait();
        let found = (0..ROWS).filter(|key| {
            let key = *key;
            let read = cluster.run(move |tx| tx.get(table, key).map(|row| row.is_some()));
            read.unwrap().committed()
        });
        assert_eq!(found.count() as u64, ROWS);
        barrier.wait();
    });
}
