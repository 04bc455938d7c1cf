//! Runs a workload in SQL: clients on OS threads of their own, each with a connection and one statement at a time.
//!
//! A transaction that meets a conflict counts as aborted, and runs again with the same draws. The latency of a committed
//! transaction begins with its first attempt.
//!
//! *Invariants*: a connection is opened, used and closed on one thread. No client has an open connection when the data are
//! verified.
//!
//! *Not here*: workloads without SQL (`harness` of the crate).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::{SqlConnection, SqlConnector, SqlFailure, SqlWorkload, Target};
use crate::check::Check;
use crate::harness::{Control, Limit, MEASURING, STOPPING, now, stuck, wait};
use crate::progress::Progress;
use crate::report::{Load, Report, Run, Verification, cores_used};
use crate::statistics::{self, Statistics};
use crate::workload::{BenchmarkError, Profile, Ran, Result as Outcome, seeded};

/// Attempts at one transaction, before another one is drawn.
const ATTEMPTS_MAX: u32 = 1_000;

/// The settings of a run in SQL.
#[derive(Clone, Debug)]
pub struct SqlSettings {
    /// Connections, each with one transaction at a time.
    pub clients: usize,
    /// OS threads of the clients.
    pub client_threads: usize,
    /// How long to measure.
    pub limit: Limit,
    /// How long to run before measuring.
    pub warmup: Duration,
    /// Seed of all random draws.
    pub seed: u64,
}

/// Runs `workload` through connections of `connector`, and verifies the data.
///
/// # Errors
/// [`BenchmarkError`] if a setting is impossible, no connection can be opened, or the tables cannot be created or loaded. A
/// failed verification is no error: the report has it.
///
/// # Panics
/// If a thread cannot be started.
pub fn run_sql<W: SqlWorkload, C: SqlConnector>(
    workload: &W,
    connector: &C,
    settings: &SqlSettings,
) -> Result<Report, BenchmarkError> {
    check(settings)?;
    let profile = workload.profile();
    let progress = Progress::new(profile.name);
    progress.say("loading".to_owned());
    let load = load(workload, connector)?;
    let (statistics, seconds, failure) = measure(workload, connector, settings, &progress)?;
    progress.say("verifying".to_owned());
    let mut checks = connector.block_on(async {
        let mut connection = connector.connect().await?;
        workload.verify(&mut connection, &statistics.whole()).await
    })??;
    checks.extend(connector.verify());
    if let Some(failure) = failure {
        checks.push(Check::new("no statement fails", false, failure.to_string()));
    }
    checks
        .extend(stuck(&statistics).map(|reason| Check::new("transactions commit", false, reason)));
    let Target { topology, durability, threads, .. } = connector.target();
    let all_threads = threads.map_or(usize::MAX, |threads| threads + settings.client_threads);
    let run = Run {
        settings: all_settings(&profile, connector.target(), settings),
        topology: format!(
            "{topology}; {} clients on {} OS threads",
            settings.clients, settings.client_threads
        ),
        durability,
        cores: cores_used(all_threads),
        seconds,
        load,
        profile,
    };
    Ok(Report::new(run, &statistics, Verification::new(checks)))
}

fn check(settings: &SqlSettings) -> Result<(), BenchmarkError> {
    let range = |setting, value: usize, max: usize| {
        if (1..=max).contains(&value) {
            return Ok(());
        }
        let (value, allowed) = (value.to_string(), format!("1 to {max}"));
        Err(BenchmarkError::Setting { setting, value, allowed })
    };
    range("--clients", settings.clients, 10_000)?;
    range("--client-threads", settings.client_threads, settings.clients.min(256))
}

fn all_settings(
    profile: &Profile,
    target: Target,
    settings: &SqlSettings,
) -> BTreeMap<&'static str, String> {
    let mut all: BTreeMap<_, _> = profile.settings.iter().cloned().collect();
    all.extend(target.settings);
    all.insert("clients", settings.clients.to_string());
    all.insert("client threads", settings.client_threads.to_string());
    all.insert("seed", settings.seed.to_string());
    all
}

