//! Builds one page at a time, with changes of rows between the pages, in an order that the test decides.
//!
//! The cluster has three nodes in this process. Some tests fix the steps of a build, and a property test draws them. In one
//! test all workers fill a large table while another thread changes its rows. A test fails if an index has other entries
//! than its rows imply, if a unique index lets a duplicate in, or if a build ends with 23505 although its keys are unique.
//!
//! *Not here*: builds whose node is killed (`execute/unfinished/tests.rs`), and builds under faults (the simulator).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gannet_engine::{Abort, Cluster, ClusterOptions, Conflict, Direction, KeyRange, TableId};
use pollster::block_on;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::{Build, Context, Coordinator, Resources, Table, Transaction, alone, declare};
use super::{clean_up, finish, take_back, with_newest};
use crate::catalog::SeenVersions;
use crate::encoding::row::{Wanted, decode};
use crate::error::{Failure, SqlError};
use crate::execute::fill::{Placed, read_page, write_page};
use crate::execute::scan::whole;
use crate::execute::unfinished::note_build;
use crate::expression::function::Facts;
use crate::plan::PlanKind;
use crate::plan::statement::{self, Prepared};
use crate::session::{Session, StatementResult};
use crate::value::Value;
use crate::{Database, parser, settings};

fn database() -> Arc<Database> {
    database_with(1)
}

fn database_with(threads: usize) -> Arc<Database> {
    let options = ClusterOptions {
        threads,
        memory_limit_bytes: Some(128 << 20),
        ..ClusterOptions::default()
    };
    Database::open(Arc::new(Cluster::open(options).unwrap())).unwrap()
}

fn run(session: &mut Session, sql: &str) -> Result<StatementResult, SqlError> {
    block_on(session.execute(sql))
}

fn numbers(session: &mut Session, sql: &str) -> Vec<Vec<Value>> {
    match run(session, sql).unwrap() {
        StatementResult::Rows { rows, .. } => rows,
        other => panic!("{other:?}"),
    }
}

/// Runs a job on a coroutine, to its end.
fn on<T: Send + 'static>(
    database: &Arc<Database>,
    job: impl FnOnce(&mut Coordinator<'_>, &Resources) -> Result<T, Failure> + Send + 'static,
) -> Result<T, SqlError> {
    let facts = Facts {
        now: crate::clock::now(),
        user: Arc::from("definer"),
        catalog: database.catalog(),
        cluster: Arc::clone(&database.cluster),
        settings: Arc::new(settings::defaults("definer")),
        budget: database.budget(),
    };
    let resources = Resources {
        database: Arc::clone(database),
        facts,
        seen_versions: SeenVersions::default(),
        touched: Default::default(),
        spares: Default::default(),
        parameters: Vec::new(),
        cancel: Arc::new(AtomicBool::new(false)),
    };
    let job = move |coordinator: &mut Coordinator<'_>| job(coordinator, &resources);
    database.cluster.spawn_anywhere(job).unwrap().wait().unwrap().map_err(|failure| match failure {
        Failure::Error(error) => *error,
        Failure::Abort(abort) => abort.into(),
        Failure::StaleCatalog => panic!("no other session changes the catalog"),
    })
}

/// A declared build.
struct Stepped {
    database: Arc<Database>,
    build: Build,
    /// The range that is left to read.
    rest: Option<KeyRange>,
    /// Rows that were read and are left to write.
    read: VecDeque<Placed>,
}

impl Stepped {
    fn declare(database: &Arc<Database>, sql: &str) -> Self {
        let (text, catalog) = (sql.to_owned(), database.catalog());
        let planned = block_on(database.parser.run(sql.len(), move || {
            let statement = parser::parse(&text)?.expect("a statement");
            statement::plan(&statement, &text, &catalog, &[])
        }));
        let Prepared::Plan(plan) = planned.unwrap() else { panic!("{sql}") };
        let build = on(database, move |coordinator, resources| {
            let PlanKind::Define(definition) = &plan.kind else { panic!("no definition") };
            let begin = |_| Transaction::seeing(Arc::clone(&plan.catalog));
            alone(coordinator, resources, begin, |context| {
                let (_, build) = declare(definition, context)?;
                build.iter().try_for_each(|build| note_build(build, context))?;
                Ok(build)
            })
        });
        let build = build.unwrap().expect("the definition needs a build");
        let (rest, read) = (Some(whole()), VecDeque::new());
        Self { database: Arc::clone(database), build, rest, read }
    }

