//! Connections to servers, of which there may be several: the first that answers is taken.
//!
//! *Invariants*: the error names every address that was tried. Where there are several, none of them is waited for without end.
//!
//! *Not here*: one address, and the protection of its connection (`server_address`).

use std::time::Duration;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::server_address::ServerAddress;

/// Longest wait for one of several servers.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How the SQLSTATEs begin of users and passwords that are not valid: other servers refuse them as well.
const INVALID_AUTHORIZATION: &str = "28";

/// The connection of a client, which a task must drive.
pub type ServerConnection =
    Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A server that has answered.
pub struct Connected {
    /// Runs statements.
    pub client: Client,
    /// Drives the client.
    pub connection: ServerConnection,
    /// For the connection of a cancel request.
    pub tls: MakeRustlsConnect,
    /// The server's number among the addresses.
    pub number: usize,
}

/// Why there is no connection: the addresses that were tried, each with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// Why one server was not connected to.
struct Refusal {
    reason: String,
    /// Whether the others are not to be tried.
    is_final: bool,
}

/// Connects to the first server that answers, from the one with number `first` on. Call this inside a tokio runtime.
///
/// # Errors
/// [`ConnectError`] if none does, or if one refuses the user.
pub async fn connect_to_first(
    addresses: &[ServerAddress],
    first: usize,
) -> Result<Connected, ConnectError> {
    let count = addresses.len();
    let mut reasons = Vec::new();
    for number in (0..count).map(|step| (first + step) % count) {
        let address = &addresses[number];
        let attempt = connect(address);
        let connected = if count == 1 {
            attempt.await
        } else {
            tokio::time::timeout(ATTEMPT_TIMEOUT, attempt).await.unwrap_or_else(|_| {
                let reason = format!("no answer came within {ATTEMPT_TIMEOUT:?}");
                Err(Refusal { reason, is_final: false })
            })
        };
        match connected {
            Ok((client, connection, tls)) => {
                return Ok(Connected { client, connection, tls, number });
            }
            Err(Refusal { reason, is_final }) => {
                reasons.push(format!("{}: {reason}", address.name()));
                if is_final {
                    break;
                }
            }
        }
    }
    Err(ConnectError(reasons.join("; ")))
}

async fn connect(
    address: &ServerAddress,
) -> Result<(Client, ServerConnection, MakeRustlsConnect), Refusal> {
    let connector = address.connector();
    let (config, tls) =
        connector.map_err(|error| Refusal { reason: error.to_string(), is_final: false })?;
    let connected = config.connect(tls.clone()).await;
    let (client, connection) = connected.map_err(|error| Refusal {
        reason: server_error_text(&error),
        is_final: error.code().is_some_and(|code| code.code().starts_with(INVALID_AUTHORIZATION)),
    })?;
    Ok((client, connection, tls))
}

/// The server's error, or the connection's with its cause.
#[must_use]
pub fn server_error_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("the server says {}: {}", error.code().code(), error.message()),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        }
    }
}
