//! Scripts of anomalies, run by sessions of a cluster in this process.
//!
//! *Not here*: sessions over the wire, `tests/server/anomalies.rs`.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use gannet_benchmarks::{Check, check_replicas};
use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, SqlError, StatementResult, Value};

use crate::anomalies::transcript::{Client, Given, Script};

/// A session, and how long its statements may take.
struct TimedClient {
    session: Session,
    patience: Duration,
}

impl TimedClient {
    /// Runs a statement, and cancels it if it takes too long.
    fn execute(&mut self, sql: &str) -> Result<StatementResult, SqlError> {
        let Self { session, patience } = self;
        let (cancel, (ended, has_ended)) = (session.cancel_handle(), mpsc::channel::<()>());
        thread::scope(|scope| {
            scope.spawn(move || {
                if has_ended.recv_timeout(*patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                    cancel.cancel();
                }
            });
            let result = pollster::block_on(session.execute(sql));
            drop(ended);
            result
        })
    }
}

impl Client for TimedClient {
    fn run(&mut self, sql: &str) -> Given {
        match self.execute(sql) {
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

/// A script's transcript on a cluster of its own, and the failed checks of that cluster. A statement that takes longer than `patience` is cancelled:
/// without a rule, locks may stay for ever.
pub(crate) fn run(script: &Script, patience: Duration) -> (String, Vec<Check>) {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).unwrap());
    let database = Database::open(Arc::clone(&cluster)).unwrap();
    let connect = || TimedClient { session: database.session("tester"), patience };
    let transcript = script.transcript(connect);
    let wrong = check_replicas(&cluster).into_iter().filter(|check| !check.passed);
    (transcript, wrong.collect())
}
