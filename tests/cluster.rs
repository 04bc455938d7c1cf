//! The embedding interface: every outcome and every misuse, none of which leaves a lock behind or damages the cluster.
//!
//! *Not here*: nodes in processes of their own (`tests/joined.rs`, `tests/server/nodes.rs`), ordered tables (`tests/ordered.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use gannet::{
    Abort, Change, ChangeError, Cluster, ClusterError, ClusterOptions, Conflict, Failure, LockMode,
    LogObserver, Misuse, Outcome, RowKey, RowProblem, TableId, WorkerId,
};
use gannet_benchmarks::check_replicas;
use gannet_storage::Partitioning;

fn open(memory_bytes: usize) -> Cluster {
    let options = ClusterOptions {
        threads: 2,
        coroutines: 4,
        memory_limit_bytes: Some(memory_bytes),
        ..ClusterOptions::default()
    };
    Cluster::open(options).unwrap()
}

fn open_with_table(rows: u64) -> (Cluster, TableId) {
    let cluster = open(16 << 20);
    let table = cluster.create_table("t", 8, 1000).unwrap();
    let mut loader = cluster.loader();
    for key in 0..rows {
        loader.add(table, key, &key.to_le_bytes()).unwrap();
    }
    loader.finish().unwrap();
    (cluster, table)
}

/// Nothing is locked and all copies are equal.
fn assert_sound(cluster: &Cluster) {
    for check in check_replicas(cluster) {
        assert!(check.passed, "{}: {}", check.name, check.detail);
    }
}

fn read(cluster: &Cluster, table: TableId, key: u64) -> Option<u64> {
    let outcome = cluster
        .run(move |tx| {
            let value = tx.get(table, key)?;
            Ok::<_, Abort>(value.map(|value| u64::from_le_bytes(value.try_into().unwrap())))
        })
        .unwrap();
    outcome.committed()
}

#[test]
fn rows_are_inserted_updated_and_deleted() {
    let (cluster, table) = open_with_table(10);
    let moved = cluster.run(move |tx| {
        let changed = tx.add_to_write_set(table, 1, LockMode::Update);
        let deleted = tx.add_to_write_set(table, 2, LockMode::Delete);
        let added = tx.add_to_write_set(table, 100, LockMode::Insert);
        tx.execute()?;
        assert_eq!(tx.value(deleted).unwrap(), 2_u64.to_le_bytes());
        assert_eq!(tx.value(added), None);
        tx.put(changed, &7_u64.to_le_bytes())?;
        tx.put(added, &8_u64.to_le_bytes())?;
        Ok::<_, Abort>(())
    });
    assert_eq!(moved.unwrap(), Outcome::Committed(()));
    let found = [1, 2, 100, 3, 4000].map(|key| read(&cluster, table, key));
    assert_eq!(found, [Some(7), None, Some(8), Some(3), None]);
    assert_sound(&cluster);
}

#[test]
fn a_row_that_the_lock_mode_forbids_is_an_error_that_leaves_no_lock() {
    let (cluster, table) = open_with_table(10);
    let exists = cluster.run(move |tx| tx.insert(table, 3, &[0; 8]));
    assert!(matches!(
        exists.unwrap(),
        Outcome::Failed(Abort::Misuse(Misuse::Exists { key: RowKey::Number(3), .. }))
    ));
    let not_found = cluster.run(move |tx| {
        let row = tx.add_to_write_set(table, 77, LockMode::Update);
        tx.execute()?;
        tx.put(row, &[0; 8])
    });
    assert!(matches!(
        not_found.unwrap(),
        Outcome::Failed(Abort::Misuse(Misuse::NotFound { key: RowKey::Number(77), .. }))
    ));
    let too_long = cluster.run(move |tx| tx.insert(table, 78, &[0; 9]));
    let expected =
        Abort::Misuse(Misuse::ValueBytes { table: table.number(), expected: 8, found: 9 });
    assert_eq!(too_long.unwrap(), Outcome::Failed(expected));
    assert_sound(&cluster);
    assert_eq!((read(&cluster, table, 77), read(&cluster, table, 78)), (None, None));
}

