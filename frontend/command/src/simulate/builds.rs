//! SQL in virtual time: builds of every kind during changes of every kind; then every index is compared with its rows.
//!
//! ```text
//! round    a new table with rows; a session builds, others change rows; all end; the index is compared with the rows,
//!          and in every second round the rows with those of a table that the same transactions changed in the same way
//! Clients  the sessions' futures, polled in turn between the steps of the simulation
//! ```
//! Each node is a process with a database of its own. When the node dies, its sessions do; another node then undoes their builds.
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
    BenchmarkError, Check, HealPhase, Random, Simulated, Totals, check_cluster, seeded,
};
use gannet_engine::Node;
use gannet_engine::simulation::Simulation;
use gannet_frontend::{Database, Session, SqlError, StatementResult, Value};
use rand::RngExt;

use crate::simulate::scenario::Scenario;

/// After the last fault, a client's statement must end within this virtual time.
const HEAL_NS: u64 = 10_000_000_000;
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
const CHANGES: [&str; 15] = [
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
    "SELECT u FROM t WHERE id = {a} FOR UPDATE",
    "SELECT u FROM t WHERE id >= {a} ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED",
];

/// Allowed errors of changes and builds: duplicates, a row twice in ON CONFLICT, the rest of a failed transaction, a frozen
/// table, ON CONFLICT without a key, conflicts, and transactions that wait for each other.
const REFUSALS: [&str; 7] = ["23505", "21000", "25P02", "55006", "42P10", "40001", "40P01"];

/// Whether a build has succeeded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Built {
    Yes,
    No,
    /// Its node has died.
    Unknown,
}

/// The counts of the clients.
#[derive(Default)]
struct Counts {
    begun: Cell<u64>,
    done: Cell<u64>,
    refused: Cell<u64>,
    built: Cell<u64>,
    /// Builds whose node has died.
    orphaned: Cell<u64>,
    /// The first violation.
    wrong: RefCell<Option<String>>,
}

impl Counts {
    fn add_build(&self, built: Built) {
        match built {
            Built::Yes => self.built.set(self.built.get() + 1),
            Built::No => {}
            Built::Unknown => self.orphaned.set(self.orphaned.get() + 1),
        }
    }

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

/// A future of a session, and whether it was woken.
struct Client {
    /// The session's node.
    node: Arc<Node>,
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
struct Clients {
    running: Vec<Client>,
    /// Whether some have ended with their nodes.
    some_lost: bool,
}

impl Clients {
    fn add(&mut self, node: &Arc<Node>, future: impl Future<Output = ()> + 'static) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.running.push(Client { node: Arc::clone(node), future: Box::pin(future), woken });
    }

    /// Polls the woken futures in order, but for those whose node has died. Returns whether all have ended.
    fn poll(&mut self) -> bool {
        let Self { running, some_lost } = self;
        running.retain_mut(|client| {
            if client.node.is_killed() {
                *some_lost = true;
                return false;
            }
            if !client.woken.0.swap(false, Ordering::Relaxed) {
                return true;
            }
            let waker = Waker::from(Arc::clone(&client.woken));
            client.future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending
        });
        running.is_empty()
    }
}

/// How clients have ended.
enum End {
    /// All by themselves.
    Whole,
    /// Some with their nodes.
    Lost,
    /// The cluster has halted, or the rows of some partition are gone: nothing is wrong with what clients were told.
    Over,
    /// One waits for ever.
    Stuck,
}

/// A node's process.
struct Process {
    node: Arc<Node>,
    /// It learns of a new catalog by itself.
    database: Arc<Database>,
}

/// A simulated run in progress.
struct Run {
    simulation: Simulation,
    processes: Vec<Process>,
    counts: Rc<Counts>,
    random: Random,
}

impl Run {
    /// The processes that live.
    fn living(&self) -> Vec<&Process> {
        self.processes.iter().filter(|process| !process.node.is_killed()).collect()
    }

    /// A new session at some living node, if there is any.
    fn session(&mut self) -> Option<(Arc<Node>, Session)> {
        let number = self.random.random_range(0..self.processes.len());
        let living = self.living();
        let Process { node, database } = living.get(number % living.len().max(1))?;
        Some((Arc::clone(node), database.session("tester")))
    }

