//! Connections of benchmarks in SQL, embedded: sessions of a cluster in this process.
//!
//! *Invariants*: a connection is a session of one database, and prepares each text once; texts are compared by their
//! addresses. A future runs on the thread that waits for it. The check after a run compares all copies.
//!
//! *Not here*: connections to a server (`gannet_wire_benchmarks`); statements, and the harness
//! (`gannet_benchmarks::sql`).

use std::future::Future;
use std::sync::Arc;

use gannet_benchmarks::sql::{SqlConnection, SqlConnector, SqlFailure, SqlRows, SqlValue, Target};
use gannet_benchmarks::{
    BenchmarkError, Check, check_replicas, cluster_settings, index_bytes_per_key, topology_text,
};
use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, PreparedStatement, Session, SqlError, StatementResult, Value};

/// A cluster in this process, with SQL on it.
pub(super) struct Embedded {
    cluster: Arc<Cluster>,
    database: Arc<Database>,
}

impl Embedded {
    pub(super) fn open(options: &ClusterOptions) -> Result<Self, BenchmarkError> {
        let cluster = Arc::new(Cluster::open(options.clone())?);
        let database = Database::open(Arc::clone(&cluster)).map_err(failure)?;
        Ok(Self { cluster, database })
    }
}

fn failure(error: SqlError) -> SqlFailure {
    SqlFailure { code: error.code.to_owned(), message: error.message }
}

impl SqlConnector for Embedded {
    type Connection = EmbeddedConnection;

    fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, BenchmarkError> {
        Ok(gannet_engine::block_on(future))
    }

    fn connect(&self) -> impl Future<Output = Result<EmbeddedConnection, SqlFailure>> {
        let session = self.database.session("benchmark");
        std::future::ready(Ok(EmbeddedConnection { session, statements: Vec::new() }))
    }

    fn target(&self) -> Target {
        let memory = self.cluster.nodes().iter().map(|node| node.used_bytes() as u64).sum();
        Target {
            settings: cluster_settings(self.cluster.options()),
            topology: topology_text(&self.cluster),
            durability: "memory",
            threads: Some(self.cluster.thread_count()),
            memory_bytes: Some(memory),
            copies: Some(self.cluster.options().replicas),
            index_bytes_per_key: index_bytes_per_key(&self.cluster),
        }
    }

    fn verify(&self) -> Vec<Check> {
        check_replicas(&self.cluster)
    }
}

/// A session, and its prepared statements.
pub(super) struct EmbeddedConnection {
    session: Session,
    /// By text; there are few.
    statements: Vec<(&'static str, Arc<PreparedStatement>)>,
}

impl EmbeddedConnection {
    async fn execute(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> Result<StatementResult, SqlFailure> {
        // Texts are compared by address: the same text at two places is prepared twice.
        let known = self.statements.iter().find(|(text, _)| std::ptr::eq(*text, sql));
        let statement = match known {
            Some((_, statement)) => Arc::clone(statement),
            None => {
                let statement = self.session.prepare(sql, &[]).await.map_err(failure)?;
                self.statements.push((sql, Arc::clone(&statement)));
                statement
            }
        };
        let value = |parameter: &SqlValue| match parameter {
            SqlValue::Integer(number) => Value::Integer(*number),
            SqlValue::Text(text) => Value::Text(text.clone()),
        };
        let parameters = parameters.iter().map(value).collect();
        self.session.execute_prepared(&statement, parameters).await.map_err(failure)
    }
}

impl SqlConnection for EmbeddedConnection {
    type Rows = EmbeddedRows;

    async fn run(&mut self, sql: &str) -> Result<(), SqlFailure> {
        self.session.execute(sql).await.map(drop).map_err(failure)
    }

    async fn query(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> Result<EmbeddedRows, SqlFailure> {
        match self.execute(sql, parameters).await? {
            StatementResult::Rows { rows, .. } => Ok(EmbeddedRows(rows)),
            other => Err(unexpected("rows", &other)),
        }
    }

    async fn change(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> Result<u64, SqlFailure> {
        match self.execute(sql, parameters).await? {
            StatementResult::Done { tag, .. } => Ok(count(&tag)),
            other => Err(unexpected("a change", &other)),
        }
    }

    async fn copy(
        &mut self,
        sql: &str,
        chunks: impl Iterator<Item = Vec<u8>>,
    ) -> Result<u64, SqlFailure> {
        match self.session.execute(sql).await.map_err(failure)? {
            StatementResult::CopyIn { .. } => {}
            other => return Err(unexpected("a COPY", &other)),
        }
        for chunk in chunks {
            self.session.copy_in(&chunk).await.map_err(failure)?;
        }
        Ok(count(&self.session.copy_end(None).await.map_err(failure)?))
    }
}

/// The number of rows at the end of a command tag; 0 if the tag has none.
fn count(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn unexpected(what: &str, found: &StatementResult) -> SqlFailure {
    let message = format!("a statement with {what} returned {found:?}");
    SqlFailure { code: "XX000".to_owned(), message }
}

/// The rows of a result.
pub(super) struct EmbeddedRows(Vec<Vec<Value>>);

impl SqlRows for EmbeddedRows {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn integer(&self, row: usize, column: usize) -> i64 {
        match &self.0[row][column] {
            Value::Integer(number) => *number,
            other => panic!("column {column} is {other:?} and should be an integer"),
        }
    }

    fn text(&self, row: usize, column: usize) -> &str {
        match &self.0[row][column] {
            Value::Text(text) => text,
            other => panic!("column {column} is {other:?} and should be a text"),
        }
    }
}