    /// Runs a transaction of the fill.
    fn work<T: Send + 'static>(
        &self,
        work: impl Fn(&Build, &Table, &mut Context<'_, '_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, SqlError> {
        let build = self.build.clone();
        on(&self.database, move |coordinator, resources| {
            let catalog = resources.database.catalog();
            let table = catalog.table_numbered(build.table()).unwrap();
            let begin = |_| Transaction::part_of(Arc::clone(&catalog));
            alone(coordinator, resources, begin, |context| work(&build, table, context))
        })
    }

    /// Reads a page of so many rows.
    fn read(&mut self, rows_max: usize) -> Result<(), SqlError> {
        let Some(range) = self.rest.take() else { return Ok(()) };
        let (mut rows, rest) = self.work(move |build, table, context| {
            read_page(build, table, (&range, rows_max), context)
        })?;
        rows.sort();
        self.read.extend(rows);
        self.rest = rest;
        Ok(())
    }

    /// Writes so many rows that were read.
    fn write(&mut self, rows_max: usize) -> Result<(), SqlError> {
        let rows: Vec<_> = self.read.drain(..rows_max.min(self.read.len())).collect();
        self.work(move |build, table, context| write_page(build, table, &rows, context))
    }

    /// Reads and writes a page of so many rows. Tells whether rows are left.
    fn fill(&mut self, rows_max: usize) -> Result<bool, SqlError> {
        self.read(rows_max)?;
        self.write(self.read.len())?;
        Ok(self.rest.is_some())
    }

    /// Fills the rest, and ends the build, as [`super::run`] does.
    fn end(mut self, filled: Result<(), SqlError>) -> Result<(), SqlError> {
        let filled = filled.and_then(|()| {
            while self.fill(3)? {}
            Ok(())
        });
        let build = self.build;
        let is_filled = filled.is_ok();
        on(&self.database, move |coordinator, resources| {
            with_newest(coordinator, resources, |context| match is_filled {
                true => finish(&build, context),
                false => take_back(&build, context),
            })
        })
        .unwrap();
        filled
    }
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The entries in index `i`, and those that the rows of `t` imply.
fn entries(database: &Arc<Database>) -> (Entries, Entries) {
    let mut entries = on(database, |coordinator, resources| {
        let catalog = resources.database.catalog();
        let table = catalog.require("t")?;
        let mut deferred = gannet_engine::Deferred::new();
        let mut all = |storage: TableId| -> Result<Entries, Failure> {
            let (mut rest, mut rows) = (Some(whole()), Entries::new());
            while let Some(range) = rest {
                let ascending = Direction::Ascending;
                let page = deferred.scan(coordinator, storage, &range, ascending, 1_000)?;
                rows.extend(page.rows);
                rest = page.rest;
            }
            Ok(rows)
        };
        let rows = all(table.rows())?;
        let Some(index) = table.indexes.iter().find(|index| index.name == "i") else {
            return Ok((Vec::new(), Vec::new()));
        };
        let wanted = rows.iter().map(|(key, row)| {
            let row = decode(row, &Wanted::All, &table.missing_values()?)?;
            let (key, value) = index.entry(&row, key);
            Ok((key.key, value))
        });
        let wanted: Result<Entries, SqlError> = wanted.collect();
        Ok((all(index.entries())?, wanted?))
    })
    .unwrap();
    entries.1.sort();
    entries
}

/// A table whose first and last rows have the same value; the first page of a build contains one of them.
fn first_and_last_alike(session: &mut Session, rows: &str) {
    for sql in ["DROP TABLE IF EXISTS t", "CREATE TABLE t (id INT PRIMARY KEY, u INT, v INT)"] {
        run(session, sql).unwrap();
    }
    run(session, &format!("INSERT INTO t VALUES {rows}")).unwrap();
}

const BUILDS: [&str; 2] =
    ["CREATE UNIQUE INDEX i ON t (u)", "ALTER TABLE t ADD CONSTRAINT i UNIQUE (u)"];

#[test]
fn a_change_of_a_row_keeps_the_entry_of_another() {
    let database = database();
    let mut session = database.session("writer");
    for build in BUILDS {
        for change in [
            "DELETE FROM t WHERE id = 9",
            "UPDATE t SET u = 5 WHERE id = 9",
            "UPDATE t SET u = NULL WHERE id = 9",
            "UPDATE t SET u = 5, id = 8 WHERE id = 9",
            "INSERT INTO t VALUES (9, 5, 0) ON CONFLICT (id) DO UPDATE SET u = excluded.u",
            "BEGIN; DELETE FROM t WHERE id = 9; INSERT INTO t VALUES (9, 5, 0); COMMIT",
        ] {
            first_and_last_alike(&mut session, "(1, 1, 0), (2, 2, 0), (3, 3, 0), (9, 1, 0)");
            let mut stepped = Stepped::declare(&database, build);
            stepped.fill(2).unwrap();
            for sql in change.split("; ") {
                run(&mut session, sql).unwrap();
            }
            stepped.end(Ok(())).unwrap();
            let (found, wanted) = entries(&database);
            assert_eq!(found, wanted, "{build}; {change}");
            let found = numbers(&mut session, "SELECT id FROM t WHERE u = 1");
            assert_eq!(found, [[Value::Integer(1)]], "{build}; {change}");
            let again = run(&mut session, "INSERT INTO t VALUES (7, 1, 0)");
            assert_eq!(again.unwrap_err().code, "23505", "{build}; {change}");
        }
    }
}

/// Another node has read of a build before it ended, and withdraws it afterwards.
#[test]
fn a_withdrawal_that_comes_late_takes_nothing() {
    let database = database();
    let mut session = database.session("writer");
    run(&mut session, "CREATE TABLE t (id INT NOT NULL)").unwrap();
    run(&mut session, "INSERT INTO t VALUES (1), (2), (3)").unwrap();
    let stepped = Stepped::declare(&database, "ALTER TABLE t ADD PRIMARY KEY (id)");
    let build = stepped.build.clone();
    stepped.end(Ok(())).unwrap();
    let withdraw = move |coordinator: &mut Coordinator<'_>, resources: &Resources| {
        with_newest(coordinator, resources, |context| take_back(&build, context))
    };
    on(&database, withdraw).unwrap();
    let found = numbers(&mut session, "SELECT id FROM t ORDER BY id");
    assert_eq!(found, [1, 2, 3].map(|id| [Value::Integer(id)]));
}

#[test]
fn a_row_after_the_filled_pages_takes_a_value_from_a_row_before() {
    let database = database();
    let mut session = database.session("writer");
    for build in BUILDS {
        first_and_last_alike(&mut session, "(1, 1, 0), (2, 2, 0), (3, 3, 0), (9, 9, 0)");
        let mut stepped = Stepped::declare(&database, build);
        stepped.fill(2).unwrap();
        for sql in
            ["BEGIN", "INSERT INTO t VALUES (0, 9, 0)", "DELETE FROM t WHERE id = 9", "COMMIT"]
        {
            run(&mut session, sql).unwrap();
        }
        stepped.end(Ok(())).unwrap();
        let (found, wanted) = entries(&database);
        assert_eq!(found, wanted, "{build}");
        assert_eq!(numbers(&mut session, "SELECT id FROM t WHERE u = 9"), [[Value::Integer(0)]]);
    }
}

#[test]
fn a_duplicate_fails_its_writer_or_the_build() {
    let database = database();
    let mut session = database.session("writer");
    let rows = "(1, 1, 0), (2, 2, 0), (3, 3, 0), (9, 1, 0)";
    for build in BUILDS {
        // A row would replace another row's entry.
        first_and_last_alike(&mut session, rows);
        let mut stepped = Stepped::declare(&database, build);
        stepped.fill(2).unwrap();
        for sql in ["INSERT INTO t VALUES (0, 2, 0)", "UPDATE t SET id = 0 WHERE id = 9"] {
            assert_eq!(run(&mut session, sql).unwrap_err().code, "23505", "{build}; {sql}");
        }
        // Two rows existed before the build.
        let error = stepped.end(Ok(())).unwrap_err();
        let detail = error.detail.as_deref();
        assert_eq!((error.code, detail), ("23505", Some("Key (u)=(1) is duplicated.")), "{build}");
        run(&mut session, "INSERT INTO t VALUES (0, 2, 0)").unwrap();
        // A writer has added an entry that the fill meets later.
        first_and_last_alike(&mut session, "(1, 1, 0), (2, 2, 0), (9, 9, 0)");
        let mut stepped = Stepped::declare(&database, build);
        stepped.fill(2).unwrap();
        run(&mut session, "INSERT INTO t VALUES (0, 9, 0)").unwrap();
        assert_eq!(stepped.end(Ok(())).unwrap_err().code, "23505", "{build}");
    }
}

/// Rows of two chunks.
const MANY: i32 = 70_000;

#[test]
fn all_workers_fill_a_large_table_while_others_change_it() {
    let database = database_with(2);
    let mut session = database.session("definer");
    run(&mut session, "CREATE TABLE t (id INT NOT NULL, u INT, v INT)").unwrap();
    let rows = format!("SELECT i, i * 7919 % 1000003, i FROM generate_series(1, {MANY}) i");
    run(&mut session, &format!("INSERT INTO t {rows}")).unwrap();
    let build = "ALTER TABLE t ADD PRIMARY KEY (id)";
    run(&mut session, "UPDATE t SET id = 5 WHERE v = 60000").unwrap();
    let error = run(&mut session, build).unwrap_err();
    let detail = error.detail.as_deref();
    assert_eq!((error.code, detail), ("23505", Some("Key (id)=(5) is duplicated.")));
    run(&mut session, "UPDATE t SET id = 60000 WHERE v = 60000").unwrap();
    run(&mut session, build).unwrap();
    let sums = format!("SELECT count(*), sum(id) = {MANY}::BIGINT * ({MANY} + 1) / 2 FROM t");
    let whole = [[Value::Integer(MANY.into()), Value::Boolean(true)]];
    assert_eq!(numbers(&mut session, &sums), whole);
    for build in BUILDS {
        let is_built = Arc::new(AtomicBool::new(false));
        let (writers, stop) = (Arc::clone(&database), Arc::clone(&is_built));
        let changes = std::thread::spawn(move || {
            let mut session = writers.session("writer");
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let id = 1 + count * 37 % (MANY - 1);
                run(&mut session, &format!("DELETE FROM t WHERE id = {id}")).unwrap();
                let row = format!("({id}, {}, 0)", -count - 1);
                run(&mut session, &format!("INSERT INTO t VALUES {row}")).unwrap();
                let moved = format!("UPDATE t SET u = u + 2000000 WHERE id = {}", id + 1);
                run(&mut session, &moved).unwrap();
                count += 1;
            }
            count
        });
        let built = run(&mut session, build);
        is_built.store(true, Ordering::Relaxed);
        assert!(changes.join().unwrap() > 0);
        built.unwrap();
        let (found, wanted) = entries(&database);
        assert!(found == wanted && found.len() == MANY as usize, "{build}");
        run(&mut session, "ALTER TABLE t DROP CONSTRAINT IF EXISTS i").unwrap();
        run(&mut session, "DROP INDEX IF EXISTS i").unwrap();
    }
}