#[test]
fn misuse_of_rows_is_an_error() {
    let (cluster, table) = open_with_table(10);
    let in_read_set = cluster.run(move |tx| {
        let row = tx.add_to_read_set(table, 1);
        tx.execute()?;
        tx.put(row, &[0; 8])
    });
    let misuse = |problem| {
        let (table, key) = (table.number(), RowKey::Number(1));
        Abort::Misuse(Misuse::Row { table, key, problem })
    };
    assert_eq!(in_read_set.unwrap(), Outcome::Failed(misuse(RowProblem::InReadSet)));
    let not_executed = cluster.run(move |tx| {
        let row = tx.add_to_write_set(table, 1, LockMode::Update);
        tx.put(row, &[0; 8])
    });
    assert_eq!(not_executed.unwrap(), Outcome::Failed(misuse(RowProblem::NotExecuted)));
    let twice = cluster.run(move |tx| {
        let rows = [1, 1].map(|key| tx.add_to_write_set(table, key, LockMode::Update));
        tx.execute()?;
        rows.iter().try_for_each(|&row| tx.put(row, &[0; 8]))
    });
    assert_eq!(twice.unwrap(), Outcome::Aborted(misuse(RowProblem::AddedTwice)));
    let (other, _) = open_with_table(0);
    let foreign = other.create_table("second", 8, 1).unwrap();
    let no_table = cluster.run(move |tx| tx.get(foreign, 1).map(|_| ()));
    let no_table = no_table.unwrap();
    assert_eq!(no_table, Outcome::Failed(Misuse::NoSuchTable { table: foreign.number() }.into()));
    assert_sound(&cluster);
}

#[test]
fn a_closure_that_panics_is_an_outcome_and_the_cluster_goes_on() {
    let (cluster, table) = open_with_table(10);
    let outcome = cluster.run(move |tx| {
        let row = tx.add_to_write_set(table, 5, LockMode::Update);
        tx.execute()?;
        tx.put(row, &[9; 8])?;
        assert!(tx.value(row).is_none(), "on purpose");
        Ok::<_, Abort>(())
    });
    assert_eq!(outcome.unwrap(), Outcome::Panicked("on purpose".to_owned()));
    assert_sound(&cluster);
    assert_eq!(read(&cluster, table, 5), Some(5));

    let completion = cluster
        .spawn(WorkerId { node: 0, worker: 1 }, move |coordinator| {
            let tx = coordinator.begin();
            tx.add_to_write_set(table, 6, LockMode::Update);
            tx.execute().unwrap();
            panic!("outside of run, on purpose");
        })
        .unwrap();
    let lost: Result<(), _> = completion.wait();
    assert!(lost.is_err());
    assert_eq!(read(&cluster, table, 6), Some(6));
    assert_sound(&cluster);
}

#[test]
fn a_closure_may_abort_its_transaction_and_not_commit_it() {
    let (cluster, table) = open_with_table(1);
    let is_refused = |abort: &Abort| *abort == Abort::Misuse(Misuse::CommitsItself);
    let committed = cluster.run(move |tx| {
        tx.insert(table, 10, &[1; 8])?;
        tx.commit()
    });
    assert!(matches!(committed.unwrap(), Outcome::Failed(abort) if is_refused(&abort)));
    // Ignoring the error does not commit the transaction, either.
    let committed = cluster.run(move |tx| {
        tx.insert(table, 10, &[1; 8])?;
        let _: Result<(), Abort> = tx.commit();
        Ok::<_, Abort>(())
    });
    assert!(matches!(committed.unwrap(), Outcome::Aborted(abort) if is_refused(&abort)));
    // Otherwise a closure that then fails with a conflict would run, and commit, again and again.
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let failed = cluster.run(move |tx| {
        counted.fetch_add(1, Ordering::SeqCst);
        let row = tx.add_to_write_set(table, 0, LockMode::Update);
        tx.execute()?;
        let value = tx.value_mut(row)?;
        value[0] += 1;
        tx.commit()?;
        Err::<(), _>(Abort::Conflict(Conflict::Locked))
    });
    assert!(matches!(failed.unwrap(), Outcome::Failed(abort) if is_refused(&abort)));
    assert_eq!((runs.load(Ordering::SeqCst), read(&cluster, table, 0)), (1, Some(0)));
    let aborted = cluster.run(move |tx| {
        tx.insert(table, 11, &[1; 8])?;
        tx.abort();
        Ok::<_, Abort>(())
    });
    assert_eq!(aborted.unwrap(), Outcome::Aborted(Abort::Requested));
    assert_eq!((read(&cluster, table, 10), read(&cluster, table, 11)), (None, None));
    assert_sound(&cluster);
}

