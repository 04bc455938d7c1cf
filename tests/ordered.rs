//! Ordered tables: byte-string keys, scans of ranges, and their strict serializability.
//!
//! | anomaly | test |
//! |---|---|
//! | two transactions each count a range and insert into it | `ranges_that_are_counted_do_not_overflow` |
//! | two transactions insert one key | `one_of_two_inserts_of_a_key_wins` |
//! | a key comes and goes between two scans | `what_came_and_went_between_two_scans_is_noticed` |
//!
//! A scan that writers would overtake forever succeeds behind a barrier:
//! `rows_behind_a_scan_barrier_are_locked_after_its_commit`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ordered {
    pub(crate) mod groups;
    pub(crate) mod rows;
}

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use gannet::{
    Abort, Change, Cluster, ClusterOptions, Conflict, Coordinator, Deferred, Direction, Key,
    Misuse, Outcome, RowProblem, StorageError, TableId, WorkerId,
};
use ordered::groups::{GROUP_ROWS_MAX, largest_group};
use ordered::rows::{ALL, assert_sound, open, range, run, scan, set};
use rand::{RngExt, SeedableRng};

/// A transaction may assume an earlier transaction's observation, which holds until another one changes the row.
#[test]
fn assumptions_are_validated_whatever_else_a_transaction_does() {
    let (cluster, table) = open(1);
    run(&cluster, move |coordinator| {
        let assumed = b"assumed".to_vec();
        let write = |coordinator: &mut Coordinator<'_>, value: u8| {
            let mut transaction = Deferred::new();
            set(&mut transaction, coordinator, table, b"assumed", Some(&[value])).unwrap();
            transaction.commit(coordinator).unwrap();
        };
        type Rest = fn(&mut Deferred, &mut Coordinator<'_>, TableId);
        let rests: [Rest; 4] = [
            |_, _, _| {},
            |transaction, coordinator, table| {
                transaction.get_many(coordinator, table, &[b"read".to_vec()]).unwrap();
            },
            |transaction, _, table| {
                transaction.insert(table, b"taken back".to_vec(), b"1".to_vec());
                transaction.delete(table, b"taken back".to_vec());
            },
            |transaction, coordinator, table| {
                set(transaction, coordinator, table, b"written", Some(b"1")).unwrap();
            },
        ];
        for rest in rests {
            write(coordinator, 1);
            let mut transaction = Deferred::new();
            let (value, seen) = transaction.get_seen(coordinator, table, &assumed).unwrap();
            assert_eq!(value, Some(vec![1]));
            for is_changed in [false, true] {
                if is_changed {
                    write(coordinator, 2);
                }
                let mut later = Deferred::new();
                later.assume(seen.unwrap());
                rest(&mut later, coordinator, table);
                assert_eq!(later.commit(coordinator).is_err_and(|e| e.is_conflict()), is_changed);
            }
        }
        let mut own = Deferred::new();
        set(&mut own, coordinator, table, b"assumed", Some(&[3])).unwrap();
        let (value, seen) = own.get_seen(coordinator, table, &assumed).unwrap();
        assert_eq!((value, seen), (Some(vec![3]), None));
    });
    assert_sound(&cluster);
}

#[test]
fn a_table_is_an_ordered_map() {
    let (cluster, table) = open(1);
    let (rows, expected) = run(&cluster, move |coordinator| {
        let mut random = rand::rngs::SmallRng::seed_from_u64(7);
        let mut expected = BTreeMap::new();
        for step in 0..600_u32 {
            let mut transaction = Deferred::new();
            for _ in 0..random.random_range(1..6) {
                let key = format!("key {}", random.random_range(0..400)).into_bytes();
                let length = [0, 3, 40, 700, 20_000][random.random_range(0..5)];
                let value = vec![step.to_le_bytes()[0]; length];
                let value = random.random_bool(0.7).then_some(value);
                set(&mut transaction, coordinator, table, &key, value.as_deref()).unwrap();
                match value {
                    Some(value) => expected.insert(key, value),
                    None => expected.remove(&key),
                };
            }
            transaction.commit(coordinator).unwrap();
        }
        let mut transaction = Deferred::new();
        let keys: Vec<_> = expected.keys().cloned().chain([b"none".to_vec()]).collect();
        let found = transaction.get_many(coordinator, table, &keys).unwrap();
        assert!(found.iter().map(Option::as_ref).eq(keys.iter().map(|key| expected.get(key))));
        let up = scan(&mut transaction, coordinator, table, &ALL, Direction::Ascending).unwrap();
        let down = scan(&mut transaction, coordinator, table, &ALL, Direction::Descending).unwrap();
        assert!(down.iter().rev().eq(&up));
        let part = range("key 2", "key 30");
        let part = scan(&mut transaction, coordinator, table, &part, Direction::Ascending).unwrap();
        let inside = expected.range(b"key 2".to_vec()..b"key 30".to_vec());
        assert!(part.iter().map(|(key, value)| (key, value)).eq(inside));
        transaction.commit(coordinator).unwrap();
        (up, expected)
    });
    assert!(rows.len() > 100);
    assert!(rows.into_iter().eq(expected));
    assert_sound(&cluster);
}

