//! Many tables in one cluster: created and dropped while others are used, each with rows of its own, and no byte left behind.
//!
//! The clusters run in this process, with up to 1,000 tables; a campaign, which is run on request, has 70,000. A test fails if
//! a dropped table leaves a byte at a node, if a table number comes again, if tables mix their rows, if a transaction commits
//! with reads of a dropped table, or if a table that has emptied keeps its memory.
//!
//! *Source*: `docs/architecture.md`, "Changes of the configuration". *Not here*: locks on a table that
//! is dropped (`tests/leaving.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use gannet::{
    Abort, Cluster, ClusterOptions, Conflict, Deferred, Direction, Failure, KeyRange, Misuse, Node,
    Outcome, TableId,
};
use gannet_benchmarks::check_replicas;
use gannet_rpc::{Clock, MonotonicClock};

/// Tables in the tests that CI runs.
const TABLES: usize = 1_000;
/// Milliseconds that a long transaction goes on, should nobody end it.
const PAUSES_MAX: usize = 10_000;
/// What the engine promises to hold at a time, and more.
const TABLES_OF_CAMPAIGN: usize = 70_000;

fn open(memory_limit_bytes: usize) -> Cluster {
    let memory_limit_bytes = Some(memory_limit_bytes);
    Cluster::open(ClusterOptions { memory_limit_bytes, ..ClusterOptions::default() }).unwrap()
}

fn used(cluster: &Cluster) -> usize {
    cluster.nodes().iter().map(|node| node.used_bytes()).sum()
}

/// Creates tables of two kinds, by turns.
fn create(cluster: &Cluster, numbers: Range<usize>) -> Vec<TableId> {
    let create = |number: usize| {
        let name = format!("table {number}");
        match number % 2 {
            0 => cluster.create_table(&name, 8, 0),
            _ => cluster.create_ordered_table(&name, 0),
        }
    };
    numbers.map(|number| create(number).unwrap()).collect()
}

/// Writes a row of its own to every fiftieth pair of tables, all under the same key.
fn write(cluster: &Cluster, tables: &[TableId]) {
    for pair in tables.chunks_exact(2).step_by(50) {
        let (fixed, ordered) = (pair[0], pair[1]);
        let value = u64::from(fixed.number()).to_le_bytes();
        let inserted = cluster.run(move |tx| tx.insert(fixed, 7, &value)).unwrap();
        assert_eq!(inserted, Outcome::Committed(()));
        let inserted = cluster.spawn_anywhere(move |coordinator| {
            let mut deferred = Deferred::new();
            deferred.insert(ordered, b"key".to_vec(), ordered.number().to_string().into_bytes());
            deferred.commit(coordinator)
        });
        inserted.unwrap().wait().unwrap().unwrap();
    }
}

/// Reads what [`write`] has written.
fn read(cluster: &Cluster, tables: &[TableId]) {
    for pair in tables.chunks_exact(2).step_by(50) {
        let (fixed, ordered) = (pair[0], pair[1]);
        let value = cluster.run(move |tx| tx.get(fixed, 7).map(|row| row.map(<[u8]>::to_vec)));
        let expected = u64::from(fixed.number()).to_le_bytes().to_vec();
        assert_eq!(value.unwrap().committed(), Some(expected));
        let found = cluster.spawn_anywhere(move |coordinator| {
            Deferred::new().get_many(coordinator, ordered, &[b"key".to_vec()])
        });
        let found = found.unwrap().wait().unwrap().unwrap();
        assert_eq!(found, [Some(ordered.number().to_string().into_bytes())]);
    }
}

/// Creates, uses and drops tables, round by round.
fn rounds(cluster: &Cluster, count: usize, rounds: usize) {
    let kept = create(cluster, 0..2);
    write(cluster, &kept);
    let before = used(cluster);
    let mut numbers: BTreeSet<u32> = kept.iter().map(|table| table.number()).collect();
    for round in 0..rounds {
        let clock = MonotonicClock::new();
        let began_ns = clock.now_ns();
        let tables = create(cluster, 2..count + 2);
        let created = Duration::from_nanos(clock.now_ns() - began_ns);
        assert!(tables.iter().all(|table| numbers.insert(table.number())), "a number twice");
        let empty_bytes = used(cluster) - before;
        write(cluster, &tables);
        read(cluster, &tables);
        assert!(check_replicas(cluster).iter().all(|check| check.passed));
        let began_ns = clock.now_ns();
        tables.iter().for_each(|table| cluster.drop_table(*table).unwrap());
        println!(
            "round {round}: {count} tables created in {created:.1?}, dropped in {:.1?}; {} bytes of a node each while empty",
            Duration::from_nanos(clock.now_ns() - began_ns),
            empty_bytes / cluster.nodes().len() / count,
        );
        assert_eq!(used(cluster), before, "a table that was dropped leaves no byte");
        let (dropped, number) = (tables[0], tables[0].number());
        let read = cluster.run(move |tx| tx.get(dropped, 7).map(drop)).unwrap();
        let gone = Abort::Misuse(Misuse::NoSuchTable { table: number });
        assert!(
            matches!(&read, Outcome::Failed(abort) | Outcome::Aborted(abort) if *abort == gone)
        );
    }
    read(cluster, &kept);
}