#[test]
fn a_transaction_left_open_holds_no_lock_after_its_job() {
    let (cluster, table) = open_with_table(10);
    let completion = cluster.spawn(WorkerId { node: 1, worker: 0 }, move |coordinator| {
        let tx = coordinator.begin();
        tx.add_to_write_set(table, 1, LockMode::Update);
        tx.execute()
    });
    assert_eq!(completion.unwrap().wait(), Ok(Ok(())));
    assert_eq!(read(&cluster, table, 1), Some(1));
    assert_sound(&cluster);
}

/// Runs a closure that reads a row, waits until another transaction has changed the row from 0 to 5, reads again, and passes
/// both values to `end`. Returns the outcome at each node, after two runs.
fn overtaken(end: fn(u64, u64) -> Result<u64, Abort>) -> Vec<Outcome<u64, Abort>> {
    let outcome = |node| {
        let (cluster, table) = open_with_table(2);
        let (has_read, reads) = mpsc::channel();
        let (has_changed, changes) = mpsc::channel();
        // The closure blocks worker 0; the other transaction runs on worker 1.
        let completion = cluster.spawn(WorkerId { node, worker: 0 }, move |coordinator| {
            coordinator.run(|tx| {
                let number = |value: &[u8]| u64::from_le_bytes(value.try_into().unwrap());
                let first = tx.get(table, 0)?.map(number).unwrap();
                has_read.send(first).unwrap();
                if first == 0 {
                    changes.recv().unwrap();
                }
                let last = tx.get(table, 0)?.map(number).unwrap();
                end(first, last)
            })
        });
        assert_eq!(reads.recv(), Ok(0));
        let change = cluster.spawn(WorkerId { node, worker: 1 }, move |coordinator| {
            coordinator.run(|tx| {
                let row = tx.add_to_write_set(table, 0, LockMode::Update);
                tx.execute()?;
                tx.put(row, &5_u64.to_le_bytes())
            })
        });
        assert_eq!(change.unwrap().wait().unwrap(), Outcome::Committed(()));
        has_changed.send(()).unwrap();
        let outcome = completion.unwrap().wait().unwrap();
        assert_eq!(reads.iter().collect::<Vec<_>>(), [5], "it ran once more");
        outcome
    };
    (0..3).map(outcome).collect()
}

#[test]
fn an_error_of_a_doomed_closure_is_retried_and_not_reported() {
    // The failure depends on an outdated value.
    let outcomes = overtaken(|first, _| if first == 0 { Err(Abort::Requested) } else { Ok(first) });
    assert_eq!(outcomes, [5; 3].map(Outcome::Committed));
}

#[test]
fn reads_that_disagree_do_not_commit() {
    let outcomes = overtaken(|first, last| Ok(10 * first + last));
    assert_eq!(outcomes, [55; 3].map(Outcome::Committed));
}

#[test]
fn a_table_that_fills_up_refuses_inserts_and_goes_on_otherwise() {
    let cluster = open(2_300_000);
    let table = cluster.create_table("small", 256, 1).unwrap();
    let mut inserted = 0_u64;
    let full = loop {
        let outcome = cluster.run(move |tx| tx.insert(table, inserted, &[1; 256])).unwrap();
        match outcome {
            Outcome::Committed(()) => inserted += 1,
            other => break other,
        }
    };
    assert!(matches!(full, Outcome::Failed(Abort::Failure(Failure::TableFull { .. }))), "{full:?}");
    assert!(inserted > 1000, "{inserted}");
    assert_sound(&cluster);
    let deleted = cluster.run(move |tx| {
        let row = tx.add_to_write_set(table, 0, LockMode::Delete);
        tx.execute()?;
        Ok::<_, Abort>(tx.value(row).is_some())
    });
    assert_eq!(deleted.unwrap(), Outcome::Committed(true));
    assert_sound(&cluster);
}

