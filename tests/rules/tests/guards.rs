//! A guard removes a rule, or injects a fault, until the guard is dropped.
#![cfg(feature = "mutants")]

mod rules {
    gannet_rules::rules! {
        /// One rule.
        ONE,
        /// Another rule.
        OTHER,
    }
}

mod faults {
    gannet_rules::faults! {
        /// A fault.
        LOSE,
    }
}

use gannet_rules::{fault, rule};

#[test]
fn a_guard_removes_its_rule_alone() {
    assert!(rule!(ONE) && rule!(OTHER));
    let mutant = rules::ONE.remove();
    assert!(!rule!(ONE) && rule!(OTHER));
    drop(mutant);
    assert!(rule!(ONE) && rule!(OTHER));
    assert_eq!(rules::ALL.iter().map(|rule| rule.name()).collect::<Vec<_>>(), ["ONE", "OTHER"]);
}

#[test]
fn a_guard_injects_its_fault() {
    assert!(!fault!(LOSE));
    let mutant = faults::LOSE.inject();
    assert!(fault!(LOSE));
    drop(mutant);
    assert!(!fault!(LOSE));
    assert_eq!(faults::ALL.iter().map(|fault| fault.name()).collect::<Vec<_>>(), ["LOSE"]);
}