/// Calls `client` for every client, on as many threads as the clients have. Returns the result of `end` on each thread.
fn on_threads<T: Send, F: Future<Output = Result<(), SqlFailure>>>(
    connector: &impl SqlConnector,
    settings: &SqlSettings,
    client: impl Fn(usize, usize) -> F + Sync,
    end: impl Fn() -> T + Sync,
) -> Result<Vec<T>, BenchmarkError> {
    std::thread::scope(|scope| {
        let (client, end) = (&client, &end);
        let threads: Vec<_> = (0..settings.client_threads)
            .map(|thread| {
                let own = (thread..settings.clients).step_by(settings.client_threads);
                scope.spawn(move || {
                    connector.block_on(async {
                        let mut clients: FuturesUnordered<_> =
                            own.map(|number| client(thread, number)).collect();
                        while let Some(result) = clients.next().await {
                            result?;
                        }
                        Ok(end())
                    })?
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("a client returns its errors")
        };
        threads.into_iter().map(join).collect()
    })
}

/// Creates the tables and loads them, through one connection: concurrent COPYs would conflict in the same buckets.
fn load<W: SqlWorkload, C: SqlConnector>(
    workload: &W,
    connector: &C,
) -> Result<Load, BenchmarkError> {
    let start = now();
    let (rows, empty_bytes) = connector.block_on(async {
        let mut connection = connector.connect().await?;
        for statement in workload.schema() {
            connection.run(&statement).await?;
        }
        let empty_bytes = connector.target().memory_bytes;
        let rows = workload.load(&mut connection).await?;
        connection.run("ANALYZE").await?;
        Ok::<_, SqlFailure>((rows, empty_bytes))
    })??;
    let seconds = start.elapsed().as_secs_f64();
    let Target { memory_bytes, copies, index_bytes_per_key, .. } = connector.target();
    let taken = memory_bytes.zip(empty_bytes).map(|(full, empty)| full.saturating_sub(empty));
    let payload = workload.payload_bytes().zip(copies).map(|(bytes, copies)| bytes * copies as u64);
    let memory_per_payload_byte =
        taken.zip(payload).map(|(taken, payload)| taken as f64 / payload as f64);
    Ok(Load { seconds, rows, memory_bytes, memory_per_payload_byte, index_bytes_per_key })
}

/// Runs the clients. Returns their counts, the measured seconds, and the first failure that is no conflict.
fn measure<W: SqlWorkload, C: SqlConnector>(
    workload: &W,
    connector: &C,
    settings: &SqlSettings,
    progress: &Progress,
) -> Result<(Statistics, f64, Option<SqlFailure>), BenchmarkError> {
    let control = Control::new(settings.limit, false, settings.client_threads);
    let failure = Mutex::new(None);
    let profile = workload.profile();
    let sizes = (profile.transactions.len(), profile.tallies.len());
    let mut start = now();
    let mut seconds = None;
    let counted = std::thread::scope(|scope| {
        let (control, failure) = (&control, &failure);
        let clients = scope.spawn(move || {
            let run = async |thread: usize, number: usize| {
                let place = (thread, number);
                let ended = client(workload, connector, control, place, settings.seed).await;
                if let Err(error) = ended {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    control.stop();
                }
                Ok(())
            };
            on_threads(connector, settings, run, statistics::take)
        });
        if let Limit::Duration(duration) = settings.limit {
            wait(settings.warmup, "warming up", control, progress);
            control.measure();
            start = now();
            wait(duration, "measuring", control, progress);
            control.stop();
            seconds = Some(start.elapsed().as_secs_f64());
        }
        clients.join().expect("a client returns its errors")
    })?;
    let mut sum = Statistics::new(sizes.0, sizes.1);
    counted.iter().flatten().for_each(|statistics| sum.add(statistics));
    let seconds = seconds.unwrap_or_else(|| start.elapsed().as_secs_f64());
    Ok((sum, seconds, failure.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// The loop of every client.
async fn client<W: SqlWorkload, C: SqlConnector>(
    workload: &W,
    connector: &C,
    control: &Control,
    (thread, number): (usize, usize),
    seed: u64,
) -> Result<(), SqlFailure> {
    let mut connection = connector.connect().await?;
    let mut random = seeded(seed, number as u64 + 1);
    let profile = workload.profile();
    let statistics = statistics::of_thread((profile.transactions.len(), profile.tallies.len()));
    loop {
        let Some(phase) = control.begin(thread) else { return Ok(()) };
        let (draws, start) = (random.clone(), now());
        let mut attempt = 1;
        let record = |ran: &Ran| {
            let latency_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            statistics.borrow_mut().record(ran, latency_ns, phase == MEASURING);
        };
        loop {
            let ran = workload.run_one(&mut connection, &mut random).await?;
            record(&ran);
            let conflict = matches!(ran.result, Outcome::Aborted(_));
            if !conflict || attempt == ATTEMPTS_MAX || control.phase() == STOPPING {
                break;
            }
            attempt += 1;
            random = draws.clone();
        }
    }
}
