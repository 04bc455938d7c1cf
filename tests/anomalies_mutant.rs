//! That the scripts of anomalies notice when a rule is removed: each names the rules that it depends on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod anomalies {
    pub(crate) mod embedded;
    pub(crate) mod transcript;
}

use anomalies::embedded::run;
use anomalies::transcript::Script;
use gannet_engine::mutant::{Mutant, activate};

/// The rules that a script names.
fn mutants(script: &Script) -> Vec<Mutant> {
    let names = script.text.lines().filter_map(|line| line.strip_prefix("# mutant: "));
    let find = |name: &str| {
        let known = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name);
        known.unwrap_or_else(|| panic!("{}: no mutant {name}", script.name))
    };
    names.map(find).collect()
}

// One test: a mutant is switched for the whole process.
#[test]
fn every_script_notices_its_mutants() {
    for script in Script::all() {
        let mutants = mutants(&script);
        assert!(!mutants.is_empty(), "{} names no mutant", script.name);
        for mutant in mutants {
            activate(mutant);
            let (transcript, wrong) = run(&script);
            activate(Mutant::None);
            assert!(
                transcript != script.text || !wrong.is_empty(),
                "{mutant:?} survives {}",
                script.name
            );
            println!("{mutant:?}: {} differs", script.name);
        }
    }
}
