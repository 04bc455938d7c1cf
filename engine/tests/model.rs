//! The commit protocol and the flush at a membership change, explored exhaustively.
//!
//! Small configurations: three nodes with one or two workers, two copies, two or three transactions. Requests are delayed
//! without bound or lost; one node crashes, or is removed although it lives. With every rule, the properties hold in every
//! state. Each removed rule gives a counterexample.
//!
//! Smaller models cover what is independent of the rest, each with its own rules and with tests that remove them:
//! `model/lease.rs` has leases by clocks that drift, `model/slots.rs` log slots over several epochs, `model/rpc.rs` RPC slots,
//! `model/rows.rs` conflicts by row, `model/leaves.rs` the ordered index of replicas, `model/folds.rs` folds beside splits,
//! `model/moving.rs` copies that move, and `model/hand_over.rs` partitions that get another primary. `model/check.rs` explores these.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model {
    pub(crate) mod check;
    pub(crate) mod flush;
    mod folds;
    mod hand_over;
    pub(crate) mod history;
    mod lease;
    mod leaves;
    mod moving;
    pub(crate) mod protocol;
    mod rows;
    mod rpc;
    mod slots;

    /// The rules of `docs/protocol.md`; each may be removed.
    #[derive(Clone, Copy, Debug)]
    #[allow(clippy::struct_excessive_bools, reason = "each rule is there or not")]
    pub(crate) struct Rules {
        /// C1: all locks are granted before the first VALIDATE is sent.
        pub(crate) c1_locks_before_validation: bool,
        /// C2: all observations of a bucket agree.
        pub(crate) c2_observations_agree: bool,
        /// C3: from the first LOG on the coordinator does not abort.
        pub(crate) c3_no_abort_after_log: bool,
        /// C4: no update before all log acknowledgements.
        pub(crate) c4_log_before_update: bool,
        /// C5: primaries only after all backups.
        pub(crate) c5_backups_before_primaries: bool,
        /// C6 and C8: the coroutine logs nothing new until all primaries acknowledged.
        pub(crate) c8_slot_is_kept: bool,
        /// A locked bucket is not read.
        pub(crate) locked_buckets_are_not_read: bool,
        /// A request runs once.
        pub(crate) rpc_slots: bool,
        /// A node has prepared when each of its workers has.
        pub(crate) every_worker_prepares: bool,
        /// Packets of an older epoch are dropped.
        pub(crate) older_epochs_are_dropped: bool,
        /// The flush commits every transaction whose record any member has.
        pub(crate) flush_takes_the_union: bool,
        /// C7: the flush's findings settle the coroutines of members.
        pub(crate) settled_by_the_flush: bool,
        /// The new epoch opens only when the leases of removed nodes are over.
        pub(crate) activation_waits_for_leases: bool,
    }

    pub(crate) const ALL_RULES: Rules = Rules {
        c1_locks_before_validation: true,
        c2_observations_agree: true,
        c3_no_abort_after_log: true,
        c4_log_before_update: true,
        c5_backups_before_primaries: true,
        c8_slot_is_kept: true,
        locked_buckets_are_not_read: true,
        rpc_slots: true,
        every_worker_prepares: true,
        older_epochs_are_dropped: true,
        flush_takes_the_union: true,
        settled_by_the_flush: true,
        activation_waits_for_leases: true,
    };
}

use model::protocol::Access::{Read, Write};
use model::protocol::{Access, Plan, Protocol};
use model::{ALL_RULES, Rules};
use stateright::{Checker, Model};

fn plan(node: u8, slot: u8, rounds: &[&[(u8, Access)]]) -> Plan {
    Plan { node, worker: 0, slot, rounds: rounds.iter().map(|round| round.to_vec()).collect() }
}

/// Each transaction reads a bucket that the other writes, and locks in a later round.
fn skew() -> Vec<Plan> {
    vec![plan(0, 0, &[&[(0, Read)], &[(1, Write)]]), plan(1, 0, &[&[(1, Read)], &[(0, Write)]])]
}

/// Two keys of one bucket, one read before the other is locked, and another writer of the bucket.
fn two_keys() -> Vec<Plan> {
    vec![plan(2, 0, &[&[(0, Read)], &[(0, Write)]]), plan(1, 0, &[&[(0, Write)]])]
}

/// A writer of two buckets, and single reads of them one after the other.
fn reads() -> Vec<Plan> {
    vec![
        plan(0, 0, &[&[(0, Write), (1, Write)]]),
        plan(2, 0, &[&[(0, Read)]]),
        plan(2, 0, &[&[(1, Read)]]),
    ]
}

