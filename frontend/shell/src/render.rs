//! Results as text, in the shell's modes.
//!
//! *Invariants*: NULL differs from the empty text, but in mode raw. Mode table escapes control characters, so that a
//! result moves no cursor; the other modes write values as they are, in the syntax of their format. NaN and infinity are
//! texts in JSON.
//!
//! *Source*: RFC 4180 (CSV), RFC 8259 (JSON).
//!
//! *Not here*: values as text (`outcome`), and files (`transfer`).

use std::fmt::Write as _;
use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::outcome::{ColumnKind, Heading, Rows};

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A table for people.
    Table,
    /// RFC 4180, with a header.
    Csv,
    /// An array of objects.
    Json,
    /// One line for each value.
    Line,
    /// A Markdown table.
    Markdown,
    /// Values separated by tabs, and nothing else.
    Raw,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 6] =
        [Self::Table, Self::Csv, Self::Json, Self::Line, Self::Markdown, Self::Raw];

    /// The mode's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Line => "line",
            Self::Markdown => "markdown",
            Self::Raw => "raw",
        }
    }

    /// The mode with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The text for NULL, where an empty text would be ambiguous.
const NULL: &str = "NULL";

/// Writes rows in a mode.
pub(super) fn write_rows(out: &mut dyn Write, mode: Mode, result: &Rows) -> io::Result<()> {
    match mode {
        Mode::Table => write_table(out, result),
        Mode::Csv => write_csv(out, result),
        Mode::Json => write_json(out, result),
        Mode::Line => write_lines(out, result),
        Mode::Markdown => write_markdown(out, result),
        Mode::Raw => write_raw(out, result),
    }
}

fn write_table(out: &mut dyn Write, result: &Rows) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(result.headings.iter().map(|heading| visible(&heading.name)));
    for row in &result.rows {
        table.add_row(row.iter().map(|value| visible(value.as_deref().unwrap_or(NULL))));
    }
    for (heading, column) in result.headings.iter().zip(table.column_iter_mut()) {
        if heading.kind == ColumnKind::Number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if !result.headings.is_empty() {
        writeln!(out, "{table}")?;
    }
    let count = result.rows.len();
    writeln!(out, "({count} {})", if count == 1 { "row" } else { "rows" })
}

/// The text without control characters that move a terminal's cursor; newlines remain.
fn visible(text: &str) -> String {
    text.chars()
        .flat_map(
            |c| if c == '\n' || !c.is_control() { vec![c] } else { c.escape_default().collect() },
        )
        .collect()
}

