//! A process that comes back without what its predecessor had stored must not be taken for that one:
//! the predecessor's promises and votes are gone.
//!
//! Two replicas run on one thread, and the test carries a request for a vote from one to the other. The test fails if a replica
//! of another incarnation answers, or if that replica still gives no answer when rule `ONE_INCARNATION` is removed.
//!
//! *Source*: `docs/protocol.md`, "Nodes that come back".
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[cfg(feature = "mutants")]
use gannet_manager::rules;
use gannet_manager::{DrivenReplica, Event, Options, ReplicaId, StateMachine};

const FIRST: ReplicaId = ReplicaId { node: 0, incarnation: 7 };
const FIRST_AGAIN: ReplicaId = ReplicaId { node: 0, incarnation: 8 };
const SECOND: ReplicaId = ReplicaId { node: 1, incarnation: 7 };

struct Nothing;

impl StateMachine for Nothing {
    fn apply(&mut self, _: u64, _: &[u8]) {}

    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    fn install(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// A replica, and what it has had carried since the last look.
fn start(id: ReplicaId, founders: &[ReplicaId]) -> (DrivenReplica, impl Fn() -> Vec<Vec<u8>>) {
    let carried = Arc::new(Mutex::new(Vec::new()));
    let options = Options {
        cluster: "gannet".to_owned(),
        id,
        founders: founders.iter().copied().collect(),
        heartbeat: Duration::from_secs(1_000),
        directory: None,
    };
    let said = Arc::clone(&carried);
    let on_event = move |event| {
        if let Event::Send { bytes, .. } = event {
            said.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
    };
    let driven = DrivenReplica::start(options, Nothing, on_event).unwrap();
    let take = move || std::mem::take(&mut *carried.lock().unwrap_or_else(PoisonError::into_inner));
    (driven, take)
}

/// How many answers a replica gives to a candidate that wants the vote of the first one.
fn answers(id: ReplicaId, founders: &[ReplicaId]) -> usize {
    let (mut candidate, carried) = start(SECOND, &[FIRST, SECOND]);
    candidate.advance(Duration::ZERO);
    let wishes = carried();
    assert!(!wishes.is_empty(), "it stands for election at its start");
    let (mut asked, answered) = start(id, founders);
    asked.advance(Duration::ZERO);
    // A founder stands for election, too.
    answered();
    wishes.into_iter().for_each(|wish| asked.replica().hear(SECOND.node, wish));
    asked.advance(Duration::ZERO);
    answered().len()
}

// A single test, because a rule is removed in the whole process.
#[test]
fn a_replica_that_comes_back_empty_votes_not_for_its_predecessor() {
    assert!(answers(FIRST, &[FIRST, SECOND]) > 0, "the one that is asked answers");
    assert_eq!(answers(FIRST_AGAIN, &[]), 0);
    #[cfg(feature = "mutants")]
    {
        let mutant = rules::ONE_INCARNATION.remove();
        let removed = answers(FIRST_AGAIN, &[]);
        drop(mutant);
        assert!(removed > 0, "without the rule it votes a second time");
    }
}
