//! The same generated statements run on SQLite and here, and all results are compared.
//!
//! Only statements with the same meaning in both are generated: integers, texts and NULLs; joins, aggregates, subqueries, set
//! operations; changes with and without an index. Rows are compared as sets if the statement has no order.

use std::sync::Arc;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, StatementResult, Value};
use pollster::block_on;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

/// Each seed is a run on tables of its own.
const SEEDS: u64 = 4;
/// Statements of a run.
const STATEMENTS: usize = 250;

/// Knuth's multiplicative generator. A failure names its seed.
struct Generator(u64);

impl Generator {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn pick<'t>(&mut self, choices: &[&'t str]) -> &'t str {
        let number = self.below(choices.len() as u64);
        choices[usize::try_from(number).expect("a small number")]
    }

    fn number(&mut self) -> String {
        if self.below(8) == 0 {
            "CAST(NULL AS BIGINT)".to_owned()
        } else {
            (self.below(12) as i64 - 2).to_string()
        }
    }

    fn text(&mut self) -> &'static str {
        self.pick(&["'a'", "'b'", "'ab'", "''", "NULL", "'B'"])
    }

    /// An integer expression on a row with the columns id, n, s.
    fn scalar(&mut self, depth: u32) -> String {
        match self.below(if depth == 0 { 3 } else { 7 }) {
            0 => "id".to_owned(),
            1 => "n".to_owned(),
            2 => self.number(),
            3 => format!("({} + {})", self.scalar(depth - 1), self.scalar(depth - 1)),
            4 => format!("({} * {})", self.scalar(depth - 1), self.scalar(depth - 1)),
            5 => format!("coalesce({}, {})", self.scalar(depth - 1), self.number()),
            _ => format!(
                "CASE WHEN {} THEN {} ELSE {} END",
                self.condition(depth - 1),
                self.scalar(depth - 1),
                self.scalar(depth - 1)
            ),
        }
    }

    fn condition(&mut self, depth: u32) -> String {
        let comparison = self.pick(&["=", "<>", "<", "<=", ">", ">="]);
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => format!("id {comparison} {}", self.number()),
            1 => format!("n {comparison} {}", self.number()),
            2 => format!("s {comparison} {}", self.text()),
            3 => format!("id IN ({}, {}, {})", self.number(), self.number(), self.number()),
            4 => format!("n IS {}NULL", self.pick(&["", "NOT "])),
            5 => format!("({} AND {})", self.condition(depth - 1), self.condition(depth - 1)),
            6 => format!("({} OR {})", self.condition(depth - 1), self.condition(depth - 1)),
            7 => format!("NOT ({})", self.condition(depth - 1)),
            _ => format!(
                "{} BETWEEN {} AND {}",
                self.scalar(depth - 1),
                self.number(),
                self.number()
            ),
        }
    }

    fn query(&mut self, a: &str, b: &str) -> String {
        let condition = self.condition(2);
        match self.below(9) {
            0 => format!("SELECT id, {}, s FROM {a} WHERE {condition}", self.scalar(2)),
            1 => format!("SELECT count(*), sum(n), min(s), max(id) FROM {a} WHERE {condition}"),
            2 => format!("SELECT s, count(*), sum(n) FROM {a} WHERE {condition} GROUP BY s"),
            3 => format!("SELECT DISTINCT n FROM {a} WHERE {condition}"),
            4 => {
                let kind = self.pick(&["JOIN", "LEFT JOIN"]);
                let on = self.pick(&[
                    "x.n = y.id",
                    "x.s = y.s",
                    "x.n = y.n AND y.id > 2",
                    "x.id < y.id",
                ]);
                format!("SELECT x.id, y.id, y.s FROM {a} x {kind} {b} y ON {on}")
            }
            5 => format!("SELECT id FROM {a} WHERE n IN (SELECT id FROM {b} WHERE {condition})"),
            6 => format!(
                "SELECT x.id, (SELECT count(*) FROM {b} y WHERE y.n = x.n) FROM {a} x \
                 WHERE EXISTS (SELECT 1 FROM {b} y WHERE y.id = x.n)"
            ),
            7 => {
                let operation = self.pick(&["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]);
                format!("SELECT n FROM {a} WHERE {condition} {operation} SELECT id FROM {b}")
            }
            _ => format!(
                "SELECT id, n FROM {a} WHERE {condition} ORDER BY n {} NULLS {}, id LIMIT {}",
                self.pick(&["ASC", "DESC"]),
                self.pick(&["FIRST", "LAST"]),
                self.below(10)
            ),
        }
    }

    fn change(&mut self, a: &str) -> String {
        let condition = self.condition(1);
        match self.below(4) {
            0 | 1 => format!(
                "INSERT INTO {a} (id, n, s) VALUES ({}, {}, {}) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                self.below(40),
                self.number(),
                self.text()
            ),
            2 => format!(
                "UPDATE {a} SET n = {}, s = {} WHERE {condition}",
                self.scalar(1),
                self.text()
            ),
            _ => {
                format!("DELETE FROM {a} WHERE id = {} OR id = {}", self.below(40), self.below(40))
            }
        }
    }
}

fn gannet(session: &mut Session, sql: &str) -> Result<Vec<String>, String> {
    let result =
        block_on(session.execute(sql)).map_err(|error| format!("{}: {error}", error.code))?;
    let StatementResult::Rows { columns, rows, .. } = result else { return Ok(Vec::new()) };
    let cell = |(value, column): (&Value, &gannet_frontend::Column)| match value {
        Value::Null => "NULL".to_owned(),
        value => value.to_text(column.data_type),
    };
    let row = |row: Vec<Value>| {
        row.iter().zip(columns.iter()).map(cell).collect::<Vec<String>>().join("|")
    };
    Ok(rows.into_iter().map(row).collect())
}

fn sqlite(connection: &Connection, sql: &str) -> Result<Vec<String>, String> {
    let mut statement = connection.prepare(sql).map_err(|error| error.to_string())?;
    let width = statement.column_count();
    let mut rows = statement.query([]).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(|error| error.to_string())? {
        let cell = |number: usize| match row.get_ref(number) {
            Ok(ValueRef::Null) => "NULL".to_owned(),
            Ok(ValueRef::Integer(number)) => number.to_string(),
            Ok(ValueRef::Real(number)) => number.to_string(),
            Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            Ok(ValueRef::Blob(_)) | Err(_) => "?".to_owned(),
        };
        found.push((0..width).map(cell).collect::<Vec<String>>().join("|"));
    }
    Ok(found)
}

fn compare(session: &mut Session, connection: &Connection, sql: &str, seed: u64) {
    let (mut ours, mut theirs) = (gannet(session, sql), sqlite(connection, sql));
    if !sql.contains("ORDER BY") {
        ours = ours.map(|mut rows| {
            rows.sort();
            rows
        });
        theirs = theirs.map(|mut rows| {
            rows.sort();
            rows
        });
    }
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs, "seed {seed}: {sql}"),
        // A number out of range here is a larger number in SQLite.
        (Err(error), _) if error.starts_with("22003") => {}
        _ => panic!("seed {seed}: {sql}\nhere {ours:?}\nSQLite {theirs:?}"),
    }
}

