//! Input of the shell: a terminal, a script, or a text of the command line.
//!
//! *Invariants*: a line comes without its newline. The data of a COPY come from where the statements come from, but from
//! standard input if the statements are on the command line. Data end with a line of two characters, backslash and dot,
//! or with the input. A chunk ends with a line, and has less than 64 KiB before that line.
//!
//! *Source*: PostgreSQL 15 documentation, COPY, "File Formats", for the end of data.
//!
//! *Not here*: statements in the input (`scanner`); history and completion (`editor`).

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::editor::{LineEditor, Typed};

/// Bytes of COPY data that are sent at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// The line that ends COPY data in a script.
pub(super) const DATA_END: &str = "\\.";

/// A source of lines.
pub(super) enum Input {
    Terminal(Box<LineEditor>),
    Stream {
        reader: Box<dyn BufRead>,
        /// Whether standard input has the data of a COPY, because the statements are on the command line.
        data_on_stdin: bool,
    },
}

/// An element of the input.
pub(super) enum Line {
    /// A line, without its newline.
    Text(String),
    /// Ctrl-C at a terminal.
    Interrupted,
    End,
}

impl Input {
    pub(super) fn stream(reader: impl Read + 'static) -> Self {
        Self::Stream { reader: Box::new(BufReader::new(reader)), data_on_stdin: false }
    }

    pub(super) fn text(text: String) -> Self {
        Self::Stream { reader: Box::new(Cursor::new(text)), data_on_stdin: true }
    }

    /// Sets the names for completion, if the input is a terminal.
    pub(super) fn set_names(&mut self, names: Vec<String>) {
        if let Self::Terminal(editor) = self {
            editor.set_names(names);
        }
    }

    /// The next line.
    pub(super) fn line(&mut self, prompt: &str) -> io::Result<Line> {
        match self {
            Self::Terminal(editor) => match editor.read(prompt).map_err(io::Error::other)? {
                Typed::Line(line) => Ok(Line::Text(line)),
                Typed::Interrupted => Ok(Line::Interrupted),
                Typed::End => Ok(Line::End),
            },
            Self::Stream { reader, .. } => {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(Line::End);
                }
                let length = line.trim_end_matches(['\n', '\r']).len();
                line.truncate(length);
                Ok(Line::Text(line))
            }
        }
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The data of a COPY, up to its end.
    pub(super) fn copy_data(&mut self) -> Box<dyn Iterator<Item = io::Result<Vec<u8>>> + '_> {
        match self {
            Self::Terminal(editor) => Box::new(std::iter::from_fn(|| typed_data(editor))),
            Self::Stream { data_on_stdin: true, .. } => Box::new(chunks(io::stdin().lock())),
            Self::Stream { reader, .. } => Box::new(chunks(reader)),
        }
    }
}

/// A typed line of data; None at the end.
fn typed_data(editor: &mut LineEditor) -> Option<io::Result<Vec<u8>>> {
    match editor.read_data() {
        Ok(Typed::Line(line)) if line == DATA_END => None,
        Ok(Typed::Line(line)) => Some(Ok((line + "\n").into_bytes())),
        Ok(Typed::Interrupted) => Some(Err(io::ErrorKind::Interrupted.into())),
        Ok(Typed::End) => None,
        Err(error) => Some(Err(io::Error::other(error))),
    }
}

/// The lines of a reader up to the end of the data, in chunks of several lines.
fn chunks(mut reader: impl BufRead) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    let mut ended = false;
    std::iter::from_fn(move || {
        let mut chunk = Vec::new();
        while !ended && chunk.len() < CHUNK_BYTES {
            let start = chunk.len();
            match reader.read_until(b'\n', &mut chunk) {
                Ok(0) => ended = true,
                Ok(_) if chunk[start..].trim_ascii_end() == DATA_END.as_bytes() => {
                    chunk.truncate(start);
                    ended = true;
                }
                Ok(_) => {}
                Err(error) => {
                    ended = true;
                    return Some(Err(error));
                }
            }
        }
        (!chunk.is_empty()).then_some(Ok(chunk))
    })
}