#[test]
fn rows_that_fit_no_transaction_together_get_another_primary_key() {
    let options = ClusterOptions {
        nodes: 1,
        replicas: 1,
        threads: 1,
        partitions: 1,
        memory_limit_bytes: Some(256 << 20),
        ..ClusterOptions::default()
    };
    let database = Database::open(Arc::new(Cluster::open(options).unwrap())).unwrap();
    let mut session = database.session("definer");
    run(&mut session, "CREATE TABLE t (id INT NOT NULL, v TEXT)").unwrap();
    for id in 0..80 {
        let row = format!("INSERT INTO t VALUES ({id}, repeat('{}', 90000))", "long text ");
        run(&mut session, &row).unwrap();
    }
    run(&mut session, "ALTER TABLE t ADD PRIMARY KEY (id)").unwrap();
    let found = numbers(&mut session, "SELECT count(*), sum(length(v)) FROM t WHERE id < 80");
    assert_eq!(found, [[Value::Integer(80), Value::Integer(80 * 900_000)]]);
}

/// The first column of a table, and a build of each kind.
const KINDS: [(&str, &str); 4] = [
    ("id INT PRIMARY KEY", "CREATE INDEX i ON t (u)"),
    ("id INT PRIMARY KEY", "CREATE UNIQUE INDEX i ON t (u)"),
    ("id INT PRIMARY KEY", "ALTER TABLE t ADD CONSTRAINT i UNIQUE (u)"),
    ("id INT", "ALTER TABLE t ADD PRIMARY KEY (id)"),
];

