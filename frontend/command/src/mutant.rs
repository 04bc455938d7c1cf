//! `--mutant`, and the variable `GANNET_MUTANT` of `serve`: they remove a rule or inject a fault, to see that a check notices.
//! Only builds with the feature `mutants` have them.
//!
//! *Not here*: the rules and faults, which each crate lists in its `rules.rs` and `faults.rs`.

use gannet_rules::{Mutant, Rule};

/// The rules of all crates.
const RULES: [&[&Rule]; 6] = [
    gannet_rpc::rules::ALL,
    gannet_storage::rules::ALL,
    gannet_manager::rules::ALL,
    gannet_engine::rules::ALL,
    gannet_frontend::rules::ALL,
    gannet_tatp::rules::ALL,
];

/// No rule or fault has that name.
#[derive(Debug, thiserror::Error)]
#[error("there is no rule or fault named {0}; the crates list theirs in rules.rs and faults.rs")]
pub(crate) struct NoSuchMutant(String);

/// Removes the rule of that name, or injects the fault, until the guard is dropped.
pub(crate) fn named(name: &str) -> Result<Mutant, NoSuchMutant> {
    let rule = RULES.concat().into_iter().find(|rule| rule.name() == name);
    let fault = gannet_engine::faults::ALL.iter().find(|fault| fault.name() == name);
    let mutant = rule.map(Rule::remove).or_else(|| fault.map(|fault| fault.inject()));
    mutant.ok_or_else(|| NoSuchMutant(name.to_owned()))
}
