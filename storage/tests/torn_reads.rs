//! Threads read a bucket while others write it: each read belongs to one version.
//!
//! Two writers and a reader share a bucket of short or long values; two buckets of changing rows have a writer and a reader each.
//! A test fails if a read mixes two versions, if a version falls, or if a unit is lost. The thread sanitizer runs this, too.
//!
//! *Not here*: interleavings that threads seldom meet (`storage/src/loom_tests.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(not(loom))]

mod hot_bucket;
mod hot_rows;

use std::thread::ScopedJoinHandle;

use hot_bucket::HotBucket;
use hot_rows::HotRows;

/// Two writers that lock the bucket, and a reader.
fn stress_primary(value_bytes: usize, units: u64) {
    let bucket = HotBucket::new(value_bytes, units);
    std::thread::scope(|scope| {
        join_all([
            scope.spawn(|| bucket.write_as_primary(1)),
            scope.spawn(|| bucket.write_as_primary(2)),
            scope.spawn(|| bucket.read(|_| false)),
        ]);
    });
    bucket.check_end();
    assert!(!bucket.is_torn(), "a read saw parts of two units");
}

/// Two writers that apply the same units without locks, and a reader.
fn stress_backup(value_bytes: usize, units: u64) {
    let bucket = HotBucket::new(value_bytes, units);
    std::thread::scope(|scope| {
        join_all([
            scope.spawn(|| bucket.write_as_backup(|_| false)),
            scope.spawn(|| bucket.write_as_backup(|_| false)),
            scope.spawn(|| bucket.read(|_| false)),
        ]);
    });
    bucket.check_end();
    assert!(!bucket.is_torn(), "a read saw parts of two units");
}

/// Joins threads of a scope. The thread sanitizer understands a join, but not a scope's wait for its threads: without the join,
/// it reports a race between their last reads of the table and the drop of the table.
fn join_all<const N: usize>(threads: [ScopedJoinHandle<'_, ()>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn readers_of_a_primary_see_whole_units() {
    stress_primary(16, 30_000);
    stress_primary(4096, 1_500);
}

#[test]
fn readers_of_a_backup_see_whole_units() {
    stress_backup(16, 30_000);
    stress_backup(4096, 1_500);
}

#[test]
fn readers_of_rows_of_changing_lengths_see_whole_values() {
    let rows = HotRows::new(60_000);
    rows.stress();
    assert!(!rows.is_torn(), "a read saw parts of two values, or another row's");
}
