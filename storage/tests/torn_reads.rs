//! Threads read a bucket while others write it: each read belongs to one version.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(not(loom))]

mod hot_bucket;
mod hot_rows;

use hot_bucket::HotBucket;
use hot_rows::HotRows;

/// Two writers that lock the bucket, and a reader.
fn stress_primary(value_bytes: usize, units: u64) {
    let bucket = HotBucket::new(value_bytes, units);
    std::thread::scope(|scope| {
        for writer in 1..=2 {
            let bucket = &bucket;
            scope.spawn(move || bucket.write_as_primary(writer));
        }
        scope.spawn(|| bucket.read(|_| false));
    });
    bucket.check_end();
    assert!(!bucket.is_torn(), "a read saw parts of two units");
}

/// Two writers that apply the same units without locks, and a reader.
fn stress_backup(value_bytes: usize, units: u64) {
    let bucket = HotBucket::new(value_bytes, units);
    std::thread::scope(|scope| {
        scope.spawn(|| bucket.write_as_backup(|_| false));
        scope.spawn(|| bucket.write_as_backup(|_| false));
        scope.spawn(|| bucket.read(|_| false));
    });
    bucket.check_end();
    assert!(!bucket.is_torn(), "a read saw parts of two units");
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
