//! What interrupts the work for a client: an error of a statement, or the connection's end.

use crate::error::SqlError;

/// Why work for a client stopped.
#[derive(Debug)]
pub(super) enum Interruption {
    /// A statement failed: the client is told, and the connection goes on.
    Statement(SqlError),
    /// The client is told, and the connection ends.
    Fatal(SqlError),
    /// The client is gone.
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
