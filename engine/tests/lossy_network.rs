//! Transactions stay exact over networks that lose, double, delay, reorder and corrupt packets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod simulated;

use simulated::Faults;
use simulated::twins::run;

#[test]
fn a_reordering_network_breaks_nothing() {
    for seed in 0..20 {
        let faults = Faults { lost: 0, doubled: 0, corrupted: 0, delay_ns_max: 20_000 };
        let found = run(seed, faults);
        assert_eq!(found.violations, [""; 0], "seed {seed}");
        assert!(found.commits > 50, "seed {seed}: {} commits", found.commits);
    }
}

#[test]
fn lost_doubled_and_corrupted_packets_break_nothing() {
    let mut commits = 0;
    for seed in 0..20 {
        let faults = Faults { lost: 5, doubled: 5, corrupted: 2, delay_ns_max: 20_000 };
        let found = run(seed, faults);
        assert_eq!(found.violations, [""; 0], "seed {seed}");
        assert!(
            found.struck.iter().all(|&strikes| strikes > 10),
            "seed {seed}: {:?}",
            found.struck
        );
        assert!(found.retransmitted > 10 && found.duplicates > 10, "seed {seed}");
        assert!(found.corrupt > 10, "seed {seed}: corruption went unnoticed");
        commits += found.commits;
    }
    assert!(commits > 1_000, "{commits} commits");
}

#[test]
fn a_seed_replays_the_same_run() {
    let faults = Faults { lost: 3, doubled: 3, corrupted: 1, delay_ns_max: 50_000 };
    let runs = [(); 2].map(|()| {
        let found = run(7, faults);
        (found.commits, found.struck, found.retransmitted, found.duplicates)
    });
    assert_eq!(runs[0], runs[1]);
}
