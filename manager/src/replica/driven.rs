//! A replica without a thread: its owner drives it, in time of the owner's.
//!
//! *Invariants*: a replica does something only when its owner calls. Its timers see a clock that stands still between two calls of
//! [`DrivenReplica::advance`], so after a long while without one they are late, as those of a process that was stopped.
//!
//! *Not here*: disks. Raft draws its election timeouts itself, so two runs differ.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::unbounded_channel;

use super::{Event, OnEvent, Options, Replica, StartError, run};
use crate::decisions::StateMachine;
use crate::store;

/// How often tasks of the replica, which wait for each other, get their turn in one call. What is left is done in the next one.
const TURNS: usize = 64;

/// See the module's text.
pub struct DrivenReplica {
    replica: Replica,
    runtime: Runtime,
}

impl DrivenReplica {
    /// Starts a replica in memory; `on_event` is called for each event, in calls of the owner. Otherwise as [`Replica::start`].
    ///
    /// # Errors
    /// [`StartError`], if the system refuses the runtime.
    pub fn start(
        options: Options,
        state: impl StateMachine,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        Self::start_boxed(options, Box::new(state), Arc::new(on_event))
    }

    /// Of one type, so that raft is compiled in this crate alone.
    fn start_boxed(
        options: Options,
        state: Box<dyn StateMachine>,
        on_event: OnEvent,
    ) -> Result<Self, StartError> {
        let stores = store::open(None, &options.cluster, options.id, state, &on_event)?;
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let (commands, received) = unbounded_channel();
        let log_ends = stores.0.storage().log_ends();
        runtime.spawn(run(options, stores, on_event, received));
        Ok(Self { replica: Replica { commands, log_ends, thread: None }, runtime })
    }

    /// What it is told, it does when time advances, perhaps by nothing.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Lets time pass, and then the replica do what there is to do.
    pub fn advance(&mut self, by: Duration) {
        self.runtime.block_on(async {
            tokio::time::advance(by).await;
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::ReplicaId;
    use crate::fakes::All;

    fn id(node: u16) -> ReplicaId {
        ReplicaId { node, incarnation: 7 }
    }

    /// A replica of these voters, and what it has said since the last look.
    fn start(voters: &[u16]) -> (DrivenReplica, impl Fn() -> Vec<Event>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let options = Options {
            cluster: "gannet".to_owned(),
            id: id(1),
            founders: voters.iter().copied().map(id).collect(),
            heartbeat: Duration::from_secs(1_000),
            directory: None,
        };
        let events = Arc::clone(&said);
        let on_event = move |event| {
            events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        };
        let driven = DrivenReplica::start(options, All::default(), on_event).unwrap();
        let take =
            move || std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
        (driven, take)
    }

    #[test]
    fn time_passes_only_by_the_owner() {
        let (mut driven, take) = start(&[0, 1]);
        let asks = |events: &[Event]| events.iter().any(|it| matches!(it, Event::Send { .. }));
        driven.advance(Duration::ZERO);
        assert!(asks(&take()), "it stands for election at its start");
        for _ in 0..100 {
            driven.advance(Duration::ZERO);
        }
        assert!(!asks(&take()), "it has all time to wait for an answer");
        // It stands again after six heartbeats at most, and looks once in each.
        for _ in 0..10 {
            driven.advance(Duration::from_secs(1_000));
        }
        assert!(asks(&take()), "it stands again");
    }

    #[test]
    fn it_does_in_a_call_what_it_was_told_before() {
        let (mut driven, take) = start(&[1]);
        driven.advance(Duration::ZERO);
        assert!(take().iter().any(|event| matches!(event, Event::Leads { .. })));
        driven.replica().decide(b"one".to_vec());
        assert!(take().is_empty(), "nothing happens between two calls");
        driven.advance(Duration::ZERO);
        let is_made =
            |event: &Event| matches!(event, Event::Made { decision, .. } if decision == b"one");
        assert!(take().iter().any(is_made));
    }
}
