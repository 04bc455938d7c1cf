//! Checks a small model: with all of its rules, and without each of them.
//!
//! *Invariant*: each model has one property that always holds, and says with others what happens in it sometimes. So a model
//! that explores nothing fails.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Explores the whole model: what must always hold does, and what must happen sometimes happens.
pub(crate) fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Explores the model without a rule, until what must always hold is violated.
pub(crate) fn fails<M>(rule: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let properties = checker.model().properties();
    let safety = properties.iter().find(|property| property.expectation.discovery_is_failure());
    let counterexample = checker.discovery(safety.unwrap().name);
    let states = checker.unique_state_count();
    let steps = counterexample.map(|path| path.into_actions());
    println!("| {rule} | {steps:?} |");
    assert!(steps.is_some(), "the rule is not needed in {states} states: {rule}");
}