#[test]
fn a_table_is_created_while_a_transaction_goes_on_and_dropped_when_it_has_ended() {
    let cluster = Arc::new(open(64 << 20));
    let before = create(&cluster, 0..2);
    let (begun, has_begun) = channel();
    let goes_on = Arc::new(AtomicBool::new(true));
    let (own, ordered) = (Arc::clone(&goes_on), before[1]);
    let long = cluster.spawn_anywhere(move |coordinator| {
        let mut deferred = Deferred::new();
        deferred.get_many(coordinator, ordered, &[b"key".to_vec()])?;
        begun.send(()).unwrap();
        // Not for ever: a test that waits for this job then sees that it has ended.
        for _ in 0..PAUSES_MAX {
            if !own.load(Ordering::Relaxed) {
                break;
            }
            coordinator.pause(Duration::from_millis(1));
        }
        own.store(false, Ordering::Relaxed);
        deferred.insert(ordered, b"key".to_vec(), vec![1]);
        deferred.commit(coordinator)
    });
    has_begun.recv().unwrap();
    let after = create(&cluster, 2..4);
    write(&cluster, &after);
    read(&cluster, &after);
    let is_created_meanwhile = goes_on.load(Ordering::Relaxed);
    let (dropped, is_dropped) = channel();
    let own = Arc::clone(&cluster);
    let dropper = std::thread::spawn(move || {
        own.drop_table(after[0]).unwrap();
        dropped.send(()).unwrap();
    });
    // The table leaves at once, and waits for the transaction.
    while cluster.table("table 2").is_some() {
        std::thread::yield_now();
    }
    let early = is_dropped.recv_timeout(Duration::from_millis(50));
    goes_on.store(false, Ordering::Relaxed);
    long.unwrap().wait().unwrap().unwrap();
    dropper.join().unwrap();
    assert!(is_created_meanwhile, "the new tables have waited for the transaction");
    assert_eq!(early, Err(RecvTimeoutError::Timeout), "the transaction may use the table");
    assert!(check_replicas(&cluster).iter().all(|check| check.passed));
}

#[test]
fn what_was_read_of_a_table_that_was_dropped_is_a_conflict() {
    let cluster = open(64 << 20);
    let tables = create(&cluster, 0..4);
    write(&cluster, &tables);
    // Keys at all nodes, present and absent ones, and leaves.
    let keys: Vec<Vec<u8>> = (0..20_u32).map(|key| key.to_be_bytes().to_vec()).collect();
    let (dropped, kept) = (tables[1], tables[3]);
    let read = cluster.spawn_anywhere(move |coordinator| {
        let [mut by_key, mut in_order, mut writing] = [(); 3].map(|()| Deferred::new());
        by_key.get_many(coordinator, dropped, &keys)?;
        writing.get_many(coordinator, dropped, &keys)?;
        let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
        in_order.scan(coordinator, dropped, &all, Direction::Ascending, 100)?;
        writing.insert(kept, b"other".to_vec(), vec![1]);
        Ok::<_, Abort>([by_key, in_order, writing])
    });
    let read = read.unwrap().wait().unwrap().unwrap();
    cluster.drop_table(dropped).unwrap();
    for mut transaction in read {
        let ended = cluster.spawn_anywhere(move |coordinator| transaction.commit(coordinator));
        let ended = ended.unwrap().wait().unwrap();
        assert_eq!(ended, Err(Conflict::Changed.into()));
    }
    let refused: u64 = cluster.nodes().iter().map(|node| node.refused()).sum();
    assert_eq!(refused, 0, "no request was wrong");
}

/// Rows of a large transaction do not all go into the first buckets of an empty table.
#[test]
fn a_transaction_keeps_the_rows_of_many_tables_apart() {
    let cluster = open(32 << 20);
    // In tables without buckets for expected rows a key has the same bucket number everywhere.
    let create = |number| cluster.create_table(&format!("table {number}"), 8, 0).unwrap();
    let tables: Vec<TableId> = (0..40).map(create).collect();
    let written = tables.clone();
    let inserted = cluster.run(move |tx| {
        for &table in &written {
            tx.insert(table, 7, &u64::from(table.number()).to_le_bytes())?;
        }
        Ok::<(), Abort>(())
    });
    assert_eq!(inserted.unwrap(), Outcome::Committed(()));
    for table in tables {
        let value = cluster.run(move |tx| tx.get(table, 7).map(|row| row.map(<[u8]>::to_vec)));
        let expected = u64::from(table.number()).to_le_bytes().to_vec();
        assert_eq!(value.unwrap().committed(), Some(expected), "{}", table.number());
    }
}

