//! SQL on a cluster, shared by all sessions: the last known catalog, cached plans, counters, and limits of memory.
//!
//! ```text
//! Session ─► Database ─┬─ tables of the engine: "sql catalog", "sql counters", and those with rows and index entries
//!                      ├─ catalog, version, plans      caches; a transaction finds out whether they are current
//!                      ├─ parser, aside                threads beside the workers
//!                      └─ memory, spill, streams       limits of what statements keep
//! ```
//!
//! *Invariants*: a cached plan belongs to one version of the catalog. Two callers never get the same value of a counter.
//!
//! *Not here*: the form of the catalog (`catalog`), and what a session does with a statement (`session`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use gannet_engine::{
    Abort, Cluster, ClusterError, Coordinator, Deferred, Failure as EngineFailure, TableId,
    TokenOutcome, TokenRefusal, Tokens,
};

use crate::aside::Aside;
use crate::catalog::{Catalog, VersionKeys, counter_key};
use crate::error::{Failure, SqlError};
use crate::execute::BATCH_ROWS;
use crate::execute::contended::Contended;
use crate::execute::storages::Storages;
use crate::execute::transaction::committed;
use crate::fold;
use crate::memory::{Budget, MemoryLimits, Pool};
use crate::parser::Parser;
use crate::plan::statement::Prepared;
use crate::session::Session;
use crate::settings;
use crate::settler;
use crate::spill::Spill;
use crate::value::DataType;

/// The engine's table with the catalog. Every transaction depends on the catalog's version, and must not conflict because of
/// rows in the same bucket.
const CATALOG_TABLE: &str = "sql catalog";
/// Expected descriptors and copies of the version; more fit as well.
const CATALOG_ROWS: u64 = 1_024;
/// The engine's table with the counters. A statement takes values in transactions of their own. If a counter shared a bucket
/// with rows that the statement has read, the statement would conflict with itself.
const COUNTER_TABLE: &str = "sql counters";
/// Expected counters; more fit as well.
const COUNTERS: u64 = 1_024;
/// Plans of each generation; there are two.
const PLANS_MAX: usize = 1_024;
/// Longest text whose plan is kept.
const PLAN_TEXT_BYTES_MAX: usize = 16 << 10;
/// Values of a counter that a process takes at once; unused values are lost, as in PostgreSQL.
const COUNTER_BLOCK: i64 = 32;
/// Blocks that are taken because the outcome of the one before is unknown.
const UNKNOWN_MAX: u32 = 3;
/// Coroutines of a worker per result that is sent while its query runs. A slow client holds one coroutine; the rest serve all
/// other statements.
const COROUTINES_PER_STREAM: usize = 4;

/// A cluster with SQL on it.
pub struct Database {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) storages: Storages,
    pub(crate) catalog_table: TableId,
    counter_table: TableId,
    /// The transactions under idempotency tokens.
    pub(crate) tokens: Tokens,
    pub(crate) contended: Contended,
    /// The keys of the catalog's version.
    pub(crate) versions: VersionKeys,
    pub(crate) parser: Parser,
    /// Rows in each batch of a build.
    pub(crate) built_rows: usize,
    pub(crate) memory: Arc<Pool>,
    pub(crate) aside: Arc<Aside>,
    /// Permits for threads that wait until the cluster has drained or removed a node.
    pub(crate) administrations: Arc<Semaphore>,
    /// The temporary files for rows beyond the memory of statements, if there is a directory for them.
    pub(crate) spill: Option<Arc<Spill>>,
    /// Permits for results that are sent while their queries run.
    pub(crate) streams: Arc<Semaphore>,
    /// How long such a query waits for a client that takes no rows.
    pub(crate) unread_timeout: Duration,
    catalog: Mutex<Arc<Catalog>>,
    /// The version of `catalog`.
    version: AtomicU64,
    plans: Mutex<Plans>,
    counters: Mutex<BTreeMap<u32, Range<i64>>>,
    /// Its end tells the settler that the database is gone.
    _alive: Sender<()>,
}

