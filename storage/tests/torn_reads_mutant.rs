//! Without the check of the physical sequence, readers see torn units, which the stress test would notice. The test fails
//! if 200,000 units of a bucket, or of rows of changing lengths, pass without a torn read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(all(feature = "mutants", not(loom)))]

mod hot_bucket;
mod hot_rows;

use gannet_storage::rules;
use hot_bucket::HotBucket;
use hot_rows::HotRows;

/// Units written before the search for a torn read ends.
const UNITS_MAX: u64 = 200_000;

#[test]
fn skipping_the_sequence_check_tears_reads() {
    let mutant = rules::SEQUENCE_CHECK.remove();
    let bucket = HotBucket::new(4096, UNITS_MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| bucket.write_as_backup(HotBucket::is_torn));
        scope.spawn(|| bucket.read(HotBucket::is_torn));
    });
    let rows = HotRows::new(UNITS_MAX);
    rows.stress();
    drop(mutant);
    assert!(rows.is_torn(), "{UNITS_MAX} units of rows of changing lengths, no torn read");
    assert!(bucket.is_torn(), "{UNITS_MAX} units, no torn read");
}
