//! The nodes that do not answer, as workers have found: those that keep one job from going on, and those that any worker of a node waits
//! for.
//!
//! *Invariants*: workers note a silence only when they send something again. A node whose silence nobody notes any more is forgotten.
//!
//! *Not here*: who is told of it, in `obstacle`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lease::LeaseTerms;

/// The nodes that do not answer.
#[derive(Debug, Default)]
pub(crate) struct Silences(Mutex<BTreeMap<u16, Silence>>);

/// The silence of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    pub(crate) since_ns: u64,
    noted_ns: u64,
    /// What requests that it has not answered are about.
    pub(crate) partitions: BTreeSet<u16>,
}

impl Silence {
    fn is_noted(&self, now_ns: u64, terms: LeaseTerms) -> bool {
        now_ns.saturating_sub(self.noted_ns) <= terms.complaint_counts_ns()
    }
}

impl Silences {
    /// A worker has found that a node is silent, for as long as a complaint takes at least, and which partitions it is asked about now.
    pub(crate) fn note(
        &self,
        node: u16,
        partitions: &BTreeSet<u16>,
        (now_ns, terms): (u64, LeaseTerms),
    ) {
        let since_ns = now_ns.saturating_sub(terms.complaint_ns());
        let begins = || Silence { since_ns, noted_ns: now_ns, partitions: BTreeSet::new() };
        let mut silences = self.lock();
        let silence = silences.entry(node).or_insert_with(begins);
        if !silence.is_noted(now_ns, terms) {
            *silence = begins();
        }
        silence.noted_ns = silence.noted_ns.max(now_ns);
        silence.partitions.extend(partitions);
    }

    /// The nodes that are silent now. Others are forgotten.
    pub(crate) fn present(&self, now_ns: u64, terms: LeaseTerms) -> BTreeMap<u16, Silence> {
        let mut silences = self.lock();
        silences.retain(|_, silence| silence.is_noted(now_ns, terms));
        silences.clone()
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
        let note = |seconds: u64, partitions: &[u16]| {
            let partitions = partitions.iter().copied().collect();
            silences.note(2, &partitions, (seconds * SECOND, terms));
        };
        let present = |seconds: u64| {
            let present = silences.present(seconds * SECOND, terms);
            let told = |(node, silence): (u16, Silence)| {
                (node, silence.since_ns / SECOND, silence.partitions.into_iter().collect())
            };
            present.into_iter().map(told).collect::<Vec<(_, _, Vec<_>)>>()
        };
        note(10, &[3]);
        note(11, &[3, 5]);
        assert_eq!(present(12), [(2, 8, vec![3, 5])]);
        assert_eq!(present(14), []);
        note(20, &[1]);
        note(30, &[]);
        assert_eq!(present(30), [(2, 28, vec![])]);
    }
}
