//! Partitions that move while a workload runs: the last of several processes is drained, and gets its share again, in turn.
//!
//! ```text
//! process 0     warm-up ─► drain ─ all have moved ─ give back ─ all have moved ─► ... ─► tells that the moves have ended
//! the others    warm-up ─► measured ─────────────────────────────────────────────────────► hear it
//! ```
//! With as many copies as nodes only primaries move, and no row; with fewer, copies too.
//!
//! *Not here*: the clients, in `harness`; how partitions move, in the engine.

use std::fmt;
use std::time::Duration;

use gannet_engine::{Cluster, Drained, MembershipStatus, Unhealthy};
use serde::{Deserialize, Serialize};

use crate::exchange::exchanged;
use crate::harness::now;
use crate::progress::Progress;
use crate::report::Latency;
use crate::statistics::histogram;
use crate::workload::BenchmarkError;

/// Coroutines of each worker that run no client: two copy, one runs the exchanges between the processes.
pub(crate) const COROUTINES: usize = 3;
/// Between two looks whether all have moved.
const LOOK: Duration = Duration::from_millis(5);
/// When nothing is copied, and nothing was decided for so long, nothing moves any more.
const STUCK: Duration = Duration::from_secs(60);

/// What a process has seen of the moves.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    /// At each hand-over: for how long nobody was served.
    unserved: Vec<Duration>,
    copied_bytes: u64,
    /// At the process that has begun the moves: the time of each, and how much of that nodes were filled for.
    moves: Vec<(f64, f64)>,
}

/// The moves of a run.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct MovesReport {
    /// Drains, and returns of a share.
    pub moves: usize,
    /// The time of all of them together.
    pub seconds: f64,
    /// Hand-overs of primaries, of one partition or several.
    pub hand_overs: u64,
    /// For how long a hand-over leaves its partitions unserved.
    pub unserved_us: Latency,
    /// Bytes of rows that were copied.
    pub copied_bytes: u64,
    /// The time of the moves in which nodes were filled; the rest is that of hand-overs, and of giving memory back.
    pub copying_seconds: f64,
}

/// Refuses moves that are impossible.
pub(crate) fn check(
    drains: usize,
    coroutines: usize,
    processes: bool,
) -> Result<(), BenchmarkError> {
    let refused = |setting, value: usize, allowed: String| {
        Err(BenchmarkError::Setting { setting, value: value.to_string(), allowed })
    };
    if drains > 0 && !processes {
        return refused(
            "--drains",
            drains,
            "it with --processes: nodes of one process are not drained".to_owned(),
        );
    }
    if drains > 0 && coroutines <= COROUTINES {
        let allowed = format!("at least {}: {COROUTINES} run no client", COROUTINES + 1);
        return refused("--coroutines", coroutines, allowed);
    }
    Ok(())
}

/// Drains the last node so often, and gives it its share again each time. Every process calls this, and the first one does it.
pub(crate) fn run(
    cluster: &Cluster,
    drains: usize,
    progress: &Progress,
) -> Result<MovesReport, BenchmarkError> {
    let mut own = Seen::default();
    let first = cluster.node(0).is_some();
    for number in (0..drains).filter(|_| first) {
        for is_drained in [true, false] {
            let what = if is_drained { "drained" } else { "filled again" };
            progress.say(format!("{number} of {drains} drains, the last node is {what}"));
            own.moves.push(make(cluster, is_drained)?);
        }
    }
    // The others wait here for the first one.
    exchanged(cluster, "moving", ())?;
    for node in cluster.nodes() {
        own.unserved.extend(node.unserved_at_hand_overs());
    }
    let of_own = cluster.status().into_iter().filter(|it| cluster.node(it.node).is_some());
    own.copied_bytes = of_own.filter_map(|it| Some(it.report?.changes.copied_bytes)).sum();
    Ok(MovesReport::new(&exchanged(cluster, "moved", own)?))
}

/// Has the last node drained, or hold its share again, and waits until all have moved. Returns the time, and that of copying, in seconds.
fn make(cluster: &Cluster, is_drained: bool) -> Result<(f64, f64), BenchmarkError> {
    let node = u16::try_from(cluster.options().nodes - 1).expect("nodes have small numbers");
    let start = now();
    let (mut before, mut copying) = (start, Duration::ZERO);
    let (mut version, mut moved) = (0, start);
    cluster.drain_node(node, is_drained)?;
    loop {
        if let Some(lost) = (0..=node).find(|node| !cluster.configuration().is_member(*node)) {
            return Err(BenchmarkError::Gone(lost));
        }
        let membership = cluster.membership();
        if has_moved(&membership, node) {
            break;
        }
        let is_copying = is_copying(cluster);
        if membership.version > version {
            (version, moved) = (membership.version, now());
        } else if moved.elapsed() > STUCK && !is_copying {
            return Err(BenchmarkError::Stuck);
        }
        std::thread::park_timeout(LOOK);
        let time = before.elapsed();
        before += time;
        copying += time * u32::from(is_copying);
    }
    Ok((start.elapsed().as_secs_f64(), copying.as_secs_f64()))
}

/// Whether a node that is drained, or is to hold its share again, holds what it is to hold.
fn has_moved(membership: &MembershipStatus, node: u16) -> bool {
    let moves = matches!(
        membership.unhealthy,
        Some(
            Unhealthy::Preparing
                | Unhealthy::CopiesMissing(_)
                | Unhealthy::PrimariesMove(_)
                | Unhealthy::CopiesMove(_)
        )
    );
    !moves && !matches!(membership.drained.get(&node), Some(Drained::Moving(_)))
}

/// Whether a node is being filled.
fn is_copying(cluster: &Cluster) -> bool {
    let configuration = cluster.configuration();
    let mut partitions = (0..=u16::MAX).take(configuration.partitioning.count());
    partitions.any(|partition| !configuration.learners(partition).is_empty())
}

impl MovesReport {
    fn new(seen: &[Seen]) -> Self {
        let mut unserved = histogram();
        for time in seen.iter().flat_map(|seen| &seen.unserved) {
            unserved.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        let moves = || seen.iter().flat_map(|seen| &seen.moves);
        Self {
            moves: moves().count(),
            seconds: moves().map(|(all, _)| all).sum(),
            hand_overs: unserved.len(),
            unserved_us: Latency::of(&unserved),
            copied_bytes: seen.iter().map(|seen| seen.copied_bytes).sum(),
            copying_seconds: moves().map(|(_, copying)| copying).sum(),
        }
    }
}

impl fmt::Display for MovesReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { moves, seconds, hand_overs, unserved_us, copied_bytes, copying_seconds } = self;
        let Latency { p50, p99, max, .. } = unserved_us;
        let mebibytes = *copied_bytes as f64 / f64::from(1 << 20);
        write!(
            formatter,
            "moved: {moves} times in {seconds:.2} s, {mebibytes:.0} MiB copied in {copying_seconds:.2} s of these; {hand_overs} hand-overs, \
             unserved for {p50:.0} us (p50), {p99:.0} us (p99), {max:.0} us (max)"
        )
    }
}
