//! SQL in virtual time: builds of every kind during changes of every kind; then every index is compared with its rows.
//!
//! ```text
//! round    a new table with rows; a session builds, others change rows; all end; the index is compared with the rows,
//!          and in every second round the rows with those of a table that the same transactions changed in the same way
//! Clients  the sessions' futures, polled in turn between the steps of the simulation
//! ```
//!
//! The sessions are ordinary ones. Their jobs run on simulated workers, and planning takes no virtual time
//! ([`Database::open_simulated`]), so nothing depends on the speed of a thread.
//!
//! *Not here*: builds whose pages a test places by hand (`frontend/src/execute/online/tests.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use gannet_benchmarks::sql::SqlFailure;
use gannet_benchmarks::{
    BenchmarkError, Check, Ended, Random, Simulated, Totals, check_replicas, seeded,
};
use gannet_engine::simulation::{CameBack, Simulation};
use gannet_frontend::{Database, Session, SqlError, StatementResult, Value};
use rand::RngExt;

use crate::simulate::scenario::Scenario;

/// After the last fault, a client's statement must end within this virtual time. The bound is short, because statements that
/// conflict again and again take many steps.
const HEAL_NS: u64 = 1_000_000_000;
/// Runs of a statement without competitors, each with the attempts that a session makes.
const ATTEMPTS_MAX: u32 = 3;
/// Virtual time between two checks of progress.
const LOOK_NS: u64 = 10_000_000;
/// Sessions that change rows.
const WRITERS: u64 = 4;
/// Transactions of each of them in a round.
const CHANGES_PER_WRITER: u64 = 12;
/// Maximum number of initial rows.
const ROWS_MAX: u32 = 24;

/// The first column of a table, a build, and whether `u` is then unique.
const KINDS: [(&str, &str, bool); 4] = [
    ("id INT PRIMARY KEY", "CREATE INDEX i ON t (u)", false),
    ("id INT PRIMARY KEY", "CREATE UNIQUE INDEX i ON t (u)", true),
    ("id INT PRIMARY KEY", "ALTER TABLE t ADD CONSTRAINT i UNIQUE (u)", true),
    ("id INT NOT NULL", "ALTER TABLE t ADD CONSTRAINT i PRIMARY KEY (id)", false),
];

/// Changes: `{a}` and `{b}` are numbers of rows, `{u}` is a value.
const CHANGES: [&str; 13] = [
    "INSERT INTO t VALUES ({a}, {u}, 1)",
    "INSERT INTO t VALUES ({a}, {u}, 1), ({b}, {u} + 1, 1)",
    "INSERT INTO t VALUES ({a}, {u}, 1) ON CONFLICT DO NOTHING",
    "INSERT INTO t VALUES ({a}, {u}, 1), ({b}, {u} + 1, 1) ON CONFLICT (id) DO UPDATE SET u = excluded.u",
    "INSERT INTO t VALUES ({a}, {u}, 1) ON CONFLICT (id) DO UPDATE SET id = {b}",
    "UPDATE t SET u = {u} WHERE id = {a}",
    "UPDATE t SET u = NULL WHERE id = {a}",
    "UPDATE t SET v = v + 1 WHERE id = {a}",
    "UPDATE t SET id = {b} WHERE id = {a}",
    "UPDATE t SET id = {b}, u = {u} WHERE id = {a}",
    "UPDATE t SET u = u + 1 WHERE id >= {a}",
    "DELETE FROM t WHERE id = {a}",
    "DELETE FROM t WHERE u = {u}",
];

/// Allowed errors of changes and builds: duplicates, a row twice in ON CONFLICT, the rest of a failed transaction, a frozen
/// table, ON CONFLICT without a key, conflicts.
const REFUSALS: [&str; 6] = ["23505", "21000", "25P02", "55006", "42P10", "40001"];