/// Threads that wait until the cluster has drained or removed a node. One may wait for a silent node that another removes.
const ADMINISTRATIONS_MAX: usize = 8;
/// Rows in each batch of a build on a simulated cluster, whose tables are small.
const BUILT_ROWS_SIMULATED: usize = 3;

/// The key of a cached plan: the text and the declared types.
type PlanKey = (String, Vec<Option<DataType>>);

/// Plans by their texts. When the new generation is full, it becomes the old one.
#[derive(Default)]
struct Plans {
    /// The version of the catalog that the plans were made with.
    version: u64,
    new: BTreeMap<PlanKey, Prepared>,
    old: BTreeMap<PlanKey, Prepared>,
}

/// Locks a mutex. No code panics while it holds such a lock, so a poisoned mutex guards nothing broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Database {
    /// A database on a cluster of one node and one worker, for tests.
    #[cfg(test)]
    pub(crate) fn of_one_node(memory_limit_bytes: usize) -> Arc<Self> {
        let options = gannet_engine::ClusterOptions {
            nodes: 1,
            replicas: 1,
            threads: 1,
            memory_limit_bytes: Some(memory_limit_bytes),
            ..gannet_engine::ClusterOptions::default()
        };
        let cluster = Cluster::open(options).expect("a small cluster opens");
        Self::open(Arc::new(cluster)).expect("an empty cluster takes the catalog")
    }

    /// Opens SQL on a cluster, and creates the catalog if there is none. Blocks.
    ///
    /// # Errors
    /// SQLSTATE 53200 if the cluster has no room, 53000 if the system refuses a thread, 58030 if the spill directory is not
    /// writable.
    pub fn open(cluster: Arc<Cluster>) -> Result<Arc<Self>, SqlError> {
        Self::open_within(cluster, MemoryLimits::default())
    }

    /// Opens SQL with other limits for the memory of statements.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_within(cluster: Arc<Cluster>, memory: MemoryLimits) -> Result<Arc<Self>, SqlError> {
        Self::build(cluster, memory, false)
    }

    /// Opens SQL on a simulated cluster: sessions act in the same order in every run with the same seed. Planning blocks the
    /// session that asks for it, and builds have small batches. The futures are polled outside of any runtime. Large values,
    /// which need threads, are not supported.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_simulated(cluster: Arc<Cluster>) -> Result<Arc<Self>, SqlError> {
        Self::build(cluster, MemoryLimits::default(), true)
    }

    fn build(
        cluster: Arc<Cluster>,
        memory: MemoryLimits,
        is_simulated: bool,
    ) -> Result<Arc<Self>, SqlError> {
        let no_room = |error: ClusterError| SqlError::new("53200", error.to_string());
        let table = |name, rows| cluster.open_system_table(name, rows).map_err(no_room);
        cluster.options().programs.set(fold::read);
        let aside = Arc::new(Aside::start()?);
        let streams = cluster.options().coroutines / COROUTINES_PER_STREAM;
        let spill = memory.spill.as_deref().map(Spill::open).transpose()?.map(Arc::new);
        let configuration = cluster.configuration();
        let (alive, ended) = channel();
        let database = Arc::new(Self {
            versions: VersionKeys::new(&configuration),
            storages: Storages::default(),
            catalog_table: table(CATALOG_TABLE, CATALOG_ROWS)?,
            counter_table: table(COUNTER_TABLE, COUNTERS)?,
            tokens: cluster.open_tokens().map_err(no_room)?,
            contended: Contended::default(),
            cluster,
            parser: Parser::start(is_simulated)?,
            built_rows: if is_simulated { BUILT_ROWS_SIMULATED } else { BATCH_ROWS },
            unread_timeout: memory.unread_timeout,
            memory: Pool::new(memory, Some(Arc::clone(&aside))),
            spill,
            streams: Arc::new(Semaphore::new(streams)),
            aside,
            administrations: Arc::new(Semaphore::new(ADMINISTRATIONS_MAX)),
            catalog: Mutex::new(Arc::new(Catalog::empty())),
            version: AtomicU64::new(Catalog::empty().version),
            plans: Mutex::default(),
            counters: Mutex::default(),
            _alive: alive,
        });
        if !is_simulated {
            settler::start(Arc::downgrade(&database), ended)?;
        }
        Ok(database)
    }

    /// Settles what lost nodes have left behind, if this process is the one that does so. On a simulated cluster nothing else does.
    /// Returns false if that has failed, and is to be tried again.
    pub async fn settle(self: &Arc<Self>) -> bool {
        Storages::discard(self, Vec::new());
        match settler::begin(self, &self.cluster.configuration()) {
            None => true,
            Some(Ok(job)) => matches!(job.await, Ok(Ok(()))),
            Some(Err(_)) => false,
        }
    }

    /// A new session.
    #[must_use]
    pub fn session(self: &Arc<Self>, user: &str) -> Session {
        Session::new(Arc::clone(self), user)
    }

    /// The cluster below.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The names of the tables of the last known catalog.
    #[must_use]
    pub fn table_names(&self) -> Vec<String> {
        self.catalog().tables().map(|table| table.name.clone()).collect()
    }

    /// A budget for the memory of a session's statements.
    pub(crate) fn budget(&self) -> Arc<Budget> {
        self.memory.budget()
    }

    /// The last known catalog; a transaction finds out whether a newer one exists.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&lock(&self.catalog))
    }

    /// The version of [`Self::catalog`].
    pub(crate) fn version(&self) -> u64 {
        // Relaxed: a transaction detects a plan that was made with an older version.
        self.version.load(Ordering::Relaxed)
    }

    /// Publishes a catalog whose version has committed.
    pub(crate) fn publish(&self, catalog: Arc<Catalog>) {
        let mut newest = lock(&self.catalog);
        if catalog.version > newest.version {
            self.version.store(catalog.version, Ordering::Relaxed);
            *newest = if catalog.private {
                let mut shared = Catalog::clone(&catalog);
                shared.private = false;
                Arc::new(shared)
            } else {
                catalog
            };
        }
    }

    /// The version of the newest catalog.
    pub(crate) fn newest_version(&self, coordinator: &mut Coordinator<'_>) -> Result<u64, Failure> {
        let key = std::slice::from_ref(self.versions.near(coordinator.home_partition()));
        committed(coordinator, |coordinator, deferred| {
            let found = deferred.get_many(coordinator, self.catalog_table, key)?;
            Ok(Catalog::version_from_bytes(found.first().and_then(Option::as_deref))?)
        })
    }

    /// Reads the newest catalog, and tells whether it is newer than the last known one.
    pub(crate) fn reload(&self, coordinator: &mut Coordinator<'_>) -> Result<bool, Failure> {
        let known = self.catalog().version;
        let catalog = committed(coordinator, |coordinator, deferred| {
            Catalog::load(coordinator, deferred, (self.catalog_table, &self.versions))
        })?;
        let is_newer = catalog.version > known;
        self.publish(Arc::new(catalog));
        Ok(is_newer)
    }

    /// The cached plan for a text, if it was made with this catalog.
    pub(crate) fn plan(
        &self,
        sql: &str,
        types: &[Option<DataType>],
        catalog: &Catalog,
    ) -> Option<Prepared> {
        let mut plans = lock(&self.plans);
        if catalog.private || plans.version != catalog.version {
            return None;
        }
        let key = (sql.to_owned(), types.to_vec());
        if let Some(plan) = plans.new.get(&key) {
            return Some(plan.clone());
        }
        let plan = plans.old.remove(&key)?;
        plans.keep(key, plan.clone());
        Some(plan)
    }

    /// Caches the plan for a text.
    pub(crate) fn keep_plan(
        &self,
        sql: &str,
        types: &[Option<DataType>],
        catalog: &Catalog,
        plan: &Prepared,
    ) {
        let mut plans = lock(&self.plans);
        if catalog.private || sql.len() > PLAN_TEXT_BYTES_MAX || catalog.version < plans.version {
            return;
        }
        if catalog.version > plans.version {
            *plans = Plans { version: catalog.version, ..Plans::default() };
        }
        plans.keep((sql.to_owned(), types.to_vec()), plan.clone());
    }

    /// What became of the transaction under a token, which the question decides.
    ///
    /// # Errors
    /// SQLSTATE 22023 if the text is no token, 55000 if what became of the transaction is not kept, and the engine's.
    pub(crate) fn token_outcome(
        &self,
        coordinator: &mut Coordinator<'_>,
        text: &str,
    ) -> Result<&'static str, Failure> {
        let token = settings::token(text)?;
        match self.tokens.decide(coordinator, &token)? {
            TokenOutcome::Committed(_) => Ok("committed"),
            TokenOutcome::Aborted => Ok("aborted"),
            TokenOutcome::Superseded => Err(Abort::from(TokenRefusal::Superseded).into()),
        }
    }

    /// The next value of a counter. It is taken in a transaction of its own, which no rollback undoes.
    pub(crate) fn next_value(
        &self,
        coordinator: &mut Coordinator<'_>,
        counter: u32,
    ) -> Result<i64, Failure> {
        if let Some(value) = lock(&self.counters).get_mut(&counter).and_then(Iterator::next) {
            return Ok(value);
        }
        let key = counter_key(counter);
        let table = self.counter_table;
        let take = |coordinator: &mut Coordinator<'_>, deferred: &mut Deferred| {
            let found = deferred.get_many(coordinator, table, std::slice::from_ref(&key))?;
            let bytes = found.first().and_then(Option::as_ref);
            let last = bytes.and_then(|bytes| bytes.as_slice().try_into().ok());
            let last = last.map_or(0, i64::from_be_bytes);
            let next = last.saturating_add(COUNTER_BLOCK);
            deferred.put(table, key.clone(), next.to_be_bytes().to_vec());
            Ok(last)
        };
        // A value is lost if its statement fails.
        let last = coordinator
            .without_cancellation(|coordinator| unless_unknown(|| committed(coordinator, take)))?;
        if last > i64::MAX - COUNTER_BLOCK {
            return Err(SqlError::new("2200H", "the counter has reached its largest value").into());
        }
        let mut counters = lock(&self.counters);
        let taken = last + 1..last + COUNTER_BLOCK + 1;
        let block = counters.entry(counter).or_insert(taken.clone());
        if block.is_empty() {
            *block = taken;
        }
        // If two coroutines have taken a block at the same time, one of them uses the other's block, and its own block is
        // lost.
        Ok(block.next().expect("a block that is not empty has a first value"))
    }
}

