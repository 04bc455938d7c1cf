//! `.import` and `.export`: files in and out.
//!
//! *Invariants*: an import is one COPY statement, whose data are sent in chunks of at most 64 KiB. Outside of a
//! transaction, rows before an error may stay. A first line is a header if each of its fields is the name of a column.
//! The ending of a file's name tells the format. An export has the whole result in memory; a file that exists is
//! overwritten.
//!
//! *Not here*: the formats of exports (`render`); COPY itself (`gannet_frontend`).

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Shell;
use super::outcome::{Failure, Outcome};
use super::quote_name;
use super::render::{Mode, write_rows};

/// Bytes that are sent at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Longest first line that may name the columns.
const HEADER_BYTES_MAX: u64 = 64 << 10;

impl Shell {
    /// Loads a file into a table by COPY, as one statement.
    pub(super) fn import(&mut self, file: &str, table: &str) -> Result<(), Failure> {
        let unreadable =
            |error: std::io::Error| Failure::new(format!("cannot read {file}: {error}"));
        let name = quote_name(table);
        let columns = self.rows(&format!("SELECT * FROM {name} LIMIT 0"))?;
        let columns: Vec<String> =
            columns.headings.into_iter().map(|heading| heading.name).collect();
        let source = File::open(file).map_err(unreadable)?;
        let bytes = source.metadata().map_err(unreadable)?.len();
        let tabs = Path::new(file).extension().is_some_and(|ending| ending == "tsv");
        let delimiter = if tabs { '\t' } else { ',' };
        let mut first_line = Vec::new();
        let mut reader = BufReader::with_capacity(CHUNK_BYTES, source);
        reader
            .by_ref()
            .take(HEADER_BYTES_MAX)
            .read_until(b'\n', &mut first_line)
            .map_err(unreadable)?;
        let header = header(&String::from_utf8_lossy(&first_line), delimiter, &columns);
        let list = header.as_ref().map_or(String::new(), |names| {
            format!(
                "({})",
                names.iter().map(|name| quote_name(name)).collect::<Vec<_>>().join(", ")
            )
        });
        let with_header = if header.is_some() { ", HEADER true" } else { "" };
        let delimiter = if tabs { "E'\\t'" } else { "','" };
        let copy = format!(
            "COPY {name} {list} FROM STDIN WITH (FORMAT csv, DELIMITER {delimiter}{with_header})"
        );
        let chunks = std::iter::once(Ok(first_line)).chain(std::iter::from_fn(|| {
            let chunk = reader.fill_buf().map(<[u8]>::to_vec);
            let length = chunk.as_ref().map_or(0, Vec::len);
            reader.consume(length);
            (length > 0 || chunk.is_err()).then_some(chunk)
        }));
        let bar = progress(bytes);
        let tag = self.copy_in(&copy, chunks, |sent| bar.inc(sent));
        bar.finish_and_clear();
        let tag = tag?;
        self.say(&tag)?;
        Ok(())
    }

    /// Runs a COPY FROM STDIN with chunks of data. Returns the command tag.
    pub(super) fn copy_in(
        &mut self,
        copy: &str,
        chunks: impl Iterator<Item = std::io::Result<Vec<u8>>>,
        sent: impl Fn(u64),
    ) -> Result<String, Failure> {
        match self.run(copy)? {
            Outcome::CopyIn => {}
            Outcome::Rows(_) | Outcome::Done { .. } | Outcome::Empty | Outcome::CopyOut { .. } => {
                return Err(Failure::new("the statement takes no data"));
            }
        }
        let mut abandon = None;
        for chunk in chunks {
            match chunk {
                Ok(chunk) => {
                    let length = chunk.len() as u64;
                    self.wait(async |target| target.copy_data(chunk).await)?;
                    sent(length);
                }
                Err(error) => {
                    abandon = Some(format!("the data cannot be read: {error}"));
                    break;
                }
            }
        }
        self.wait(async |target| target.copy_end(abandon).await)
    }

    /// Writes a query's result to a file; the file's extension determines the format.
    pub(super) fn export(&mut self, file: &str, query: &str) -> Result<(), Failure> {
        let mode = match Path::new(file).extension().and_then(|ending| ending.to_str()) {
            Some("json") => Mode::Json,
            Some("md") => Mode::Markdown,
            Some("tsv") => Mode::Raw,
            _ => Mode::Csv,
        };
        let result = self.rows(query)?;
        let unwritable =
            |error: std::io::Error| Failure::new(format!("cannot write {file}: {error}"));
        let mut out = BufWriter::new(File::create(file).map_err(unwritable)?);
        write_rows(&mut out, mode, &result).map_err(unwritable)?;
        out.flush().map_err(unwritable)?;
        self.say(&format!("EXPORT {}", result.rows.len()))?;
        Ok(())
    }
}

/// The columns that a file's first line names, if all of its fields are columns.
fn header(line: &str, delimiter: char, columns: &[String]) -> Option<Vec<String>> {
    let line = line.trim_start_matches('\u{feff}').trim_end_matches(['\n', '\r']);
    let fields = line.split(delimiter).map(|field| field.trim().trim_matches('"'));
    fields
        .map(|field| columns.iter().find(|column| column.eq_ignore_ascii_case(field)).cloned())
        .collect()
}

/// A progress bar on standard error, if that is a terminal.
fn progress(bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template(
        "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    )
    .expect("the template is right");
    ProgressBar::new(bytes).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_columns_only() {
        let columns = ["id".to_owned(), "Name".to_owned()];
        let names = |line| header(line, ',', &columns);
        assert_eq!(names("NAME,id\r\n"), Some(vec!["Name".to_owned(), "id".to_owned()]));
        assert_eq!(names("\u{feff}\"id\"\n"), Some(vec!["id".to_owned()]));
        assert_eq!(names("1,id\n"), None);
        assert_eq!(names(""), None);
    }
}
