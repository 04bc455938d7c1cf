//! Limits for clients that have not logged in: startups, and guesses of passwords.
//!
//! ```text
//! address ── attempt: + 1 s ─► ahead of the clock by ADVANCE_NS? ── yes: refused
//!            succeeded: - 1 s
//! ```
//!
//! Each wrong password costs the address a second. An address that is [`ADVANCE_NS`] ahead of the clock must wait. Right
//! passwords cost nothing, however many clients log in at once.
//!
//! *Invariants*: the number of known addresses is bounded.
//!
//! *Not here*: names and passwords (`users`), and the exchange of messages (`startup`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_engine::{Clock, LogLimiter, MonotonicClock, PendingConnections, source};

use gannet_frontend::SqlError;

/// The cost of a wrong password.
const FAILURE_NS: u64 = 1_000_000_000;
/// How far an address may be ahead of the clock: so many wrong passwords at once.
const ADVANCE_NS: u64 = 10 * FAILURE_NS;
/// Characters of a user's name in the log.
const USER_CHARS_MAX: usize = 63;
/// Addresses with wrong passwords; a new one replaces the one that is least ahead.
const ADDRESSES_MAX: usize = 10_000;

/// Limits and counts of clients that have not logged in.
pub struct Admission {
    pub(super) pending: Arc<PendingConnections>,
    /// Limits messages on connections that could not be accepted.
    pub(super) accept_log: LogLimiter,
    failure_log: LogLimiter,
    failures: AtomicU64,
    clock: MonotonicClock,
    /// The time, ahead of the clock, that each address has used.
    charged_until_ns: Mutex<BTreeMap<IpAddr, u64>>,
}

impl Admission {
    /// Admits as many startups of one address as there may be sessions, and some more.
    pub(super) fn new(startups_max: usize) -> Self {
        Self {
            pending: PendingConnections::new(startups_max, startups_max.saturating_mul(2)),
            accept_log: LogLimiter::default(),
            failure_log: LogLimiter::default(),
            failures: AtomicU64::new(0),
            clock: MonotonicClock::new(),
            charged_until_ns: Mutex::default(),
        }
    }

    /// Counters: name, description, value.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 2] {
        // Relaxed: statistics.
        let failures = self.failures.load(Ordering::Relaxed);
        [
            ("gannet_login_failures_total", "Logins with a wrong password or user.", failures),
            (
                "gannet_startups_dismissed_total",
                "Connections that were closed before login, to make room for others.",
                self.pending.evicted(),
            ),
        ]
    }

    /// Lets an address try a password. The attempt counts as failed unless [`Self::succeeded`] follows.
    ///
    /// # Errors
    /// SQLSTATE 28000 if too many attempts have failed.
    pub(super) fn attempt(&self, from: IpAddr, user: &str) -> Result<(), SqlError> {
        let Err(wait_ns) = self.charge(from, self.clock.now_ns()) else { return Ok(()) };
        self.failed(from, user);
        let seconds = wait_ns.div_ceil(1_000_000_000);
        Err(SqlError::new("28000", format!("too many failed logins from {from}"))
            .with_hint(format!("try again in {seconds} s")))
    }

    /// Charges an attempt. The error is the nanoseconds that the address must wait.
    fn charge(&self, from: IpAddr, now_ns: u64) -> Result<(), u64> {
        let (from, mut charged) = (source(from), self.charged());
        let until = charged.get(&from).copied().unwrap_or(0).max(now_ns) + FAILURE_NS;
        if until > now_ns + ADVANCE_NS {
            return Err(until - now_ns - ADVANCE_NS);
        }
        if charged.len() >= ADDRESSES_MAX && !charged.contains_key(&from) {
            charged.retain(|_, until| *until > now_ns);
            let least =
                charged.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address);
            if let Some(address) = least.filter(|_| charged.len() >= ADDRESSES_MAX) {
                charged.remove(&address);
            }
        }
        charged.insert(from, until);
        Ok(())
    }

    /// Refunds an attempt.
    pub(super) fn succeeded(&self, from: IpAddr) {
        if let Some(until) = self.charged().get_mut(&source(from)) {
            *until = until.saturating_sub(FAILURE_NS);
        }
    }

    /// Counts a failed login, and logs it.
    pub(super) fn failed(&self, from: IpAddr, user: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let user: String = user.chars().take(USER_CHARS_MAX).collect();
        if let Some(suppressed) = self.failure_log.permit() {
            tracing::warn!("a login of {user:?} from {from} failed{suppressed}");
        }
    }

    fn charged(&self) -> MutexGuard<'_, BTreeMap<IpAddr, u64>> {
        // No code panics between two changes of the map, so a poisoned lock guards nothing broken.
        self.charged_until_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last))
    }

    #[test]
    fn wrong_passwords_delay_their_address() {
        let admission = Admission::new(10);
        let (now, one) = (5 * FAILURE_NS, address(1));
        let at_once = (0..100).filter(|_| admission.charge(one, now).is_ok()).count();
        assert_eq!(at_once, 10);
        assert!(admission.charge(address(2), now).is_ok());
        let later = now + 3 * FAILURE_NS;
        assert_eq!((0..100).filter(|_| admission.charge(one, later).is_ok()).count(), 3);
        assert_eq!(admission.charge(one, later), Err(FAILURE_NS));
    }

    #[test]
    fn right_passwords_cost_nothing() {
        let admission = Admission::new(10);
        for _ in 0..1_000 {
            admission.attempt(address(1), "ada").unwrap();
            admission.succeeded(address(1));
        }
        assert_eq!(admission.named()[0].2, 0);
    }
}
