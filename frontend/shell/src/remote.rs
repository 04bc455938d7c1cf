//! The shell's connection to a server: one of several, whose end the shell outlives.
//!
//! ```text
//! connected ── the connection ends, in a statement or between two ──▶ ended
//!     ▲                                                                 │ the next statement
//!     └──────────── the settings are made again, a line says so ◀───────┘ connects to the next server
//! ```
//! *Invariants*: a statement runs on one connection, once. The statement that follows a transaction whose connection has ended
//! between two statements is not run: it was meant for that transaction.
//!
//! *Not here*: the choice among servers (`connect`), the protection of the connection (`server_address`), what a statement may
//! have done (`remembered`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, CancelToken, Client, CopyInSink, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::outcome::{ColumnKind, Failure, Heading, Outcome, Rows};
use super::remembered::{Loss, Remembered};
use super::warn;
use crate::connect::{ConnectError, Connected, ServerConnection, connect_to_first};
use crate::server_address::ServerAddress;

/// SQLSTATE of a connection that a server ends because it stops.
const STOPPED: &str = "57P01";
/// SQLSTATE of a node that has halted, or is no member any more; others may go on.
const HALTED: &str = "57P03";

/// A connection to a server.
pub(super) struct Remote {
    /// The servers, any of which will do.
    addresses: Vec<ServerAddress>,
    /// Number of the one that is connected.
    number: usize,
    client: Client,
    cancel: Cancel,
    /// Whether the connection is not to be used any more.
    has_ended: bool,
    remembered: Remembered,
    /// What is lost if the connection ends now.
    under_way: Loss,
    /// Notices of the server.
    notices: Arc<Mutex<Vec<String>>>,
    /// The COPY that takes data.
    copy: Option<Pin<Box<CopyInSink<Bytes>>>>,
}

/// Cancels the statement of the present connection.
#[derive(Clone)]
pub(super) struct Cancel(Arc<Mutex<(CancelToken, MakeRustlsConnect)>>);

impl Cancel {
    fn of(client: &Client, tls: MakeRustlsConnect) -> Self {
        Self(Arc::new(Mutex::new((client.cancel_token(), tls))))
    }

    /// From now on this cancels the statement of another connection.
    fn turn_to(&self, client: &Client, tls: MakeRustlsConnect) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (client.cancel_token(), tls);
    }

    pub(super) async fn cancel(&self) {
        let (token, tls) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // If the request is lost, the statement ends by itself, or the user presses Ctrl-C again.
        let _ = token.cancel_query(tls).await;
    }
}

impl Remote {
    /// Connects to the first server that answers. Call this inside a tokio runtime.
    pub(super) async fn connect(addresses: Vec<ServerAddress>) -> Result<Self, ConnectError> {
        let Connected { client, connection, tls, number } = connect_to_first(&addresses, 0).await?;
        let notices = Arc::new(Mutex::new(Vec::new()));
        drive(connection, Arc::clone(&notices));
        let cancel = Cancel::of(&client, tls);
        Ok(Self {
            addresses,
            number,
            client,
            cancel,
            has_ended: false,
            remembered: Remembered::default(),
            under_way: Loss::Statement,
            notices,
            copy: None,
        })
    }

    /// If the connection has ended, connects to the next server that answers, and says so. The statement of a transaction that is
    /// gone is not run.
    async fn go_on(&mut self) -> Result<(), Failure> {
        self.has_ended |= self.client.is_closed();
        if !self.has_ended {
            return Ok(());
        }
        let ended = self.addresses[self.number].name();
        if self.remembered.lose_transaction() {
            return Err(coded(
                "08006",
                format!(
                    "the connection to {ended} has ended, and with it the transaction, which has changed nothing; \
                     the statement was not run"
                ),
            ));
        }
        let next = connect_to_first(&self.addresses, self.number + 1).await;
        let Connected { client, connection, tls, number } =
            next.map_err(|error| coded("08001", format!("cannot connect again: {error}")))?;
        drive(connection, Arc::clone(&self.notices));
        self.cancel.turn_to(&client, tls);
        self.client = client;
        self.number = number;
        self.has_ended = false;
        self.copy = None;
        let mut are_lost = self.remembered.has_other_settings();
        for statement in self.remembered.settings() {
            are_lost |= self.client.simple_query(statement).await.is_err();
        }
        let lost = if are_lost { "; some settings are back to their defaults" } else { "" };
        let name = self.addresses[number].name();
        warn(&format!("the connection to {ended} has ended; connected to {name}{lost}"));
        Ok(())
    }

    /// Whether the connection has ended, and there is another server.
    fn may_go_on(&self) -> bool {
        self.client.is_closed() && self.addresses.len() > 1
    }

    /// The failure of a statement; if its connection has ended, with what is lost.
    fn explained(&mut self, failure: Failure) -> Failure {
        let is_broken = failure.code.is_empty() && self.client.is_closed();
        let is_left = failure.code == HALTED && self.addresses.len() > 1;
        if !is_broken && !is_left && failure.code != STOPPED {
            return failure;
        }
        self.has_ended = true;
        self.remembered.lose_transaction();
        if !is_broken {
            // The server has said what is lost.
            return failure;
        }
        let (code, lost) = match self.under_way {
            Loss::Statement => ("08006", "the statement has changed nothing"),
            Loss::Transaction => ("08006", "the transaction is gone, and has changed nothing"),
            Loss::Outcome => (
                "08007",
                "whether the statement has taken effect is unknown, so look before it is run again",
            ),
        };
        let name = self.addresses[self.number].name();
        coded(code, format!("the connection to {name} has ended; {lost}"))
    }

    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) async fn run(&mut self, statement: &str) -> Result<Outcome, Failure> {
        self.go_on().await?;
        self.under_way = self.remembered.loss(statement);
        let mut done = self.attempt(statement).await;
        if done.is_err() && self.under_way == Loss::Statement && self.may_go_on() {
            // It has changed nothing, so that it may run again.
            self.go_on().await?;
            done = self.attempt(statement).await;
        }
        self.remembered.answered(statement, done.is_ok());
        done.map_err(|failure| self.explained(failure))
    }

    /// Runs a statement on the present connection.
    async fn attempt(&mut self, statement: &str) -> Result<Outcome, Failure> {
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
        let sent = sink.send(chunk.into()).await.map_err(failure);
        sent.map_err(|failure| self.explained(failure))
    }

    pub(super) async fn copy_end(&mut self, abandon: Option<String>) -> Result<String, Failure> {
        let mut sink = self.copy.take().ok_or_else(no_copy)?;
        if let Some(reason) = abandon {
            // Dropping the sink tells the server.
            drop(sink);
            return Err(Failure::new(reason));
        }
        let count = sink.as_mut().finish().await.map_err(failure);
        let count = count.map_err(|failure| self.explained(failure))?;
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

/// Drives a connection until it ends, and collects notices.
fn drive(mut connection: ServerConnection, notices: Arc<Mutex<Vec<String>>>) {
    tokio::spawn(async move {
        let next = |context: &mut std::task::Context<'_>| connection.poll_message(context);
        let mut messages = futures_util::stream::poll_fn(next);
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notice(notice) = message {
                let notice = format!("{}: {}", notice.severity(), notice.message());
                notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
            }
        }
    });
}

fn coded(code: &str, message: String) -> Failure {
    Failure { code: code.to_owned(), ..Failure::new(message) }
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
