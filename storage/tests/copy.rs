//! A partition that is filled from another copy while transactions go on: copies of buckets and updates come in any
//! order, and some twice; in the end both copies are equal.
//!
//! A property test has two tables on one thread, without locks. In the grace period some updates do not come, and no bucket
//! is copied. The test fails if a bucket differs, if an update waits for ever, or if the copy serves transactions too early.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again".
//!
//! *Not here*: splits and merges meanwhile (`engine/src/learning/tests.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashSeed, HashedKey, Owner,
    Partitioning, Table, TableDefinition, TableKind,
};
use proptest::prelude::*;

const LIMIT_BYTES: usize = 1 << 20;

/// An arena whose only partition may take all.
fn arena() -> Arc<Arena> {
    Arc::new(Arena::new(LIMIT_BYTES, &[Arena::share_bytes(LIMIT_BYTES, 1)]).unwrap())
}

fn table(kind: TableKind, arena: &Arc<Arena>, is_held: bool) -> Table {
    let partitioning = Partitioning::new(1).unwrap();
    let definition =
        TableDefinition { name: "t".to_owned(), kind, value_bytes: 8, rows: 20, is_system: false };
    let layout = definition.layout(partitioning).unwrap();
    Table::new("t", layout, Arc::clone(arena), |_| is_held).unwrap()
}

/// Number `number` as a key of such a table.
fn with_key<T>(kind: TableKind, number: u64, act: impl FnOnce(HashedKey<'_>) -> T) -> T {
    match kind {
        TableKind::Fixed => act(HashedKey::Number(number)),
        TableKind::Heap | TableKind::Ordered => act(HashSeed::ZERO.hashed(&number.to_be_bytes())),
    }
}

/// What the filled copy does not take yet, by bucket.
#[derive(Default)]
struct Waiting(BTreeMap<u32, Vec<Vec<u8>>>);

/// Applies a unit at the copy that is filled, or has it wait for the copy of its bucket.
fn back_up(table: &Table, waiting: &mut Waiting, unit: &[u8]) {
    let parsed = BucketUpdate::parse_checked(unit);
    let address = table.bucket_address(0, parsed.bucket).unwrap();
    if table.apply_at_backup(address, &parsed) == Applied::Gap {
        waiting.0.entry(parsed.bucket).or_default().push(unit.to_vec());
    }
}

proptest! {
    #[test]
    fn a_filled_copy_is_equal_to_the_one_it_is_filled_from(
        kind in prop::sample::select(vec![TableKind::Fixed, TableKind::Heap, TableKind::Ordered]),
        loaded in prop::collection::btree_set(0..40_u64, 0..30),
        steps in prop::collection::vec((0..3_u8, 0..40_u64, any::<u64>()), 0..120),
        grace in 0..60_usize,
    ) {
        let (source_arena, filled_arena) = (arena(), arena());
        let (source, filled) = (table(kind, &source_arena, true), table(kind, &filled_arena, false));
        for number in loaded {
            with_key(kind, number, |key| {
                let address = source.address(key.word()).unwrap();
                source.load(address, key, &number.to_le_bytes()).unwrap();
                source.mark_loaded(address);
            });
        }
        prop_assert_eq!(filled.bucket_address(0, 0), None);
        filled.add_partition(0).unwrap();
        filled.add_partition(0).unwrap();
        prop_assert!(filled.bucket_address(0, 0).is_some());
        prop_assert_eq!(filled.served_bucket_address(0, 0), None, "it serves nothing yet");

        let buckets = source.layout().buckets;
        let (mut waiting, mut next, mut snapshot) = (Waiting::default(), 0, BucketSnapshot::default());
        let copy = |bucket: u32, waiting: &mut Waiting, snapshot: &mut BucketSnapshot| {
            source.snapshot(0, bucket, snapshot);
            if snapshot.version == 0 {
                return;
            }
            let mut bytes = Vec::new();
            snapshot.write_copy(&source, (0, 0, bucket), &mut bytes);
            let unit = BucketUpdate::parse_checked(&bytes);
            filled.apply_copy(filled.bucket_address(0, bucket).unwrap(), &unit);
            for unit in waiting.0.remove(&bucket).unwrap_or_default() {
                back_up(&filled, waiting, &unit);
            }
        };
        for (count, (step, number, value)) in steps.into_iter().enumerate() {
            // In the grace period some do not send the learner their updates yet, and nothing is copied.
            let in_grace = count < grace;
            if in_grace && step == 0 {
                continue;
            }
            if step == 0 {
                // The next bucket, or one that was copied before.
                let again = value.is_multiple_of(3);
                let any = u32::try_from(number).unwrap() % buckets;
                copy(if again { any } else { next }, &mut waiting, &mut snapshot);
                next = (next + 1) % buckets;
                continue;
            }
            let bucket = with_key(kind, number, |key| source.locate(key.word()).root);
            source.snapshot(0, bucket, &mut snapshot);
            let mut bytes = Vec::new();
            let mut unit = BucketUpdateWriter::begin(
                &mut bytes,
                (0, 0, bucket),
                snapshot.version,
                Owner(7),
            );
            with_key(kind, number, |key| match step {
                1 => unit.put(key, &value.to_le_bytes()),
                _ => unit.delete(key),
            });
            unit.finish();
            // As a coordinator does: backups before the primary.
            if !in_grace || value.is_multiple_of(2) {
                back_up(&filled, &mut waiting, &bytes);
            }
            let unit = BucketUpdate::parse_checked(&bytes);
            let address = source.bucket_address(0, bucket).unwrap();
            prop_assert_eq!(source.apply_at_backup(address, &unit), Applied::Applied);
        }
        (0..buckets).for_each(|bucket| copy(bucket, &mut waiting, &mut snapshot));
        prop_assert!(waiting.0.is_empty());
        let mut other = BucketSnapshot::default();
        for bucket in 0..buckets {
            source.snapshot(0, bucket, &mut snapshot);
            filled.snapshot(0, bucket, &mut other);
            prop_assert!(snapshot.equals(&other), "bucket {}: {:?} {:?}", bucket, snapshot, other);
        }
        prop_assert_eq!(filled.index_differences(0), 0);
        filled.serve_partition(0);
        prop_assert!(filled.served_bucket_address(0, 0).is_some());
        // What was given is taken back.
        drop(filled);
        prop_assert_eq!(filled_arena.used_bytes_of(0), 0);
    }
}
