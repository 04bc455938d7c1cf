//! Each rule of the commit protocol, removed: the oracles of the simulated cluster must notice.
//!
//! | removed | noticed by |
//! |---|---|
//! | read validation | unequal twins in a validated read |
//! | UNLOCK on abort | a lock held at the end |
//! | C5, backups before primaries | an update missing at a backup, copies that differ |
//! | refusing reads of a locked bucket | a number that falls between two reads |
//! | one copy's update | copies that differ |
//! | the version restored on abort | copies that differ in their versions |
//!
//! C1, the sequence check and the workloads' own checks: `tests/mutants.rs` of the root package and
//! `storage/tests/`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod simulated;

use gannet_engine::mutant::{Mutant, activate};
use simulated::Faults;
use simulated::twins::run;

const SEEDS_MAX: u64 = 200;

// One test: a mutant is switched for the whole process.
#[test]
fn every_mutant_is_noticed() {
    let faults = Faults { lost: 2, doubled: 2, corrupted: 0, delay_ns_max: 50_000 };
    for (mutant, symptom) in [
        (Mutant::SkipValidation, "unequal twins"),
        (Mutant::SkipUnlock, "locked"),
        (Mutant::PrimaryBeforeBackup, "missing at a backup"),
        (Mutant::ReadLocked, "a number fall"),
        (Mutant::DropBackupUpdate, "differ"),
        (Mutant::AbortBumpsVersion, "differ"),
    ] {
        activate(mutant);
        let killed = (0..SEEDS_MAX).find(|&seed| {
            run(seed, faults).violations.iter().any(|violation| violation.contains(symptom))
        });
        activate(Mutant::None);
        let seeds = killed.unwrap_or_else(|| panic!("{mutant:?} survives {SEEDS_MAX} seeds")) + 1;
        println!("{mutant:?}: killed by {symptom:?} within {seeds} seeds");
    }
    let found = run(0, faults);
    assert_eq!(found.violations, [""; 0], "with all rules in place");
    assert!(found.commits > 0 && found.corrupt == 0, "the run did something");
    assert!(found.struck[0] > 0 && found.retransmitted > 0 && found.duplicates > 0);
}
