//! Which requests to a node are lost, as later ones were answered.
//!
//! ```text
//! sent:      1 ──── 2 ──── 3         answered: 3, after its round trip
//! lost:      1, 2      if they are unanswered for longer than such a round trip and the reordering window
//! ```
//! A worker's packets to its peer take one path and are answered in their order, so that an answer says of all earlier requests
//! that they, or their answers, are lost. Packets may overtake each other a little: the window is a quarter of a round trip, and
//! widens by as much whenever a request that seemed lost was answered as it was first sent.
//!
//! The message that was sent last has no later answer. It is sent again as a probe, after two round trips or a likely longer time.
//! The answer to the probe tells of the losses before it. All other messages without a later answer wait for the timeout
//! (`round_trip.rs`).
//!
//! *Source*: RFC 8985 (RACK-TLP), sections 3, 6.2 and 7. Unlike there, packets are numbered in the order of their sending, repetitions
//! included, and so a gap before an answer is seen without a look at all that is under way.

/// Widest window, in quarters of a round trip.
const QUARTERS_MAX: u64 = 4;
/// True losses in a row after which the window narrows by a quarter.
const LOSSES_TO_NARROW: u32 = 16;

/// What the answers of one node tell about losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossDetection {
    /// Whether the medium loses packets on the way; otherwise only the timeout tells of a loss.
    is_on: bool,
    /// Number of the packet that was sent last.
    sent: u64,
    /// Number of the latest packet whose message was answered, and the time that took.
    answered: u64,
    took_ns: u64,
    quarters: u64,
    losses: u32,
}

impl LossDetection {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, sent: 0, answered: 0, took_ns: 0, quarters: 1, losses: 0 }
    }

    /// Numbers the packets of a message that is sent now; the number of its last one.
    #[inline(always)]
    pub(crate) fn number(&mut self, packets: usize) -> u64 {
        self.sent += packets as u64;
        self.sent
    }

    /// Whether no message was sent after this one, so that it serves as a probe.
    #[inline(always)]
    pub(crate) fn is_probe(&self, number: u64) -> bool {
        self.is_on && number == self.sent
    }

    /// The message whose last packet has this number was answered so long after it was sent. Whether earlier ones are
    /// unanswered, as `under_way` packets are: more than were sent since.
    #[inline(always)]
    pub(crate) fn answered(&mut self, number: u64, took_ns: u64, under_way: usize) -> bool {
        if number > self.answered {
            (self.answered, self.took_ns) = (number, took_ns);
        }
        self.is_on && under_way as u64 > self.sent - self.answered
    }

    /// When an unanswered message is lost, if a later one was answered.
    #[inline]
    pub(crate) fn lost_at_ns(
        &self,
        number: u64,
        sent_at_ns: u64,
        round_trip_ns: u64,
    ) -> Option<u64> {
        let window_ns = round_trip_ns / 4 * self.quarters;
        let is_overtaken = self.is_on && number < self.answered;
        is_overtaken.then(|| sent_at_ns + self.took_ns.max(round_trip_ns) + window_ns)
    }

    /// A request that seemed lost is answered: as it was sent again, or as it was sent first.
    pub(crate) fn learn(&mut self, was_lost: bool) {
        if !was_lost {
            (self.quarters, self.losses) = ((self.quarters + 1).min(QUARTERS_MAX), 0);
        } else if self.losses + 1 == LOSSES_TO_NARROW {
            (self.quarters, self.losses) = ((self.quarters - 1).max(1), 0);
        } else {
            self.losses += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_an_answered_message_is_lost_after_a_round_trip() {
        let mut losses = LossDetection::new(true);
        let [first, second, third] = [1, 3, 1].map(|packets| losses.number(packets));
        assert_eq!(losses.lost_at_ns(first, 0, 400), None, "nothing is answered");
        assert!(!losses.answered(first, 380, 4), "all that is under way is later");
        assert!(losses.answered(third, 300, 3), "the second is not answered");
        assert_eq!(losses.lost_at_ns(second, 1_000, 400), Some(1_500));
        assert_eq!(losses.lost_at_ns(third, 1_000, 400), None);
        assert!(losses.is_probe(third) && !losses.is_probe(second));
        let again = losses.number(3);
        assert_eq!(losses.lost_at_ns(again, 1_500, 400), None, "sent again since");
        assert!(!losses.answered(again, 900, 0));
        assert_eq!(losses.lost_at_ns(second, 1_000, 400), Some(2_000), "answers take longer now");
    }

    #[test]
    fn a_medium_without_losses_has_none() {
        let mut losses = LossDetection::new(false);
        let [first, second] = [1, 1].map(|packets| losses.number(packets));
        assert!(!losses.answered(second, 300, 1));
        assert_eq!(losses.lost_at_ns(first, 0, 400), None);
        assert!(!losses.is_probe(second));
    }

    #[test]
    fn the_window_widens_where_packets_overtake_and_narrows_again() {
        let mut losses = LossDetection::new(true);
        let [first, second] = [1, 1].map(|packets| losses.number(packets));
        losses.answered(second, 400, 1);
        let mut window = |learned: bool, times: u32| {
            (0..times).for_each(|_| losses.learn(learned));
            losses.lost_at_ns(first, 0, 400).map(|lost_at_ns| lost_at_ns - 400)
        };
        assert_eq!(window(false, 9), Some(400), "a round trip at most");
        assert_eq!(window(true, LOSSES_TO_NARROW), Some(300));
        assert_eq!(window(true, 9 * LOSSES_TO_NARROW), Some(100));
    }
}
