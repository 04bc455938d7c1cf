//! COPY: rows as text or CSV, in and out.
//!
//! Outside a transaction, COPY FROM commits up to [`BATCH_ROWS`] rows at a time, and fewer after conflicts: an error leaves the batches
//! before it. Inside BEGIN the COPY is part of the transaction.
//!
//! *Source*: PostgreSQL 15 documentation, COPY, "File Formats".
//!
//! *Not here*: inserting the rows (`write`), and the batches (`session/run`).

use std::borrow::Cow;

use crate::error::SqlError;
use crate::execute::Row;
use crate::session::{Column, CopyFormat, CopyOptions};
use crate::value::{DataType, Value};

/// Rows of a batch, and of a transaction in autocommit.
pub(crate) const BATCH_ROWS: usize = 1_000;
/// Rows of the smallest batch while other transactions change the same table.
const BATCH_ROWS_MIN: usize = 64;
/// By how many rows batches grow again, after one that has met no conflict.
const BATCH_ROWS_STEP: usize = 16;
/// Bytes of one row's text.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Rows of the next batch, after one of so many rows that has met a conflict or none. Batches of two COPYs into one table lock many buckets
/// each, some of which are the same: the conflicts grow with the square of the rows.
pub(crate) fn next_batch_rows(rows: usize, has_met_conflict: bool) -> usize {
    if has_met_conflict {
        (rows / 2).max(BATCH_ROWS_MIN)
    } else {
        (rows + BATCH_ROWS_STEP).min(BATCH_ROWS)
    }
}

/// Cuts the data of a COPY FROM into rows.
pub(crate) struct Reader {
    columns: Vec<Column>,
    options: CopyOptions,
    /// Data that is not yet a whole line.
    rest: Vec<u8>,
    /// Bytes of `rest` that were scanned, and whether they end inside quotes.
    seen: usize,
    quoted: bool,
    lines: u64,
    ended: bool,
}

impl Reader {
    pub(crate) fn new(columns: Vec<Column>, options: CopyOptions) -> Self {
        Self { columns, options, rest: Vec::new(), seen: 0, quoted: false, lines: 0, ended: false }
    }

    /// Takes data, and returns the rows that it completes.
    ///
    /// # Errors
    /// SQLSTATE 22P04 and 22P02 for malformed rows.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> Result<Vec<Row>, SqlError> {
        let mut data = std::mem::take(&mut self.rest);
        data.extend_from_slice(chunk);
        let mut rows = Vec::new();
        let mut start = 0;
        while let Some(end) = self.line_end(&data) {
            rows.extend(self.line(&data[start..end])?);
            start = end + 1;
        }
        data.drain(..start);
        self.seen -= start;
        self.rest = data;
        if self.rest.len() > LINE_BYTES_MAX {
            let message = format!("a row of COPY has more than {LINE_BYTES_MAX} bytes");
            return Err(SqlError::new("54000", message));
        }
        Ok(rows)
    }

    /// The rows after the last newline.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn finish(&mut self) -> Result<Vec<Row>, SqlError> {
        if self.quoted {
            return Err(SqlError::new("22P04", "unterminated CSV quoted field"));
        }
        let line = std::mem::take(&mut self.rest);
        self.seen = 0;
        if line.is_empty() { Ok(Vec::new()) } else { Ok(self.line(&line)?.into_iter().collect()) }
    }

    /// The end of the next line of the data; a newline inside quotes is part of a value.
    fn line_end(&mut self, data: &[u8]) -> Option<usize> {
        let csv = self.options.format == CopyFormat::Csv;
        while let Some(byte) = data.get(self.seen) {
            self.seen += 1;
            match byte {
                b'"' if csv => self.quoted = !self.quoted,
                b'\n' if !self.quoted => return Some(self.seen - 1),
                _ => {}
            }
        }
        None
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Row>, SqlError> {
        self.lines += 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.ended |= line == b"\\.";
        if self.ended || (self.lines == 1 && self.options.header) {
            return Ok(None);
        }
        let number = self.lines;
        self.row(line).map(Some).map_err(|error| {
            let place = format!("COPY, line {number}");
            let detail = match &error.detail {
                Some(detail) => format!("{detail} ({place})"),
                None => place,
            };
            error.with_detail(detail)
        })
    }

    fn row(&self, line: &[u8]) -> Result<Row, SqlError> {
        let fields = match self.options.format {
            CopyFormat::Text => text_fields(line, &self.options)?,
            CopyFormat::Csv => csv_fields(line, &self.options)?,
        };
        if fields.len() > self.columns.len() {
            return Err(SqlError::new("22P04", "extra data after last expected column"));
        }
        if let Some(column) = self.columns.get(fields.len()) {
            let message = format!("missing data for column \"{}\"", column.name);
            return Err(SqlError::new("22P04", message));
        }
        let value = |(field, column): (Field<'_>, &Column)| match field {
            None => Ok(Value::Null),
            Some(text) => Value::from_text(&text, column.data_type)
                .map_err(|error| error.with_detail(format!("column {}", column.name))),
        };
        fields.into_iter().zip(&self.columns).map(value).collect()
    }
}

