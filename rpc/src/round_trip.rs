//! How long a request may stay unanswered before it is sent again: the timeout, and the delay of a probe.
//!
//! *Source*: RFC 6298 (Jacobson's smoothed mean and deviation, doubling after each timeout), with
//! Karn's rule: a message that was sent twice gives no sample. RFC 8985, section 7, for the probe.

/// Longest timeout, after many doublings.
const TIMEOUT_NS_MAX: u64 = 200_000_000;
/// Most doublings of a timeout.
const DOUBLINGS_MAX: u32 = 12;

/// Round trips to one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    smoothed_ns: u64,
    deviation_ns: u64,
    /// The least timeout of the medium: a shorter wait is no sign of a loss.
    floor_ns: u64,
    /// The timeout of a message that was sent once.
    first_ns: u64,
    /// When what was sent last is sent again as a probe, after it was sent once.
    probe_ns: u64,
}

impl RoundTrip {
    pub(crate) fn new(floor_ns: u64) -> Self {
        // Until a round trip is known, a long timeout.
        let (smoothed_ns, deviation_ns) = (floor_ns, floor_ns);
        let first_ns = 5 * floor_ns;
        Self { smoothed_ns, deviation_ns, floor_ns, first_ns, probe_ns: first_ns }
    }

    /// Whether message `sequence` of a session is timed: one in eight is enough.
    #[inline(always)]
    pub(crate) fn times(sequence: u64) -> bool {
        sequence.is_multiple_of(8)
    }

    /// Takes the round trip of a message that was sent once.
    #[inline]
    pub(crate) fn sample(&mut self, took_ns: u64) {
        // A clock that jumped must not silence the node for long.
        let took_ns = took_ns.min(TIMEOUT_NS_MAX);
        let error_ns = took_ns.abs_diff(self.smoothed_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error_ns / 4;
        self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + took_ns / 8;
        let likely_ns = self.smoothed_ns + 4 * self.deviation_ns;
        self.first_ns = likely_ns.max(self.floor_ns);
        self.probe_ns = likely_ns.max(2 * self.smoothed_ns);
    }

    /// How long a round trip takes.
    #[inline(always)]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The timeout of a message that was sent `attempts` times before.
    #[inline]
    pub(crate) fn timeout_ns(&self, attempts: u32) -> u64 {
        (self.first_ns << attempts.min(DOUBLINGS_MAX)).min(TIMEOUT_NS_MAX)
    }

    /// The same of the message that was sent last, so that its answer tells of the others.
    #[inline(always)]
    pub(crate) fn probe_ns(&self, attempts: u32) -> u64 {
        self.probe_ns << attempts.min(DOUBLINGS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_round_trips() {
        let mut round_trip = RoundTrip::new(10_000);
        for _ in 0..100 {
            round_trip.sample(40_000);
        }
        assert!((40_000..45_000).contains(&round_trip.timeout_ns(0)), "{round_trip:?}");
        for took in [20_000, 60_000].into_iter().cycle().take(100) {
            round_trip.sample(took);
        }
        assert!((90_000..150_000).contains(&round_trip.timeout_ns(0)), "{round_trip:?}");
        assert_eq!(round_trip.timeout_ns(1), 2 * round_trip.timeout_ns(0));
        assert_eq!(round_trip.timeout_ns(u32::MAX), TIMEOUT_NS_MAX);
        assert_eq!(round_trip.probe_ns(0), round_trip.timeout_ns(0));
        for _ in 0..100 {
            round_trip.sample(100);
        }
        assert_eq!(round_trip.timeout_ns(0), 10_000, "not below the medium's floor");
        assert!(
            (200..300).contains(&round_trip.probe_ns(0)),
            "a probe is one packet: {round_trip:?}"
        );
        assert_eq!(round_trip.probe_ns(2), 4 * round_trip.probe_ns(0));
    }
}
