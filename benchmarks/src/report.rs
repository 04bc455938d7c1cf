//! The report of a run, as JSON and as text.
//!
//! *Invariants*: rates are per second of the measured interval; latencies are in microseconds, and those of committed
//! transactions. A transaction has succeeded if the transaction has committed and found its rows. A rate per core divides
//! by the OS threads, at most one for each core of the machine. Rows of the load count once, however many copies there
//! are. A run without a check has not passed.
//!
//! *Source*: FaSST section 6.4, for latencies of committed transactions.
//!
//! *Not here*: counting (`statistics`), and checks (`check`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use gannet_engine::Cluster;
use gannet_storage::BucketSnapshot;
use hdrhistogram::Histogram;

use crate::check::Check;
use crate::exchange::exchanged;
use crate::floor::FloorReport;
use crate::moves::MovesReport;
use crate::rows::for_each_primary;
use crate::statistics::{Reason, Statistics};
use crate::workload::{BenchmarkError, Profile};

/// How the initial rows were loaded, and how much memory they take.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Load {
    /// The time that loading took.
    pub seconds: f64,
    /// Number of rows; copies do not count.
    pub rows: u64,
    /// Table memory of all nodes together, if known.
    pub memory_bytes: Option<u64>,
    /// Table memory per byte of key and value, with all copies. Of SQL it is known for single statements, and without what was there
    /// before the rows were loaded.
    pub memory_per_payload_byte: Option<f64>,
    /// Bytes that a key takes in the ordered index of one copy, if there are such and the memory is known.
    pub index_bytes_per_key: Option<f64>,
}

impl Load {
    /// Of all processes together; `memory_bytes` is the memory of all nodes.
    pub(crate) fn new(
        cluster: &Cluster,
        memory_bytes: u64,
        took: Duration,
    ) -> Result<Self, BenchmarkError> {
        let mut rows = 0;
        let mut payload_bytes = 0;
        let mut snapshot = BucketSnapshot::default();
        for (number, _) in cluster.view().tables() {
            for_each_primary(cluster, number, |table, partition| {
                let copies = cluster.configuration().copies(partition).len() as u64;
                let row_bytes = 8 + table.layout().value_bytes as u64;
                for bucket in 0..table.bucket_count(partition) {
                    table.snapshot(partition, bucket, &mut snapshot);
                    let in_bucket = snapshot.rows().len() as u64;
                    rows += in_bucket;
                    payload_bytes += in_bucket * row_bytes * copies;
                }
            });
        }
        let counted = exchanged(cluster, "counting", (rows, payload_bytes))?;
        let rows = counted.iter().map(|(rows, _)| rows).sum();
        let payload_bytes: u64 = counted.iter().map(|(_, bytes)| bytes).sum();
        Ok(Self {
            seconds: took.as_secs_f64(),
            rows,
            memory_bytes: Some(memory_bytes),
            memory_per_payload_byte: Some(memory_bytes as f64 / payload_bytes.max(1) as f64),
            index_bytes_per_key: None,
        })
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Longest.
    pub max: f64,
}

impl Latency {
    /// Those of a histogram in nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            p50: us(histogram.value_at_quantile(0.5)),
            p99: us(histogram.value_at_quantile(0.99)),
            p999: us(histogram.value_at_quantile(0.999)),
            max: us(histogram.max()),
        }
    }
}

/// One transaction type in the measured interval.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TransactionReport {
    /// Its name.
    pub name: &'static str,
    /// Transactions begun.
    pub attempted: u64,
    /// Committed and found their rows.
    pub succeeded: u64,
    /// Successes per second.
    pub rate: f64,
    /// Latencies of committed transactions.
    pub latency_us: Latency,
}

/// The checks after a run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Verification {
    /// Whether all checks passed.
    pub passed: bool,
    /// The checks.
    pub checks: Vec<Check>,
}

impl Verification {
    /// Passed if there is a check, and every check has passed.
    #[must_use]
    pub fn new(checks: Vec<Check>) -> Self {
        Self { passed: !checks.is_empty() && checks.iter().all(|check| check.passed), checks }
    }
}

