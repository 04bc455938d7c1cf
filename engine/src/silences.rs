//! The nodes that do not answer the workers of a node, with since when.
//!
//! *Invariants*: workers note a silence only when they send something again. A node whose silence nobody notes any more is forgotten.
//!
//! *Not here*: who is told of it, in `obstacle`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lease::LeaseTerms;

/// The nodes that do not answer the workers of a node.
#[derive(Debug, Default)]
pub(crate) struct Silences(Mutex<BTreeMap<u16, Silence>>);

#[derive(Clone, Copy, Debug)]
struct Silence {
    since_ns: u64,
    noted_ns: u64,
}

impl Silence {
    fn is_noted(self, now_ns: u64, terms: LeaseTerms) -> bool {
        now_ns.saturating_sub(self.noted_ns) <= terms.complaint_counts_ns()
    }
}

impl Silences {
    /// A worker has found that a node is silent, for as long as a complaint takes at least.
    pub(crate) fn note(&self, node: u16, now_ns: u64, terms: LeaseTerms) {
        let since_ns = now_ns.saturating_sub(terms.complaint_ns());
        let mut silences = self.lock();
        let silence = silences.entry(node).or_insert(Silence { since_ns, noted_ns: now_ns });
        if !silence.is_noted(now_ns, terms) {
            silence.since_ns = since_ns;
        }
        silence.noted_ns = silence.noted_ns.max(now_ns);
    }

    /// The nodes that are silent now, each with when that began. Others are forgotten.
    pub(crate) fn present(&self, now_ns: u64, terms: LeaseTerms) -> Vec<(u16, u64)> {
        let mut silences = self.lock();
        silences.retain(|_, silence| silence.is_noted(now_ns, terms));
        silences.iter().map(|(node, silence)| (*node, silence.since_ns)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, Silence>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_silence_begins_before_its_first_note_and_is_forgotten_without_others() {
        let terms = LeaseTerms::new(Duration::from_secs(1));
        let silences = Silences::default();
        silences.note(2, 10 * SECOND, terms);
        silences.note(2, 11 * SECOND, terms);
        assert_eq!(silences.present(12 * SECOND, terms), [(2, 8 * SECOND)]);
        assert!(silences.present(14 * SECOND, terms).is_empty());
        silences.note(2, 20 * SECOND, terms);
        silences.note(2, 30 * SECOND, terms);
        assert_eq!(silences.present(30 * SECOND, terms), [(2, 28 * SECOND)]);
    }
}
