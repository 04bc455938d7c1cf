//! Benchmarks in SQL over the wire: connections by PostgreSQL's protocol to Gannet's or PostgreSQL's server.
//!
//! *Invariants*: the transactions of a connection are serializable, also at PostgreSQL's server. A connection prepares
//! each text once; texts are compared by their addresses. A failure without an SQLSTATE of the server is a connection
//! that was lost, 08006. An address that cannot be used is 08001.
//!
//! *Not here*: the benchmarks, and sessions in this process (`gannet_sql_benchmarks`); addresses and TLS
//! (`gannet_shell`). Copies are not compared: a server does not show them.
#![forbid(unsafe_code)]

use bytes::{Bytes, BytesMut};
use futures_util::SinkExt;
use gannet_benchmarks::sql::{
    SqlConnection, SqlConnector, SqlFailure, SqlRows, SqlSettings, SqlValue, Target,
};
use gannet_benchmarks::{BenchmarkError, Report};
use gannet_shell::ServerAddress;
use gannet_sql_benchmarks::Benchmark;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Runs a benchmark on a server, and verifies its data.
///
/// # Errors
/// [`BenchmarkError`] if the server cannot be reached, or the workload cannot run.
pub fn run(
    benchmark: Benchmark<'_>,
    address: &ServerAddress,
    settings: &SqlSettings,
) -> Result<Report, BenchmarkError> {
    benchmark.run_on(&Server::new(address)?, settings)
}

/// A server.
struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    /// The server's address, without a password.
    name: String,
}

impl Server {
    /// The server at an address.
    fn new(address: &ServerAddress) -> Result<Self, SqlFailure> {
        let (config, tls) = address
            .connector()
            .map_err(|error| SqlFailure { code: "08001".to_owned(), message: error.to_string() })?;
        Ok(Self { config, tls, name: address.name() })
    }
}

fn failure(error: &tokio_postgres::Error) -> SqlFailure {
    match error.as_db_error() {
        Some(error) => {
            SqlFailure { code: error.code().code().to_owned(), message: error.message().to_owned() }
        }
        None => {
            // The error's own text omits its cause.
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            let message = format!("{error}{}", cause.unwrap_or_default());
            SqlFailure { code: "08006".to_owned(), message }
        }
    }
}

impl SqlConnector for Server {
    type Connection = WireConnection;

    fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, BenchmarkError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(runtime.map_err(BenchmarkError::Runtime)?.block_on(future))
    }

    async fn connect(&self) -> Result<WireConnection, SqlFailure> {
        let (client, connection) =
            self.config.connect(self.tls.clone()).await.map_err(|error| failure(&error))?;
        // The task ends when the client is dropped. Its error is also that of the next statement.
        tokio::spawn(async { connection.await.unwrap_or_default() });
        let mut connection = WireConnection { client, statements: Vec::new() };
        connection.run("SET default_transaction_isolation TO 'serializable'").await?;
        Ok(connection)
    }

    fn target(&self) -> Target {
        Target {
            settings: vec![("isolation", "serializable".to_owned())],
            topology: format!("a server at {}", self.name),
            durability: "the server's",
            threads: None,
            memory_bytes: None,
            copies: None,
            index_bytes_per_key: None,
        }
    }
}

/// A connection, and its prepared statements.
struct WireConnection {
    client: Client,
    /// By text; there are few.
    statements: Vec<(&'static str, Statement)>,
}

impl WireConnection {
    async fn prepared(&mut self, sql: &'static str) -> Result<Statement, SqlFailure> {
        // Texts are compared by address: the same text at two places is prepared twice.
        let known = self.statements.iter().find(|(text, _)| std::ptr::eq(*text, sql));
        if let Some((_, statement)) = known {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await.map_err(|error| failure(&error))?;
        self.statements.push((sql, statement.clone()));
        Ok(statement)
    }
}

fn references(parameters: &[SqlValue]) -> Vec<Parameter<'_>> {
    parameters.iter().map(Parameter).collect()
}

impl SqlConnection for WireConnection {
    type Rows = WireRows;

    async fn run(&mut self, sql: &str) -> Result<(), SqlFailure> {
        self.client.batch_execute(sql).await.map_err(|error| failure(&error))
    }

    async fn query(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> Result<WireRows, SqlFailure> {
        let statement = self.prepared(sql).await?;
        let parameters = references(parameters);
        let parameters: Vec<_> = parameters.iter().map(|one| one as &(dyn ToSql + Sync)).collect();
        let rows = self.client.query(&statement, &parameters).await;
        rows.map(WireRows).map_err(|error| failure(&error))
    }

    async fn change(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> Result<u64, SqlFailure> {
        let statement = self.prepared(sql).await?;
        let parameters = references(parameters);
        let parameters: Vec<_> = parameters.iter().map(|one| one as &(dyn ToSql + Sync)).collect();
        self.client.execute(&statement, &parameters).await.map_err(|error| failure(&error))
    }

    async fn copy(
        &mut self,
        sql: &str,
        chunks: impl Iterator<Item = Vec<u8>>,
    ) -> Result<u64, SqlFailure> {
        let sink = self.client.copy_in::<_, Bytes>(sql).await.map_err(|error| failure(&error))?;
        let mut sink = std::pin::pin!(sink);
        for chunk in chunks {
            sink.send(Bytes::from(chunk)).await.map_err(|error| failure(&error))?;
        }
        sink.finish().await.map_err(|error| failure(&error))
    }
}

/// A parameter in the type that the server expects.
#[derive(Debug)]
struct Parameter<'v>(&'v SqlValue);

impl ToSql for Parameter<'_> {
    fn to_sql(
        &self,
        data_type: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match (self.0, data_type) {
            (SqlValue::Integer(number), &Type::INT2) => {
                i16::try_from(*number)?.to_sql(data_type, out)
            }
            (SqlValue::Integer(number), &Type::INT4) => {
                i32::try_from(*number)?.to_sql(data_type, out)
            }
            (SqlValue::Integer(number), _) => number.to_sql(data_type, out),
            (SqlValue::Text(text), _) => text.to_sql(data_type, out),
        }
    }

    fn accepts(data_type: &Type) -> bool {
        let types = [Type::INT2, Type::INT4, Type::INT8, Type::TEXT, Type::VARCHAR, Type::BPCHAR];
        types.contains(data_type)
    }

    to_sql_checked!();
}

/// The rows of a result.
struct WireRows(Vec<Row>);

impl SqlRows for WireRows {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn integer(&self, row: usize, column: usize) -> i64 {
        let row = &self.0[row];
        match *row.columns()[column].type_() {
            Type::INT2 => i64::from(row.get::<_, i16>(column)),
            Type::INT4 => i64::from(row.get::<_, i32>(column)),
            _ => row.get(column),
        }
    }

    fn text(&self, row: usize, column: usize) -> &str {
        self.0[row].get(column)
    }
}
