//! Micro-benchmarks of a table that exceeds the caches: reads with and without staged prefetching, and a lock with the
//! unit that releases it.
//!
//! One thread works on batches of 16 keys, drawn from 2,000,000 rows of a table with fixed values. No other thread locks.
//!
//! *Not here*: transactions, which the workloads of `gannet bench` measure.
#![cfg(not(loom))]
#![allow(missing_docs, reason = "criterion's macros generate undocumented functions")]

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gannet_storage::{
    Applied, Arena, BucketAddress, BucketUpdate, BucketUpdateWriter, HashedKey, Lock, LockMode,
    Owner, Partitioning, Read, Table, TableLayout,
};

const ROWS: u64 = 2_000_000;
const VALUE_BYTES: usize = 40;
const BATCH: usize = 16;
const READER: Owner = Owner(1);

fn loaded() -> Table {
    let partitioning = Partitioning::new(16).expect("a power of two");
    let layout =
        TableLayout::new("bench", VALUE_BYTES, ROWS, partitioning).expect("sizes in range");
    let arena = Arc::new(
        Arena::new(1 << 30, &[Arena::share_bytes(1 << 30, 16); 16]).expect("address space"),
    );
    let table = Table::new("bench", layout, arena, |_| true).expect("it fits");
    for key in 0..ROWS {
        let address = table.address(key).expect("the node holds all partitions");
        table.load(address, key, &[1; VALUE_BYTES]).expect("it fits");
    }
    table
}

/// The next keys of a fixed pseudo-random walk.
fn next_keys(state: &mut u64) -> [u64; BATCH] {
    std::array::from_fn(|_| {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % ROWS
    })
}

fn addresses(table: &Table, keys: [u64; BATCH]) -> [BucketAddress; BATCH] {
    keys.map(|key| table.address(key).expect("the node holds all partitions"))
}

fn reads(criterion: &mut Criterion) {
    let table = loaded();
    let mut group = criterion.benchmark_group("read");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut state = 1;
    let mut value = [0; VALUE_BYTES];
    let mut read_all = |keys: [u64; BATCH], addresses: [BucketAddress; BATCH]| {
        for (key, address) in keys.into_iter().zip(addresses) {
            let read = table.read(address, key, READER, &mut value);
            assert!(matches!(read, Read::Found { .. }));
        }
    };
    group.bench_function("one after the other", |bencher| {
        bencher.iter(|| {
            let keys = next_keys(&mut state);
            read_all(keys, addresses(&table, keys));
        });
    });
    group.bench_function("16 prefetched in two stages", |bencher| {
        bencher.iter(|| {
            let keys = next_keys(&mut state);
            let addresses = addresses(&table, keys);
            addresses.iter().for_each(|address| table.prefetch(*address));
            addresses.iter().for_each(|address| table.prefetch_slot(*address));
            read_all(keys, addresses);
        });
    });
    group.finish();
}

fn lock_and_apply(criterion: &mut Criterion) {
    let table = loaded();
    let (mut state, mut value, mut unit) = (1, [0; VALUE_BYTES], Vec::new());
    let mut group = criterion.benchmark_group("write");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("lock, unit, apply at the primary, 16 prefetched", |bencher| {
        bencher.iter(|| {
            let keys = next_keys(&mut state);
            let addresses = addresses(&table, keys);
            addresses.iter().for_each(|address| table.prefetch(*address));
            addresses.iter().for_each(|address| table.prefetch_slot(*address));
            for (key, address) in keys.into_iter().zip(addresses) {
                let lock = table.lock(address, key, READER, LockMode::Update, &mut value);
                let Lock::Granted { version } = lock else { panic!("no other thread locks") };
                let location = table.locate(key);
                let header = (0, location.partition, location.root);
                unit.clear();
                let mut writer = BucketUpdateWriter::begin(&mut unit, header, version, READER);
                writer.put(HashedKey::Number(key), &value);
                writer.finish();
                let applied = table.apply_at_primary(address, &BucketUpdate::parse_checked(&unit));
                assert_eq!(applied, Applied::Applied);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, reads, lock_and_apply);
criterion_main!(benches);
