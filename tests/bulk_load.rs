//! Bulk loads: rows come to all copies of a table that no transaction uses, from several workers at once.
//!
//! The clusters run in this process. A test fails if a row is missing or is there twice, if two copies differ, if transactions do not find the rows
//! afterwards, if a load does not wait for memory that comes back, or if a table is loaded that was used, is unknown, or gets rows that it cannot
//! have.
//!
//! *Source*: `docs/protocol.md`, "Bulk loads".
//!
//! *Not here*: one copy (`storage/tests/bulk_load.rs`), and losses (`tests/mutants.rs`, `frontend/tests/session/lost.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use gannet::{
    Abort, BulkLoad, Change, Cluster, ClusterOptions, Conflict, Coordinator, Deferred, Direction,
    Failure, KeyRange, Misuse, TableId, Topology, WorkerId,
};
use gannet_benchmarks::check_replicas;
use gannet_engine::View;

const THREADS: usize = 2;
/// Rows of 1,000 bytes that take three fifths of 16 MiB.
const WIDE_ROWS: u32 = 8_000;

fn open(topology: Topology) -> (Arc<Cluster>, TableId) {
    open_with(topology, 64 << 20)
}

fn open_with(topology: Topology, memory_bytes: usize) -> (Arc<Cluster>, TableId) {
    let options = ClusterOptions {
        topology,
        threads: THREADS,
        memory_limit_bytes: Some(memory_bytes),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).unwrap());
    let table = cluster.create_ordered_table("rows", 0).unwrap();
    (cluster, table)
}

fn at<T: Send + 'static>(
    cluster: &Cluster,
    (node, worker): (usize, usize),
    job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
) -> T {
    cluster.spawn(WorkerId { node, worker }, job).unwrap().wait().unwrap()
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A value whose length depends on its number.
fn value(number: u32) -> Vec<u8> {
    let bytes = if number.is_multiple_of(500) { 70_000 } else { number % 200 };
    vec![u8::try_from(number % 251).unwrap(); bytes as usize]
}

fn add(
    coordinator: &mut Coordinator<'_>,
    load: BulkLoad,
    numbers: impl Iterator<Item = u32>,
) -> Result<Option<usize>, Abort> {
    let rows: Vec<_> = numbers.map(|number| (key(number), value(number))).collect();
    let rows: Vec<_> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    coordinator.bulk_load(load, &rows)
}

/// The keys of all rows, whose values are checked.
fn scanned(cluster: &Cluster, table: TableId, node: usize) -> Vec<u32> {
    let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    at(cluster, (node, 0), move |coordinator| {
        let (mut numbers, mut rest) = (Vec::new(), Some(all));
        let mut deferred = Deferred::new();
        while let Some(range) = rest {
            let page = deferred.scan(coordinator, table, &range, Direction::Ascending, 500);
            let page = page.unwrap();
            for (key, found) in page.rows.iter() {
                let number = u32::from_be_bytes(key.try_into().unwrap());
                assert!(found == value(number), "row {number}");
                numbers.push(number);
            }
            rest = page.rest;
        }
        deferred.commit(coordinator).unwrap();
        numbers
    })
}

#[test]
fn rows_of_several_workers_are_there_once_at_all_copies() {
    const ROWS: u32 = 10_000;
    for topology in [Topology::ThreadPerWorkerNumber, Topology::ThreadPerWorker] {
        let (cluster, table) = open(topology);
        let begin = move |coordinator: &mut Coordinator<'_>| coordinator.begin_bulk_load(table);
        let load = at(&cluster, (0, 0), begin).unwrap().expect("the table is new");
        assert_eq!(load.table(), table);
        // Each worker has every sixth row, in batches.
        let workers = (0..3).flat_map(|node| (0..THREADS).map(move |worker| (node, worker)));
        let jobs: Vec<_> = workers
            .zip(0..)
            .map(|((node, worker), first)| {
                let job = move |coordinator: &mut Coordinator<'_>| {
                    let numbers: Vec<u32> = (first..ROWS).step_by(3 * THREADS).collect();
                    for batch in numbers.chunks(300) {
                        assert_eq!(add(coordinator, load, batch.iter().copied()), Ok(None));
                    }
                };
                cluster.spawn(WorkerId { node, worker }, job).unwrap()
            })
            .collect();
        jobs.into_iter().for_each(|job| job.wait().unwrap());
        // Nobody sees the rows before the end, wherever it is told.
        let read = move |coordinator: &mut Coordinator<'_>| {
            coordinator.begin().get(table, &key(1)[..]).map(|row| row.is_some())
        };
        assert_eq!(at(&cluster, (1, 0), read), Err(Conflict::Reconfigured.into()));
        at(&cluster, (2, 1), move |coordinator| coordinator.end_bulk_load(load)).unwrap();
        assert!(scanned(&cluster, table, 1).into_iter().eq(0..ROWS));
        for (number, change) in [(ROWS, Change::Insert(b"new")), (7, Change::Update(b"other"))] {
            let changed = cluster.run(move |tx| {
                tx.add_row_to_write_set(table, &key(number), change);
                Ok::<_, Abort>(())
            });
            changed.unwrap().committed();
        }
        assert_eq!(at(&cluster, (1, 0), read), Ok(true));
        let differences = check_replicas(&cluster);
        assert!(differences.iter().all(|check| check.passed), "{differences:?}");
    }
}

