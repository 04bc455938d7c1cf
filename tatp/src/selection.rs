//! The choice of a subscriber: the specification's non-uniform draw, and its exact probabilities.
//!
//! `((rnd(0..=A) | rnd(1..=N)) % N) + 1`: the OR favours numbers with many ones.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it.

use gannet_benchmarks::Random;
use rand::RngExt;

/// A choice among the subscribers 1..=N.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    subscribers: u64,
    /// A; None for a uniform choice.
    or_with: Option<u64>,
}

impl Selection {
    pub(crate) fn new(subscribers: u64, uniform: bool) -> Self {
        let or_with = match subscribers {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        Self { subscribers, or_with: (!uniform).then_some(or_with) }
    }

    pub(crate) fn subscribers(&self) -> u64 {
        self.subscribers
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.or_with.is_some() { "non-uniform" } else { "uniform" }
    }

    /// Draws a subscriber.
    #[inline]
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let uniform = random.random_range(1..=self.subscribers);
        match self.or_with {
            None => uniform,
            // x = 1 and y = N in the specification's formula.
            Some(or_with) => {
                let drawn = random.random_range(0..=or_with) | uniform;
                ((drawn - 1) % self.subscribers) + 1
            }
        }
    }

    /// The exact probability of each subscriber, from 1.
    ///
    /// The number of pairs whose OR is a subset of v is the product of the two counts of subsets of v. A Moebius inversion
    /// over the subset lattice gives the number of pairs whose OR equals v.
    pub(crate) fn probabilities(&self) -> Vec<f64> {
        let count = usize::try_from(self.subscribers).expect("checked to fit memory");
        let Some(or_with) = self.or_with else {
            return vec![1.0 / count as f64; count];
        };
        let bits = (self.subscribers.max(or_with) + 1).next_power_of_two().trailing_zeros();
        let mut pairs = vec![0_i64; 1 << bits];
        pairs[1..=count].fill(1);
        over_subsets(&mut pairs, |with, without| *with += without);
        // A is one less than a power of two, so every subset of v within A's bits is drawn.
        for (v, pairs) in (0_u64..).zip(pairs.iter_mut()) {
            *pairs *= 1_i64 << (v & or_with).count_ones();
        }
        over_subsets(&mut pairs, |with, without| *with -= without);
        let mut probabilities = vec![0.0; count];
        let total = count as f64 * (or_with + 1) as f64;
        for (v, &pairs) in pairs.iter().enumerate().skip(1) {
            probabilities[(v - 1) % count] += pairs as f64 / total;
        }
        probabilities
    }
}

/// For each bit, combines every entry that has the bit with the one that lacks it.
fn over_subsets(entries: &mut [i64], combine: impl Fn(&mut i64, i64)) {
    let mut bit = 1;
    while bit < entries.len() {
        for block in entries.chunks_exact_mut(2 * bit) {
            let (without, with) = block.split_at_mut(bit);
            for (with, &without) in with.iter_mut().zip(&*without) {
                combine(with, without);
            }
        }
        bit *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gannet_benchmarks::seeded;

    #[test]
    fn probabilities_are_those_of_all_pairs() {
        let selection = Selection { subscribers: 100, or_with: Some(31) };
        let mut counts = vec![0_u32; 100];
        for a in 0..=31_u32 {
            for b in 1..=100_u32 {
                counts[(((a | b) - 1) % 100) as usize] += 1;
            }
        }
        for (found, count) in selection.probabilities().iter().zip(counts) {
            assert!((found - f64::from(count) / 3200.0).abs() < 1e-12);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let selection = Selection { subscribers: 50, or_with: Some(7) };
        let (mut counts, mut random, draws) = ([0_u32; 50], seeded(1, 1), 200_000);
        for _ in 0..draws {
            counts[usize::try_from(selection.draw(&mut random) - 1).unwrap()] += 1;
        }
        for (p, count) in selection.probabilities().iter().zip(counts) {
            let (mean, n) = (p * f64::from(draws), f64::from(count));
            assert!((n - mean).abs() < 6.0 * mean.sqrt() + 1.0, "expected {mean}, found {n}");
        }
    }
}