/// A writer of two buckets, whose coroutine writes again.
fn slot_reuse() -> Vec<Plan> {
    vec![plan(0, 0, &[&[(0, Write), (1, Write)]]), plan(0, 0, &[&[(2, Write)]])]
}

/// A writer of two buckets, and a reader of one at any time.
fn writer_and_reader() -> Vec<Plan> {
    vec![plan(0, 0, &[&[(0, Write), (1, Write)]]), plan(1, 0, &[&[(1, Read)]])]
}

/// A writer of one bucket, and a reader of it on its primary.
fn stale_reader() -> Vec<Plan> {
    vec![plan(1, 0, &[&[(0, Write)]]), plan(0, 0, &[&[(0, Read)]])]
}

/// A writer of two buckets, a transaction that reads one and writes the other, and a reader of both.
fn three() -> Vec<Plan> {
    vec![
        plan(0, 0, &[&[(0, Write), (1, Write)]]),
        plan(1, 0, &[&[(1, Read)], &[(0, Write)]]),
        plan(0, 1, &[&[(0, Read), (1, Read)]]),
    ]
}

/// Two writers of a bucket, by different workers of a node.
fn two_workers() -> Vec<Plan> {
    let second = Plan { worker: 1, ..plan(0, 0, &[&[(0, Write), (1, Write)]]) };
    vec![plan(0, 0, &[&[(0, Write)]]), second]
}

struct Explored {
    states: usize,
    counterexample: Option<String>,
}

fn explore(plans: Vec<Plan>, rules: Rules, failing: &[u8]) -> Explored {
    let model = Protocol { plans, rules, failing: failing.to_vec() };
    let checker = model.checker().threads(2).spawn_bfs().join();
    let counterexample = checker.discovery("history").map(|path| {
        let state = path.last_state().clone();
        let steps = path.into_actions().len();
        let wrong = model::history::violations(checker.model(), &state);
        format!("{steps} steps: {}", wrong.join("; "))
    });
    if counterexample.is_none() {
        assert!(checker.discovery("all end").is_some(), "the model gets somewhere");
        assert!(checker.discovery("all commit").is_some(), "transactions commit in the model");
    }
    Explored { states: checker.unique_state_count(), counterexample }
}

#[test]
fn with_every_rule_nothing_goes_wrong() {
    let workloads: [(&str, Vec<Plan>); 8] = [
        ("skew", skew()),
        ("two keys", two_keys()),
        ("reads", reads()),
        ("slot reuse", slot_reuse()),
        ("writer and reader", writer_and_reader()),
        ("stale reader", stale_reader()),
        ("two workers", two_workers()),
        ("three", three()),
    ];
    for (name, plans) in workloads {
        // The largest configuration takes a minute for each node that may fail; these are alike.
        let failures: &[&[u8]] =
            if name == "three" { &[&[], &[1]] } else { &[&[], &[0], &[1], &[2]] };
        for &failing in failures {
            let found = explore(plans.clone(), ALL_RULES, failing);
            println!("{name}, failing {failing:?}: {} states", found.states);
            assert_eq!(found.counterexample, None, "{name}, failing {failing:?}");
        }
    }
}

#[test]
fn every_rule_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal, Vec<Plan>, &[u8]); 13] = [
        ("C1", |rules| rules.c1_locks_before_validation = false, skew(), &[]),
        ("C2", |rules| rules.c2_observations_agree = false, two_keys(), &[]),
        ("C3", |rules| rules.c3_no_abort_after_log = false, slot_reuse(), &[1]),
        ("C4", |rules| rules.c4_log_before_update = false, writer_and_reader(), &[0]),
        ("C5", |rules| rules.c5_backups_before_primaries = false, two_keys(), &[]),
        ("C6, C8", |rules| rules.c8_slot_is_kept = false, slot_reuse(), &[1]),
        ("locked reads", |rules| rules.locked_buckets_are_not_read = false, reads(), &[]),
        ("RPC slots", |rules| rules.rpc_slots = false, two_keys(), &[]),
        ("workers", |rules| rules.every_worker_prepares = false, two_workers(), &[2]),
        ("epochs", |rules| rules.older_epochs_are_dropped = false, writer_and_reader(), &[2]),
        ("union", |rules| rules.flush_takes_the_union = false, slot_reuse(), &[1]),
        ("C7, settling", |rules| rules.settled_by_the_flush = false, slot_reuse(), &[1]),
        ("leases", |rules| rules.activation_waits_for_leases = false, stale_reader(), &[0]),
    ];
    for (name, remove, plans, failing) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        let found = explore(plans, rules, failing);
        let example = found.counterexample;
        println!("| {name} | {} |", example.as_deref().unwrap_or("survives"));
        assert!(example.is_some(), "{name} is not needed in {} states", found.states);
    }
}
