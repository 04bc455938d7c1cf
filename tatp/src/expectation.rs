//! The expected success rate of each transaction type, derived from the population and the exact selection probabilities.
//!
//! Inserts and deletes of call forwardings change what later transactions find. Each such row of an existing facility is
//! inserted and deleted with equal probability, so it drifts from its loaded state towards existing half of the time. The
//! rate of a run therefore lies between the rate on the loaded rows and the rate in that final state, give or take chance.
//! Chance has two parts: the draws of the run, and which rows of the favoured subscribers exist. The skew leaves few of those
//! rows, so the second part is not small.
//!
//! *Not here*: published rates, one of which does not follow from the population (see the crate).

use gannet_benchmarks::{Check, Totals};

use crate::population::{Facility, Subscriber};
use crate::selection::Selection;
use crate::{
    DELETE_CALL_FORWARDING, GET_ACCESS_DATA, GET_NEW_DESTINATION, GET_SUBSCRIBER_DATA,
    INSERT_CALL_FORWARDING, TRANSACTIONS, UPDATE_LOCATION, UPDATE_SUBSCRIBER_DATA,
};

/// Allowed standard deviations of a correct run: one run in 1.7 million is beyond 5.
const DEVIATIONS: f64 = 5.0;

/// Expected success of one transaction type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    /// The rate on the loaded rows.
    loaded: f64,
    /// The rate when call forwardings have come and gone.
    settled: f64,
    /// Variance of the settled rate, by the rows that exist.
    variance: f64,
}

/// Expected success of all types.
pub(crate) struct Expectation {
    rates: [Rate; TRANSACTIONS.len()],
}

/// The probability that a probe succeeds on a facility with these rows.
fn probe_rate(end_times: [u8; 3]) -> f64 {
    let mut hits = 0_u32;
    for start_index in 0..3 {
        for probe_end in 1..=24 {
            hits += u32::from(end_times[..=start_index].iter().any(|&end| probe_end < end));
        }
    }
    f64::from(hits) / 72.0
}

/// The probability if each row exists half of the time, and ends 1 to 8 after its start: the mean, and the variance over the
/// rows.
fn settled_probe_rate() -> (f64, f64) {
    let states =
        |index: u8| (0..16_u8).map(move |state| if state < 8 { 0 } else { 8 * index + state - 7 });
    let (mut sum, mut squares) = (0.0, 0.0);
    for first in states(0) {
        for second in states(1) {
            for third in states(2) {
                let rate = probe_rate([first, second, third]);
                sum += rate;
                squares += rate * rate;
            }
        }
    }
    let mean = sum / 4096.0;
    (mean, squares / 4096.0 - mean * mean)
}

impl Expectation {
    pub(crate) fn new(selection: &Selection, seed: u64) -> Self {
        let (settled_probe, probe_variance) = settled_probe_rate();
        let always = Rate { loaded: 1.0, settled: 1.0, variance: 0.0 };
        let mut rates = [Rate::default(); TRANSACTIONS.len()];
        rates[GET_SUBSCRIBER_DATA] = always;
        rates[UPDATE_LOCATION] = always;
        for (s_id, weight) in (1..).zip(selection.probabilities()) {
            let subscriber = Subscriber::generate(seed, s_id);
            let mut add = |transaction: usize, loaded: f64, settled: f64, variance: f64| {
                let rate: &mut Rate = &mut rates[transaction];
                rate.loaded += weight * loaded;
                rate.settled += weight * settled;
                rate.variance += weight * weight * variance;
            };
            let access = subscriber.access_types.iter().filter(|&&present| present).count();
            add(GET_ACCESS_DATA, access as f64 / 4.0, access as f64 / 4.0, 0.0);
            for facility in subscriber.facilities.iter().filter(|facility| facility.present) {
                let Facility { active, end_times, .. } = *facility;
                // Each of the four types is requested with probability 1/4.
                add(UPDATE_SUBSCRIBER_DATA, 0.25, 0.25, 0.0);
                if active {
                    let loaded = probe_rate(end_times) / 4.0;
                    add(GET_NEW_DESTINATION, loaded, settled_probe / 4.0, probe_variance / 16.0);
                }
                let there = end_times.iter().filter(|&&end| end != 0).count() as f64 / 3.0;
                let variance = 3.0 * 0.25 / 144.0;
                add(INSERT_CALL_FORWARDING, (1.0 - there) / 4.0, 0.125, variance);
                add(DELETE_CALL_FORWARDING, there / 4.0, 0.125, variance);
            }
        }
        Self { rates }
    }