/// Changes: A and B are row numbers, U is a value.
const CHANGES: [&str; 14] = [
    "INSERT INTO t VALUES (A, U, 1)",
    "INSERT INTO t VALUES (A, U, 1), (B, U + 1, 1)",
    "INSERT INTO t VALUES (A, U, 1) ON CONFLICT DO NOTHING",
    "INSERT INTO t VALUES (A, U, 1), (B, U + 1, 1) ON CONFLICT (id) DO UPDATE SET u = excluded.u",
    "INSERT INTO t VALUES (A, U, 1) ON CONFLICT (id) DO UPDATE SET id = B",
    "UPDATE t SET u = U WHERE id = A",
    "UPDATE t SET u = NULL WHERE id = A",
    "UPDATE t SET v = v + 1 WHERE id = A",
    "UPDATE t SET id = B WHERE id = A",
    "UPDATE t SET id = B, u = U WHERE id = A",
    "UPDATE t SET u = u + 1 WHERE id >= A",
    "UPDATE t SET id = 30 - id WHERE id >= A",
    "DELETE FROM t WHERE id = A",
    "DELETE FROM t WHERE u = U",
];

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Write(usize),
    /// Statements; several are one transaction.
    Change(Vec<String>),
}

fn change() -> impl Strategy<Value = String> {
    (0..CHANGES.len(), 0..16_u32, 0..16_u32, 0..20_u32).prop_map(|(number, a, b, u)| {
        let (a, b, u) = (a.to_string(), b.to_string(), u.to_string());
        let words = CHANGES[number].split_inclusive(|c: char| !c.is_ascii_alphanumeric());
        let drawn = |word: &str| {
            let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let drawn = match bare {
                "A" => &a,
                "B" => &b,
                "U" => &u,
                _ => bare,
            };
            format!("{drawn}{}", &word[bare.len()..])
        };
        words.map(drawn).collect()
    })
}