/// A field of a line; None is NULL.
type Field<'l> = Option<Cow<'l, str>>;

fn no_utf8() -> SqlError {
    SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\"")
}

fn utf8(bytes: Vec<u8>) -> Result<String, SqlError> {
    String::from_utf8(bytes).map_err(|_| no_utf8())
}

/// The fields of a line in text format.
fn text_fields<'l>(line: &'l [u8], options: &CopyOptions) -> Result<Vec<Field<'l>>, SqlError> {
    if !line.contains(&b'\\') {
        let field = |bytes: &'l [u8]| {
            let text = std::str::from_utf8(bytes).map_err(|_| no_utf8())?;
            Ok((text != options.null).then_some(Cow::Borrowed(text)))
        };
        return line.split(|byte| *byte == options.delimiter).map(field).collect();
    }
    let mut fields = Vec::new();
    let (mut field, mut raw) = (Vec::new(), Vec::new());
    let mut bytes = line.iter().copied();
    loop {
        let byte = bytes.next();
        match byte {
            Some(b'\\') => {
                let next = bytes
                    .next()
                    .ok_or_else(|| SqlError::new("22P04", "a row of COPY ends in a backslash"))?;
                raw.extend_from_slice(&[b'\\', next]);
                field.push(match next {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'v' => 11,
                    other => other,
                });
            }
            Some(byte) if byte != options.delimiter => {
                field.push(byte);
                raw.push(byte);
            }
            _ => {
                let is_null = raw == options.null.as_bytes();
                let text = utf8(std::mem::take(&mut field))?;
                fields.push((!is_null).then_some(text.into()));
                raw.clear();
                if byte.is_none() {
                    return Ok(fields);
                }
            }
        }
    }
}

/// The fields of a line in CSV. NULL is never quoted.
fn csv_fields<'l>(line: &[u8], options: &CopyOptions) -> Result<Vec<Field<'l>>, SqlError> {
    let mut fields = Vec::new();
    let mut field = Vec::new();
    let (mut quoted, mut was_quoted) = (false, false);
    let mut bytes = line.iter().copied().peekable();
    loop {
        match bytes.next() {
            Some(b'"') if quoted && bytes.peek() == Some(&b'"') => {
                bytes.next();
                field.push(b'"');
            }
            Some(b'"') => {
                quoted = !quoted;
                was_quoted = true;
            }
            Some(byte) if quoted || byte != options.delimiter => field.push(byte),
            end => {
                if end.is_none() && quoted {
                    return Err(SqlError::new("22P04", "unterminated CSV quoted field"));
                }
                let is_null = !was_quoted && field == options.null.as_bytes();
                let text = utf8(std::mem::take(&mut field))?;
                fields.push((!is_null).then_some(text.into()));
                was_quoted = false;
                if end.is_none() {
                    return Ok(fields);
                }
            }
        }
    }
}

/// Bytes of an ordinary line.
const LINE_BYTES: usize = 128;

/// A line of COPY TO.
pub fn line(row: &Row, columns: &[Column], options: &CopyOptions) -> Vec<u8> {
    let mut line = Vec::with_capacity(LINE_BYTES);
    for (number, (value, column)) in row.iter().zip(columns).enumerate() {
        if number > 0 {
            line.push(options.delimiter);
        }
        if value.is_null() {
            line.extend_from_slice(options.null.as_bytes());
            continue;
        }
        let text = value.to_text(column.data_type);
        match options.format {
            CopyFormat::Text => push_text(&mut line, &text, options),
            CopyFormat::Csv => push_csv(&mut line, &text, options),
        }
    }
    line.push(b'\n');
    line
}

