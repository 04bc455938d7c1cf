//! The floor: the same transactions on plain hash maps, without a system around them.
//!
//! As many threads run as for the engine, each on maps of its own share of the rows: no concurrency control, no replication,
//! no messages. The floor is an upper bound for this machine, to compare the engine with.
//!
//! *Not here*: the transactions on maps, which each workload has.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Limit, Settings};
use crate::report::{Report, cores_used};
use crate::workload::{Random, seeded};

/// A workload's transactions on plain maps.
pub trait FloorWorkload: Sync {
    /// The maps of one thread.
    type Maps;

    /// The maps of share `share` of `shares` of the rows.
    fn populate(&self, share: u64, shares: u64) -> Self::Maps;

    /// Draws one transaction and runs it. Returns whether the transaction found its rows.
    fn run_one(&self, maps: &mut Self::Maps, random: &mut Random) -> bool;
}

/// The result of the floor.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct FloorReport {
    /// Transactions that found their rows, per second and core.
    pub committed_per_second_per_core: f64,
    /// The engine's figure divided by the floor's.
    pub ratio: f64,
}

/// Transactions between two checks of the clock.
const TRANSACTIONS_PER_LOOK: u32 = 1_000;

/// How long the floor runs where the number of transactions limits a benchmark.
const DURATION: Duration = Duration::from_secs(1);

/// Runs the floor of a workload that has run with `settings`, on as many threads as its `report` has.
///
/// # Panics
/// If a thread cannot be started.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn run_floor<F: FloorWorkload>(
    workload: &F,
    report: &Report,
    settings: &Settings,
) -> FloorReport {
    let (threads, seed) = (report.cores, settings.seed);
    let duration = match settings.limit {
        Limit::Duration(duration) => duration,
        Limit::Transactions(_) => DURATION,
    };
    let (populated, stop) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let rates: Vec<f64> = std::thread::scope(|scope| {
        let (populated, stop) = (&populated, &stop);
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut maps = workload.populate(thread as u64, threads as u64);
                    let mut random = seeded(seed, thread as u64 + 1);
                    populated.wait();
                    let start = Instant::now();
                    let mut qualified = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..TRANSACTIONS_PER_LOOK {
                            qualified += u64::from(workload.run_one(&mut maps, &mut random));
                        }
                    }
                    qualified as f64 / start.elapsed().as_secs_f64()
                })
            })
            .collect();
        populated.wait();
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("the floor does not panic")).collect()
    });
    let per_core = rates.iter().sum::<f64>() / cores_used(threads) as f64;
    let ratio = report.committed_per_second_per_core / per_core;
    FloorReport { committed_per_second_per_core: per_core, ratio }
}
