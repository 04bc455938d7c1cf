//! Recovery of a cluster in one process, whose nodes [`Cluster::kill_node`] ends.
//!
//! ```text
//! worker of a node that lives on    probes of some partitions, a coroutine each │ the workload on the other coroutines
//! worker of the node that is killed                                              the workload on all coroutines
//! ```
//! *Invariants*: a probe counts in an epoch after that of the kill. A cluster in which a partition does not come back is not
//! closed: its jobs may wait for ever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{
    Abort, Cluster, ClusterOptions, Completion, Coordinator, Failure, LockMode, Node, TableId,
    Transaction, WorkerId,
};

use super::keys_of_partitions;
use super::report::{KillReport, RecoveryReport};
use super::watch::{BEFORE, Watch};
use crate::harness::{cluster_settings, load_rows, topology_text};
use crate::progress::Progress;
use crate::workload::{BenchmarkError, Result as Outcome, Workload, seeded};

/// The table of the probes.
const TABLE: &str = "recovery_probe";
/// Conflicts in a row after which a probe waits no longer than before: about half a millisecond.
const CONFLICTS_MAX: u32 = 8;

/// The settings of a run.
#[derive(Clone)]
pub struct RecoverySettings {
    /// The cluster.
    pub cluster: ClusterOptions,
    /// How many nodes are killed, each of a cluster of its own.
    pub kills: usize,
    /// How long the load runs before a kill.
    pub warmup: Duration,
    /// How long partitions may take to come back.
    pub timeout: Duration,
    /// Seed of all random draws.
    pub seed: u64,
}

impl RecoverySettings {
    /// Refuses settings with which no node can be killed.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`].
    pub fn check(&self) -> Result<(), BenchmarkError> {
        let ClusterOptions { nodes, replicas, .. } = self.cluster;
        let at_least = |setting, value: usize, least: usize, why: &str| {
            if value >= least {
                return Ok(());
            }
            let allowed = format!("at least {least}{why}");
            Err(BenchmarkError::Setting { setting, value: value.to_string(), allowed })
        };
        at_least("--kills", self.kills, 1, "")?;
        at_least("--nodes", nodes, 2, ", as one is killed")?;
        at_least("--replicas", replicas, 2, ", so that the others have all rows")
    }

    /// Refuses fewer coroutines than a worker needs for its probes and a client.
    fn check_coroutines(&self) -> Result<(), BenchmarkError> {
        let ClusterOptions { nodes, threads, coroutines, partitions, .. } = self.cluster;
        let probes = partitions.div_ceil(((nodes - 1) * threads).max(1));
        if coroutines > probes {
            return Ok(());
        }
        Err(BenchmarkError::Setting {
            setting: "--coroutines",
            value: coroutines.to_string(),
            allowed: format!("at least {}: {probes} are for probes", probes + 1),
        })
    }

    /// The settings that reproduce the run.
    #[must_use]
    pub fn texts(&self) -> BTreeMap<&'static str, String> {
        let mut texts: BTreeMap<_, _> = cluster_settings(&self.cluster).into_iter().collect();
        texts.insert("kills", self.kills.to_string());
        texts.insert("warmup", format!("{:?}", self.warmup));
        texts.insert("timeout", format!("{:?}", self.timeout));
        texts.insert("seed", self.seed.to_string());
        texts
    }
}

