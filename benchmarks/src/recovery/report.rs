//! The report of a benchmark of recovery, as JSON and as text.
//!
//! *Invariants*: times are in milliseconds, from the kill until each partition has committed a write again. A percentile
//! is the smallest time that so many of 100 kills do not exceed. A kill after which a partition did not come back has no
//! time, counts in no percentile, and the benchmark has not passed.
//!
//! *Source*: `docs/benchmarks.md`, "Recovery".
//!
//! *Not here*: the report of workloads (the crate's `report`), and the measurement (`watch`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use super::watch::Recovery;

/// Times of several kills, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Times {
    /// Half of the kills took at most as long.
    pub median: f64,
    /// 95 of 100 kills took at most as long.
    pub p95: f64,
    /// The longest.
    pub worst: f64,
}

impl Times {
    /// Those of some kills, if there are any.
    fn of<'k>(kills: impl IntoIterator<Item = &'k KillReport>) -> Option<Self> {
        let mut times: Vec<_> = kills.into_iter().filter_map(|kill| kill.recovery_ms).collect();
        times.sort_by(f64::total_cmp);
        // The smallest time that so many of 100 do not exceed.
        let of_100 = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1);
        Some(Self { median: *of_100(50)?, p95: *of_100(95)?, worst: *times.last()? })
    }
}

/// One kill.
#[derive(Clone, Debug, serde::Serialize)]
pub struct KillReport {
    /// The node that was killed.
    pub node: usize,
    /// Milliseconds from the kill until each partition had committed a write again; none if one did not.
    pub recovery_ms: Option<f64>,
    /// The partitions that did not.
    pub missing_partitions: Vec<u16>,
    /// Commits of the load in each interval of 10 ms, from 500 ms before the kill to 1.5 s after.
    pub committed_per_10_ms: Vec<u64>,
}

impl KillReport {
    /// The report of a node's kill.
    #[must_use]
    pub fn new(node: usize, recovery: Recovery) -> Self {
        let Recovery { time, missing, commits } = recovery;
        Self {
            node,
            recovery_ms: time.map(|time: Duration| time.as_secs_f64() * 1e3),
            missing_partitions: missing,
            committed_per_10_ms: commits,
        }
    }
}

/// The kills of one node.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeKills {
    /// The node.
    pub node: usize,
    /// How often it was killed.
    pub kills: usize,
    /// How long the others took to serve all partitions; none if they never did.
    pub recovery_ms: Option<Times>,
}

/// The report of all kills.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RecoveryReport {
    /// The name on the command line.
    pub workload: &'static str,
    /// The settings that reproduce the run.
    pub settings: BTreeMap<&'static str, String>,
    /// Which threads or processes have the nodes.
    pub topology: String,
    /// How long it took to serve all partitions; none if that never happened.
    pub recovery_ms: Option<Times>,
    /// The same by the node that was killed.
    pub nodes: Vec<NodeKills>,
    /// Whether all partitions came back after every kill.
    pub passed: bool,
    /// The kills, in their order.
    pub kills: Vec<KillReport>,
}

impl RecoveryReport {
    /// The report of some kills.
    #[must_use]
    pub fn new(
        settings: BTreeMap<&'static str, String>,
        topology: String,
        kills: Vec<KillReport>,
    ) -> Self {
        let killed: BTreeSet<_> = kills.iter().map(|kill| kill.node).collect();
        let of_node = |node| {
            let its: Vec<_> = kills.iter().filter(|kill| kill.node == node).collect();
            NodeKills { node, kills: its.len(), recovery_ms: Times::of(its) }
        };
        Self {
            workload: "recovery",
            settings,
            topology,
            recovery_ms: Times::of(&kills),
            nodes: killed.into_iter().map(of_node).collect(),
            passed: kills.iter().all(|kill| kill.recovery_ms.is_some()),
            kills,
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
        writeln!(out, "{}", self.topology)?;
        writeln!(out, "\nfrom the kill until every partition has committed a write again:\n")?;
        writeln!(out, "{}\n", self.table())?;
        for (number, kill) in (1..).zip(&self.kills) {
            if kill.recovery_ms.is_none() {
                let missing: Vec<_> =
                    kill.missing_partitions.iter().map(ToString::to_string).collect();
                writeln!(
                    out,
                    "FAILED kill {number}, of node {}: no write committed in partition {}",
                    kill.node,
                    missing.join(", ")
                )?;
            }
        }
        let kills = self.kills.len();
        let outcome = if self.passed { "all partitions came back" } else { "FAILED" };
        writeln!(out, "{kills} kills: {outcome}")
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["node killed", "kills", "median ms", "95 % ms", "worst ms"]);
        let mut row = |name: String, kills: usize, times: Option<Times>| {
            let cell = |of: fn(Times) -> f64| {
                times.map_or_else(|| "-".to_owned(), |times| format!("{:.1}", of(times)))
            };
            table.add_row([
                name,
                kills.to_string(),
                cell(|times| times.median),
                cell(|times| times.p95),
                cell(|times| times.worst),
            ]);
        };
        for node in &self.nodes {
            row(node.node.to_string(), node.kills, node.recovery_ms);
        }
        row("all".to_owned(), self.kills.len(), self.recovery_ms);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(node: usize, ms: u64) -> KillReport {
        let time = Some(Duration::from_millis(ms));
        KillReport::new(node, Recovery { time, missing: Vec::new(), commits: vec![3] })
    }

    #[test]
    fn times_are_those_of_kills_in_order() {
        let kills: Vec<_> = (1..=20).rev().map(|ms| kill(0, ms)).collect();
        let expected = Times { median: 10.0, p95: 19.0, worst: 20.0 };
        assert_eq!(Times::of(&kills), Some(expected));
        assert_eq!(Times::of(&[kill(1, 5)]), Some(Times { median: 5.0, p95: 5.0, worst: 5.0 }));
        assert_eq!(Times::of(&[]), None);
    }

    #[test]
    fn a_partition_that_does_not_come_back_is_named() {
        let lost = Recovery { time: None, missing: vec![4, 9], commits: Vec::new() };
        let kills = vec![kill(0, 7), KillReport::new(1, lost)];
        let report = RecoveryReport::new(BTreeMap::new(), "here".to_owned(), kills);
        assert!(!report.passed && report.nodes[1].recovery_ms.is_none());
        let text = report.to_text();
        assert!(text.contains("kill 2, of node 1: no write committed in partition 4, 9"), "{text}");
        assert_eq!(report.recovery_ms.map(|times| times.worst), Some(7.0));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["kills"][1]["missing_partitions"][0], 4);
        assert_eq!(json["nodes"][0]["recovery_ms"]["median"], 7.0);
    }
}
