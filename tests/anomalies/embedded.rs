//! Scripts of anomalies, run by sessions of a cluster in this process.
//!
//! *Not here*: sessions over the wire, `tests/server/anomalies.rs`.

use std::sync::Arc;

use gannet_benchmarks::{Check, check_replicas};
use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, StatementResult, Value};

use crate::anomalies::transcript::{Client, Given, Script};

impl Client for Session {
    fn run(&mut self, sql: &str) -> Given {
        match pollster::block_on(self.execute(sql)) {
            Ok(StatementResult::Rows { columns, rows, .. }) => {
                let cell = |(number, value): (usize, &Value)| match value {
                    Value::Null => String::new(),
                    value => value.to_text(columns[number].data_type),
                };
                let row = |row: &Vec<Value>| {
                    row.iter().enumerate().map(cell).collect::<Vec<_>>().join("|")
                };
                Given::Rows(rows.iter().map(row).collect())
            }
            Ok(StatementResult::Done { tag, .. }) => {
                let count = tag.split(' ').next_back().and_then(|count| count.parse().ok());
                Given::Count(count.unwrap_or(0))
            }
            Ok(_) => Given::Count(0),
            Err(error) => Given::Error(error.code.to_owned()),
        }
    }
}

/// A script's transcript on a cluster of its own, and the failed checks of that cluster.
pub(crate) fn run(script: &Script) -> (String, Vec<Check>) {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).unwrap());
    let database = Database::open(Arc::clone(&cluster)).unwrap();
    let transcript = script.transcript(|| database.session("tester"));
    let wrong = check_replicas(&cluster).into_iter().filter(|check| !check.passed);
    (transcript, wrong.collect())
}