/// The counts of the clients.
#[derive(Default)]
struct Counts {
    begun: Cell<u64>,
    done: Cell<u64>,
    refused: Cell<u64>,
    built: Cell<u64>,
    /// The first violation.
    wrong: RefCell<Option<String>>,
}

impl Counts {
    fn note(&self, wrong: impl FnOnce() -> String) {
        self.wrong.borrow_mut().get_or_insert_with(wrong);
    }

    /// Runs a statement that may be refused. Returns whether it succeeded.
    async fn run(&self, session: &mut Session, sql: &str) -> bool {
        self.begun.set(self.begun.get() + 1);
        match session.execute(sql).await {
            Ok(_) => {
                self.done.set(self.done.get() + 1);
                true
            }
            Err(error) => {
                self.refused.set(self.refused.get() + 1);
                if !REFUSALS.contains(&error.code) {
                    self.note(|| format!("{sql}: {} {error}", error.code));
                }
                false
            }
        }
    }

    /// Runs a statement that only a conflict may refuse.
    async fn must(&self, session: &mut Session, sql: &str) -> Vec<Vec<Value>> {
        for _ in 0..ATTEMPTS_MAX {
            self.begun.set(self.begun.get() + 1);
            match session.execute(sql).await {
                Ok(StatementResult::Rows { rows, .. }) => return rows,
                Ok(_) => return Vec::new(),
                Err(SqlError { code: "40001", .. }) => {}
                Err(error) => {
                    self.note(|| format!("{sql}: {} {error}", error.code));
                    return Vec::new();
                }
            }
        }
        self.note(|| format!("{sql}: conflicts, although no other client runs"));
        Vec::new()
    }
}

/// A future, and whether it was woken.
struct Client {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // Relaxed: everything happens on one thread.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The futures of clients that have not ended.
#[derive(Default)]
struct Clients(Vec<Client>);

impl Clients {
    fn add(&mut self, future: impl Future<Output = ()> + 'static) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.0.push(Client { future: Box::pin(future), woken });
    }

    /// Polls the woken futures in order. Returns whether all have ended.
    fn poll(&mut self) -> bool {
        self.0.retain_mut(|client| {
            if !client.woken.0.swap(false, Ordering::Relaxed) {
                return true;
            }
            let waker = Waker::from(Arc::clone(&client.woken));
            client.future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending
        });
        self.0.is_empty()
    }
}

/// A simulated run in progress.
struct Run {
    simulation: Simulation,
    /// One for each of several nodes, which learn of a new catalog independently.
    databases: Vec<Arc<Database>>,
    counts: Rc<Counts>,
    random: Random,
}

impl Run {
    fn session(&mut self) -> Session {
        let number = self.random.random_range(0..self.databases.len());
        self.databases[number].session("tester")
    }

    /// Runs clients to their end. Returns false if one of them waits forever.
    fn run_to_the_end(&mut self, mut clients: Clients) -> bool {
        let Self { simulation, counts, .. } = self;
        let begun = || counts.begun.get();
        let (mut last, mut progressed_ns) = (begun(), simulation.now_ns());
        loop {
            let now_ns = simulation.now_ns();
            if simulation.run_clients(now_ns + LOOK_NS, &begun, &mut || clients.poll()) {
                return true;
            }
            if begun() != last {
                (last, progressed_ns) = (begun(), now_ns);
            }
            if now_ns > simulation.last_end_ns().max(progressed_ns) + HEAL_NS {
                return false;
            }
        }
    }