#[test]
fn sqlite_gives_the_same_results() {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    let database = Database::open(Arc::new(cluster)).expect("SQL opens on a fresh cluster");
    for seed in 0..SEEDS {
        let mut session = database.session("tester");
        let connection = Connection::open_in_memory().expect("SQLite opens in memory");
        let mut generator = Generator(seed);
        let (a, b) = (format!("a{seed}"), format!("b{seed}"));
        let index = if seed % 2 == 0 { a.as_str() } else { b.as_str() };
        let setup = [
            format!("CREATE TABLE {a} (id BIGINT PRIMARY KEY, n BIGINT, s TEXT)"),
            format!("CREATE TABLE {b} (id BIGINT PRIMARY KEY, n BIGINT, s TEXT)"),
            format!("CREATE INDEX i{seed} ON {index} (n, s)"),
        ];
        for sql in &setup {
            compare(&mut session, &connection, sql, seed);
        }
        for _ in 0..STATEMENTS {
            let (first, second) = if generator.below(2) == 0 { (&a, &b) } else { (&b, &a) };
            let sql = if generator.below(3) == 0 {
                generator.change(first)
            } else {
                generator.query(first, second)
            };
            compare(&mut session, &connection, &sql, seed);
            compare(&mut session, &connection, &format!("SELECT * FROM {first}"), seed);
        }
    }
}
