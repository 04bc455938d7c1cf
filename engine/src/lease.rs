//! Leases: a node answers for its rows only while it holds a lease, so that a node that was removed without its knowledge, as it was
//! paused or cut off, answers nobody.
//!
//! ```text
//! member ── renewal, every L/5 ──▶ each voter of the manager ── granted, unless the member's removal is in the voter's log
//! lease: until (when the newest renewal was sent that a majority has granted) + L (1 - drift)        `members/leases.rs`
//! worker: data are read ─▶ the clock is read ─▶ within the lease: packets leave, a transaction ends
//! decider: the removal is decided ─▶ L (1 + drift) passes ─▶ the next epoch begins                   `decider`
//! ```
//! A worker looks at the clock once for each doorbell, and once at the end of a transaction that logs nothing. Without the lease packets
//! wait, and so does the end of the transaction. A transaction that logs needs no look: its log replicas answer no member that was removed.
//!
//! A clock that stands still, as that of a machine that its host pauses may, ends no lease. Where that can happen, reads are *confirmed*: a
//! transaction that logs nothing ends only when a renewal was granted that was sent after its last read. Then it needs no clock but one
//! that does not go back, and waits for a round trip to a majority of the voters.
//!
//! *Source*: Gray and Cheriton, Leases (SOSP'89); FaRM (SOSP'15) section 5.1; `docs/protocol.md`, "Leases".
//!
//! *Invariants*: the time of a lease only goes forward, until it is given up for good. The nodes of a cluster that is in one process
//! need no lease: theirs is endless.
//!
//! *Not here*: what a worker does without one, in `fence`; who grants, and who is suspected, in `members/leases.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A lease without an end.
pub(crate) const ENDLESS: u64 = u64::MAX;
/// Renewals in the time of a lease.
pub(crate) const RENEWALS_PER_LEASE: u32 = 5;
/// A lease that was given up: it is not extended any more.
const GIVEN_UP: u64 = 0;
/// A lease that was never granted.
const NEVER: u64 = 1;
/// By how much two clocks may differ in their rates, in thousandths.
const DRIFT_PERMILLE: u64 = 100;
/// A complaint counts for no shorter time.
const COMPLAINT_NS_MIN: u64 = 500_000_000;
/// How long a copy may be missing by default before another is made.
const COPIES_AFTER_NS: u64 = 30_000_000_000;
/// Shortest time in which members answer a step of a change of the membership.
const STEP_NS_MIN: u64 = 5_000_000_000;

/// The times that follow from the length L of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    length_ns: u64,
    confirms_reads: bool,
    /// How long a copy may be missing before another is made.
    copies_after_ns: u64,
}

impl LeaseTerms {
    pub(crate) fn new(length: Duration) -> Self {
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX / 1_000).max(5);
        Self { length_ns, confirms_reads: false, copies_after_ns: COPIES_AFTER_NS }
    }

    /// The same, and how long a copy may be missing before another is made.
    pub(crate) fn with_copies_after(self, time: Duration) -> Self {
        let copies_after_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
        Self { copies_after_ns, ..self }
    }

    /// How long a copy may be missing before another is made.
    pub(crate) fn copies_after_ns(self) -> u64 {
        self.copies_after_ns
    }

    /// The same, and whether reads are confirmed.
    pub(crate) fn with_confirmed_reads(self, confirms_reads: bool) -> Self {
        Self { confirms_reads, ..self }
    }

    pub(crate) fn length(self) -> Duration {
        Duration::from_nanos(self.length_ns)
    }

    /// Between two renewals.
    pub(crate) fn renewal_ns(self) -> u64 {
        self.length_ns / u64::from(RENEWALS_PER_LEASE)
    }

    /// How long its holder counts on it, from when the renewal was sent.
    pub(crate) fn held_ns(self) -> u64 {
        self.length_ns - self.drift_ns()
    }

    /// How long the others wait until it is over.
    pub(crate) fn over_ns(self) -> u64 {
        self.length_ns + self.drift_ns()
    }

    /// After so long a silence a member is suspected.
    pub(crate) fn silence_ns(self) -> u64 {
        self.length_ns
    }

    /// Within so long a voter that can be reached is heard.
    pub(crate) fn reach_ns(self) -> u64 {
        self.length_ns / 2
    }

    /// After so long without an answer a member complains about another.
    pub(crate) fn complaint_ns(self) -> u64 {
        2 * self.length_ns
    }

    /// How long a complaint counts. A member whose requests are not answered sends them again after a fifth of a second at most.
    pub(crate) fn complaint_counts_ns(self) -> u64 {
        (2 * self.length_ns).max(COMPLAINT_NS_MIN)
    }

    /// Longest time of a member for a step of a change of the membership.
    pub(crate) fn step_ns(self) -> u64 {
        (20 * self.length_ns).max(STEP_NS_MIN)
    }

    /// A node that has had no lease for so long refuses new jobs.
    pub(crate) fn refused_after_ns(self) -> u64 {
        self.length_ns
    }

    fn drift_ns(self) -> u64 {
        (self.length_ns * DRIFT_PERMILLE).div_ceil(1_000)
    }
}

/// What is left of a node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseLeft {
    /// The node needs no lease: all nodes are in one process.
    Endless,
    /// It is held for so long still, and longer when it is renewed.
    Held(Duration),
    /// It is not held: the node answers nobody.
    Over,
}

