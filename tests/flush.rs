//! Rules C3 to C5 without a crash: whenever a cluster stops, the log slots and the tables hold enough
//! to finish every transaction or none of it.
//!
//! A simulated cluster is stopped after every microsecond or so of its transactions. Then the flush rule of
//! `docs/protocol.md` is applied by hand: every record in any log slot commits, each unit by the version rule at every copy.
//! Afterwards all copies must be equal. Every transaction that was ever logged must be all present or all absent. Every
//! transaction that a client saw committed must be present, and every transaction that a client saw aborted must be absent.
//!
//! | removed | noticed by |
//! |---|---|
//! | C3, no abort after the first LOG | a transaction that was aborted is there |
//! | C4, no update before all records | copies that differ, for want of a record |
//! | C6, nothing is told before all records | a transaction that was told committed and not logged |
//! | C8, each coroutine has a log slot of its own | copies that differ, for want of a record |
//! | one copy's update | copies that differ (an earlier update is missing) |
//! | the version rule of units | a transaction of which an earlier one overwrote a part |
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use gannet::{Abort, ClusterOptions, Coordinator, LockMode, LogObserver, TableId, WorkerId};
use gannet_engine::simulation::{Fault, FaultKind, Simulation};
use gannet_storage::{Applied, BucketSnapshot, BucketUpdate, CommitRecord, Item};
use rand::{RngExt, SeedableRng};

const NODES: usize = 4;
const COROUTINES: usize = 3;
const KEYS: u64 = 24;
const VALUE_BYTES: usize = 16;
const TRANSACTIONS_PER_CLIENT: u64 = 12;
const STOP_EVERY_NS: u64 = 2_700;
const STOPS: u64 = 400;

/// The clients' outcomes, by the stamp that their transactions write.
#[derive(Default)]
struct Told {
    committed: BTreeSet<u64>,
    aborted: BTreeSet<u64>,
}

/// All records that were ever stored.
#[derive(Default)]
struct Records(Mutex<BTreeSet<Vec<u8>>>);

impl LogObserver for Records {
    fn stored(&self, record: &[u8]) {
        self.0.lock().unwrap().insert(record.to_vec());
    }
}

fn client(coordinator: &mut Coordinator<'_>, table: TableId, number: u64, told: &Mutex<Told>) {
    let mut random = rand::rngs::SmallRng::seed_from_u64(number);
    for step in 0..TRANSACTIONS_PER_CLIENT {
        let stamp = number * 1_000 + step + 1;
        let keys: BTreeSet<u64> = (0..3).map(|_| random.random_range(0..KEYS)).collect();
        let tx = coordinator.begin();
        let rows: Vec<_> =
            keys.iter().map(|&key| tx.add_to_write_set(table, key, LockMode::Update)).collect();
        let mut run = || -> Result<(), Abort> {
            tx.execute()?;
            for &row in &rows {
                tx.value_mut(row)?[..8].copy_from_slice(&stamp.to_le_bytes());
            }
            tx.commit()
        };
        let result = run();
        tx.abort();
        let mut told = told.lock().unwrap();
        match result {
            Ok(()) => told.committed.insert(stamp),
            Err(_) => told.aborted.insert(stamp),
        };
        drop(told);
        if result.is_err() {
            coordinator.back_off(3);
        }
    }
}

/// A cluster stopped at `stop_ns`, all records that it has stored, and its clients' outcomes.
fn stopped(stop_ns: u64, lossy: bool) -> (Simulation, TableId, Vec<Vec<u8>>, Told) {
    let records = Arc::new(Records::default());
    let options = ClusterOptions {
        nodes: NODES,
        threads: 1,
        coroutines: COROUTINES,
        partitions: 8,
        memory_limit_bytes: Some(4 << 20),
        log_observer: Some(records.clone()),
        ..ClusterOptions::default()
    };
    let loss = Fault {
        kind: FaultKind::Loss,
        begins_at: 0,
        lasts_ns: u64::MAX / 2,
        node: 0,
        peer: 1,
        permille: 50,
        seed: 1,
    };
    let faults = if lossy { vec![loss] } else { Vec::new() };
    let mut simulation = Simulation::open(options, 3, faults, None).unwrap();
    let table = simulation.cluster().create_table("cells", VALUE_BYTES, KEYS).unwrap();
    let mut loader = simulation.cluster().loader();
    (0..KEYS).for_each(|key| loader.add(table, key, &[0; VALUE_BYTES]).unwrap());
    loader.finish().unwrap();
    let told = Arc::new(Mutex::new(Told::default()));
    for number in 0..NODES * COROUTINES {
        let told = Arc::clone(&told);
        let worker = WorkerId { node: number % NODES, worker: 0 };
        let job = move |coordinator: &mut Coordinator<'_>| {
            client(coordinator, table, number as u64, &told);
        };
        simulation.cluster().spawn(worker, job).unwrap();
    }
    simulation.run_until(stop_ns, &|| 1);
    let records = records.0.lock().unwrap().iter().cloned().collect();
    let told = std::mem::take(&mut *told.lock().unwrap());
    (simulation, table, records, told)
}