#[test]
fn large_values_and_large_transactions() {
    let cluster = open(512 << 20);
    assert!(cluster.create_table("too large", 4097, 1).is_err());
    let table = cluster.create_table("large", 4096, 100).unwrap();
    let written = cluster.run(move |tx| tx.insert(table, 1, &[3; 4096]));
    assert_eq!(written.unwrap(), Outcome::Committed(()));
    let three = cluster.run(move |tx| (2..5).try_for_each(|key| tx.insert(table, key, &[3; 4096])));
    assert_eq!(three.unwrap(), Outcome::Committed(()));
    // Many reads and locks in one batch.
    let many = cluster.run(move |tx| {
        let rows: Vec<_> = (0..200).map(|key| tx.add_to_read_set(table, key)).collect();
        tx.execute()?;
        Ok::<_, Abort>(rows.iter().filter(|&&row| tx.value(row) == Some(&[3; 4096])).count())
    });
    assert_eq!(many.unwrap(), Outcome::Committed(4));
    // A commit record of several packets.
    let large =
        cluster.run(move |tx| (10..20).try_for_each(|key| tx.insert(table, key, &[4; 4096])));
    assert_eq!(large.unwrap(), Outcome::Committed(()));
    assert_sound(&cluster);
    // A transaction in many parts, and one that is too large.
    let insert = |keys: Range<u64>| {
        cluster.run(move |tx| {
            let mode = LockMode::Insert;
            let rows: Vec<_> =
                keys.clone().map(|key| tx.add_to_write_set(table, key, mode)).collect();
            tx.execute()?;
            rows.into_iter().try_for_each(|row| tx.put(row, &[5; 4096]))
        })
    };
    assert_eq!(insert(10_000..12_000).unwrap(), Outcome::Committed(()));
    assert_sound(&cluster);
    let too_much = insert(20_000..36_400).unwrap();
    assert!(
        matches!(too_much, Outcome::Aborted(Abort::Misuse(Misuse::TooLarge { .. }))),
        "{too_much:?}"
    );
    assert_sound(&cluster);
    let many_locks = cluster.run(move |tx| {
        let mode = LockMode::Insert;
        let rows: Vec<_> = (100..400).map(|key| tx.add_to_write_set(table, key, mode)).collect();
        tx.execute()?;
        Ok::<_, Abort>(rows.iter().filter(|&&row| tx.value(row).is_none()).count())
    });
    assert_eq!(many_locks.unwrap(), Outcome::Committed(300));
    assert_sound(&cluster);
}

