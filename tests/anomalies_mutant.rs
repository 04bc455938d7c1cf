//! Every script of an anomaly changes its transcript when one of the rules that it names is removed.
//!
//! Each script runs in sessions of a cluster in this process, once for each rule. The test fails if a script names no rule, or
//! if its transcript stays the same and the copies are sound, so that the script would not notice the rule's loss.
//!
//! *Not here*: the transcripts with all rules (`tests/anomalies.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod anomalies {
    pub(crate) mod embedded;
    pub(crate) mod transcript;
}

use std::time::Duration;

use anomalies::embedded::run;
use anomalies::transcript::Script;
use gannet_rules::Rule;

/// A statement takes less than a millisecond, or meets a lock that stays. One that takes longer for another reason counts as different.
const PATIENCE: Duration = Duration::from_secs(1);

/// The rules that a script names.
fn rules(script: &Script) -> Vec<&'static Rule> {
    let names = script.text.lines().filter_map(|line| line.strip_prefix("# rule: "));
    let find = |name: &str| {
        let mut all = gannet_engine::rules::ALL.iter().chain(gannet_storage::rules::ALL);
        let known = all.find(|rule| rule.name() == name);
        *known.unwrap_or_else(|| panic!("{}: no rule {name}", script.name))
    };
    names.map(find).collect()
}

// A single test, because a rule is removed in the whole process.
#[test]
fn every_script_notices_the_removal_of_its_rules() {
    for script in Script::all() {
        let rules = rules(&script);
        assert!(!rules.is_empty(), "{} names no rule", script.name);
        for rule in rules {
            let mutant = rule.remove();
            let (transcript, wrong) = run(&script, PATIENCE);
            drop(mutant);
            let name = rule.name();
            assert!(
                transcript != script.text || !wrong.is_empty(),
                "{} passes without {name}",
                script.name
            );
            println!("{name}: {} differs", script.name);
        }
    }
}
