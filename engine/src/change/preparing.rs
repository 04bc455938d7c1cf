//! What a member makes for a change before that is decided, and what becomes of it.
//!
//! ```text
//! Prepare ─▶ its part is made ─────────────────────────────────────────────▶ Prepared ─▶ decided: adopted
//!            of a hand-over nobody is served any more ─▶ lock holders end ─▶ Prepared    abandoned: given up
//!                                                        they do not in time: refused
//! ```
//! *Source*: `docs/protocol.md`, "Hand-over of primaries".
//!
//! *Not here*: what is made, in `replica`; whom a node serves, in `node/hand_over.rs`.

use std::sync::Arc;

use crate::change::Changes;
use crate::change_message::{Addressed, ChangeMessage};
use crate::configuration::{Change, Configuration};
use crate::decision::Decided;
use crate::replica::{Records, Replica};

/// Lock holders have ended in this time, in which nobody else is served at the partitions that are handed over.
const LOCK_HOLDERS_NS: u64 = 100_000_000;
/// The jobs of a node that parts have ended in this time, in which it begins no other.
const JOBS_NS: u64 = 1_000_000_000;

impl<R: Replica> Changes<R> {
    /// The answer of a node that comes back to a first `Admit`. The round may be the second one, as a member was lost in the first: no
    /// transaction of this node was under way then.
    pub(super) fn begin_again(
        &mut self,
        (from, round): (usize, u64),
        decided: Decided,
        change: &Change,
    ) -> Option<Addressed> {
        if self.is_formed() || round <= self.round {
            return None;
        }
        let is_again = self.prepared.take().is_some();
        let flushed = if is_again { self.replica.flush(&Records::new()) } else { Ok(()) };
        (self.decided, self.has_come_back) = (decided, true);
        self.end_founding();
        match flushed {
            Ok(()) => self.prepare((from, round), change),
            Err(reason) => Some((from, ChangeMessage::Prepared { round, refusal: Some(reason) })),
        }
    }

    /// The answer to a first `Prepare`, unless lock holders are waited for; a repeated one was answered.
    pub(super) fn prepare(
        &mut self,
        (from, round): (usize, u64),
        change: &Change,
    ) -> Option<Addressed> {
        if round <= self.round {
            return None;
        }
        self.round = round;
        let present =
            if self.is_formed() { &self.configuration } else { &self.decided.configuration };
        let prepared = present.after(change).map_err(|error| error.to_string());
        let prepared = prepared.and_then(|configuration| {
            let configuration = Arc::new(configuration);
            if let Change::Learn(_) = change {
                // Other changes make no share smaller.
                self.replica.check_room(&configuration)?;
            }
            let prepared = self.replica.prepare(&configuration)?;
            Ok((configuration, prepared))
        });
        let refusal = prepared.as_ref().err().cloned();
        self.prepared = prepared.ok();
        if refusal.is_some() {
            // A part of it may have been made.
            self.replica.abandon();
        }
        match change {
            Change::HandOver(_) if refusal.is_none() => self.begin_hand_over(from, LOCK_HOLDERS_NS),
            Change::Part(_) if refusal.is_none() => self.begin_hand_over(from, JOBS_NS),
            _ => Some((from, ChangeMessage::Prepared { round, refusal })),
        }
    }

    /// Begins to hand over what has another primary in the configuration that was prepared; the answer to `Prepare`, if nobody holds locks.
    fn begin_hand_over(&mut self, decider: usize, at_most_ns: u64) -> Option<Addressed> {
        let (next, _) = self.prepared.as_ref()?;
        self.replica.begin_hand_over(next);
        self.steps.hands_over(self.now_ns);
        self.handing_over = Some((decider, self.now_ns + at_most_ns));
        self.go_on_handing_over()
    }

    /// The answer to `Prepare` of a hand-over, when there are no lock holders any more, or when they have not ended in time.
    pub(super) fn go_on_handing_over(&mut self) -> Option<Addressed> {
        let (decider, until_ns) = self.handing_over?;
        let refusal = match self.replica.has_no_lock_holders() {
            true => None,
            false if self.now_ns < until_ns => return None,
            false => {
                self.replica.undo_hand_over();
                self.abandon();
                Some("transactions have not ended in time".to_owned())
            }
        };
        self.handing_over = None;
        Some((decider, ChangeMessage::Prepared { round: self.round, refusal }))
    }

    /// Goes by what was prepared last if that is decided, so that a new table keeps its memory, and gives it up if it is not.
    pub(super) fn end_preparing(&mut self, decided: &Configuration) {
        let is_decided = |prepared: &Configuration| {
            let is_earlier = prepared.version < decided.version;
            let is_like = prepared.has_tables_of(decided)
                && prepared.members == decided.members
                && decided.member_numbers().all(|node| prepared.is_member(node))
                && prepared.has_hand_overs_of(decided);
            prepared == decided || is_earlier && is_like
        };
        if self.prepared.as_ref().is_some_and(|(prepared, _)| prepared.version > decided.version) {
            self.replica.undo_hand_over();
        }
        let prepared = self.prepared.take_if(|(prepared, _)| is_decided(prepared));
        self.abandon();
        if let Some((configuration, prepared)) = prepared {
            self.replica.adopt(prepared);
            self.go_by(configuration);
        }
    }

    /// Gives up what was prepared last, if it was not adopted. A hand-over may be decided all the same.
    pub(super) fn abandon(&mut self) {
        self.handing_over = None;
        if self.prepared.take().is_some() {
            self.replica.abandon();
        }
    }
}
