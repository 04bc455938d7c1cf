//! Without rule `RANGE_VALIDATION`, by which the ranges of a scan are validated, groups overflow. The
//! test fails if no group does.
//! *Not here*: the same groups with the rule (`tests/ordered.rs`), rules about single entries (`storage/tests/rows_mutant.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod ordered {
    pub(crate) mod groups;
    pub(crate) mod rows;
}

use gannet_engine::rules;
use ordered::groups::{GROUP_ROWS_MAX, largest_group};

// A single test, because a rule is removed in the whole process.
#[test]
fn unvalidated_leaves_let_ranges_overflow() {
    let mutant = rules::RANGE_VALIDATION.remove();
    let largest = largest_group(2);
    drop(mutant);
    assert!(largest > GROUP_ROWS_MAX, "no group overflows");
    println!("RANGE_VALIDATION: a group of {largest} rows, of {GROUP_ROWS_MAX} at most");
}