#[test]
fn a_transaction_sees_its_own_changes_and_goes_back_to_a_savepoint() {
    let (cluster, table) = open(1);
    run(&cluster, move |coordinator| {
        let mut transaction = Deferred::new();
        for key in ["a", "b", "c"] {
            set(&mut transaction, coordinator, table, key.as_bytes(), Some(b"1")).unwrap();
        }
        transaction.commit(coordinator).unwrap();
        set(&mut transaction, coordinator, table, b"b", None).unwrap();
        let savepoint = transaction.savepoint();
        set(&mut transaction, coordinator, table, b"bb", Some(b"2")).unwrap();
        set(&mut transaction, coordinator, table, b"c", Some(b"3")).unwrap();
        let mut keys = |transaction: &mut Deferred, direction, limit| {
            let page = transaction.scan(coordinator, table, &ALL, direction, limit).unwrap();
            page.rows.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
        };
        let found: Vec<String> = keys(&mut transaction, Direction::Ascending, 9);
        assert_eq!(found, ["a", "bb", "c"]);
        let found: Vec<String> = keys(&mut transaction, Direction::Descending, 2);
        assert_eq!(found, ["c", "bb"]);
        transaction.rollback_to(savepoint);
        let found: Vec<String> = keys(&mut transaction, Direction::Ascending, 9);
        assert_eq!(found, ["a", "c"]);
        let here = transaction.savepoint();
        transaction.rollback_to(here);
        transaction.commit(coordinator).unwrap();
        let rows = scan(&mut transaction, coordinator, table, &ALL, Direction::Ascending).unwrap();
        assert_eq!(rows, [(b"a".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"1".to_vec())]);
    });
    assert_sound(&cluster);
}

#[test]
fn what_came_and_went_between_two_scans_is_noticed() {
    let (cluster, table) = open(1);
    run(&cluster, move |coordinator| {
        let (mut reader, mut writer) = (Deferred::new(), Deferred::new());
        set(&mut writer, coordinator, table, b"a", Some(b"")).unwrap();
        writer.commit(coordinator).unwrap();
        let seen = |reader: &mut Deferred, coordinator: &mut Coordinator<'_>| {
            scan(reader, coordinator, table, &range("a", "c"), Direction::Ascending).unwrap().len()
        };
        assert_eq!(seen(&mut reader, coordinator), 1);
        for value in [Some(&b""[..]), None] {
            set(&mut writer, coordinator, table, b"b", value).unwrap();
            writer.commit(coordinator).unwrap();
        }
        assert_eq!(seen(&mut reader, coordinator), 1);
        assert_eq!(reader.commit(coordinator), Err(Abort::Conflict(Conflict::Changed)));
        // Without the other transaction, the same reads commit.
        assert_eq!((seen(&mut reader, coordinator), seen(&mut reader, coordinator)), (1, 1));
        assert_eq!(reader.commit(coordinator), Ok(()));
    });
}

#[test]
fn rows_read_before_the_last_one_are_validated() {
    let (cluster, table) = open(1);
    run(&cluster, move |coordinator| {
        let keys: Vec<Vec<u8>> = (0..12_u32).map(|number| number.to_be_bytes().to_vec()).collect();
        let write = |coordinator: &mut Coordinator<'_>, keys: &[&Vec<u8>]| {
            let mut writer = Deferred::new();
            for key in keys {
                set(&mut writer, coordinator, table, key, Some(b"value")).unwrap();
            }
            writer.commit(coordinator).unwrap();
        };
        // Rows at this node and at others, in every order.
        for (first, second) in keys.iter().flat_map(|first| keys.iter().map(move |k| (first, k))) {
            if first == second {
                continue;
            }
            let mut reader = Deferred::new();
            reader.get_many(coordinator, table, std::slice::from_ref(first)).unwrap();
            write(coordinator, &[first, second]);
            reader.get_many(coordinator, table, std::slice::from_ref(second)).unwrap();
            assert_eq!(reader.commit(coordinator), Err(Abort::Conflict(Conflict::Changed)));
            // A change after the read of the last row does not matter; an earlier one does.
            reader.get_many(coordinator, table, std::slice::from_ref(first)).unwrap();
            reader.get_many(coordinator, table, std::slice::from_ref(second)).unwrap();
            write(coordinator, &[second]);
            assert_eq!(reader.commit(coordinator), Ok(()));
        }
    });
    assert_sound(&cluster);
}