/// Loads rows of 1,000 bytes, the first half of them before `between`.
fn load_wide(
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    between: impl FnOnce(&mut Coordinator<'_>),
) -> Result<(), Abort> {
    let load = coordinator.begin_bulk_load(table)?.expect("the table is new");
    let add = |coordinator: &mut Coordinator<'_>, numbers: Range<u32>| {
        let keys: Vec<_> = numbers.map(key).collect();
        let rows: Vec<_> = keys.iter().map(|key| (&key[..], &[7; 1_000][..])).collect();
        coordinator.bulk_load(load, &rows).map(|existing| assert_eq!(existing, None))
    };
    add(coordinator, 0..WIDE_ROWS / 2)?;
    between(coordinator);
    add(coordinator, WIDE_ROWS / 2..WIDE_ROWS)?;
    coordinator.end_bulk_load(load)
}

/// Three fifths of the memory are a table's that is dropped while another one as large is loaded.
#[test]
fn a_load_waits_for_memory_that_is_about_to_be_given_back() {
    let (cluster, first) = open_with(Topology::ThreadPerWorker, 16 << 20);
    at(&cluster, (0, 0), move |coordinator| load_wide(coordinator, first, |_| {})).unwrap();
    let second = cluster.create_ordered_table("second", 0).unwrap();
    let full = at(&cluster, (0, 0), move |coordinator| load_wide(coordinator, second, |_| {}));
    assert_eq!(full, Err(Failure::TableFull { table: second.number() }.into()));
    cluster.drop_table(second).unwrap();
    let third = cluster.create_ordered_table("third", 0).unwrap();
    let (begin, begun) = channel();
    let others = Arc::clone(&cluster);
    let job = move |coordinator: &mut Coordinator<'_>| {
        load_wide(coordinator, third, |coordinator| {
            begin.send(()).unwrap();
            let leaves = |view: &View| {
                let mut tables = view.configuration().tables();
                tables.any(|it| it.0 == first.number() && it.1.is_leaving)
            };
            // It cannot go: the job goes by a view that has it.
            while !others.nodes().iter().all(|node| leaves(&node.view())) {
                coordinator.pause(Duration::from_millis(1));
            }
            coordinator.pause(Duration::from_millis(30));
        })
    };
    let loaded = cluster.spawn(WorkerId { node: 0, worker: 0 }, job).unwrap();
    begun.recv().unwrap();
    cluster.drop_table(first).unwrap();
    assert_eq!(loaded.wait().unwrap(), Ok(()));
    let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    let count = at(&cluster, (1, 0), move |coordinator| {
        Deferred::new().count(coordinator, third, &all).unwrap()
    });
    assert_eq!(count, u64::from(WIDE_ROWS));
}

#[test]
fn a_row_that_is_there_is_named_by_its_number() {
    let (cluster, table) = open(Topology::ThreadPerWorker);
    let found = at(&cluster, (0, 0), move |coordinator| {
        let load = coordinator.begin_bulk_load(table).unwrap().expect("the table is new");
        assert_eq!(add(coordinator, load, 0..1_000), Ok(None));
        // The first of two, wherever their partitions are.
        add(coordinator, load, (1_000..1_400).chain([70, 50]).chain(2_000..2_100))
    });
    assert_eq!(found, Ok(Some(400)));
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let (cluster, table) = open(Topology::ThreadPerWorker);
    let numbers = cluster.create_table("numbers", 8, 100).unwrap();
    let used = cluster.create_ordered_table("used", 0).unwrap();
    let inserted = cluster.run(move |tx| {
        tx.add_row_to_write_set(used, &key(5), Change::Insert(b"row"));
        Ok::<_, Abort>(())
    });
    inserted.unwrap().committed();
    at(&cluster, (0, 0), move |coordinator| {
        let no_table = |table: TableId| Abort::from(Misuse::NoSuchTable { table: table.number() });
        assert_eq!(coordinator.begin_bulk_load(numbers), Err(no_table(numbers)));
        assert_eq!(coordinator.begin_bulk_load(used), Ok(None));
        let load = coordinator.begin_bulk_load(table).unwrap().expect("the table is new");
        assert_eq!(coordinator.begin_bulk_load(table), Ok(None), "another load has begun");
        assert_eq!(coordinator.bulk_load(load, &[]), Ok(None));
        let (long, table_number) = (vec![0; (1 << 20) + 1], table.number());
        for (key, value) in [(&[][..], &b"value"[..]), (&long[..5_000], b"value"), (b"key", &long)]
        {
            let refused = coordinator.bulk_load(load, &[(key, value)]).unwrap_err();
            let is_named = matches!(
                refused,
                Abort::Misuse(Misuse::Row { table, .. } | Misuse::ValueBytes { table, .. }) if table == table_number
            );
            assert!(is_named, "{refused:?}");
        }
        coordinator.end_bulk_load(load).unwrap();
        let ended = Abort::from(Misuse::LoadEnded { table: table_number });
        assert_eq!(add(coordinator, load, 0..10), Err(ended));
        assert_eq!(coordinator.end_bulk_load(load), Err(ended));
    });
    // Those that were refused are used as before.
    assert_eq!(scanned_keys(&cluster, used), [5]);
    cluster.drop_table(table).unwrap();
    let begin = move |coordinator: &mut Coordinator<'_>| coordinator.begin_bulk_load(table);
    let begun = at(&cluster, (0, 0), begin);
    assert_eq!(begun, Err(Misuse::NoSuchTable { table: table.number() }.into()));
}

fn scanned_keys(cluster: &Cluster, table: TableId) -> Vec<u32> {
    let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    at(cluster, (0, 0), move |coordinator| {
        let page = Deferred::new().scan(coordinator, table, &all, Direction::Ascending, 500);
        let keys = page.unwrap().rows.iter().map(|(key, _)| key.to_vec()).collect::<Vec<_>>();
        keys.iter().map(|key| u32::from_be_bytes(key[..].try_into().unwrap())).collect()
    })
}
