//! Standard output of a command that ends by itself.
//!
//! *Invariants*: a reader that has gone is no error: the command ends with the same exit code. Every other failure to write
//! is an error.
//!
//! *Not here*: a server's announcements (`log`), which wait for no reader; results of the shell.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// The output was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct OutputError(#[from] io::Error);

/// Prints one or several lines.
pub(crate) fn print_line(text: impl Display) -> Result<(), OutputError> {
    let mut output = io::stdout().lock();
    unless_left(writeln!(output, "{text}").and_then(|()| output.flush()))?;
    Ok(())
}

/// The result of a write, where a reader that has gone counts as success.
pub(crate) fn unless_left(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
