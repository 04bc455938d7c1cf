//! What members propose, and operators through them.
//!
//! *Invariant*: a proposal that is not possible, or was made before, is answered at once.

use crate::change_message::ChangeMessage;
use crate::configuration::{Change, ChangeError};
use crate::decider::Decider;
use crate::decision::Decided;

impl Decider {
    /// Begins the round of a proposal, unless it is not possible, or was made before.
    pub(super) fn begin_proposal(
        &mut self,
        proposer: (usize, u64),
        change: Change,
        decided: &Decided,
    ) {
        if self.is_possible(proposer, &change, decided) {
            self.begin_round(Some(proposer), change, decided);
        }
    }

    /// Whether a proposal is possible, and was not made before; if not, it is answered.
    fn is_possible(&mut self, proposer: (usize, u64), change: &Change, decided: &Decided) -> bool {
        let result = match decided.has_made(proposer) {
            true => Ok(()),
            false => match decided.configuration.after(change) {
                Ok(_) => return true,
                Err(error) => Err(error),
            },
        };
        let (node, number) = proposer;
        self.said.push((node, ChangeMessage::Answer { number, result }));
        false
    }

    /// The removal of a silent member that an operator has proposed, if there is one. It does not wait for a round, which may wait for that
    /// member.
    pub(super) fn next_removal(&mut self, decided: &Decided) -> Option<((usize, u64), Change)> {
        let is_removal = |(.., change): &(usize, u64, Change)| {
            matches!(change, Change::Revoke(_) | Change::Lose(_))
        };
        while let Some(place) = self.proposals.iter().position(is_removal) {
            let (from, number, change) = self.proposals.remove(place)?;
            let (Change::Revoke(node) | Change::Lose(node)) = change else { continue };
            let result = match decided.configuration.after(&change) {
                Ok(_) if self.silent.contains(&node) => return Some(((from, number), change)),
                Ok(_) => Err(ChangeError::NotSilent(node)),
                Err(error) => Err(error),
            };
            self.said.push((from, ChangeMessage::Answer { number, result }));
        }
        None
    }
}