/// Runs a transaction that may be run twice, and again if its outcome is unknown: whether that one has committed does not matter.
fn unless_unknown<T>(mut run: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for _ in 1..UNKNOWN_MAX {
        match run() {
            Err(Failure::Abort(Abort::Failure(EngineFailure::Unknown))) => {}
            result => return result,
        }
    }
    run()
}

impl Plans {
    fn keep(&mut self, key: PlanKey, plan: Prepared) {
        if self.new.len() >= PLANS_MAX {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(key, plan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown<T>() -> Result<T, Failure> {
        Err(Abort::from(EngineFailure::Unknown).into())
    }

    #[test]
    fn a_block_of_a_counter_whose_outcome_is_unknown_is_passed_over() {
        let mut runs = 0;
        let mut last = || {
            runs += 1;
            if runs < 3 { unknown() } else { Ok(runs) }
        };
        assert!(matches!(unless_unknown(&mut last), Ok(3)));
        // Another failure is final, and so is one too many.
        let halted = || Err::<(), _>(Failure::from(Abort::from(EngineFailure::Halted)));
        assert!(matches!(
            unless_unknown(halted),
            Err(Failure::Abort(Abort::Failure(EngineFailure::Halted)))
        ));
        let mut runs = 0;
        let ended = unless_unknown(|| {
            runs += 1;
            unknown::<()>()
        });
        assert!(matches!(ended, Err(Failure::Abort(Abort::Failure(EngineFailure::Unknown)))));
        assert_eq!(runs, UNKNOWN_MAX);
    }
}
