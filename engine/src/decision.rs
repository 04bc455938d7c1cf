//! Decisions: changes of the configuration in the order in which they were made, as the manager's log has them.
//!
//! *Invariants*: a decision changes the version that it names, and no other (compare-and-set), in the term of its decider. Of one proposal at
//! most one decision is made.
//!
//! *Not here*: the log, in crate `manager`; a cluster whose members are all in one process has none, and makes decisions at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::configuration::{Change, ChangeError, Configuration};

/// A change that is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Decision {
    /// Term of the decider.
    pub(crate) term: u64,
    /// Version of the configuration that it changes.
    pub(crate) version: u64,
    /// The member that has proposed it, and the number of the proposal; none of a change of the membership.
    pub(crate) proposer: Option<(usize, u64)>,
    pub(crate) change: Change,
}

/// All that is decided.
pub(crate) struct Decided {
    pub(crate) configuration: Arc<Configuration>,
    /// By node: the number of its last proposal that was made.
    made: BTreeMap<usize, u64>,
}

impl Decided {
    pub(crate) fn new(configuration: Arc<Configuration>) -> Self {
        Self { configuration, made: BTreeMap::new() }
    }

    /// Makes a decision that the log has taken in this term.
    ///
    /// # Errors
    /// Why it is none: another one came before, or another decider.
    pub(crate) fn make(&mut self, term: u64, decision: &Decision) -> Result<(), ChangeError> {
        if (decision.term, decision.version) != (term, self.configuration.version) {
            return Err(ChangeError::WrongPhase);
        }
        self.configuration = Arc::new(self.configuration.after(&decision.change)?);
        if let Some((node, number)) = decision.proposer {
            self.made.insert(node, number);
        }
        Ok(())
    }

    /// Whether this proposal was made. A member proposes one change after the other.
    pub(crate) fn has_made(&self, (node, number): (usize, u64)) -> bool {
        self.made.get(&node).is_some_and(|made| *made >= number)
    }
}