/// Applies every record in any log slot.
fn flush(simulation: &Simulation) {
    let records: Vec<_> = (0..NODES).flat_map(|node| simulation.log_records(node)).collect();
    let mut units: Vec<_> = records
        .iter()
        .flat_map(|record| CommitRecord::parse(record).unwrap().units())
        .map(Result::unwrap)
        .collect();
    units.sort_by_key(|unit| unit.base_version);
    let cluster = simulation.cluster();
    for unit in units {
        for &copy in cluster.configuration().copies(unit.partition) {
            let view = cluster.nodes()[usize::from(copy)].view();
            let table = view.table(unit.table).unwrap();
            let mut address = table.address_to_fill(&unit).unwrap();
            for item in unit.items() {
                let (Item::Put { key, .. } | Item::Delete { key }) = item;
                address = address.with_tag(table.locate(key.word()).tag);
            }
            let _: Applied = table.apply_at_backup(address, &unit);
        }
    }
}

/// The violations in a flushed cluster.
fn violations(
    simulation: &Simulation,
    table: TableId,
    records: &[Vec<u8>],
    told: &Told,
) -> Vec<String> {
    let cluster = simulation.cluster();
    let configuration = cluster.configuration();
    let views: Vec<_> = cluster.nodes().iter().map(|node| node.view()).collect();
    let mut wrong = Vec::new();
    let mut versions = BTreeMap::new();
    let [mut first, mut other] = [BucketSnapshot::default(), BucketSnapshot::default()];
    for partition in 0..u16::try_from(configuration.partitioning.count()).unwrap() {
        let copies = configuration.copies(partition);
        let at = |copy: u16| views[usize::from(copy)].table(table.number()).unwrap();
        for bucket in 0..at(copies[0]).bucket_count(partition) {
            at(copies[0]).snapshot(partition, bucket, &mut first);
            versions.insert((partition, bucket), first.version);
            for &copy in &copies[1..] {
                at(copy).snapshot(partition, bucket, &mut other);
                if !first.equals(&other) {
                    wrong.push(format!("copies of bucket {partition}/{bucket} differ"));
                }
            }
        }
    }
    for record in records {
        let units: Vec<BucketUpdate<'_>> =
            CommitRecord::parse(record).unwrap().units().map(Result::unwrap).collect();
        let is_there =
            |unit: &&BucketUpdate<'_>| versions[&(unit.partition, unit.bucket)] > unit.base_version;
        let there = units.iter().filter(is_there).count();
        let Some(Item::Put { value, .. }) = units[0].items().next() else {
            panic!("every transaction of this test updates");
        };
        let stamp = u64::from_le_bytes(value[..8].try_into().unwrap());
        if there != 0 && there != units.len() {
            wrong.push(format!("{there} of {} buckets of {stamp} are there", units.len()));
        }
        if there == 0 && told.committed.contains(&stamp) {
            wrong.push(format!("{stamp} was committed and is not there"));
        }
        if there != 0 && told.aborted.contains(&stamp) {
            wrong.push(format!("{stamp} was aborted and is there"));
        }
    }
    let stamp_of = |record: &[u8]| {
        let unit = CommitRecord::parse(record).unwrap().units().next().unwrap().unwrap();
        match unit.items().next() {
            Some(Item::Put { value, .. }) => u64::from_le_bytes(value[..8].try_into().unwrap()),
            _ => 0,
        }
    };
    let logged: BTreeSet<_> = records.iter().map(|record| stamp_of(record)).collect();
    wrong.extend(told.committed.difference(&logged).map(|stamp| format!("{stamp} was not logged")));
    wrong
}

/// The violations after all of the stops, and the number of unfinished logged transactions.
fn stop_everywhere(lossy: bool) -> (Vec<String>, usize) {
    let mut wrong = Vec::new();
    let mut unfinished = 0;
    for stop in 1..=STOPS {
        let (simulation, table, records, told) = stopped(stop * STOP_EVERY_NS, lossy);
        unfinished += records.len() - told.committed.len().min(records.len());
        flush(&simulation);
        wrong.extend(violations(&simulation, table, &records, &told));
        if !wrong.is_empty() {
            break;
        }
    }
    (wrong, unfinished)
}

// A single test, because a rule is removed in the whole process.
#[test]
fn a_cluster_that_stops_can_be_finished() {
    for lossy in [false, true] {
        let (wrong, unfinished) = stop_everywhere(lossy);
        assert_eq!(wrong, [""; 0], "lossy: {lossy}");
        assert!(unfinished > 100, "{unfinished} logged transactions were unfinished at the stops");
    }
    #[cfg(feature = "mutants")]
    removed_rules_are_noticed();
}

#[cfg(feature = "mutants")]
fn removed_rules_are_noticed() {
    use gannet_engine::{faults, rules};
    use gannet_storage::rules as storage_rules;
    notices(rules::C3.remove(), "was aborted and is there");
    notices(rules::C4.remove(), "differ");
    notices(rules::C6.remove(), "was not logged");
    notices(storage_rules::C8.remove(), "differ");
    notices(storage_rules::BASE_VERSION.remove(), "are there");
    notices(faults::DROP_BACKUP_UPDATES.inject(), "differ");
}

#[cfg(feature = "mutants")]
fn notices(mutant: gannet_rules::Mutant, symptom: &str) {
    let (wrong, _) = stop_everywhere(false);
    let name = mutant.name();
    assert!(wrong.iter().any(|what| what.contains(symptom)), "{name}: {wrong:?}");
    println!("| {name} | {} |", wrong[0]);
}