/// Kills nodes under the load of a workload, which is made for each cluster. The last kill is one after which a partition did not
/// come back.
///
/// # Errors
/// [`BenchmarkError`] if the settings are impossible or the memory does not suffice. A partition that does not come back is no
/// error: the report has it.
pub fn run<W: Workload>(
    workload: impl Fn() -> Result<W, BenchmarkError>,
    settings: &RecoverySettings,
) -> Result<RecoveryReport, BenchmarkError> {
    settings.check()?;
    settings.check_coroutines()?;
    let progress = Progress::new("recovery");
    let mut texts = settings.texts();
    texts.insert("coroutines", settings.cluster.coroutines.to_string());
    let (mut kills, mut topology) = (Vec::new(), String::new());
    for number in 0..settings.kills {
        let node = number % settings.cluster.nodes;
        let which = format!("kill {} of {}, of node {node}", number + 1, settings.kills);
        progress.say(format!("{which}: loading"));
        let bench = Bench::open(workload()?, settings, node)?;
        topology = topology_text(&bench.cluster);
        texts.extend(bench.workload.settings());
        progress.say(which);
        let kill = bench.kill(settings)?;
        let is_back = kill.recovery_ms.is_some();
        kills.push(kill);
        if !is_back {
            break;
        }
    }
    Ok(RecoveryReport::new(texts, topology, kills))
}

/// A cluster with its load, of which a node is killed.
struct Bench<W> {
    cluster: Arc<Cluster>,
    workload: Arc<W>,
    watch: Arc<Watch>,
    table: TableId,
    /// The node to kill.
    node: usize,
}

impl<W: Workload> Bench<W> {
    /// Opens a cluster, and loads its rows.
    fn open(
        mut workload: W,
        settings: &RecoverySettings,
        node: usize,
    ) -> Result<Self, BenchmarkError> {
        let cluster = Cluster::open(settings.cluster.clone())?;
        workload.create_tables(&cluster)?;
        load_rows(&workload, &cluster)?;
        let partitions = settings.cluster.partitions;
        let table = cluster.open_table(TABLE, 8, partitions as u64)?;
        let mut loader = cluster.loader();
        for key in keys_of_partitions(partitions) {
            loader.add(table, key, &0_u64.to_le_bytes())?;
        }
        loader.finish()?;
        let workers = settings.cluster.nodes * settings.cluster.threads;
        let warmup = settings.warmup.max(BEFORE);
        let watch = Watch::new(partitions, workers, warmup);
        let (cluster, workload, watch) = (Arc::new(cluster), Arc::new(workload), Arc::new(watch));
        Ok(Self { cluster, workload, watch, table, node })
    }

    /// Kills the node under load, and waits until all partitions are back.
    fn kill(self, settings: &RecoverySettings) -> Result<KillReport, BenchmarkError> {
        let jobs = self.start_probes().and_then(|(mut jobs, probes)| {
            self.start_clients(settings.seed, &probes, &mut jobs)?;
            Ok(jobs)
        });
        // The cluster can close only if its jobs end.
        let jobs = jobs.inspect_err(|_| self.watch.end())?;
        self.watch.pause(settings.warmup.max(BEFORE));
        let (cluster, watch, node) =
            (Arc::clone(&self.cluster), Arc::clone(&self.watch), self.node);
        let killer = std::thread::spawn(move || {
            let killed = watch.kill(|| cluster.kill_node(node));
            if killed.is_err() {
                watch.end();
            }
            killed
        });
        let is_back = self.watch.wait_until_back(settings.timeout);
        if !is_back && !self.watch.is_over() {
            let report = KillReport::new(self.node, self.watch.recovery());
            self.watch.end();
            // To close it would be to wait for its jobs, which may not end.
            std::mem::forget(self.cluster);
            return Ok(report);
        }
        self.watch.wait_for_report();
        self.watch.end();
        let killed = killer.join().expect("the engine does not panic");
        for job in jobs {
            // A job of the killed node may have no result.
            let _ = job.wait();
        }
        killed?;
        Ok(KillReport::new(self.node, self.watch.recovery()))
    }

