//! That `tests/definitions.rs` notices when a definition does not reach the version of every node.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod definitions {
    pub(crate) mod outdated;
}

use definitions::outdated::{DEFINITIONS, outdated};
use gannet_engine::mutant::{Mutant, activate};

// One test: a mutant is switched for the whole process.
#[test]
fn definitions_at_one_node_are_missed_at_others() {
    activate(Mutant::OneCatalogVersion);
    let outdated = outdated();
    activate(Mutant::None);
    assert!(outdated > 0, "OneCatalogVersion survives");
    println!("OneCatalogVersion: {outdated} of {DEFINITIONS} queries see an old definition");
}
