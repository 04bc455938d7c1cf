//! Standard output of a command that ends by itself.
//!
//! *Invariants*: a reader who has left is no error, and nothing of what is printed then is missed: the command ends as it would have.
//! Anything else that keeps the output from being written is an error.
//!
//! *Not here*: what a server says (`log`), which waits for no reader; results of the shell.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// The output was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct OutputError(#[from] io::Error);

/// Prints a line, or several.
pub(crate) fn print_line(text: impl Display) -> Result<(), OutputError> {
    let mut output = io::stdout().lock();
    unless_left(writeln!(output, "{text}").and_then(|()| output.flush()))?;
    Ok(())
}

/// What became of a write, whose reader may have left.
pub(crate) fn unless_left(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