impl LeaseLeft {
    /// The same in milliseconds: 0 if it is not held, none if no lease is needed.
    #[must_use]
    pub fn milliseconds(self) -> Option<u64> {
        match self {
            Self::Endless => None,
            Self::Held(left) => {
                Some(u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
            }
            Self::Over => Some(0),
        }
    }
}

/// The lease of a node.
#[derive(Debug)]
pub(crate) struct Lease {
    until_ns: AtomicU64,
    /// How long it is held from when the newest renewal was sent; 0 unless reads are confirmed.
    confirmed_ns: AtomicU64,
    /// A read waits for a renewal to be sent.
    wants_renewal: AtomicBool,
}

impl Default for Lease {
    fn default() -> Self {
        let (confirmed_ns, wants_renewal) = Default::default();
        Self { until_ns: AtomicU64::new(ENDLESS), confirmed_ns, wants_renewal }
    }
}

impl Lease {
    /// From now on one is needed.
    pub(crate) fn require(&self, terms: LeaseTerms) {
        self.until_ns.store(NEVER, Ordering::Relaxed);
        let confirmed_ns = if terms.confirms_reads { terms.held_ns() } else { 0 };
        self.confirmed_ns.store(confirmed_ns, Ordering::Relaxed);
    }

    /// Whether a transaction that logs nothing waits for a renewal.
    #[inline(always)]
    pub(crate) fn confirms_reads(&self) -> bool {
        self.confirmed_ns.load(Ordering::Relaxed) != 0
    }

    /// Whether a renewal was granted that was sent later than at this time; true where none is needed. If not, one is wanted. One that was
    /// sent at the same time may have been sent before: the clock may have stood still since.
    pub(crate) fn is_confirmed(&self, read_ns: u64) -> bool {
        let confirmed_ns = self.confirmed_ns.load(Ordering::Relaxed);
        let until_ns = self.until_ns();
        if confirmed_ns == 0
            || until_ns == ENDLESS
            || until_ns > read_ns.saturating_add(confirmed_ns)
        {
            return true;
        }
        // Release: pairs with the Acquire of the thread that sends the renewal, and reads the clock afterwards.
        self.wants_renewal.store(true, Ordering::Release);
        false
    }

    /// Whether a read waits for a renewal to be sent.
    pub(crate) fn wants_renewal(&self) -> bool {
        self.wants_renewal.load(Ordering::Acquire)
    }

    /// The same, once.
    pub(crate) fn take_wish(&self) -> bool {
        self.wants_renewal() && self.wants_renewal.swap(false, Ordering::AcqRel)
    }

    /// It is held until this time, if not longer; until when it was held before.
    pub(crate) fn extend(&self, until_ns: u64) -> u64 {
        let later = |until| (until != GIVEN_UP).then_some(until_ns.max(until));
        // Relaxed: the time is all that there is to see. One that was given up stays so.
        let updated = self.until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        updated.unwrap_or_else(|until| until)
    }

    /// It is over, at once and for good.
    pub(crate) fn give_up(&self) {
        self.until_ns.store(GIVEN_UP, Ordering::Relaxed);
    }

    /// What is left of it at this time.
    pub(crate) fn left(&self, now_ns: u64) -> LeaseLeft {
        match self.until_ns() {
            ENDLESS => LeaseLeft::Endless,
            until_ns if until_ns > now_ns => {
                LeaseLeft::Held(Duration::from_nanos(until_ns - now_ns))
            }
            _ => LeaseLeft::Over,
        }
    }

    /// For how long it has been over at this time. None if it is held, if it was never granted, and if it was given up.
    pub(crate) fn over_for_ns(&self, now_ns: u64) -> Option<u64> {
        match self.until_ns() {
            GIVEN_UP | NEVER | ENDLESS => None,
            until_ns => now_ns.checked_sub(until_ns),
        }
    }

    /// Until when it is held.
    #[inline(always)]
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_lease_is_told_until_it_is_over() {
        let lease = Lease::default();
        assert_eq!(lease.left(5).milliseconds(), None);
        lease.require(LeaseTerms::new(Duration::from_millis(100)));
        assert_eq!((lease.left(5), lease.over_for_ns(5)), (LeaseLeft::Over, None));
        lease.extend(9_000_005);
        assert_eq!(lease.left(5), LeaseLeft::Held(Duration::from_millis(9)));
        assert_eq!(lease.left(9_000_004).milliseconds(), Some(1));
        assert_eq!(lease.left(9_000_005).milliseconds(), Some(0));
        assert_eq!([9_000_004, 9_000_007].map(|now| lease.over_for_ns(now)), [None, Some(2)]);
        lease.give_up();
        assert_eq!((lease.left(5), lease.over_for_ns(5)), (LeaseLeft::Over, None));
    }
    #[test]
    fn a_read_is_confirmed_by_a_renewal_that_was_sent_after_it() {
        let lease = Lease::default();
        let terms = LeaseTerms::new(Duration::from_nanos(1_000));
        assert!(lease.is_confirmed(5) && !lease.take_wish(), "none is needed");
        lease.require(terms);
        assert!(!lease.confirms_reads() && lease.is_confirmed(5));
        lease.require(terms.with_confirmed_reads(true));
        assert!(lease.confirms_reads() && !lease.is_confirmed(5));
        assert!(lease.take_wish() && !lease.take_wish(), "one renewal is enough");
        lease.extend(5 + terms.held_ns());
        assert!(!lease.is_confirmed(5) && lease.is_confirmed(4), "it may have been sent before");
        lease.extend(6 + terms.held_ns());
        assert!(lease.is_confirmed(5));
        lease.give_up();
        assert!(!lease.is_confirmed(5));
    }
}