fn write_csv(out: &mut dyn Write, result: &Rows) -> io::Result<()> {
    let header: Vec<_> =
        result.headings.iter().map(|heading| Some(heading.name.as_str())).collect();
    write_csv_line(out, &header)?;
    for row in &result.rows {
        write_csv_line(out, &row.iter().map(Option::as_deref).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// NULL is an empty field, and the empty text is `""`, as in COPY.
fn write_csv_line(out: &mut dyn Write, values: &[Option<&str>]) -> io::Result<()> {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        let Some(value) = value else { continue };
        let alone = values.len() == 1 && *value == "\\.";
        if value.is_empty() || alone || value.contains([',', '"', '\n', '\r']) {
            write!(out, "\"{}\"", value.replace('"', "\"\""))?;
        } else {
            out.write_all(value.as_bytes())?;
        }
    }
    out.write_all(b"\n")
}

fn write_json(out: &mut dyn Write, result: &Rows) -> io::Result<()> {
    out.write_all(b"[")?;
    for (index, row) in result.rows.iter().enumerate() {
        out.write_all(if index == 0 { b"{" } else { b",\n{" })?;
        for (column, (heading, value)) in result.headings.iter().zip(row).enumerate() {
            let comma = if column == 0 { "" } else { "," };
            let value = json_value(heading.kind, value.as_deref());
            write!(out, "{comma}{}:{value}", json_text(&heading.name))?;
        }
        out.write_all(b"}")?;
    }
    out.write_all(b"]\n")
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn json_value(kind: ColumnKind, value: Option<&str>) -> String {
    match (kind, value) {
        (_, None) => "null".to_owned(),
        (ColumnKind::Boolean, Some("t")) => "true".to_owned(),
        (ColumnKind::Boolean, Some("f")) => "false".to_owned(),
        // NaN and Infinity are no numbers in JSON.
        (ColumnKind::Number, Some(value)) if value.ends_with(|c: char| c.is_ascii_digit()) => {
            value.to_owned()
        }
        (_, Some(value)) => json_text(value),
    }
}

fn write_lines(out: &mut dyn Write, result: &Rows) -> io::Result<()> {
    let width = |heading: &Heading| unicode_width::UnicodeWidthStr::width(heading.name.as_str());
    let widest = result.headings.iter().map(width).max().unwrap_or(0);
    for (index, row) in result.rows.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        for (heading, value) in result.headings.iter().zip(row) {
            let indent = widest - width(heading);
            let value = value.as_deref().unwrap_or(NULL);
            writeln!(out, "{:indent$}{} = {value}", "", heading.name)?;
        }
    }
    Ok(())
}

fn write_markdown(out: &mut dyn Write, result: &Rows) -> io::Result<()> {
    let line = |cells: &mut dyn Iterator<Item = String>| {
        cells.fold("|".to_owned(), |mut line, cell| {
            write!(line, " {cell} |").expect("a String takes everything");
            line
        })
    };
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace('\n', "<br>");
    let names = &mut result.headings.iter().map(|heading| escaped(&heading.name));
    writeln!(out, "{}", line(names))?;
    let rules = &mut result.headings.iter().map(|heading| match heading.kind {
        ColumnKind::Number => "---:".to_owned(),
        ColumnKind::Boolean | ColumnKind::Text => "---".to_owned(),
    });
    writeln!(out, "{}", line(rules))?;
    for row in &result.rows {
        let cells = &mut row.iter().map(|value| escaped(value.as_deref().unwrap_or(NULL)));
        writeln!(out, "{}", line(cells))?;
    }
    Ok(())
}

fn write_raw(out: &mut dyn Write, result: &Rows) -> io::Result<()> {
    for row in &result.rows {
        let values: Vec<_> = row.iter().map(|value| value.as_deref().unwrap_or("")).collect();
        writeln!(out, "{}", values.join("\t"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(mode: Mode) -> String {
        let heading = |name: &str, kind| Heading { name: name.to_owned(), kind };
        let result = Rows {
            headings: vec![
                heading("id", ColumnKind::Number),
                heading("a|b", ColumnKind::Text),
                heading("ok", ColumnKind::Boolean),
            ],
            rows: vec![
                vec![Some("1".to_owned()), Some("x, \"y\"\nz".to_owned()), Some("t".to_owned())],
                vec![Some("NaN".to_owned()), Some(String::new()), None],
            ],
        };
        let mut out = Vec::new();
        write_rows(&mut out, mode, &result).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_mode_writes_its_format() {
        assert_eq!(rendered(Mode::Csv), "id,a|b,ok\n1,\"x, \"\"y\"\"\nz\",t\nNaN,\"\",\n");
        assert_eq!(
            rendered(Mode::Json),
            "[{\"id\":1,\"a|b\":\"x, \\\"y\\\"\\nz\",\"ok\":true},\n\
             {\"id\":\"NaN\",\"a|b\":\"\",\"ok\":null}]\n"
        );
        assert_eq!(
            rendered(Mode::Markdown),
            "| id | a\\|b | ok |\n| ---: | --- | --- |\n| 1 | x, \"y\"<br>z | t |\n\
             | NaN |  | NULL |\n"
        );
        assert!(rendered(Mode::Line).starts_with(" id = 1\na|b = x"));
        assert_eq!(rendered(Mode::Raw), "1\tx, \"y\"\nz\tt\nNaN\t\t\n");
        assert!(rendered(Mode::Table).ends_with("(2 rows)\n"));
    }

    #[test]
    fn tables_show_control_characters() {
        assert_eq!(visible("a\u{1b}[2J\n"), "a\\u{1b}[2J\n");
    }
}
