//! Throughput of prepared statements in one process: `cargo bench -p gannet-frontend`.
//!
//! The cluster has three nodes with three copies on all cores, the default. One thread outside of the cluster has 16
//! sessions, each with a statement in progress: a point SELECT or a point UPDATE. A sum over a narrow table runs alone. A
//! rate counts all cores, and the thread outside.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::stream::{FuturesUnordered, StreamExt};
use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, StatementResult, Value};
use pollster::block_on;

const SESSIONS: u64 = 16;
const ROWS: i64 = 100_000;

fn database() -> Arc<Database> {
    let options = ClusterOptions { memory_limit_bytes: Some(512 << 20), ..Default::default() };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    let database = Database::open(Arc::new(cluster)).expect("SQL opens on a fresh cluster");
    let mut session = database.session("bench");
    let table = "CREATE TABLE narrow (id BIGINT PRIMARY KEY, v BIGINT)";
    block_on(session.execute(table)).expect("the table is new");
    for first in (1..=ROWS).step_by(10_000) {
        let series = format!("generate_series({first}, {})", first + 9_999);
        let fill = format!("INSERT INTO narrow SELECT n, n FROM {series} AS s(n)");
        block_on(session.execute(&fill)).expect("the rows are new");
    }
    database
}

/// Runs a statement `count` times, with a new key each time.
async fn repeat(mut session: Session, sql: &'static str, seed: i64, count: u64) {
    let statement = session.prepare(sql, &[]).await.expect("the statement is right");
    let mut key = seed;
    for _ in 0..count {
        key = (key * 48_271 + 11) % ROWS;
        let result = session.execute_prepared(&statement, vec![Value::Integer(key + 1)]).await;
        match result.expect("nothing ends a statement on one row") {
            StatementResult::Rows { rows, .. } => assert_eq!(rows.len(), 1),
            StatementResult::Done { tag, .. } => assert_eq!(tag, "UPDATE 1"),
            other => panic!("{other:?}"),
        }
    }
}

fn statements(criterion: &mut Criterion) {
    let database = database();
    let mut group = criterion.benchmark_group("prepared");
    group.throughput(Throughput::Elements(1));
    let points = [
        ("point_select", "SELECT v FROM narrow WHERE id = $1"),
        ("point_update", "UPDATE narrow SET v = v + 1 WHERE id = $1"),
    ];
    for (name, sql) in points {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let of_session = |number: u64| {
                    let share = (count + number) / SESSIONS;
                    repeat(database.session("bench"), sql, number.cast_signed() * 5_077, share)
                };
                let sessions: FuturesUnordered<_> = (0..SESSIONS).map(of_session).collect();
                #[expect(clippy::disallowed_methods, reason = "a benchmark takes the time")]
                let start = Instant::now();
                block_on(sessions.count());
                start.elapsed()
            });
        });
    }
    group.throughput(Throughput::Elements(ROWS.unsigned_abs()));
    let mut session = database.session("bench");
    let statement = block_on(session.prepare("SELECT sum(v) FROM narrow", &[]));
    let statement = statement.expect("the statement is right");
    group.bench_function("sum", |bencher| {
        bencher.iter(|| {
            block_on(session.execute_prepared(&statement, Vec::new())).expect("nothing conflicts")
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = statements
}
criterion_main!(benches);