    /// Starts a probe of each partition, at the nodes that live on in turn. Returns the jobs, and by worker the number of probes.
    fn start_probes(&self) -> Result<(Vec<Completion<()>>, Vec<usize>), BenchmarkError> {
        let options = self.cluster.options();
        let epoch = self.cluster.configuration().epoch;
        let workers: Vec<_> = (0..options.nodes * options.threads)
            .filter(|worker| worker / options.threads != self.node)
            .collect();
        let mut probes = vec![0; options.nodes * options.threads];
        let keys = keys_of_partitions(options.partitions);
        let mut jobs = Vec::new();
        for ((partition, key), worker) in (0..).zip(keys).zip(workers.iter().cycle()) {
            probes[*worker] += 1;
            let at = WorkerId { node: worker / options.threads, worker: worker % options.threads };
            let node = self.cluster.node(at.node).expect("all nodes are in this process");
            let probe = Probe {
                watch: Arc::clone(&self.watch),
                node: Arc::clone(node),
                epoch,
                table: self.table,
                partition,
                key,
            };
            jobs.push(self.cluster.spawn(at, move |coordinator| probe.run(coordinator))?);
        }
        Ok((jobs, probes))
    }

    /// Starts clients of the workload on all other coroutines.
    fn start_clients(
        &self,
        seed: u64,
        probes: &[usize],
        jobs: &mut Vec<Completion<()>>,
    ) -> Result<(), BenchmarkError> {
        let options = self.cluster.options();
        for (worker, probes) in probes.iter().enumerate() {
            let at = WorkerId { node: worker / options.threads, worker: worker % options.threads };
            for coroutine in *probes..options.coroutines {
                let stream = (worker * options.coroutines + coroutine) as u64;
                let (workload, watch) = (Arc::clone(&self.workload), Arc::clone(&self.watch));
                let job = move |coordinator: &mut Coordinator<'_>| {
                    client(&*workload, &watch, coordinator, worker, (seed, stream));
                };
                jobs.push(self.cluster.spawn(at, job)?);
            }
        }
        Ok(())
    }
}

/// Runs transactions of a workload until the clients end, or the node is killed.
fn client<W: Workload>(
    workload: &W,
    watch: &Watch,
    coordinator: &mut Coordinator<'_>,
    worker: usize,
    (seed, stream): (u64, u64),
) {
    let mut random = seeded(seed, stream + 1);
    while !watch.is_over() {
        match workload.run_one(coordinator, &mut random).result {
            Outcome::Qualified => watch.count(worker),
            Outcome::Aborted(abort) if is_end(abort) => break,
            Outcome::Aborted(_) | Outcome::RowsMissing => {}
        }
    }
}

/// Whether a job's node works no more, or has lost rows.
fn is_end(abort: Abort) -> bool {
    matches!(
        abort,
        Abort::Failure(
            Failure::Halted | Failure::Revoked | Failure::Unknown | Failure::Lost { .. }
        )
    )
}

/// A client that writes a row of one partition again and again.
struct Probe {
    watch: Arc<Watch>,
    /// The node that the probe runs at.
    node: Arc<Node>,
    /// The epoch before the kill.
    epoch: u32,
    table: TableId,
    partition: u16,
    key: u64,
}

impl Probe {
    fn run(&self, coordinator: &mut Coordinator<'_>) {
        let (mut number, mut conflicts) = (0_u64, 0);
        while !self.watch.is_over() {
            let is_after = self.node.view().configuration().last_active_epoch > self.epoch;
            let tx = coordinator.begin();
            match self.write(tx, number) {
                Ok(()) => {
                    if is_after {
                        self.watch.is_back(self.partition);
                    }
                    (number, conflicts) = (number + 1, 0);
                }
                Err(abort) if is_end(abort) => break,
                Err(_) => {
                    tx.abort();
                    conflicts = (conflicts + 1).min(CONFLICTS_MAX);
                    coordinator.back_off(conflicts);
                }
            }
        }
    }

    fn write(&self, tx: &mut Transaction<'_>, number: u64) -> Result<(), Abort> {
        let row = tx.add_to_write_set(self.table, self.key, LockMode::Update);
        tx.execute()?;
        tx.put(row, &number.to_le_bytes())?;
        tx.commit()
    }
}
