//! The model of leases: when a removed node that is still alive may answer reads.
//!
//! ```text
//! the node     sends a renewal ---> granted ---> hears of the grant       lease: LEASE ticks from the sending, by its own clock
//! its read     asked for -> data read -> clock read -> answered, if the clock reading lies in the lease
//! the manager  revocation committed -> a wait by its leader's clock -> next epoch active -> a write there is acknowledged
//! ```
//! The node never learns that it was removed. No write of the next epoch reaches its data. So an answer is stale if its read
//! was asked for after such a write had been acknowledged.
//!
//! *Abstractions*
//! - Clocks count ticks, which come in any order. The difference of the two clocks changes by `DRIFT` at most within a run of
//!   less than three leases. Where clocks begin means nothing, so the difference has any value within the bound at first. Only
//!   the drift of one clock against the other counts, so the wait has the whole margin for it.
//! - One manager grants and revokes. A majority of its replicas grants a renewal and a majority appends a revocation, so one
//!   replica does both. That replica refuses from then on, so each renewal that is granted was sent before the commit.
//!   Whatever the leader waits longer, because it hears of the commit later or was elected meanwhile, only adds to the wait.
//! - A read changes nothing, so one read at any moment stands for all. A local read is asked for and answered at once. A
//!   request is asked for earlier and its answer comes later, which are more of the same steps.
//! - A clock reading between the question and the data would do for a single read. A handler cannot know when a read was
//!   asked for: it takes a batch from a queue. Without the rule it goes by the reading of its loop.
//!
//! *Source*: Gray and Cheriton, "Leases", SOSP 1989; `docs/protocol.md`, "Membership change".
//!
//! *Not here*: the flush, which is in `flush.rs`, and writes of the removed node, which reach no member of the next epoch
//! (`rpc.rs`).

use stateright::{Model, Property};

use crate::model::check;

/// Ticks of a lease.
const LEASE: u8 = 3;
/// Ticks by which the two clocks drift apart within a run.
const DRIFT: u8 = 1;
/// The node's clock at which a run ends.
const END: u8 = 8;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The clock is read after the data.
    clock_after_data: bool,
    /// A lease counts from the sending of its renewal.
    lease_from_sending: bool,
    /// A node that is revoked gets no renewal.
    revoked_is_refused: bool,
    /// The next epoch waits until the lease is over.
    activation_waits: bool,
    /// The wait is longer than the lease, by the drift.
    wait_has_margin: bool,
}

const ALL_RULES: Rules = Rules {
    clock_after_data: true,
    lease_from_sending: true,
    revoked_is_refused: true,
    activation_waits: true,
    wait_has_margin: true,
};

/// The last renewal that was sent. One that was sent before is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Renewal {
    None,
    /// Sent at this reading of the node's clock.
    Sent(u8),
    /// Granted. The node has not heard of it.
    Granted(u8),
}

/// How far the membership change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Member,
    Revoked,
    Active,
    /// A write of the next epoch was acknowledged.
    Written,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask,
    ReadData,
    ReadClock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Answered,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Read {
    /// How many of the three steps are done.
    done: u8,
    /// The stage at which the read was asked for.
    asked_in: Stage,
    clock_reading: u8,
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    node_clock: u8,
    leader_clock: u8,
    renewal: Renewal,
    /// The first moment after the lease, by the node's clock.
    lease_end: u8,
    stage: Stage,
    /// The leader's clock when the revocation was committed.
    revoked_at: u8,
    read: Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    NodeTicks,
    LeaderTicks,
    SendRenewal,
    Grant,
    HearOfGrant,
    Revoke,
    Activate,
    Write,
    Read(Step),
    Answer,
}

struct Leases {
    rules: Rules,
}

impl Leases {
    /// The steps of a read in their order.
    fn order(&self) -> [Step; 3] {
        if self.rules.clock_after_data {
            [Step::Ask, Step::ReadData, Step::ReadClock]
        } else {
            [Step::ReadClock, Step::Ask, Step::ReadData]
        }
    }

    /// How long the next epoch waits after the commit of the revocation.
    fn wait(&self) -> u8 {
        match self.rules {
            Rules { activation_waits: false, .. } => 0,
            Rules { wait_has_margin: false, .. } => LEASE,
            _ => LEASE + DRIFT,
        }
    }