#[test]
fn options_out_of_range_are_refused_with_what_is_allowed() {
    let refused = |change: fn(&mut ClusterOptions)| {
        let mut options = ClusterOptions { threads: 1, ..ClusterOptions::default() };
        options.memory_limit_bytes = Some(1 << 20);
        change(&mut options);
        let error = Cluster::open(options).err().expect("an option out of range");
        assert!(matches!(error, ClusterError::Option { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(|options| options.nodes = 0).contains("1 to 1024"));
    assert!(refused(|options| options.replicas = 4).contains("1 to 3, a copy per node"));
    assert!(refused(|options| options.replicas = 0).contains("1 to 3"));
    assert!(refused(|options| options.threads = 0).contains("1 to 256"));
    assert!(refused(|options| options.coroutines = 1000).contains("1 to 255"));
    assert!(refused(|options| options.partitions = 3).contains("power of two"));
    assert!(refused(|options| options.queued_jobs_max = 0).contains("1 to"));
    let huge = ClusterOptions { memory_limit_bytes: Some(1 << 60), ..ClusterOptions::default() };
    let error = Cluster::open(huge).err().expect("no host has so much memory");
    assert!(matches!(error, ClusterError::Memory { .. }), "{error}");
    assert!(error.to_string().contains("for 3 nodes of one host is too much"), "{error}");
}

#[test]
fn tables_have_distinct_names_and_must_fit() {
    let cluster = open(8 << 20);
    let first = cluster.create_table("one", 8, 10).unwrap();
    assert!(matches!(
        cluster.create_table("one", 8, 10),
        Err(ClusterError::Change(ChangeError::TableExists(_)))
    ));
    assert_eq!(cluster.table("one"), Some(first));
    assert_eq!(cluster.table("two"), None);
    let error = cluster.create_table("huge", 4096, 1_000_000).unwrap_err().to_string();
    assert!(error.contains("raise the memory limit"), "{error}");
    // The refused table has left nothing behind.
    assert!(cluster.create_table("two", 8, 10).is_ok());
}

#[test]
fn full_queues_are_busy() {
    let options = ClusterOptions {
        threads: 1,
        coroutines: 1,
        queued_jobs_max: 2,
        memory_limit_bytes: Some(8 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_table("t", 8, 10).unwrap();
    let release = Arc::new(AtomicU32::new(0));
    let mut completions = Vec::new();
    let busy = loop {
        let release = Arc::clone(&release);
        let job = cluster.submit(move |tx| {
            while release.load(Ordering::SeqCst) == 0 {
                tx.get(table, 1)?;
            }
            Ok::<_, Abort>(())
        });
        match job {
            Ok(completion) => completions.push(completion),
            Err(error) => break error,
        }
        assert!(completions.len() < 20, "the queues have no bound");
    };
    assert!(matches!(busy, ClusterError::Busy));
    release.store(1, Ordering::SeqCst);
    for completion in completions {
        assert_eq!(completion.wait().unwrap(), Outcome::Committed(()));
    }
}

#[test]
fn two_clusters_in_one_process_do_not_meet() {
    let (first, table) = open_with_table(1);
    let (second, _) = open_with_table(1);
    let written = first.run(move |tx| {
        let row = tx.add_to_write_set(table, 0, LockMode::Update);
        tx.execute()?;
        tx.put(row, &9_u64.to_le_bytes())
    });
    assert_eq!(written.unwrap(), Outcome::Committed(()));
    assert_eq!((read(&first, table, 0), read(&second, table, 0)), (Some(9), Some(0)));
    first.close();
    assert_eq!(read(&second, table, 0), Some(0));
}

#[test]
fn a_job_runs_at_its_preferred_node_while_that_has_room() {
    let options = ClusterOptions { coroutines: 1, queued_jobs_max: 1, ..ClusterOptions::default() };
    let cluster = Cluster::open(options).unwrap();
    let nodes: BTreeSet<u16> = (0..100_u32)
        .map(|number| {
            let home = cluster.configuration().primary_of_row(&number.to_le_bytes());
            let node = cluster.spawn_near(home, |coordinator| coordinator.node()).unwrap().wait();
            assert_eq!(node, Ok(home));
            home
        })
        .collect();
    assert_eq!(nodes, BTreeSet::from([0, 1, 2]));
    assert!(cluster.spawn_near(7, |coordinator| coordinator.node()).unwrap().wait().unwrap() < 3);
    // Each worker has room for a running job and a waiting one.
    let go_on = Arc::new(AtomicBool::new(false));
    let jobs: Vec<_> = (0..=2 * cluster.options().threads)
        .map(|_| {
            loop {
                let go_on = Arc::clone(&go_on);
                let job = cluster.spawn_near(0, move |coordinator| {
                    while !go_on.load(Ordering::SeqCst) {
                        coordinator.back_off(1);
                    }
                    coordinator.node()
                });
                match job {
                    Ok(job) => break job,
                    Err(error) => assert!(matches!(error, ClusterError::Busy)),
                }
            }
        })
        .collect();
    go_on.store(true, Ordering::SeqCst);
    let nodes: BTreeSet<u16> = jobs.into_iter().map(|job| job.wait().unwrap()).collect();
    assert!(nodes.contains(&0) && nodes.len() > 1, "{nodes:?}");
    cluster.close();
}

#[test]
fn many_threads_and_futures_share_a_cluster() {
    let (cluster, table) = open_with_table(10);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for step in 0..200_u64 {
                    let outcome = cluster
                        .run(move |tx| {
                            let row = tx.add_to_write_set(table, step % 10, LockMode::Update);
                            tx.execute()?;
                            let value = tx.value_mut(row)?;
                            let raised = u64::from_le_bytes((&*value).try_into().unwrap()) + 1;
                            value.copy_from_slice(&raised.to_le_bytes());
                            Ok::<_, Abort>(())
                        })
                        .unwrap();
                    assert_eq!(outcome, Outcome::Committed(()));
                }
            });
        }
    });
    let sum: u64 = (0..10).filter_map(|key| read(&cluster, table, key)).sum();
    assert_eq!(sum, 45 + 800);
    assert_sound(&cluster);
}