fn steps() -> impl Strategy<Value = (usize, Vec<u32>, Vec<Step>)> {
    let step = prop_oneof![
        2 => (1..4_usize).prop_map(Step::Read),
        2 => (1..4_usize).prop_map(Step::Write),
        3 => change().prop_map(|change| Step::Change(vec![change])),
        1 => proptest::collection::vec(change(), 2..4).prop_map(Step::Change),
    ];
    // Few values occur twice, so most builds succeed.
    let values = proptest::collection::vec(0..40_u32, 4..12);
    (
        0..KINDS.len(),
        prop_oneof![values, Just((0..9).collect())],
        proptest::collection::vec(step, 0..20),
    )
}

/// The outcome of a random build.
#[derive(Default)]
struct Came {
    built: bool,
    /// Changes that failed.
    refused: u32,
}

/// Runs a build, and the changes between its pages.
fn build_beside(
    database: &Arc<Database>,
    (kind, values, steps): (usize, Vec<u32>, Vec<Step>),
) -> Result<Came, String> {
    let mut session = database.session("writer");
    let mut came = Came::default();
    let (id, build) = KINDS[kind];
    let create = format!("CREATE TABLE t ({id}, u INT, v INT)");
    for sql in ["DROP TABLE IF EXISTS t", &create] {
        run(&mut session, sql).unwrap();
    }
    for (id, u) in values.iter().enumerate() {
        run(&mut session, &format!("INSERT INTO t VALUES ({id}, {u}, 0)")).unwrap();
    }
    let mut stepped = Stepped::declare(database, build);
    let mut filled = Ok(());
    for step in steps {
        match step {
            Step::Read(rows_max) => filled = stepped.read(rows_max),
            Step::Write(rows_max) => filled = stepped.write(rows_max),
            Step::Change(mut statements) => {
                if statements.len() > 1 {
                    statements.insert(0, "BEGIN".to_owned());
                    statements.push("COMMIT".to_owned());
                }
                for error in statements.iter().filter_map(|sql| run(&mut session, sql).err()) {
                    let known = ["23505", "21000", "25P02", "55006", "42P10"];
                    assert!(known.contains(&error.code), "{error:?}");
                    came.refused += 1;
                }
            }
        }
        if filled.is_err() {
            break;
        }
    }
    let ended = stepped.end(filled);
    // No change comes between the last page and the end of the build.
    let keys = if kind == 3 { "id" } else { "u" };
    let twice =
        format!("SELECT 1 FROM t WHERE {keys} IS NOT NULL GROUP BY {keys} HAVING count(*) > 1");
    let has_duplicates = !numbers(&mut session, &twice).is_empty();
    came.built = ended.is_ok();
    let codes = ended.err().map(|error| error.code);
    let (found, wanted) = entries(database);
    match codes {
        _ if found != wanted => Err("the index has other entries than its rows".to_owned()),
        None if kind > 0 && has_duplicates => Err("there are duplicates".to_owned()),
        Some("23505") if !has_duplicates => {
            Err("the keys are unique, and the build failed".to_owned())
        }
        None | Some("23505") => Ok(came),
        Some(code) => Err(format!("the build ended in {code}")),
    }
}