/// The report of one run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// Name of the workload.
    pub workload: &'static str,
    /// The settings that reproduce the run.
    pub settings: BTreeMap<&'static str, String>,
    /// Length of the measured interval.
    pub seconds: f64,
    /// Cores used: OS threads that drive workers, and those of clients outside, at most one per core of the machine.
    pub cores: usize,
    /// Which threads drive which workers.
    pub topology: String,
    /// How durable commits are: `memory` means without a disk.
    pub durability: &'static str,
    /// The initial load.
    pub load: Option<Load>,
    /// Transactions begun per second.
    pub attempted_per_second: f64,
    /// Transactions that committed and found their rows, per second.
    pub committed_per_second: f64,
    /// The same rate per core. Every core does the work of clients, servers, logs and backups.
    pub committed_per_second_per_core: f64,
    /// Rows copied or scanned per second, if that rate is measured.
    pub rows_per_second: Option<f64>,
    /// Transactions that did not commit, by reason.
    pub aborts: BTreeMap<&'static str, u64>,
    /// By transaction type.
    pub transactions: Vec<TransactionReport>,
    /// Other counts of committed transactions, if there are any.
    pub counted: BTreeMap<&'static str, u64>,
    /// All types together.
    pub latency_us: Latency,
    /// The partitions that moved meanwhile, if they were to.
    pub moves: Option<MovesReport>,
    /// The same transactions on plain maps, if requested.
    pub floor: Option<FloorReport>,
    /// The bare transport beside the RPC echo, for each way of running the echo.
    pub transport: Vec<TransportReport>,
    /// The checks after the run.
    pub verify: Verification,
}

/// Packets of an RPC echo, beside those of the bare transport.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TransportReport {
    /// The echo.
    pub name: &'static str,
    /// The transport's packets of the same size, as many in flight, between the same nodes.
    pub packets_per_second_per_core: f64,
    /// The echo's packets: a request and a response each.
    pub rpc_packets_per_second_per_core: f64,
    /// The latter as a share of the former.
    pub ratio: f64,
}

/// The circumstances of a run.
pub(crate) struct Run {
    pub(crate) profile: Profile,
    pub(crate) settings: BTreeMap<&'static str, String>,
    pub(crate) topology: String,
    pub(crate) durability: &'static str,
    pub(crate) cores: usize,
    pub(crate) seconds: f64,
    pub(crate) load: Load,
}

impl Report {
    pub(crate) fn new(run: Run, statistics: &Statistics, verify: Verification) -> Self {
        let Run { profile, settings, topology, durability, cores, seconds, load } = run;
        let measured = &statistics.measured;
        let per_second = |count: u64| count as f64 / seconds.max(1e-9);
        let mut together = statistics.latencies[0].clone();
        for histogram in &statistics.latencies[1..] {
            together.add(histogram).expect("all histograms have the same bounds");
        }
        let transactions = profile
            .transactions
            .iter()
            .zip(&measured.types)
            .zip(&statistics.latencies)
            .map(|((name, totals), histogram)| TransactionReport {
                name,
                attempted: totals.attempted,
                succeeded: totals.qualified,
                rate: per_second(totals.qualified),
                latency_us: Latency::of(histogram),
            })
            .collect();
        let reasons = Reason::ALL.iter().zip(measured.aborts);
        Self {
            workload: profile.name,
            settings,
            seconds,
            cores,
            topology,
            durability,
            load: Some(load),
            attempted_per_second: per_second(measured.attempted()),
            committed_per_second: per_second(measured.qualified()),
            committed_per_second_per_core: per_second(measured.qualified()) / cores as f64,
            rows_per_second: profile.rows_each.map(|rows| per_second(rows * measured.qualified())),
            aborts: reasons.map(|(reason, count)| (reason.name(), count)).collect(),
            transactions,
            counted: profile
                .tallies
                .iter()
                .zip(&measured.tallies)
                .filter(|&(_, &count)| count > 0)
                .map(|(&name, &count)| (name, count))
                .collect(),
            latency_us: Latency::of(&together),
            moves: None,
            floor: None,
            transport: Vec::new(),
            verify,
        }
    }

