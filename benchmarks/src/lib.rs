//! The benchmark harness: runs a [`Workload`] on a cluster, measures it, verifies it, reports it.
//!
//! ```text
//! run(): open ─ create tables ─ load on all threads ─ warm up ─ measure ─ stop ─ verify ─ Report
//! ```
//!
//! A workload is a user of the harness: a new workload changes nothing here. The small workloads are here as well: object
//! store, pairs, skew, ranges, retries, RPC echo.
//!
//! *Not here*: TATP and SmallBank, which are crates of their own; the command line.
#![forbid(unsafe_code)]

mod beside;
mod check;
pub mod consistency;
mod exchange;
mod floor;
mod grow;
mod harness;
mod members;
mod moves;
pub mod object_store;
pub mod pairs;
mod progress;
pub mod ranges;
pub mod recovery;
mod replicas;
mod report;
pub mod retries;
mod rows;
pub mod rpc_echo;
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
pub use report::{Load, Report, TransactionReport, TransportReport, Verification};
pub use rows::{for_each_row, for_each_row_in_order, index_bytes_per_key};
pub use rpc_echo::{Across, EchoSettings, EchoTransport};
pub use simulate::{Ended, HealPhase, Simulated, SimulatedRun, check_cluster, simulate};
pub use statistics::{Reason, Totals};
pub use workload::{BenchmarkError, Profile, Ran, Random, Result, Workload, seeded};