    /// Runs clients to their end.
    fn run_to_the_end(&mut self, mut clients: Clients) -> End {
        let Self { simulation, counts, .. } = self;
        let begun = || counts.begun.get();
        let (mut last, mut progressed_ns) = (begun(), simulation.now_ns());
        loop {
            let now_ns = simulation.now_ns();
            let have_ended =
                simulation.run_clients(now_ns + LOOK_NS, &begun, &mut || clients.poll());
            if simulation.has_halted() || simulation.has_lost_rows() {
                // No phase begins after a violation.
                *counts.wrong.borrow_mut() = None;
                return End::Over;
            }
            if have_ended {
                return if clients.some_lost { End::Lost } else { End::Whole };
            }
            if begun() != last {
                (last, progressed_ns) = (begun(), now_ns);
            }
            if now_ns > simulation.last_end_ns().max(progressed_ns) + HEAL_NS {
                return End::Stuck;
            }
        }
    }

    /// A round: a table, a build during changes of rows, and the comparison of index and rows. A round whose table or whose comparison
    /// a node takes with it ends there.
    fn round(&mut self) -> End {
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
        let (Some((node, mut session)), counts) = (self.session(), Rc::clone(&self.counts)) else {
            return End::Over;
        };
        let mut clients = Clients::default();
        clients.add(&node, async move {
            for sql in sql {
                counts.must(&mut session, &sql).await;
            }
        });
        let end = self.run_to_the_end(clients);
        if !matches!(end, End::Whole) {
            return end;
        }
        let built = Rc::new(Cell::new(Built::Unknown));
        let mut clients = Clients::default();
        for _ in 0..WRITERS {
            let seed = self.random.random();
            let Some((node, session)) = self.session() else { return End::Over };
            let counts = Rc::clone(&self.counts);
            let random = seeded(seed, 0);
            clients.add(&node, change(session, counts, random, values_max, is_mirrored));
        }
        let Some((node, mut session)) = self.session() else { return End::Over };
        let (counts, done) = (Rc::clone(&self.counts), Rc::clone(&built));
        clients.add(&node, async move {
            let is_built = counts.run(&mut session, build).await;
            done.set(if is_built { Built::Yes } else { Built::No });
        });
        let end = self.run_to_the_end(clients);
        if matches!(end, End::Over | End::Stuck) {
            return end;
        }
        if matches!(end, End::Lost) {
            let end = self.settle();
            if !matches!(end, End::Whole) {
                return end;
            }
        }
        self.counts.add_build(built.get());
        let Some((node, session)) = self.session() else { return End::Over };
        let counts = Rc::clone(&self.counts);
        let mut clients = Clients::default();
        clients.add(&node, compare(session, counts, build, built.get(), is_unique, is_mirrored));
        self.run_to_the_end(clients)
    }

    /// Compares the engine's tables with those of SQL, after all that was lost is settled. None if a node dies meanwhile.
    fn check_storages(&mut self) -> Option<Check> {
        // The lowest member settles, and a process that was started again has no database here.
        let lowest = self.simulation.cluster().configuration().member_numbers().next();
        let settles = |it: &Process| lowest.is_some_and(|lowest| it.node.id() == lowest);
        if !self.living().into_iter().any(settles) || !matches!(self.settle(), End::Whole) {
            return None;
        }
        let (node, mut session) = self.session()?;
        let (counts, known) = (Rc::clone(&self.counts), Rc::new(Cell::new(-1)));
        let told = Rc::clone(&known);
        let mut clients = Clients::default();
        clients.add(&node, async move {
            let rows = counts.must(&mut session, STORAGES).await;
            if let Some([Value::Integer(count)]) = rows.first().map(Vec::as_slice) {
                told.set(*count);
            }
        });
        if !matches!(self.run_to_the_end(clients), End::Whole) {
            return None;
        }
        let configuration = self.simulation.cluster().configuration();
        let names = configuration.tables().map(|(_, table)| &table.definition.name);
        let found: Vec<_> = names.filter(|name| is_storage(name)).cloned().collect();
        let is_equal = i64::try_from(found.len()) == Ok(known.get());
        let detail = format!("{} of SQL; of the engine: {found:?}", known.get());
        Some(Check::new("no table of the engine is left", is_equal, detail))
    }

