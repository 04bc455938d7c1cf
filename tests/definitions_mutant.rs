//! Without rule `ALL_CATALOG_VERSIONS`, by which a definition writes all copies of the version, queries run on old definitions.
//! The test fails if no query does. *Not here*: the same queries with the rule (`tests/definitions.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

mod definitions {
    pub(crate) mod outdated;
}

use definitions::outdated::outdated;
use gannet_frontend::rules;

// A single test, because a rule is removed in the whole process.
#[test]
fn definitions_at_one_node_are_missed_at_others() {
    let mutant = rules::ALL_CATALOG_VERSIONS.remove();
    let outdated = outdated();
    drop(mutant);
    assert!(outdated > 0, "no query sees an old definition");
    println!("ALL_CATALOG_VERSIONS: {outdated} queries see an old definition");
}