#[test]
fn a_large_transaction_finds_buckets_for_its_rows() {
    let cluster = open(256 << 20);
    let table = cluster.create_ordered_table("empty", 0).unwrap();
    let splits = || {
        let of_node = |node: &Arc<Node>| {
            let view = node.view();
            let partitions = 0..u16::try_from(cluster.options().partitions).unwrap();
            let count = |it| view.table(table.number()).unwrap().split_count(it);
            partitions.map(count).sum::<u32>()
        };
        cluster.nodes().iter().map(of_node).min().unwrap()
    };
    let insert = |rows: Range<u32>| {
        let committed = cluster.spawn_anywhere(move |coordinator| {
            // A split that is under way may hold a lock.
            let mut deferred = Deferred::new().run_once();
            for row in rows {
                deferred.insert(table, row.to_be_bytes().to_vec(), vec![1]);
            }
            deferred.commit(coordinator)
        });
        committed.unwrap().wait().unwrap().unwrap();
        splits()
    };
    assert!(insert(0..500) < 100, "few rows are not worth it");
    // Buckets are meant for five rows and more, and none that a transaction has locked is split: so they were split before.
    let splits = insert(500..30_500);
    assert!(splits > 2_000, "{splits} splits");
    assert!(check_replicas(&cluster).iter().all(|check| check.passed));
}

#[test]
fn a_table_that_has_emptied_gives_its_memory_back() {
    let cluster = open(256 << 20);
    let table = cluster.create_ordered_table("emptied", 0).unwrap();
    let change = |rows: Range<u32>, inserts: bool| {
        let committed = cluster.spawn_anywhere(move |coordinator| {
            let mut deferred = Deferred::new();
            let keys: Vec<_> = rows.map(|row| row.to_be_bytes().to_vec()).collect();
            if inserts {
                keys.into_iter().for_each(|key| _ = deferred.insert(table, key, vec![7; 50]));
            } else {
                deferred.get_many(coordinator, table, &keys)?;
                keys.into_iter().for_each(|key| deferred.delete(table, key));
            }
            deferred.commit(coordinator)
        });
        committed.unwrap().wait().unwrap()
    };
    // As clients do: buckets are split and merged meanwhile.
    let change = |rows: Range<u32>, inserts| {
        let retried = |error: &Abort| assert!(matches!(error, Abort::Conflict(_)), "{error}");
        while change(rows.clone(), inserts).inspect_err(retried).is_err() {}
    };
    let settled = || {
        let (clock, begun) = (MonotonicClock::new(), MonotonicClock::new().now_ns());
        while cluster.nodes().iter().any(|node| node.is_growing()) {
            assert!(clock.now_ns() < begun + 60_000_000_000, "buckets are merged for a minute");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        used(&cluster)
    };
    let empty = settled();
    let rows = 20_000;
    for _ in 0..2 {
        (0..rows).step_by(1_000).for_each(|first| change(first..first + 1_000, true));
        let full = settled();
        (0..rows).step_by(1_000).for_each(|first| change(first..first + 1_000, false));
        let emptied = settled();
        // A few deletions may have come after the last look.
        assert!(emptied - empty < (full - empty) / 8, "{emptied} of {full}, at first {empty}");
        assert!(check_replicas(&cluster).iter().all(|check| check.passed));
    }
}

/// Rows of a table take the memory of another that was dropped, and do not fail before it is given back.
#[test]
fn the_memory_of_a_dropped_table_is_waited_for() {
    let cluster = open(16 << 20);
    let create = |name| cluster.create_ordered_table(name, 0).unwrap();
    let (dropped, kept) = (create("dropped"), create("kept"));
    let insert = |table, keys: Range<u32>| {
        let inserted = cluster.spawn_anywhere(move |coordinator| {
            let is_conflict = |error: &Abort| matches!(error, Abort::Conflict(_));
            coordinator.retried(200, is_conflict, |coordinator, _| {
                let mut deferred = Deferred::new();
                keys.clone().for_each(|key| {
                    deferred.insert(table, key.to_be_bytes().to_vec(), vec![1; 100]);
                });
                deferred.commit(coordinator)
            })
        });
        inserted.unwrap().wait().unwrap()
    };
    let is_full = |error: &Abort| matches!(error, Abort::Failure(Failure::TableFull { .. }));
    let mut next = 0;
    for rows in [100, 1] {
        // Fifty rows fall into every partition.
        let mut refused = 0;
        while refused < 50 {
            match insert(dropped, next..next + rows) {
                Ok(()) => refused = 0,
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    refused += 1;
                }
            }
            next += rows;
            assert!(next < 1_000_000, "the memory takes fewer rows");
        }
    }
    cluster.drop_table(dropped).unwrap();
    for key in 0..100 {
        assert_eq!(insert(kept, key..key + 1), Ok(()));
    }
    assert!(check_replicas(&cluster).iter().all(|check| check.passed));
}

#[test]
fn tables_come_and_go_and_leave_no_byte() {
    rounds(&open(256 << 20), TABLES, 2);
}

#[test]
#[ignore = "takes minutes: cargo test --profile checked --test many_tables -- --ignored --nocapture"]
fn seventy_thousand_tables_come_and_go_five_times() {
    rounds(&open(4 << 30), TABLES_OF_CAMPAIGN, 5);
}