/// Sets keys, each in a transaction of its own.
fn set_each(
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    keys: &[&str],
    value: Option<&[u8]>,
) -> Vec<Result<(), Abort>> {
    let set_one = |key: &&str| {
        let mut transaction = Deferred::new();
        set(&mut transaction, coordinator, table, key.as_bytes(), value)?;
        transaction.commit(coordinator)
    };
    keys.iter().map(set_one).collect()
}

/// Waits until another job has set the flag.
fn wait_for(flag: &AtomicBool, coordinator: &mut Coordinator<'_>) {
    while !flag.load(Ordering::SeqCst) {
        coordinator.back_off(1);
    }
}

#[test]
fn rows_behind_a_scan_barrier_are_locked_after_its_commit() {
    let (cluster, table) = open(2);
    let other = cluster.create_ordered_table("others", 100).unwrap();
    run(&cluster, move |coordinator| set_each(coordinator, table, &["a", "c", "e"], Some(b"")));
    let flags = Arc::new([const { AtomicBool::new(false) }; 2]);
    let writers_flags = Arc::clone(&flags);
    let reader = cluster.spawn(WorkerId { node: 0, worker: 0 }, move |coordinator| {
        let [is_scanned, is_refused] = &*flags;
        let mut reader = Deferred::new().with_scan_barriers();
        let seen = |reader: &mut Deferred, coordinator: &mut Coordinator<'_>| {
            scan(reader, coordinator, table, &range("b", "e"), Direction::Ascending).unwrap().len()
        };
        assert_eq!(seen(&mut reader, coordinator), 1);
        is_scanned.store(true, Ordering::SeqCst);
        wait_for(is_refused, coordinator);
        assert_eq!(seen(&mut reader, coordinator), 1);
        reader.commit(coordinator)
    });
    let writer = cluster.spawn(WorkerId { node: 1, worker: 1 }, move |coordinator| {
        let [is_scanned, is_refused] = &*writers_flags;
        wait_for(is_scanned, coordinator);
        // The barrier does not concern another table.
        assert_eq!(set_each(coordinator, other, &["a", "e"], Some(b"new")), [Ok(()), Ok(())]);
        // An update, an insert, and a deletion.
        let refused = Err(Abort::Conflict(Conflict::Barrier));
        assert_eq!(set_each(coordinator, table, &["c", "d"], Some(b"new")), [refused, refused]);
        assert_eq!(set_each(coordinator, table, &["c"], None), [refused]);
        // A key outside of the range shares a bucket.
        assert_eq!(set_each(coordinator, table, &["x"], Some(b"new")), [refused]);
        is_refused.store(true, Ordering::SeqCst);
        // The writer in progress waits for the scan.
        let mut result = refused;
        while result == refused {
            result = set_each(coordinator, table, &["d"], Some(b"new"))[0];
        }
        result
    });
    assert_eq!(reader.unwrap().wait(), Ok(Ok(())));
    assert_eq!(writer.unwrap().wait(), Ok(Ok(())));
    assert_sound(&cluster);
}