    /// The report as JSON.
    ///
    /// # Panics
    /// Never: every field is serializable.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every field can be written as JSON")
    }

    /// The report as text for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let settings: Vec<_> =
            self.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        writeln!(out, "{}: {}", self.workload, settings.join(", "))?;
        writeln!(out, "{}; durability: {}", self.topology, self.durability)?;
        if let Some(load) = &self.load {
            write!(out, "loaded {} rows in {:.2} s", load.rows, load.seconds)?;
            if let Some(bytes) = load.memory_bytes {
                write!(out, ", {:.0} MiB on all nodes", bytes as f64 / f64::from(1 << 20))?;
            }
            if let Some(ratio) = load.memory_per_payload_byte {
                write!(out, ", {ratio:.2} bytes per byte of key and value")?;
            }
            if let Some(bytes) = load.index_bytes_per_key {
                write!(out, ", {bytes:.1} bytes per key of an ordered index")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "\n{}\n", self.transaction_table())?;
        let (scale, unit) = self.unit();
        writeln!(
            out,
            "{:.3} {unit} attempted, {:.3} {unit} committed, {:.3} {unit} committed per core ({} cores, {:.1} s)",
            self.attempted_per_second / scale,
            self.committed_per_second / scale,
            self.committed_per_second_per_core / scale,
            self.cores,
            self.seconds
        )?;
        if let Some(rows) = self.rows_per_second {
            let (all, core) = (rows / 1e6, rows / 1e6 / self.cores as f64);
            writeln!(out, "{all:.3} M rows/s, {core:.3} M rows/s per core")?;
        }
        for transport in &self.transport {
            writeln!(
                out,
                "bare transport: {:.3} M packets/s per core; {}: {:.3}, {:.2} of it",
                transport.packets_per_second_per_core / 1e6,
                transport.name,
                transport.rpc_packets_per_second_per_core / 1e6,
                transport.ratio
            )?;
        }
        let aborts: Vec<_> =
            self.aborts.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        writeln!(out, "aborts: {}", aborts.join(", "))?;
        if !self.counted.is_empty() {
            let counted: Vec<_> =
                self.counted.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(out, "counted: {}", counted.join(", "))?;
        }
        if let Some(moves) = &self.moves {
            writeln!(out, "{moves}")?;
        }
        if let Some(floor) = &self.floor {
            writeln!(
                out,
                "floor: {:.3} M/s per core on a plain hash map; the engine does {:.2} of it",
                floor.committed_per_second_per_core / 1e6,
                floor.ratio
            )?;
        }
        writeln!(out, "verify: {}", if self.verify.passed { "passed" } else { "FAILED" })?;
        for check in &self.verify.checks {
            let mark = if check.passed { "ok    " } else { "FAILED" };
            writeln!(out, "  {mark} {}: {}", check.name, check.detail)?;
        }
        Ok(())
    }

    /// The unit of rates: millions per second, or thousands for low rates.
    fn unit(&self) -> (f64, &'static str) {
        if self.attempted_per_second < 1e5 { (1e3, "k/s") } else { (1e6, "M/s") }
    }

    fn transaction_table(&self) -> Table {
        let (scale, unit) = self.unit();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "transaction",
            "attempted",
            "succeeded",
            "%",
            unit,
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
        ]);
        let mut row = |name: &str, attempted: u64, succeeded: u64, rate: f64, latency: &Latency| {
            table.add_row([
                name.to_owned(),
                attempted.to_string(),
                succeeded.to_string(),
                format!("{:.1}", 100.0 * succeeded as f64 / attempted.max(1) as f64),
                format!("{:.3}", rate / scale),
                format!("{:.1}", latency.p50),
                format!("{:.1}", latency.p99),
                format!("{:.1}", latency.p999),
                format!("{:.1}", latency.max),
            ]);
        };
        for report in &self.transactions {
            row(report.name, report.attempted, report.succeeded, report.rate, &report.latency_us);
        }
        let attempted = self.transactions.iter().map(|report| report.attempted).sum();
        let succeeded = self.transactions.iter().map(|report| report.succeeded).sum();
        row("all", attempted, succeeded, self.committed_per_second, &self.latency_us);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

/// The number of these threads that can run at the same time.
#[must_use]
pub fn cores_used(threads: usize) -> usize {
    threads.min(std::thread::available_parallelism().map_or(1, usize::from))
}