    /// Compares the rates of a run with the expected ones.
    pub(crate) fn check(&self, totals: &Totals) -> Vec<Check> {
        let types = TRANSACTIONS.iter().zip(&self.rates).zip(&totals.types);
        types
            .map(|((name, rate), totals)| {
                // Aborted transactions have no answer.
                let answers = totals.qualified + totals.rows_missing;
                let answered = answers.max(1) as f64;
                let found = totals.qualified as f64 / answered;
                let (low, high) = (rate.loaded.min(rate.settled), rate.loaded.max(rate.settled));
                let draws = (low * (1.0 - low)).max(high * (1.0 - high)) / answered;
                let margin = DEVIATIONS * (draws + rate.variance).sqrt() + 1e-9;
                let (low, high) = ((low - margin).max(0.0), (high + margin).min(1.0));
                let ran = totals.attempted > 0;
                let check = Check::new(
                    format!("{name} success rate"),
                    !ran || (low..=high).contains(&found),
                    format!(
                        "{:.3} % expected within {:.3} to {:.3} %",
                        100.0 * found,
                        100.0 * low,
                        100.0 * high
                    ),
                );
                // If members have died, few transactions may have run, and none of them to its end.
                if answers == 0 { check.of_all_outcomes() } else { check }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_without_an_answer_have_no_rate_unless_all_outcomes_are_known() {
        let expectation = Expectation::new(&Selection::new(100, true), 1);
        let check = |attempted, qualified| {
            let mut totals = Totals::default();
            totals.types.resize_with(TRANSACTIONS.len(), Default::default);
            let update = &mut totals.types[UPDATE_LOCATION];
            (update.attempted, update.qualified) = (attempted, qualified);
            let check = expectation.check(&totals).swap_remove(UPDATE_LOCATION);
            (check.passed, check.needs_all_outcomes)
        };
        assert_eq!(check(5, 0), (false, true));
        assert_eq!(check(5, 3), (true, false));
        assert_eq!(check(0, 0), (true, true));
    }

    #[test]
    fn rates_of_a_large_population_are_those_of_its_rules() {
        let expectation = Expectation::new(&Selection::new(100_000, true), 1);
        let about = |transaction: usize, expected: f64| {
            let Rate { loaded, settled, .. } = expectation.rates[transaction];
            assert!((loaded - expected).abs() < 0.01, "{}: {loaded}", TRANSACTIONS[transaction]);
            assert!((settled - expected).abs() < 0.03, "{}: {settled}", TRANSACTIONS[transaction]);
        };
        about(GET_SUBSCRIBER_DATA, 1.0);
        about(GET_ACCESS_DATA, 0.625);
        about(UPDATE_SUBSCRIBER_DATA, 0.625);
        about(INSERT_CALL_FORWARDING, 0.3125);
        about(DELETE_CALL_FORWARDING, 0.3125);
        let probe = expectation.rates[GET_NEW_DESTINATION].loaded;
        assert!((0.14..0.17).contains(&probe), "{probe}");
    }

    #[test]
    fn probes_are_enumerated() {
        assert_eq!(probe_rate([0, 0, 0]), 0.0);
        // A row from 0 to 1 ends after no probe; one to 8 after the seven that end before 8.
        assert_eq!(probe_rate([1, 0, 0]), 0.0);
        assert!((probe_rate([8, 0, 0]) - 21.0 / 72.0).abs() < 1e-12);
        assert!((probe_rate([0, 0, 24]) - 23.0 / 72.0).abs() < 1e-12);
    }
}
