//! The messages of changes of the configuration.
//!
//! *Invariants*: a round has a number, which has the term of its decider: a member passes over a message of an earlier
//! round. `Propose` has a number that rises with each proposal of its member, so that a proposal that is said again is
//! made once.
//!
//! *Source*: `docs/architecture.md`, "Changes of the configuration".
//!
//! *Not here*: who says what and when, in `change` and `decider`; the steps of a change of the membership, in
//! `membership_change`; other messages between members, in `members/message.rs`.

use serde::{Deserialize, Serialize};

use crate::configuration::{Change, ChangeError, Configuration, MemberEntry};
use crate::decision::Decided;
use crate::membership_change::{self, MembershipMessage};

/// A message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChangeMessage {
    /// `number` rises with each proposal of a member.
    Propose {
        number: u64,
        change: Change,
    },
    /// The sender decides from now on: what it has not answered is said again.
    Leads {
        term: u64,
    },
    /// What is decided. A member that has not come to it does so.
    Sync {
        term: u64,
        configuration: Box<Configuration>,
    },
    /// The member goes by what is decided.
    Synced {
        term: u64,
    },
    Prepare {
        round: u64,
        change: Change,
    },
    Prepared {
        round: u64,
        refusal: Option<String>,
    },
    Decide {
        round: u64,
    },
    Abandon {
        round: u64,
        reason: ChangeError,
    },
    /// To a node that comes back: all that is decided. The change makes the node a member, which it is to prepare.
    Admit {
        round: u64,
        decided: Box<Decided>,
        change: Change,
    },
    Adopted {
        round: u64,
    },
    Answer {
        number: u64,
        result: Result<(), ChangeError>,
    },
    /// A member was lost, or a node that wanted to come back.
    Lost {
        node: u16,
        incarnation: u32,
        how: Loss,
    },
    /// A node that was removed has come back to the sender as another process.
    Came {
        node: u16,
        entry: MemberEntry,
    },
    /// A step of a change of the membership.
    Membership(MembershipMessage),
    /// The member has all rows of a partition of which it is a learner since a version.
    Copied {
        partition: u16,
        since: u64,
    },
}

/// How a member was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Loss {
    /// It is suspected. It may go on, and come back.
    Silent,
    /// Its process has ended, as its host or another process in its place says.
    Gone,
    /// It has said that it leaves, and has given up its lease.
    Left,
}

/// A message and the node that it is for.
pub(crate) type Addressed = (usize, ChangeMessage);

/// A message of a change of the membership.
pub(crate) fn wrapped((to, message): membership_change::Addressed) -> Addressed {
    (to, ChangeMessage::Membership(message))
}
