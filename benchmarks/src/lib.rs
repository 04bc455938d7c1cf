//! The benchmark harness: runs a [`Workload`] on a cluster, measures it, verifies it, reports it.
//!
//! ```text
//! run(): open ─ create tables ─ load on all threads ─ warm up ─ measure ─ stop ─ verify ─ Report
//! ```
//!
//! A workload is a user of the harness: a new workload changes nothing here. Those that look for anomalies are here as well: pairs, skew, ranges,
//! and retries for the simulator.
//!
//! *Not here*: workloads whose rate counts: TATP, SmallBank, the object store and RPC echo are crates of their own, as this one is compiled for
//! size; the command line.
#![forbid(unsafe_code)]

mod beside;
mod check;
#[cfg(feature = "simulation")]
pub mod consistency;
mod exchange;
mod floor;
mod grow;
mod harness;
#[cfg(feature = "simulation")]
pub mod loads;
mod members;
mod moves;
pub mod pairs;
mod progress;
pub mod ranges;
pub mod recovery;
mod replicas;
mod report;
#[cfg(feature = "simulation")]
pub mod retries;
mod rows;
#[cfg(feature = "simulation")]
mod simulate;
pub mod skew;
pub mod sql;
mod statistics;
mod workload;

pub use beside::Beside;
pub use check::Check;
pub use floor::{FloorReport, FloorWorkload, run_floor};
pub use grow::grow;
pub use harness::{Limit, Settings, cluster_settings, run, topology_text};
pub use moves::MovesReport;
pub use progress::Progress;
pub use replicas::check_replicas;
pub use report::{
    Latency, Load, Report, TransactionReport, TransportReport, Verification, cores_used,
};
pub use rows::{for_each_row, for_each_row_in_order, index_bytes_per_key};
#[cfg(feature = "simulation")]
pub use simulate::{Ended, HealPhase, Simulated, SimulatedRun, check_cluster, simulate};
pub use statistics::{Reason, Totals};
pub use workload::{BenchmarkError, Profile, Ran, Random, Result, Workload, seeded};
