//! A node is killed while it builds an index, or while it removes what was dropped.
//!
//! The cluster has three nodes in this process and a table of 50,000 rows; `Cluster::kill_node` stops the node that
//! works. A test fails if work is left unfinished after 20 s, if the index is not ready or does not lead to a row, or if
//! a dropped table is still there. A session that lives must build the index again in another storage. In the two other
//! tests the work may end before the kill: they accept that.
//!
//! *Not here*: the death of another node (`tests/server/failures/batches.rs`).

use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Cluster, ClusterOptions, Completion, WorkerId};
use pollster::block_on;

use super::{Work, all, committed, resources};
use crate::error::Failure;
use crate::execute::transaction::alone;
use crate::execute::{Output, Transaction, define, online};
use crate::plan::PlanKind;
use crate::plan::statement::{self, Prepared};
use crate::session::{Session, StatementResult};
use crate::value::Value;
use crate::{Database, parser};

const ROWS: i64 = 50_000;
/// The node that is killed.
const NODE: usize = 1;
/// Looks until something must have happened, and the time between two of them.
const LOOKS_MAX: usize = 2_000;
const LOOK: Duration = Duration::from_millis(10);

fn database() -> (Arc<Database>, Session) {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(256 << 20),
        ..ClusterOptions::default()
    };
    let database = Database::open(Arc::new(Cluster::open(options).unwrap())).unwrap();
    let mut session = database.session("tester");
    run(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, u INT)");
    for first in (0..ROWS).step_by(10_000) {
        let last = first + 9_999;
        let insert = format!("INSERT INTO t SELECT i, i FROM generate_series({first}, {last}) i");
        run(&mut session, &insert);
    }
    (database, session)
}

fn run(session: &mut Session, sql: &str) -> Vec<Vec<Value>> {
    match block_on(session.execute(sql)).unwrap() {
        StatementResult::Rows { rows, .. } => rows,
        _ => Vec::new(),
    }
}

/// Runs a definition at the node.
fn define_at_node(database: &Arc<Database>, sql: &str) -> Completion<Result<Output, Failure>> {
    let (text, catalog) = (sql.to_owned(), database.catalog());
    let plan = move || {
        let statement = parser::parse(&text)?.expect("a statement");
        statement::plan(&statement, &text, &catalog, &[])
    };
    let Prepared::Plan(plan) = block_on(database.parser.run(sql.len(), plan)).unwrap() else {
        panic!("{sql}")
    };
    let own = Arc::clone(database);
    let job = move |coordinator: &mut gannet_engine::Coordinator<'_>| {
        let PlanKind::Define(definition) = &plan.kind else { panic!("no definition") };
        let resources = resources(&own);
        if online::applies_to(definition) {
            return online::run(definition, &plan.catalog, coordinator, &resources);
        }
        let begin = |_| Transaction::seeing(Arc::clone(&plan.catalog));
        let run =
            alone(coordinator, &resources, begin, |context| define::declare(definition, context));
        run.map(|(output, _)| output)
    };
    database.cluster.spawn(WorkerId { node: NODE, worker: 0 }, job).unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let came = (0..LOOKS_MAX).any(|_| {
        std::thread::park_timeout(LOOK);
        is_so()
    });
    assert!(came, "{what}");
}

/// The work that is left.
fn works(database: &Arc<Database>) -> Vec<Work> {
    let table = database.catalog_table;
    let job = database.cluster.spawn_anywhere(move |coordinator| {
        committed(coordinator, |coordinator, deferred| all(coordinator, deferred, table))
    });
    job.unwrap().wait().unwrap().unwrap()
}

#[test]
fn the_index_of_a_node_that_was_lost_is_undone() {
    let (database, mut session) = database();
    let building = define_at_node(&database, "CREATE INDEX i ON t (u)");
    wait_until("the index is declared", || database.catalog().index_owner("i").is_some());
    database.cluster.kill_node(NODE).unwrap();
    let is_built = building.wait().unwrap().is_ok();
    wait_until("the build is settled", || works(&database).is_empty());
    run(&mut session, "INSERT INTO t VALUES (-1, -1)");
    if !is_built {
        run(&mut session, "CREATE INDEX i ON t (u)");
    }
    let catalog = database.catalog();
    let (table, number) = catalog.index_owner("i").expect("the index is there");
    assert!(table.indexes[number].ready);
    for u in [-1, 0, 777, ROWS - 1] {
        let found = run(&mut session, &format!("SELECT id FROM t WHERE u = {u}"));
        assert_eq!(found, [[Value::Integer(u)]]);
    }
}

#[test]
fn a_session_that_lives_builds_again_at_another_node() {
    let (database, mut session) = database();
    std::thread::scope(|scope| {
        let building = scope.spawn(|| run(&mut session, "CREATE INDEX i ON t (u)"));
        let mut first = None;
        wait_until("the index is declared", || {
            first = works(&database).into_iter().next();
            first.is_some()
        });
        let first = first.unwrap();
        database.cluster.kill_node(first.owner.node.into()).unwrap();
        building.join().unwrap();
        let catalog = database.catalog();
        let (table, number) = catalog.index_owner("i").expect("the index is there");
        assert_ne!(table.indexes[number].entries(), first.storage, "it was built again");
    });
    wait_until("no work is left", || works(&database).is_empty());
    let catalog = database.catalog();
    let (table, number) = catalog.index_owner("i").expect("the index is there");
    assert!(table.indexes[number].ready);
    for u in [0, 777, ROWS - 1] {
        let found = run(&mut session, &format!("SELECT id FROM t WHERE u = {u}"));
        assert_eq!(found, [[Value::Integer(u)]]);
    }
}

#[test]
fn what_a_node_that_was_lost_has_dropped_is_removed() {
    let (database, _session) = database();
    let storage = database.catalog().table("t").expect("it was created").storage;
    let dropping = define_at_node(&database, "DROP TABLE t");
    wait_until("the table is dropped", || database.catalog().table("t").is_none());
    database.cluster.kill_node(NODE).unwrap();
    // It has ended before, or with its node.
    let _ = dropping.wait();
    wait_until("the rows are removed", || works(&database).is_empty());
    let configuration = database.cluster.configuration();
    assert!(configuration.tables().all(|(number, _)| number != storage), "the rows are there");
}