#[test]
fn a_lock_that_is_requested_again_and_refused_is_released() {
    let options = ClusterOptions {
        nodes: 1,
        replicas: 1,
        threads: 2,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_ordered_table("rows", 100).unwrap();
    // Three such values do not fit one answer, so the rows after the third are requested again.
    let large = [b"a", b"b", b"c"];
    run(&cluster, move |coordinator| {
        for key in large.iter().chain([&b"k"]) {
            let mut transaction = Deferred::new();
            set(&mut transaction, coordinator, table, *key, Some(&vec![1; 600 << 10])).unwrap();
            transaction.commit(coordinator).unwrap();
        }
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let scans_end = Arc::clone(&is_over);
    let scanned = Arc::new(AtomicU32::new(0));
    let scanned_count = Arc::clone(&scanned);
    let scans = cluster.spawn(WorkerId { node: 0, worker: 1 }, move |coordinator| {
        let mut pauses = (0..7).map(|n| Duration::from_millis((1 << n) - 1)).cycle();
        while !scans_end.load(Ordering::SeqCst) {
            let mut reader = Deferred::new().with_scan_barriers();
            // The row may be locked just now, which does not matter.
            let _ = reader.scan(coordinator, table, &range("k", "l"), Direction::Ascending, 1);
            let done = u32::from(reader.commit(coordinator).is_ok());
            scanned_count.fetch_add(done, Ordering::SeqCst);
            // Now and then for long enough that a write comes through.
            coordinator.pause(pauses.next().unwrap());
        }
    });
    let lost = run(&cluster, move |coordinator| {
        let mut write = || {
            coordinator.run(|transaction| {
                large.iter().for_each(|key| {
                    transaction.add_to_read_set(table, *key);
                });
                transaction.add_row_to_write_set(table, b"k", Change::Update(b"new"));
                transaction.execute()
            })
        };
        // The scans succeed, however late.
        let writes = (0..).take_while(|n| *n < 200 || scanned.load(Ordering::SeqCst) < 50);
        // The barriers of the scans may hold up a write for long. A lock that is left would hold up all of them.
        let is_expected = |outcome: &Outcome<(), Abort>| {
            let barrier = Abort::Conflict(Conflict::Barrier);
            *outcome == Outcome::Committed(()) || *outcome == Outcome::Aborted(barrier)
        };
        writes.map(|_| write()).find(|outcome| !is_expected(outcome))
    });
    is_over.store(true, Ordering::SeqCst);
    scans.unwrap().wait().unwrap();
    assert_eq!(lost, None);
    assert_sound(&cluster);
}

#[test]
fn a_job_that_ends_leaves_no_barrier() {
    let (cluster, table) = open(1);
    let set = move |coordinator: &mut Coordinator<'_>| {
        set_each(coordinator, table, &["a", "b"], Some(b""))
    };
    for panics in [false, true] {
        let job = move |coordinator: &mut Coordinator<'_>| {
            let mut reader = Deferred::new().with_scan_barriers();
            scan(&mut reader, coordinator, table, &ALL, Direction::Ascending).unwrap();
            assert!(!panics, "a job that panics behind its barriers");
        };
        let ended = cluster.spawn(WorkerId { node: 0, worker: 0 }, job).unwrap().wait();
        assert_eq!(ended.is_err(), panics);
        assert_eq!(run(&cluster, set), [Ok(()), Ok(())]);
    }
    // A transaction with barriers that writes nevertheless does not wait for itself.
    let written = run(&cluster, move |coordinator| {
        let mut transaction = Deferred::new().with_scan_barriers();
        scan(&mut transaction, coordinator, table, &ALL, Direction::Ascending).unwrap();
        transaction.delete(table, b"a".to_vec());
        transaction.commit(coordinator)
    });
    assert_eq!(written, Ok(()));
    assert_sound(&cluster);
}

/// A value of eight bytes is not mistaken for the cell address in a slot.
#[test]
fn rows_are_loaded_into_an_ordered_table_or_refused() {
    let (cluster, table) = open(1);
    let fixed = cluster.create_table("fixed", 8, 10).unwrap();
    let load = |table: TableId, key: Key<'_>, value: &[u8]| {
        let mut loader = cluster.loader();
        loader.add(table, key, value)?;
        loader.finish()
    };
    let refused = load(table, Key::Number(7), &[7; 8]);
    assert!(matches!(refused, Err(StorageError::KeyKind { .. })), "{refused:?}");
    for key in [Key::from(b""), Key::from(&[b'k'; 4_097])] {
        let refused = load(table, key, b"value");
        assert!(matches!(refused, Err(StorageError::KeyKind { .. })), "{refused:?}");
    }
    let refused = load(table, Key::from(b"long"), &vec![1; (1 << 20) + 1]);
    assert!(matches!(refused, Err(StorageError::LongValue { .. })), "{refused:?}");
    let refused = load(fixed, Key::from(b"bytes"), &[7; 8]);
    assert!(matches!(refused, Err(StorageError::KeyKind { .. })), "{refused:?}");

    let rows: Vec<(Vec<u8>, Vec<u8>)> = (0..100)
        .map(|row| (format!("row {row:02}").into_bytes(), vec![row; usize::from(row)]))
        .collect();
    let mut loader = cluster.loader();
    rows.iter().try_for_each(|(key, value)| loader.add(table, &key[..], value)).unwrap();
    loader.finish().unwrap();
    let twice = load(table, Key::from(b"row 07"), b"another");
    assert!(twice.unwrap_err().to_string().contains("key \"row 07\""));
    let read = run(&cluster, move |coordinator| {
        scan(&mut Deferred::new(), coordinator, table, &ALL, Direction::Ascending)
    });
    assert_eq!(read.unwrap(), rows);
    assert_sound(&cluster);
}

