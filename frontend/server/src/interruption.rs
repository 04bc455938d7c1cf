//! Interruptions: an error of a statement, or the end of the connection.
//!
//! *Invariants*: an error of SQL becomes `Statement`, one of the socket `Disconnected`. `Fatal` is for a client that
//! breaks the protocol, that may not log in, or that the server sends away.
//!
//! *Not here*: what the client is told, and how its connection ends (`connection`, `startup`).

use gannet_frontend::SqlError;

/// Why work for a client stops.
#[derive(Debug)]
pub(super) enum Interruption {
    /// A statement has failed: the client gets the error, and the connection continues.
    Statement(SqlError),
    /// The client gets the error, and the connection ends.
    Fatal(SqlError),
    /// The client has disconnected.
    Disconnected,
}

impl From<SqlError> for Interruption {
    fn from(error: SqlError) -> Self {
        Self::Statement(error)
    }
}

impl From<std::io::Error> for Interruption {
    fn from(_: std::io::Error) -> Self {
        Self::Disconnected
    }
}