/// Numbers from `first` on whose rows lie in one bucket of the table.
fn keys_of_one_bucket(cluster: &Cluster, table: TableId, first: u64) -> impl Iterator<Item = u64> {
    let view = cluster.view();
    let bucket_of = move |key| {
        let location = view.table(table.number()).unwrap().locate(key);
        (location.partition, location.root)
    };
    let bucket = bucket_of(first);
    (first..).filter(move |&key| bucket_of(key) == bucket)
}

/// Inserts rows of eight bytes, all in one transaction.
fn insert_all(cluster: &Cluster, table: TableId, keys: Vec<u64>) -> Outcome<(), Abort> {
    let outcome = cluster.run(move |tx| {
        let insert = |key: &u64| tx.add_to_write_set(table, *key, LockMode::Insert);
        let rows: Vec<_> = keys.iter().map(insert).collect();
        tx.execute()?;
        rows.into_iter().try_for_each(|row| tx.put(row, &[7; 8]))
    });
    outcome.unwrap()
}

#[test]
fn a_transaction_inserts_more_rows_into_a_bucket_than_a_byte_counts() {
    let (cluster, table) = open_with_table(0);
    let keys: Vec<_> = keys_of_one_bucket(&cluster, table, 0).take(700).collect();
    // An abort releases the reserved space.
    let kept = keys.clone();
    let aborted = cluster.run(move |tx| {
        for &key in &kept[..600] {
            tx.add_to_write_set(table, key, LockMode::Insert);
        }
        tx.execute()?;
        Err::<(), _>(Abort::Requested)
    });
    assert_eq!(aborted.unwrap(), Outcome::Failed(Abort::Requested));
    assert_sound(&cluster);
    for some in [&keys[..255], &keys[255..511], &keys[511..]] {
        assert_eq!(insert_all(&cluster, table, some.to_vec()), Outcome::Committed(()));
    }
    assert!(keys.iter().all(|&key| read(&cluster, table, key) == Some(0x0707_0707_0707_0707)));
    assert_sound(&cluster);
}

#[test]
fn keys_that_were_chosen_to_fall_together_are_spread() {
    let placed = |partitioning: Partitioning, key: &[u8]| {
        let location = partitioning.locate(partitioning.seed().hash(key), 8);
        (location.partition, location.root)
    };
    let known = Partitioning::new(16).unwrap();
    let keys = (0_u64..).map(u64::to_be_bytes).filter(|key| placed(known, key) == (3, 5));
    let chosen: Vec<_> = keys.take(256).collect();
    let clusters = [(); 2].map(|()| open(16 << 20));
    let partitionings = clusters.each_ref().map(|cluster| cluster.configuration().partitioning);
    assert!(partitionings[0] != partitionings[1], "each cluster has a secret of its own");
    for partitioning in partitionings {
        let mut counts = BTreeMap::new();
        chosen.iter().for_each(|key| *counts.entry(placed(partitioning, key)).or_insert(0) += 1);
        // 2 expected in each of 128 places.
        let most = counts.into_values().max().unwrap();
        assert!(most < 16, "{most} of {} in one place", chosen.len());
    }
}

