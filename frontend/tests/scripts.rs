//! SQL scripts: each file in `slt/` is a scenario, run through a session.
//!
//! All scripts use one database, on a cluster of three nodes in this process. A script fails at the first statement that gives
//! other rows, another number of changed rows, or another error than the file says. The test reports each script that failed.
//!
//! *Not here*: results that SQLite gives, too (`differential.rs`); random statements (`tests/sql_fuzz.rs`);
//! PostgreSQL's clients (`tests/server`).

use std::path::PathBuf;
use std::sync::Arc;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, SqlError, StatementResult, Value};
use sqllogictest::{DB, DBOutput, DefaultColumnType, Runner};

/// An error in a script's form: its SQLSTATE, then the rest.
#[derive(Debug)]
struct ScriptError(SqlError);

impl std::fmt::Display for ScriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SqlError { code, message, detail, hint, position: _, subject: _ } = &self.0;
        write!(f, "{code}: {message}")?;
        for part in [detail, hint].into_iter().flatten() {
            write!(f, " / {part}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScriptError {}

struct ScriptSession(Session);

impl DB for ScriptSession {
    type Error = ScriptError;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, ScriptError> {
        let result = pollster::block_on(self.0.execute(sql)).map_err(ScriptError)?;
        Ok(match result {
            StatementResult::Rows { columns, rows, .. } => {
                let shown = |row: Vec<Value>| {
                    let cells = row.iter().zip(columns.iter()).map(|(value, column)| match value {
                        Value::Null => "NULL".to_owned(),
                        value => match value.to_text(column.data_type) {
                            text if text.is_empty() => "(empty)".to_owned(),
                            text => text,
                        },
                    });
                    cells.collect()
                };
                DBOutput::Rows {
                    types: vec![DefaultColumnType::Any; columns.len()],
                    rows: rows.into_iter().map(shown).collect(),
                }
            }
            StatementResult::Done { tag, .. } => {
                let count = tag.split(' ').next_back().and_then(|count| count.parse().ok());
                DBOutput::StatementComplete(count.unwrap_or(0))
            }
            _ => DBOutput::StatementComplete(0),
        })
    }
}

fn database() -> Arc<Database> {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    Database::open(Arc::new(cluster)).expect("SQL opens on a fresh cluster")
}

#[test]
fn every_script_gives_its_expected_results() {
    let database = database();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/slt");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the scripts are there")
        .map(|entry| entry.expect("the directory is readable").path())
        .collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    let mut failures = Vec::new();
    for script in scripts {
        let database = Arc::clone(&database);
        let mut runner = Runner::new(move || {
            let session = ScriptSession(database.session("tester"));
            async move { Ok(session) }
        });
        if let Err(error) = runner.run_file(&script) {
            failures.push(format!("{}: {error}", script.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