#[test]
fn one_of_two_inserts_of_a_key_wins() {
    let (cluster, table) = open(1);
    run(&cluster, move |coordinator| {
        let (mut first, mut second) = (Deferred::new(), Deferred::new());
        set(&mut first, coordinator, table, b"key", Some(b"first")).unwrap();
        set(&mut second, coordinator, table, b"key", Some(b"second")).unwrap();
        assert_eq!(first.commit(coordinator), Ok(()));
        assert!(second.commit(coordinator).unwrap_err().is_conflict());
        let found = second.get_many(coordinator, table, &[b"key".to_vec()]).unwrap();
        assert_eq!(found, [Some(b"first".to_vec())]);
    });
    assert_sound(&cluster);
}

#[test]
fn a_transaction_may_insert_into_what_it_has_scanned() {
    let (cluster, table) = open(1);
    run(&cluster, move |coordinator| {
        for number in 0..500_u32 {
            let mut transaction = Deferred::new();
            let rows = scan(&mut transaction, coordinator, table, &ALL, Direction::Ascending);
            assert_eq!(rows.unwrap().len(), number as usize);
            let key = format!("{:05}", number * 7 % 500);
            set(&mut transaction, coordinator, table, key.as_bytes(), Some(b"")).unwrap();
            // The transaction's own keys, and the leaves that they split, cause no conflict.
            transaction.commit(coordinator).unwrap();
        }
    });
    assert_sound(&cluster);
}

#[test]
fn ranges_that_are_counted_do_not_overflow() {
    assert_eq!(largest_group(2), GROUP_ROWS_MAX);
}

#[test]
fn bad_requests_say_what_is_wrong() {
    let (cluster, table) = open(1);
    let fixed = cluster.create_table("fixed", 8, 10).unwrap();
    run(&cluster, move |coordinator| {
        let mut transaction = Deferred::new();
        let mut get = |table, key: &[u8]| transaction.get_many(coordinator, table, &[key.to_vec()]);
        let misuse = |table: TableId, key: &[u8], problem| {
            Err(Abort::Misuse(Misuse::Row { table: table.number(), key: key.into(), problem }))
        };
        assert_eq!(get(fixed, b"key"), misuse(fixed, b"key", RowProblem::IsBytes));
        assert_eq!(get(table, b""), misuse(table, b"", RowProblem::KeyBytes));
        let long = [1; 4097];
        assert_eq!(get(table, &long), misuse(table, &long, RowProblem::KeyBytes));
        assert_eq!(get(table, &[1; 4096]), Ok(vec![None]));
        let scanned = transaction.scan(coordinator, fixed, &ALL, Direction::Ascending, 1);
        assert!(matches!(scanned, Err(Abort::Misuse(Misuse::NoSuchTable { .. }))));
        set(&mut transaction, coordinator, table, b"large", Some(&vec![1; 1 << 20])).unwrap();
        transaction.commit(coordinator).unwrap();
        set(&mut transaction, coordinator, table, b"larger", Some(&vec![1; (1 << 20) + 1]))
            .unwrap();
        assert!(matches!(
            transaction.commit(coordinator),
            Err(Abort::Misuse(Misuse::ValueBytes { .. }))
        ));
        let found = transaction.get_many(coordinator, table, &[b"large".to_vec()]).unwrap();
        assert_eq!(found[0].as_ref().map(Vec::len), Some(1 << 20));
        // Eight of these do not fit one message.
        for number in 0..8_u8 {
            set(&mut transaction, coordinator, table, &[number], Some(&vec![number; 1 << 20]))
                .unwrap();
            transaction.commit(coordinator).unwrap();
        }
        let keys: Vec<_> = (0..8_u8).map(|number| vec![number]).collect();
        let found = transaction.get_many(coordinator, table, &keys).unwrap();
        for (number, value) in found.iter().enumerate() {
            assert_eq!(value.as_ref().unwrap()[..], vec![u8::try_from(number).unwrap(); 1 << 20]);
        }
        let rows = scan(&mut transaction, coordinator, table, &ALL, Direction::Ascending).unwrap();
        assert_eq!(rows.len(), 9);
        transaction.commit(coordinator).unwrap();
    });
    let number = cluster.run(move |tx| tx.get(table, 1).map(|_| ()));
    assert!(matches!(
        number.unwrap(),
        Outcome::Aborted(Abort::Misuse(Misuse::Row { problem: RowProblem::IsNumber, .. }))
            | Outcome::Failed(Abort::Misuse(Misuse::Row { problem: RowProblem::IsNumber, .. }))
    ));
    assert_sound(&cluster);
}