#[cfg(feature = "mutants")]
#[test]
fn two_keys_with_one_hash_are_two_rows_of_a_transaction() {
    let cluster = open(16 << 20);
    let table = cluster.create_ordered_table("t", 100).unwrap();
    let [a, b] = cluster.configuration().partitioning.seed().keys_with_one_hash(29);
    let write = |changes: [Change<'static>; 2]| {
        let outcome = cluster.run(move |tx| {
            tx.add_row_to_write_set(table, &a, changes[0]);
            tx.add_row_to_write_set(table, &b, changes[1]);
            tx.execute()
        });
        assert_eq!(outcome.unwrap(), Outcome::Committed(()));
        assert_sound(&cluster);
        let values = cluster.run(move |tx| {
            let rows = [&a, &b].map(|key| tx.add_to_read_set(table, key));
            tx.execute()?;
            Ok::<_, Abort>(rows.map(|row| tx.value(row).map(<[u8]>::to_vec)))
        });
        values.unwrap().committed()
    };
    let (short, long) = (&[1; 5][..], &[2; 900][..]);
    let inserted = write([Change::Insert(short), Change::Insert(long)]);
    assert_eq!(inserted, [Some(short.to_vec()), Some(long.to_vec())]);
    let swapped = write([Change::Update(long), Change::Update(short)]);
    assert_eq!(swapped, [Some(long.to_vec()), Some(short.to_vec())]);
    assert_eq!(write([Change::Delete, Change::Update(long)]), [None, Some(long.to_vec())]);
    // Adding a key twice is refused as before.
    let twice = cluster.run(move |tx| {
        tx.add_row_to_write_set(table, &b, Change::Update(&[]));
        tx.add_row_to_write_set(table, &b, Change::Delete);
        Ok::<_, Abort>(())
    });
    // The error names the key by its bytes.
    let (table, key, problem) = (table.number(), RowKey::from(&b[..]), RowProblem::AddedTwice);
    let expected = Abort::Misuse(Misuse::Row { table, key, problem });
    assert_eq!(twice.unwrap(), Outcome::Aborted(expected));
    assert_sound(&cluster);
}

/// Panics on request, as only a bug would.
#[derive(Default)]
struct Faulty(AtomicBool);

impl LogObserver for Faulty {
    fn stored(&self, _record: &[u8]) {
        assert!(!self.0.load(Ordering::Relaxed), "a planted bug");
    }
}

#[test]
fn a_cluster_whose_worker_dies_halts_and_says_why() {
    for replicas in [1, 3] {
        let (faulty, told) = (Arc::new(Faulty::default()), Arc::new(Mutex::new(Vec::new())));
        let tell = Arc::clone(&told);
        let cluster = Cluster::open(ClusterOptions {
            threads: 2,
            replicas,
            memory_limit_bytes: Some(16 << 20),
            log_observer: Some(Arc::clone(&faulty) as Arc<dyn LogObserver>),
            on_failure: Some(Arc::new(move |why| tell.lock().unwrap().push(why.to_owned()))),
            ..ClusterOptions::default()
        });
        let cluster = cluster.unwrap();
        let table = cluster.create_table("t", 8, 100).unwrap();
        let insert = |key| cluster.run(move |tx| tx.insert(table, key, &[1; 8]));
        assert_eq!(insert(1).unwrap(), Outcome::Committed(()));
        assert_eq!(cluster.halted(), None);
        faulty.0.store(true, Ordering::Relaxed);
        // Jobs in progress, later jobs, and jobs that wait for another worker all end with the reason.
        for key in 2..20 {
            let error = insert(key).unwrap_err();
            assert!(error.to_string().contains("a planted bug"), "{error}");
        }
        assert!(cluster.halted().unwrap().contains("a planted bug"));
        drop(cluster);
        let told = told.lock().unwrap();
        assert!(matches!(&told[..], [why] if why.contains("a planted bug")), "{told:?}");
    }
}
