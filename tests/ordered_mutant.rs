//! That `tests/ordered.rs` notices when the leaves that a scan has touched are not validated.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod ordered {
    pub(crate) mod groups;
    pub(crate) mod rows;
}

use gannet_engine::mutant::{Mutant, activate};
use ordered::groups::{GROUP_ROWS_MAX, largest_group};

// One test: a mutant is switched for the whole process.
#[test]
fn unvalidated_leaves_let_ranges_overflow() {
    activate(Mutant::SkipLeafValidation);
    let largest = largest_group(2);
    activate(Mutant::None);
    assert!(largest > GROUP_ROWS_MAX, "SkipLeafValidation survives");
    println!("SkipLeafValidation: a group of {largest} rows, of {GROUP_ROWS_MAX} at most");
}
