//! `--mutant`: removes a rule of the protocol, to see that a check notices. Only in builds with the feature `mutants`.

use gannet_engine::{mutant, rpc_mutant};

/// There is no such rule.
#[derive(Debug, thiserror::Error)]
#[error("there is no rule named {0} to remove; see gannet_storage::mutant::Mutant")]
pub(crate) struct NoSuchMutant(String);

/// Switches the mutant of that name on.
pub(crate) fn remove_rule(name: &str) -> Result<(), NoSuchMutant> {
    let is_named = |mutant: &dyn std::fmt::Debug| format!("{mutant:?}") == name;
    if let Some(mutant) = mutant::Mutant::ALL.into_iter().find(|mutant| is_named(mutant)) {
        mutant::activate(mutant);
    } else if let Some(mutant) = rpc_mutant::Mutant::ALL.into_iter().find(|one| is_named(one)) {
        rpc_mutant::activate(mutant);
    } else {
        return Err(NoSuchMutant(name.to_owned()));
    }
    Ok(())
}
