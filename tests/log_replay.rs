//! The commit log is complete: replaying all records on the initial rows rebuilds the database.
//!
//! 48 clients change rows of a cluster in this process, and an observer copies each record that a log replica stores. The test
//! fails if a record is damaged, if two replicas have different units for one version, if a version of a bucket has no record,
//! or if the replay gives other rows. A replay without the last record must not pass.
//!
//! *Source*: `docs/protocol.md`, rule C4. *Not here*: records that a stopped cluster has in its slots (`tests/flush.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use gannet::{
    Abort, Cluster, ClusterOptions, Coordinator, LockMode, LogObserver, Outcome, TableId, WorkerId,
};
use gannet_benchmarks::for_each_row;
use gannet_storage::{BucketUpdate, CommitRecord, Item};

/// Keeps a copy of every record that a replica stores.
#[derive(Default)]
struct Records(Mutex<Vec<Vec<u8>>>);

impl LogObserver for Records {
    fn stored(&self, record: &[u8]) {
        self.0.lock().unwrap().push(record.to_vec());
    }
}

type Rows = BTreeMap<(u32, u64), Vec<u8>>;

fn rows(cluster: &Cluster, tables: &[TableId]) -> Rows {
    let mut rows = Rows::new();
    for &table in tables {
        for_each_row(cluster, table, |key, value| {
            rows.insert((table.number(), key), value.to_vec());
        });
    }
    rows
}

/// Applies all units in the order of their buckets' versions. The first of a bucket is 1 if rows were loaded into it, and 0 otherwise.
fn replay(initial: Rows, records: &[Vec<u8>]) -> Rows {
    let mut buckets: BTreeMap<_, BTreeMap<u64, BucketUpdate<'_>>> = BTreeMap::new();
    for record in records {
        assert!(CommitRecord::is_intact(record), "a record's checksum is right");
        for unit in CommitRecord::parse(record).unwrap().units() {
            let unit = unit.unwrap();
            let bucket = buckets.entry((unit.table, unit.partition, unit.bucket)).or_default();
            if let Some(same) = bucket.insert(unit.base_version, unit) {
                assert_eq!(same, unit, "one transaction installs a version, on every replica");
            }
        }
    }
    let mut rows = initial;
    for ((table, ..), units) in buckets {
        let first = units.first_key_value().map_or(0, |(version, _)| *version);
        assert!(first <= 1, "the first version of a bucket is missing in the log");
        for (expected, (version, unit)) in (first..).zip(units) {
            assert_eq!(version, expected, "no version of a bucket is missing in the log");
            for item in unit.items() {
                match item {
                    Item::Put { key, value } => rows.insert((table, key.word()), value.to_vec()),
                    Item::Delete { key } => rows.remove(&(table, key.word())),
                };
            }
        }
    }
    rows
}

/// The transactions of a client: 100, each of which updates, inserts or deletes one row and updates another.
fn client(coordinator: &mut Coordinator<'_>, tables: [TableId; 2], client: u64) -> u32 {
    let mut committed = 0;
    for step in 0..100_u64 {
        let draw = (client * 7919 + step * 104_729) % 200;
        let mode = [LockMode::Update, LockMode::Insert, LockMode::Delete][(step % 3) as usize];
        let stamp = u8::try_from(client).unwrap();
        let outcome = coordinator.run(|tx| {
            let first = tx.add_to_write_set(tables[0], draw, mode);
            let second = tx.add_to_write_set(tables[1], (draw * 3) % 200, LockMode::Update);
            tx.execute()?;
            let is_there = tx.value(first).is_some();
            if mode != LockMode::Delete && is_there == (mode == LockMode::Update) {
                tx.put(first, &[stamp; 8])?;
            }
            if tx.value(second).is_some() {
                tx.put(second, &[stamp; 100])?;
            }
            Ok::<_, Abort>(())
        });
        committed += u32::from(outcome == Outcome::Committed(()));
    }
    committed
}

#[test]
fn replaying_the_records_rebuilds_the_database() {
    let records = Arc::new(Records::default());
    let options = ClusterOptions {
        threads: 2,
        coroutines: 8,
        memory_limit_bytes: Some(16 << 20),
        log_observer: Some(records.clone()),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let tables = [("narrow", 8), ("wide", 100)]
        .map(|(name, bytes)| cluster.create_table(name, bytes, 100).unwrap());
    let mut loader = cluster.loader();
    for key in 0..100 {
        loader.add(tables[0], key, &[1; 8]).unwrap();
        loader.add(tables[1], key, &[2; 100]).unwrap();
    }
    loader.finish().unwrap();
    let initial = rows(&cluster, &tables);

    let completions: Vec<_> = (0..6 * 8_usize)
        .map(|number| {
            let worker = WorkerId { node: number % 3, worker: number / 3 % 2 };
            let job =
                move |coordinator: &mut Coordinator<'_>| client(coordinator, tables, number as u64);
            cluster.spawn(worker, job).unwrap()
        })
        .collect();
    let committed: u32 = completions.into_iter().map(|completion| completion.wait().unwrap()).sum();
    assert!(committed > 2_000, "{committed} committed");

    let records = records.0.lock().unwrap();
    let mut copies = BTreeMap::new();
    for record in records.iter() {
        *copies.entry(CommitRecord::parse(record).unwrap().id).or_insert(0) += 1;
    }
    assert!(
        copies.values().all(|count| *count == 3),
        "each record is stored on f + 1 = 3 replicas"
    );
    let found = rows(&cluster, &tables);
    assert_ne!(found, initial);
    assert_eq!(replay(initial.clone(), &records), found);
    // This check can fail: without its last record, the log rebuilds another state.
    let changes = |record: &[u8]| {
        let record = CommitRecord::parse(record).unwrap();
        record.units().any(|unit| unit.unwrap().items().count() > 0)
    };
    let lost = records.iter().rposition(|record| changes(record)).unwrap();
    let id = |record: &[u8]| CommitRecord::parse(record).unwrap().id;
    let lost = id(&records[lost]);
    let shorter: Vec<_> = records.iter().filter(|record| id(record) != lost).cloned().collect();
    let rebuilt = std::panic::catch_unwind(|| replay(initial, &shorter));
    assert!(rebuilt.map_or(true, |rows| rows != found), "a lost record goes unnoticed");
}