    /// A round: a table, a build during changes of rows, and the comparison of index and rows. Returns false if a client
    /// waits forever.
    fn round(&mut self) -> bool {
        let (id, build, is_unique) = KINDS[self.random.random_range(0..KINDS.len())];
        let rows = self.random.random_range(4..=ROWS_MAX);
        // Few rows have equal values, so most builds succeed.
        let values_max = rows * self.random.random_range(1..=40);
        let is_mirrored = self.random.random_bool(0.5);
        let mut sql = vec!["DROP TABLE IF EXISTS t, mirror".to_owned()];
        for table in ["t", "mirror"] {
            sql.push(format!("CREATE TABLE {table} ({id}, u INT, v INT)"));
        }
        for row in 0..rows {
            let u = self.random.random_range(0..values_max);
            sql.push(format!("INSERT INTO t VALUES ({row}, {u}, 0)"));
        }
        sql.push("INSERT INTO mirror SELECT * FROM t".to_owned());
        let (mut session, counts) = (self.session(), Rc::clone(&self.counts));
        let mut clients = Clients::default();
        clients.add(async move {
            for sql in sql {
                counts.must(&mut session, &sql).await;
            }
        });
        if !self.run_to_the_end(clients) {
            return false;
        }
        let built = Rc::new(Cell::new(false));
        let mut clients = Clients::default();
        for _ in 0..WRITERS {
            let seed = self.random.random();
            let (session, counts) = (self.session(), Rc::clone(&self.counts));
            let random = seeded(seed, 0);
            clients.add(change(session, counts, random, values_max, is_mirrored));
        }
        let (mut session, counts, done) =
            (self.session(), Rc::clone(&self.counts), Rc::clone(&built));
        clients.add(async move { done.set(counts.run(&mut session, build).await) });
        if !self.run_to_the_end(clients) {
            return false;
        }
        if built.get() {
            self.counts.built.set(self.counts.built.get() + 1);
        }
        let (session, counts) = (self.session(), Rc::clone(&self.counts));
        let mut clients = Clients::default();
        clients.add(compare(session, counts, build, built.get(), is_unique, is_mirrored));
        self.run_to_the_end(clients)
    }
}

/// The actions of a session during a build.
async fn change(
    mut session: Session,
    counts: Rc<Counts>,
    mut random: Random,
    values_max: u32,
    is_mirrored: bool,
) {
    for _ in 0..CHANGES_PER_WRITER {
        let statements = if random.random_bool(0.3) { random.random_range(2..5) } else { 1 };
        let is_block = statements > 1 || is_mirrored;
        if is_block {
            counts.run(&mut session, "BEGIN").await;
        }
        for _ in 0..statements {
            let change = CHANGES[random.random_range(0..CHANGES.len())];
            let mut row = || random.random_range(0..ROWS_MAX + 8).to_string();
            let sql = change.replace("{a}", &row()).replace("{b}", &row());
            let sql = sql.replace("{u}", &random.random_range(0..values_max).to_string());
            // The other table has no index that would keep rows out.
            if is_mirrored && sql.ends_with("DO NOTHING") {
                continue;
            }
            counts.run(&mut session, &sql).await;
            if is_mirrored {
                counts.run(&mut session, &sql.replace(" t ", " mirror ")).await;
            }
        }
        if is_block {
            counts.run(&mut session, "COMMIT").await;
        }
    }
}

/// Compares the rows in an index with the table's, and these with the other table's.
async fn compare(
    mut session: Session,
    counts: Rc<Counts>,
    build: &'static str,
    built: bool,
    is_unique: bool,
    is_mirrored: bool,
) {
    // First through the table's storage, then through the index.
    let rows = counts.must(&mut session, "SELECT id, u, v FROM t WHERE v + 0 > -1").await;
    if is_mirrored {
        let mirror = counts.must(&mut session, "SELECT id, u, v FROM mirror").await;
        let sorted = |rows: &[Vec<Value>]| {
            let mut shown: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
            shown.sort();
            shown
        };
        let (found, wanted) = (sorted(&rows), sorted(&mirror));
        if found != wanted {
            counts.note(|| format!("after {build} the rows are {found:?} instead of {wanted:?}"));
        }
    }
    if !built {
        // A failed build withdraws its declaration: an index that refuses nothing can take the name.
        if build.starts_with("CREATE") || build.contains("UNIQUE") {
            counts.must(&mut session, "CREATE INDEX i ON t (u)").await;
        }
        return;
    }
    let column = if build.contains("PRIMARY") { "id" } else { "u" };
    let sql = format!("SELECT id, u, v FROM t WHERE {column} >= -1000");
    let plan = format!("{:?}", counts.must(&mut session, &format!("EXPLAIN {sql}")).await);
    if !plan.contains("Index") {
        counts.note(|| format!("{sql} does not use the index: {plan}"));
    }
    let found = counts.must(&mut session, &sql).await;
    let number = usize::from(column == "u");
    let shown = |row: &Vec<Value>| format!("{row:?}");
    let wanted: BTreeSet<String> =
        rows.iter().filter(|row| row[number] != Value::Null).map(shown).collect();
    let by_index: BTreeSet<String> = found.iter().map(shown).collect();
    if wanted != by_index || found.len() != by_index.len() {
        let lost: Vec<_> = wanted.difference(&by_index).collect();
        let more: Vec<_> = by_index.difference(&wanted).collect();
        counts.note(|| format!("after {build} the index lacks {lost:?} and has {more:?}"));
    }
    let values: BTreeSet<String> = found.iter().map(|row| format!("{:?}", row[number])).collect();
    if (is_unique || column == "id") && values.len() < found.len() {
        counts.note(|| format!("after {build} there are duplicates: {found:?}"));
    }
}

/// Simulates builds. `scenario` has the cluster, the faults, and the approximate number of statements.
///
/// # Errors
/// [`BenchmarkError`] if the settings are impossible or the memory does not suffice.
pub(super) fn run(
    scenario: &Scenario,
    trace: Option<Box<dyn Write>>,
) -> Result<Simulated, BenchmarkError> {
    let Scenario { cluster, manager, seed, faults, transactions, .. } = scenario;
    let (options, faults) = (cluster.clone(), faults.clone());
    let simulation = Simulation::open_with(*manager, options, *seed, faults, trace)?;
    let mut random = seeded(*seed, 0);
    let databases: Result<Vec<_>, SqlError> = (0..random.random_range(1..=3))
        .map(|_| Database::open_simulated(simulation.shared_cluster()))
        .collect();
    let databases = databases
        .map_err(|error| SqlFailure { code: error.code.to_owned(), message: error.message })?;
    let mut run = Run { simulation, databases, counts: Rc::default(), random };
    let mut finished = true;
    while finished && run.counts.begun.get() < *transactions && run.counts.wrong.borrow().is_none()
    {
        finished = run.round();
    }
    let Run { simulation, counts, .. } = run;
    let mut checks = Vec::new();
    if finished {
        let wrong = counts.wrong.borrow();
        let detail = match &*wrong {
            Some(wrong) => wrong.clone(),
            None => format!("{} builds, {} refusals", counts.built.get(), counts.refused.get()),
        };
        checks.push(Check::new("every index has its rows", wrong.is_none(), detail));
        checks.extend(check_replicas(simulation.cluster()));
        let refused: u64 = simulation.cluster().nodes().iter().map(|node| node.refused()).sum();
        checks.push(Check::equal("requests refused", 0, i128::from(refused)));
        let in_use = simulation.in_use() as i128;
        checks.push(Check::equal("requests, credits and coroutines in use", 0, in_use));
    }
    let mut totals = Totals::default();
    totals.types.push(Default::default());
    totals.types[0].attempted = counts.begun.get();
    totals.types[0].qualified = counts.done.get();
    Ok(Simulated {
        ended: if finished { Ended::Finished } else { Ended::Stuck },
        checks,
        totals,
        firings: simulation.firings(),
        killed: Vec::new(),
        removed: 0,
        halted: false,
        membership_changes: 0,
        handed_over: 0,
        came_back: CameBack::default(),
        counters: simulation.counters(),
        virtual_ns: simulation.now_ns(),
        trace_hash: simulation.trace_hash(),
    })
}
