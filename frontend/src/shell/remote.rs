//! The shell's connection to a server.
//!
//! *Not here*: the protection of the connection (`server_address`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, CancelToken, Client, CopyInSink, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::outcome::{ColumnKind, Failure, Heading, Outcome, Rows};
use crate::server_address::ServerAddress;

/// A connection to a server.
pub(super) struct Remote {
    client: Client,
    /// For the connection of a cancel request.
    tls: MakeRustlsConnect,
    /// Notices of the server.
    notices: Arc<Mutex<Vec<String>>>,
    /// The COPY that takes data.
    copy: Option<Pin<Box<CopyInSink<Bytes>>>>,
}

/// Cancels a connection's statement.
#[derive(Clone)]
pub(super) struct Cancel(CancelToken, MakeRustlsConnect);

impl Cancel {
    pub(super) async fn cancel(&self) {
        // If the request is lost, the statement ends by itself, or the user presses Ctrl-C again.
        let _ = self.0.cancel_query(self.1.clone()).await;
    }
}

impl Remote {
    /// Connects. Call this inside a tokio runtime.
    pub(super) async fn connect(address: &ServerAddress) -> Result<Self, Failure> {
        let (config, tls) = address.connector().map_err(|error| Failure::new(error.to_string()))?;
        let (client, mut connection) = config.connect(tls.clone()).await.map_err(failure)?;
        let notices = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&notices);
        tokio::spawn(async move {
            // Drives the connection until it ends, and collects notices.
            let next = |context: &mut std::task::Context<'_>| connection.poll_message(context);
            let mut messages = futures_util::stream::poll_fn(next);
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notice(notice) = message {
                    let notice = format!("{}: {}", notice.severity(), notice.message());
                    collected.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
                }
            }
        });
        Ok(Self { client, tls, notices, copy: None })
    }

    pub(super) fn cancel(&self) -> Cancel {
        Cancel(self.client.cancel_token(), self.tls.clone())
    }

    fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) async fn run(&mut self, statement: &str) -> Result<Outcome, Failure> {
        let words: Vec<String> =
            statement.split_whitespace().map(str::to_ascii_uppercase).collect();
        let first = words.first().map_or("", String::as_str);
        let has = |pair: [&str; 2]| words.windows(2).any(|words| words == pair);
        if first == "COPY" && has(["FROM", "STDIN"]) {
            let sink = self.client.copy_in(statement).await.map_err(failure)?;
            self.copy = Some(Box::pin(sink));
            return Ok(Outcome::CopyIn);
        }
        if first == "COPY" && has(["TO", "STDOUT"]) {
            let stream = self.client.copy_out(statement).await.map_err(failure)?;
            let lines: Vec<Bytes> = stream.try_collect().await.map_err(failure)?;
            let tag = format!("COPY {}", lines.len());
            return Ok(Outcome::CopyOut {
                lines: lines.iter().map(|line| line.to_vec()).collect(),
                tag,
            });
        }
        let gives_rows = ["SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN"].contains(&first)
            || words.iter().any(|word| word == "RETURNING");
        // The extended protocol tells the types; only the simple protocol returns all values as text.
        let kinds = match gives_rows {
            true => self.client.prepare(statement).await.map_err(failure)?,
            false => return self.simple(statement, &[]).await,
        };
        let kinds: Vec<_> = kinds.columns().iter().map(|column| kind(column.type_())).collect();
        self.simple(statement, &kinds).await
    }

    async fn simple(&self, statement: &str, kinds: &[ColumnKind]) -> Result<Outcome, Failure> {
        let messages = self.client.simple_query(statement).await.map_err(failure)?;
        let mut result = None;
        let mut count = 0;
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    let kinds = kinds.iter().copied().chain(std::iter::repeat(ColumnKind::Text));
                    let headings = columns
                        .iter()
                        .zip(kinds)
                        .map(|(column, kind)| Heading { name: column.name().to_owned(), kind })
                        .collect();
                    result = Some(Rows { headings, rows: Vec::new() });
                }
                SimpleQueryMessage::Row(row) => {
                    let values = (0..row.len()).map(|column| row.get(column).map(str::to_owned));
                    result.get_or_insert_default().rows.push(values.collect());
                }
                SimpleQueryMessage::CommandComplete(rows) => count = rows,
                _ => {}
            }
        }
        Ok(match result {
            Some(rows) => Outcome::Rows(rows),
            None => Outcome::Done { tag: tag(statement, count), notices: self.take_notices() },
        })
    }

    pub(super) async fn copy_data(&mut self, chunk: Vec<u8>) -> Result<(), Failure> {
        let sink = self.copy.as_mut().ok_or_else(no_copy)?;
        sink.send(chunk.into()).await.map_err(failure)
    }

    pub(super) async fn copy_end(&mut self, abandon: Option<String>) -> Result<String, Failure> {
        let mut sink = self.copy.take().ok_or_else(no_copy)?;
        if let Some(reason) = abandon {
            // Dropping the sink tells the server.
            drop(sink);
            return Err(Failure::new(reason));
        }
        let count = sink.as_mut().finish().await.map_err(failure)?;
        Ok(format!("COPY {count}"))
    }

    /// Names of tables and columns; none if the server refuses them.
    pub(super) async fn names(&mut self) -> Vec<String> {
        let statement = "SELECT table_name FROM information_schema.tables \
             WHERE table_schema = 'public' UNION SELECT column_name \
             FROM information_schema.columns WHERE table_schema = 'public'";
        let messages = self.client.simple_query(statement).await.unwrap_or_default();
        let name = |message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        messages.into_iter().filter_map(name).collect()
    }
}

fn no_copy() -> Failure {
    Failure::new("no COPY waits for data")
}

fn kind(wire: &Type) -> ColumnKind {
    match *wire {
        Type::INT2 | Type::INT4 | Type::INT8 | Type::FLOAT4 | Type::FLOAT8 | Type::NUMERIC => {
            ColumnKind::Number
        }
        Type::BOOL => ColumnKind::Boolean,
        _ => ColumnKind::Text,
    }
}

/// The command tag. The client library keeps only its number.
fn tag(statement: &str, count: u64) -> String {
    let mut words = statement.split_whitespace().map(str::to_ascii_uppercase);
    let first = words.next().unwrap_or_default();
    match first.as_str() {
        "INSERT" => format!("INSERT 0 {count}"),
        "UPDATE" | "DELETE" | "MERGE" | "COPY" => format!("{first} {count}"),
        "CREATE" | "DROP" | "ALTER" => {
            format!("{first} {}", words.find(|word| word != "UNIQUE").unwrap_or_default())
        }
        "TRUNCATE" => "TRUNCATE TABLE".to_owned(),
        _ => first.trim_end_matches(';').to_owned(),
    }
}

fn failure(error: tokio_postgres::Error) -> Failure {
    let Some(database) = error.as_db_error() else {
        let source = std::error::Error::source(&error);
        return Failure::new(match source {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        });
    };
    let position = match database.position() {
        Some(ErrorPosition::Original(position)) => usize::try_from(*position).ok(),
        Some(ErrorPosition::Internal { .. }) | None => None,
    };
    Failure {
        code: database.code().code().to_owned(),
        message: database.message().to_owned(),
        detail: database.detail().map(str::to_owned),
        hint: database.hint().map(str::to_owned),
        position,
    }
}
