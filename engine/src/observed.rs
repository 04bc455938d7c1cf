//! The observations of a transaction, without most repetitions: sorted runs, and the most recent ones unsorted.
//!
//! ```text
//! run 0 ≥ run 1 ≥ ...   sorted, each at least twice as long as the next     recent   as it came
//! ```
//! A scan of a whole table sees each bucket about as often as the bucket has rows. Sorting puts equal observations side by side,
//! and one of them is kept.
//!
//! *Invariants*: two observations of one bucket that differ are both kept, because validation must fail for one of them. The work
//! is done in small steps: `between` is called after each, and may let other coroutines run.

/// Observations that are put in order at a time: well under a millisecond.
const RECENT_MAX: usize = 8 << 10;

/// A set of observations.
#[derive(Clone, Debug)]
pub(crate) struct Observed<T> {
    runs: Vec<Vec<T>>,
    recent: Vec<T>,
}

impl<T> Default for Observed<T> {
    fn default() -> Self {
        Self { runs: Vec::new(), recent: Vec::new() }
    }
}

impl<T: Ord + Copy> Observed<T> {
    /// Those since the last [`Self::tidy`] that put some in order.
    pub(crate) fn recent(&self) -> &[T] {
        &self.recent
    }

    pub(crate) fn push(&mut self, seen: T) {
        self.recent.push(seen);
    }

    pub(crate) fn extend(&mut self, seen: impl IntoIterator<Item = T>) {
        self.recent.extend(seen);
    }

    /// Forgets the last one, if it is known which it is.
    pub(crate) fn pop(&mut self) {
        self.recent.pop();
    }

    /// All, some of them more than once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.runs.iter().chain([&self.recent]).flatten()
    }

    /// Bytes that they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        let runs: usize = self.runs.iter().map(Vec::len).sum();
        (runs + self.recent.len()) * size_of::<T>()
    }

    /// Puts what came last in order, if it is much. Returns whether it did.
    pub(crate) fn tidy(&mut self, between: impl FnMut()) -> bool {
        let is_much = self.recent.len() >= RECENT_MAX;
        if is_much {
            self.put_in_order(between);
        }
        is_much
    }

    #[cold]
    fn put_in_order(&mut self, mut between: impl FnMut()) {
        let recent = std::mem::take(&mut self.recent);
        for chunk in recent.chunks(RECENT_MAX) {
            let mut run = chunk.to_vec();
            run.sort_unstable();
            run.dedup();
            between();
            while let Some(last) = self.runs.pop_if(|last| last.len() < 2 * run.len()) {
                run = merged(&last, &run, &mut between);
            }
            self.runs.push(run);
        }
    }

    /// Makes each of the recent ones another one.
    pub(crate) fn map_recent(&mut self, to: impl Fn(T) -> T) {
        self.recent.iter_mut().for_each(|seen| *seen = to(*seen));
    }

    /// Makes each of them another one, so that they keep their order.
    pub(crate) fn map_all(&mut self, to: impl Fn(T) -> T, mut between: impl FnMut()) {
        self.map_recent(&to);
        for run in &mut self.runs {
            for part in run.chunks_mut(RECENT_MAX) {
                part.iter_mut().for_each(|seen| *seen = to(*seen));
                between();
            }
            run.dedup();
        }
    }

    /// All as few sorted runs.
    pub(crate) fn into_runs(mut self, between: impl FnMut()) -> Vec<Vec<T>> {
        if self.recent.len() > RECENT_MAX {
            self.put_in_order(between);
        } else if !self.recent.is_empty() {
            self.recent.sort_unstable();
            self.recent.dedup();
            self.runs.push(self.recent);
        }
        self.runs
    }

    /// All in order, each once.
    pub(crate) fn into_sorted(self, mut between: impl FnMut()) -> Vec<T> {
        let mut runs = self.into_runs(&mut between);
        let mut all = runs.pop().unwrap_or_default();
        while let Some(run) = runs.pop() {
            all = merged(&run, &all, &mut between);
        }
        all
    }
}

fn merged<T: Ord + Copy>(a: &[T], b: &[T], mut between: impl FnMut()) -> Vec<T> {
    let mut run = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a, b);
    while let Some(next) = match (a.split_first(), b.split_first()) {
        (Some((x, rest)), y) if y.is_none_or(|(y, _)| x <= y) => {
            a = rest;
            Some(*x)
        }
        (_, Some((y, rest))) => {
            b = rest;
            Some(*y)
        }
        _ => None,
    } {
        if run.last() != Some(&next) {
            run.push(next);
            if run.len() % RECENT_MAX == 0 {
                between();
            }
        }
    }
    run.shrink_to_fit();
    run
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_are_kept_in_order_and_once_in_a_run() {
        let mut observed = Observed::default();
        let mut expected = BTreeSet::new();
        for round in 1..40_usize {
            observed.tidy(|| {});
            let some = (0..round * 300).map(|i| i * (2 * round + 1) % 50_000);
            expected.extend(some.clone());
            observed.extend(some);
        }
        assert!(observed.runs.len() > 1 && !observed.recent.is_empty());
        assert_eq!(observed.iter().copied().collect::<BTreeSet<_>>(), expected);
        let all: Vec<usize> = expected.iter().copied().collect();
        assert_eq!(observed.clone().into_sorted(|| {}), all);
        let runs = observed.into_runs(|| {});
        assert!(runs.iter().all(|run| run.is_sorted_by(|a, b| a < b)));
        assert_eq!(runs.into_iter().flatten().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn what_is_seen_again_takes_no_more_memory() {
        let mut observed = Observed::default();
        for _ in 0..100 {
            observed.tidy(|| {});
            observed.extend(0..RECENT_MAX);
        }
        assert!(observed.memory_bytes() <= 4 * RECENT_MAX * size_of::<usize>());
    }
}