/// The line that names the columns.
pub(crate) fn header(columns: &[Column], options: &CopyOptions) -> Vec<u8> {
    let names: Row = columns.iter().map(|column| Value::Text(column.name.clone())).collect();
    let texts: Vec<Column> = columns
        .iter()
        .map(|column| Column { name: column.name.clone(), data_type: DataType::Text })
        .collect();
    line(&names, &texts, options)
}

fn push_text(line: &mut Vec<u8>, text: &str, options: &CopyOptions) {
    let escaped = |byte: u8| match byte {
        8 => Some(b'b'),
        12 => Some(b'f'),
        b'\n' => Some(b'n'),
        b'\r' => Some(b'r'),
        b'\t' => Some(b't'),
        11 => Some(b'v'),
        b'\\' => Some(b'\\'),
        byte => (byte == options.delimiter).then_some(byte),
    };
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| escaped(*byte).is_some()) {
        line.extend_from_slice(&rest[..at]);
        line.push(b'\\');
        line.extend(escaped(rest[at]));
        rest = &rest[at + 1..];
    }
    line.extend_from_slice(rest);
}

fn push_csv(line: &mut Vec<u8>, text: &str, options: &CopyOptions) {
    let special = |byte: u8| byte == options.delimiter || b"\"\r\n".contains(&byte);
    if !text.bytes().any(special) && text != options.null && text != "\\." {
        line.extend_from_slice(text.as_bytes());
        return;
    }
    line.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            line.push(b'"');
        }
        line.push(byte);
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_smaller_while_others_change_the_table() {
        let after = |rows, conflicts: &[bool]| {
            conflicts.iter().fold(rows, |rows, conflict| next_batch_rows(rows, *conflict))
        };
        assert_eq!(after(BATCH_ROWS, &[false; 3]), BATCH_ROWS);
        assert_eq!(after(BATCH_ROWS, &[true; 2]), BATCH_ROWS / 4);
        assert_eq!(after(BATCH_ROWS, &[true; 20]), BATCH_ROWS_MIN);
        assert_eq!(after(BATCH_ROWS_MIN, &[false]), BATCH_ROWS_MIN + BATCH_ROWS_STEP);
        assert_eq!(after(BATCH_ROWS_MIN, &[false; 100]), BATCH_ROWS);
    }

    fn options(format: CopyFormat) -> CopyOptions {
        match format {
            CopyFormat::Text => {
                CopyOptions { format, delimiter: b'\t', null: "\\N".to_owned(), header: false }
            }
            CopyFormat::Csv => {
                CopyOptions { format, delimiter: b',', null: String::new(), header: false }
            }
        }
    }

    fn columns() -> Vec<Column> {
        ["a", "b"].map(|name| Column { name: name.to_owned(), data_type: DataType::Text }).to_vec()
    }

    #[test]
    fn written_rows_are_read_back_however_the_data_is_cut() {
        let text = |text: &str| Value::Text(text.to_owned());
        let rows = vec![
            vec![text("a\tb\\c"), Value::Null],
            vec![text(""), text("\"x\", y\nz")],
            vec![text("\\N"), text("plain")],
        ];
        for format in [CopyFormat::Text, CopyFormat::Csv] {
            let options = options(format);
            let bytes: Vec<u8> =
                rows.iter().flat_map(|row| line(row, &columns(), &options)).collect();
            for cut in 1..8 {
                let mut reader = Reader::new(columns(), options.clone());
                let mut read = Vec::new();
                for chunk in bytes.chunks(cut) {
                    read.extend(reader.read(chunk).unwrap());
                }
                read.extend(reader.finish().unwrap());
                assert_eq!(read, rows);
            }
        }
    }

    #[test]
    fn malformed_rows_are_errors_with_their_line() {
        let mut reader = Reader::new(columns(), options(CopyFormat::Text));
        let error = reader.read(b"1\t2\n3\n").unwrap_err();
        assert_eq!((error.code, error.detail.as_deref()), ("22P04", Some("COPY, line 2")));
    }
}
