//! Each rule that a workload's `verify` must notice, removed. Which check catches what:
//!
//! | removed | caught by |
//! |---|---|
//! | read validation | `skew`: sums below zero |
//! | C1, locks before VALIDATE | `skew`: sums below zero |
//! | UNLOCK on abort | `smallbank`: no lock held |
//! | one copy's update | `smallbank`: replicas equal |
//! | `INSERT_CALL_FORWARDING`'s read of the facility | `tatp`: call forwardings without facility |
//! | C5, reads of a locked bucket, the version restored on abort | `tests/simulation.rs` |
//! | the sequence check of a torn read, both fences | `storage/tests/`, loom in `storage` |
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

use gannet_benchmarks::skew::Skew;
use gannet_benchmarks::{Limit, Report, Settings, Workload, run};
use gannet_engine::ClusterOptions;
use gannet_engine::mutant::{Mutant, activate};
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

fn verify(workload: impl Workload) -> Report {
    let settings = Settings {
        cluster: ClusterOptions {
            threads: 1,
            memory_limit_bytes: Some(64 << 20),
            ..ClusterOptions::default()
        },
        limit: Limit::Transactions(200_000),
        warmup: std::time::Duration::ZERO,
        seed: 1,
    };
    run(workload, &settings).unwrap()
}

fn run_workload(name: &str) -> Report {
    match name {
        "skew" => verify(Skew::new(10).unwrap()),
        "smallbank" => verify(SmallBank::new(2_000, 1).unwrap()),
        _ => verify(Tatp::new(500, false, 1).unwrap()),
    }
}

// One test: a mutant is switched for the whole process.
#[test]
fn every_mutant_fails_its_verify() {
    for (mutant, workload, check) in [
        (Mutant::SkipValidation, "skew", "below zero"),
        (Mutant::ValidateBeforeLock, "skew", "below zero"),
        (Mutant::SkipUnlock, "smallbank", "no lock held"),
        (Mutant::DropBackupUpdate, "smallbank", "replicas equal"),
        (Mutant::TatpSkipsFacility, "tatp", "without facility"),
    ] {
        activate(mutant);
        let report = run_workload(workload);
        activate(Mutant::None);
        let failed: Vec<_> = report
            .verify
            .checks
            .iter()
            .filter(|check| !check.passed)
            .map(|check| &check.name)
            .collect();
        assert!(!report.verify.passed, "{mutant:?} survives {workload}");
        assert!(failed.iter().any(|name| name.contains(check)), "{mutant:?}: {failed:?}");
        println!("{mutant:?}: {workload} fails {failed:?}");
    }
    for workload in ["skew", "smallbank", "tatp"] {
        let report = run_workload(workload);
        assert!(report.verify.passed, "{workload} with all rules in place: {}", report.to_text());
    }
}