    fn renewal_actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::SendRenewal);
        match state.renewal {
            Renewal::Sent(_) if state.stage == Stage::Member || !self.rules.revoked_is_refused => {
                actions.push(Action::Grant);
            }
            Renewal::Granted(_) => actions.push(Action::HearOfGrant),
            Renewal::Sent(_) | Renewal::None => {}
        }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let read = Read { done: 0, asked_in: Stage::Member, clock_reading: 0, outcome: None };
        let state = |ahead| State {
            node_clock: ahead,
            leader_clock: 0,
            renewal: Renewal::None,
            lease_end: 0,
            stage: Stage::Member,
            revoked_at: 0,
            read,
        };
        (0..=DRIFT).map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let ahead = state.node_clock - state.leader_clock;
        if state.node_clock < END && ahead < DRIFT {
            actions.push(Action::NodeTicks);
        }
        if ahead > 0 {
            actions.push(Action::LeaderTicks);
        }
        self.renewal_actions(state, actions);
        match state.stage {
            Stage::Member => actions.push(Action::Revoke),
            Stage::Revoked if state.leader_clock - state.revoked_at >= self.wait() => {
                actions.push(Action::Activate);
            }
            Stage::Active => actions.push(Action::Write),
            Stage::Revoked | Stage::Written => {}
        }
        if state.read.outcome.is_none() {
            let next = self.order().get(usize::from(state.read.done)).copied();
            actions.push(next.map_or(Action::Answer, Action::Read));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::NodeTicks => state.node_clock += 1,
            Action::LeaderTicks => state.leader_clock += 1,
            Action::SendRenewal => state.renewal = Renewal::Sent(state.node_clock),
            Action::Grant => {
                let Renewal::Sent(sent) = state.renewal else { return None };
                state.renewal = Renewal::Granted(sent);
            }
            Action::HearOfGrant => {
                let Renewal::Granted(sent) = state.renewal else { return None };
                let from = if self.rules.lease_from_sending { sent } else { state.node_clock };
                state.lease_end = state.lease_end.max(from + LEASE);
                state.renewal = Renewal::None;
            }
            Action::Revoke => {
                state.stage = Stage::Revoked;
                state.revoked_at = state.leader_clock;
            }
            Action::Activate => {
                state.stage = Stage::Active;
                // Nothing depends on it any more.
                state.revoked_at = 0;
            }
            Action::Write => state.stage = Stage::Written,
            Action::Read(step) => {
                state.read.done += 1;
                match step {
                    Step::Ask => state.read.asked_in = state.stage,
                    // What it reads lacks the writes of the next epoch, whenever it is read.
                    Step::ReadData => {}
                    Step::ReadClock => state.read.clock_reading = state.node_clock,
                }
            }
            Action::Answer => {
                let is_in_lease = state.read.clock_reading < state.lease_end;
                let outcome = if is_in_lease { Outcome::Answered } else { Outcome::Refused };
                state.read.outcome = Some(outcome);
                state.read.clock_reading = 0;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn ended(read: Read, outcome: Outcome, asked_in: Stage) -> bool {
            read.outcome == Some(outcome) && read.asked_in == asked_in
        }
        vec![
            Property::always("no answer is stale", |_, state: &State| {
                !ended(state.read, Outcome::Answered, Stage::Written)
            }),
            Property::sometimes("a removed node answers within its lease", |_, state: &State| {
                ended(state.read, Outcome::Answered, Stage::Revoked)
            }),
            Property::sometimes("a removed node refuses after its lease", |_, state: &State| {
                ended(state.read, Outcome::Refused, Stage::Written)
            }),
        ]
    }
}

#[test]
fn a_removed_node_answers_nothing_stale() {
    check::holds("leases", Leases { rules: ALL_RULES });
}

#[test]
fn every_rule_of_leases_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 5] = [
        ("the clock is read after the data", |rules| rules.clock_after_data = false),
        ("a lease counts from the sending", |rules| rules.lease_from_sending = false),
        ("a revoked node gets no renewal", |rules| rules.revoked_is_refused = false),
        ("the next epoch waits", |rules| rules.activation_waits = false),
        ("the wait has a margin", |rules| rules.wait_has_margin = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Leases { rules });
    }
}