    /// Has the processes settle what lost ones have left behind.
    fn settle(&mut self) -> End {
        let mut clients = Clients::default();
        for Process { node, database } in self.living() {
            let (database, counts) = (Arc::clone(database), Rc::clone(&self.counts));
            clients.add(node, async move {
                for _ in 0..ATTEMPTS_MAX {
                    if database.settle().await {
                        return;
                    }
                }
                counts.note(|| "what a lost node has left behind cannot be settled".to_owned());
            });
        }
        self.run_to_the_end(clients)
    }
}

/// Counts the tables and the indexes that have a table of the engine.
const STORAGES: &str = "SELECT (SELECT count(*) FROM pg_class WHERE relkind = 'r') + \
                        (SELECT count(*) FROM pg_index WHERE NOT indisprimary)";

/// Whether a table of the engine has rows of SQL: the name tells a number and a process.
fn is_storage(name: &str) -> bool {
    name.strip_prefix("sql ").is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
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
    built: Built,
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
    let column = if build.contains("PRIMARY") { "id" } else { "u" };
    let sql = format!("SELECT id, u, v FROM t WHERE {column} >= -1000");
    let plan = format!("{:?}", counts.must(&mut session, &format!("EXPLAIN {sql}")).await);
    let has_index = plan.contains("Index");
    if built == Built::No || built == Built::Unknown && !has_index {
        // A failed build withdraws its declaration, and another node that of a lost one: an index that refuses nothing can take the
        // name.
        if build.starts_with("CREATE") || build.contains("UNIQUE") {
            counts.must(&mut session, "CREATE INDEX i ON t (u)").await;
        }
        return;
    }
    if !has_index {
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
    let Scenario { cluster, founding, seed, faults, transactions, .. } = scenario;
    let (options, faults) = (cluster.clone(), faults.clone());
    let mut simulation = Simulation::open_with(*founding, options, *seed, faults, trace)?;
    simulation.plan_kills(scenario.kills.clone());
    // Each round of builds would wait for all drains that are to follow each other.
    let drains = scenario.drains.iter().filter(|drain| !drain.in_turn);
    simulation.plan_drains(drains.copied().collect());
    simulation.plan_reshapes(*seed, *transactions);
    let nodes = simulation.cluster().nodes().into_iter().enumerate();
    let processes: Result<Vec<_>, SqlError> = nodes
        .map(|(number, node)| {
            let database = Database::open_simulated(simulation.process_of(number))?;
            Ok(Process { node, database })
        })
        .collect();
    let processes = processes
        .map_err(|error| SqlFailure { code: error.code.to_owned(), message: error.message })?;
    let heal_phase = HealPhase::create(simulation.cluster())?;
    simulation.require_leases(scenario.clocks_stand);
    let fails_ns = scenario.disk_fails_ns;
    fails_ns.into_iter().for_each(|after_ns| simulation.plan_disk_failure(after_ns));
    let random = seeded(*seed, 0);
    let mut run = Run { simulation, processes, counts: Rc::default(), random };
    let mut end = End::Whole;
    while matches!(end, End::Whole | End::Lost)
        && run.counts.begun.get() < *transactions
        && run.counts.wrong.borrow().is_none()
    {
        end = run.round();
    }
    let no_storages_left =
        if matches!(end, End::Whole | End::Lost) { run.check_storages() } else { None };
    let Run { mut simulation, counts, .. } = run;
    let finished = !matches!(end, End::Stuck);
    let mut checks = Vec::new();
    if finished {
        let wrong = counts.wrong.borrow();
        let detail = match &*wrong {
            Some(wrong) => wrong.clone(),
            None => format!(
                "{} builds, {} with nodes that died, {} refusals",
                counts.built.get(),
                counts.orphaned.get(),
                counts.refused.get()
            ),
        };
        checks.push(Check::new("every index has its rows", wrong.is_none(), detail));
        checks.extend(no_storages_left);
        if !simulation.has_halted() {
            checks.push(heal_phase.run(&mut simulation, counts.begun.get())?);
        }
        checks.extend(check_cluster(&simulation));
    }
    let mut totals = Totals::default();
    totals.types.push(Default::default());
    totals.types[0].attempted = counts.begun.get();
    totals.types[0].qualified = counts.done.get();
    Ok(Simulated::of(&simulation, finished, checks, totals))
}