#[test]
fn an_index_built_during_random_changes_has_the_entries_of_its_rows() {
    let database = database();
    let counts = std::cell::Cell::new((0, 0, 0));
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&steps(), |drawn| {
        let came = build_beside(&database, drawn).map_err(TestCaseError::fail)?;
        let (built, failed, refused) = counts.get();
        let failed = failed + u32::from(!came.built);
        counts.set((built + u32::from(came.built), failed, refused + came.refused));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (built, failed, refused) = counts.get();
    assert!(built > 50 && failed > 20 && refused > 50, "{counts:?}");
}

#[test]
fn a_statement_that_is_cancelled_in_a_conflict_is_not_run_again() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let ended = on(&database(), move |coordinator, resources| {
        let begin = |_| Transaction::seeing(resources.database.catalog());
        alone(coordinator, resources, begin, |context| -> Result<(), Failure> {
            if counted.fetch_add(1, Ordering::Relaxed) == 1 {
                context.resources.cancel.store(true, Ordering::Relaxed);
            }
            Err(Abort::Conflict(Conflict::Locked).into())
        })
    });
    assert_eq!((ended.unwrap_err().code, runs.load(Ordering::Relaxed)), ("57014", 2));
}

/// Else a table would stay frozen whose build was cancelled.
#[test]
fn what_a_cancelled_statement_leaves_is_cleaned_up_in_spite_of_a_conflict() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let ended = on(&database(), move |coordinator, resources| {
        resources.cancel.store(true, Ordering::Relaxed);
        clean_up(coordinator, resources, |_| match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Abort::Conflict(Conflict::Locked).into()),
            _ => Ok(()),
        })
    });
    assert_eq!((ended, runs.load(Ordering::Relaxed)), (Ok(()), 2));
}
