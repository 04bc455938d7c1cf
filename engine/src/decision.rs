//! Decisions: changes of the configuration in the order in which they were made, as the manager's log has them.
//!
//! *Invariants*: a decision changes the version that it names, and no other (compare-and-set), in the term of its decider. Of one proposal at
//! most one decision is made.
//!
//! *Not here*: the log, in crate `manager`; a cluster whose members are all in one process has none, and makes decisions at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use gannet_manager::StateMachine;
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

impl Decision {
    /// What an encoded decision would make of a member, taken by the log in this term, if it would.
    pub(crate) fn standing_of(term: u64, bytes: &[u8]) -> Option<(u16, Standing)> {
        postcard::from_bytes::<Self>(bytes).ok()?.standing_in(term)
    }

    /// What the decision makes of a member if the log takes it in this term. In another one it is none.
    pub(crate) fn standing_in(&self, term: u64) -> Option<(u16, Standing)> {
        let standing = match &self.change {
            Change::Revoke(node) | Change::Lose(node) | Change::Part(node) => {
                (*node, Standing::Removed)
            }
            Change::Join { node, entry } => (*node, Standing::Member(entry.incarnation)),
            _ => return None,
        };
        (self.term == term).then_some(standing)
    }

    /// The member that the decision removes, if it does.
    pub(crate) fn removal(&self) -> Option<u16> {
        match self.change {
            Change::Revoke(node) | Change::Lose(node) => Some(node),
            _ => None,
        }
    }
}

/// What a decision makes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is no member.
    Removed,
    /// This incarnation is a member, and no other.
    Member(u32),
}

/// All that is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        if let Change::Join { node, .. } = &decision.change {
            // Another process, which counts its proposals from the beginning.
            self.made.remove(&usize::from(*node));
        }
        if let Some((node, number)) = decision.proposer {
            self.made.insert(node, number);
        }
        Ok(())
    }

    /// What is decided according to a snapshot of the log.
    ///
    /// # Errors
    /// The snapshot is none.
    pub(crate) fn from_snapshot(snapshot: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(snapshot)
    }

    /// Whether this proposal was made. A member proposes one change after the other.
    pub(crate) fn has_made(&self, (node, number): (usize, u64)) -> bool {
        self.made.get(&node).is_some_and(|made| *made >= number)
    }
}

/// As the log's snapshots have it: all nodes begin with the first configuration, and make the same decisions.
impl StateMachine for Decided {
    fn apply(&mut self, term: u64, decision: &[u8]) {
        // One that is damaged, or comes too late, is none at any node.
        if let Ok(decision) = postcard::from_bytes(decision) {
            let _ = self.make(term, &decision);
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("all lists of a configuration know their lengths")
    }

    fn install(&mut self, snapshot: &[u8]) -> Result<(), String> {
        *self = Self::from_snapshot(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gannet_storage::{HashSeed, Partitioning, TableDefinition, TableKind};

    use super::*;
    use crate::configuration::MemberEntry;

    fn create(version: u64, name: &str, number: u64) -> Vec<u8> {
        let name = name.to_owned();
        let table = TableDefinition {
            name,
            kind: TableKind::Fixed,
            value_bytes: 8,
            rows: 9,
            is_system: false,
        };
        let (proposer, change) = (Some((1, number)), Change::Create(table));
        postcard::to_stdvec(&Decision { term: 3, version, proposer, change }).unwrap()
    }

    #[test]
    fn a_snapshot_in_the_middle_changes_nothing() {
        let members = ["a", "b"].map(|ports| MemberEntry {
            incarnation: 5,
            memory_limit_bytes: 1 << 20,
            ports: ports.to_owned(),
            keeps_log: true,
            address: Some(([10, 0, 0, 1], 7_000).into()),
            zone: "rack 1".to_owned(),
        });
        let first = Configuration::new(7, 2, 2, Partitioning::new(4).unwrap()).unformed();
        let first =
            first.after(&Change::Form { members: members.into(), seed: HashSeed::ZERO }).unwrap();
        let mut whole = Decided::new(Arc::new(first));
        let mut other = Decided::new(Arc::new(Configuration::clone(&whole.configuration)));
        let version = whole.configuration.version;
        let steps = [
            (3, create(version, "one", 1)),
            (3, create(version, "late", 2)),
            (4, create(version + 1, "of another decider", 3)),
            (3, vec![0xFF]),
            (3, create(version + 1, "two", 4)),
        ];
        for (term, decision) in &steps {
            whole.apply(*term, decision);
            // The other forgets all but the snapshot at each step.
            other.apply(*term, decision);
            let snapshot = other.snapshot();
            other = Decided::from_snapshot(&snapshot).unwrap();
        }
        assert_eq!(other, whole);
        assert_eq!(whole.configuration.version, version + 2);
        assert!(whole.has_made((1, 4)) && !whole.has_made((0, 1)));
        assert!(other.install(&[1]).is_err());
    }
}
