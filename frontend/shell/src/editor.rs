//! The line editor: history, completion, hints.
//!
//! A statement is one entry of the history, however many lines it has.
//!
//! *Not here*: statements and commands (`scanner`, `command`).

use std::borrow::Cow;
use std::path::PathBuf;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::{Hinter, HistoryHinter};
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::command;
use super::scanner::Scanner;

/// Entries that the history file keeps.
const HISTORY_ENTRIES_MAX: usize = 10_000;

/// Keywords of SQL, for completion.
const KEYWORDS: [&str; 96] = [
    "ADD",
    "ALL",
    "ALTER",
    "ANALYZE",
    "AND",
    "AS",
    "ASC",
    "AVG",
    "BEGIN",
    "BETWEEN",
    "BIGINT",
    "BOOLEAN",
    "BY",
    "BYTEA",
    "CASE",
    "CAST",
    "CHAR",
    "CHECK",
    "COALESCE",
    "COLUMN",
    "COMMIT",
    "CONFLICT",
    "CONSTRAINT",
    "COPY",
    "COUNT",
    "CREATE",
    "CROSS",
    "DATE",
    "DEFAULT",
    "DELETE",
    "DESC",
    "DISTINCT",
    "DO",
    "DOUBLE",
    "DROP",
    "ELSE",
    "END",
    "EXCEPT",
    "EXECUTE",
    "EXISTS",
    "EXPLAIN",
    "FALSE",
    "FROM",
    "GENERATED",
    "GROUP",
    "HAVING",
    "IDENTITY",
    "IF",
    "IN",
    "INDEX",
    "INNER",
    "INSERT",
    "INTEGER",
    "INTERSECT",
    "INTO",
    "IS",
    "JOIN",
    "KEY",
    "LEFT",
    "LIKE",
    "LIMIT",
    "MAX",
    "MIN",
    "NOT",
    "NOTHING",
    "NULL",
    "NUMERIC",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "PRECISION",
    "PREPARE",
    "PRIMARY",
    "REAL",
    "RENAME",
    "RETURNING",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SERIAL",
    "SET",
    "SHOW",
    "SMALLINT",
    "SUM",
    "TABLE",
    "TEXT",
    "TIMESTAMP",
    "TRUNCATE",
    "UNION",
    "UNIQUE",
    "UPDATE",
    "UUID",
    "VALUES",
    "VARCHAR",
    "WHERE",
];

/// An entry at the terminal.
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C: the line is abandoned.
    Interrupted,
    /// Ctrl-D.
    End,
}

/// The line editor.
pub(super) struct LineEditor {
    editor: Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
    /// Lines of an unfinished statement.
    unfinished: String,
    /// The scanner of those lines.
    scanner: Scanner,
}

impl LineEditor {
    /// Opens the terminal, and the history file `~/.gannet_history`.
    pub(super) fn open() -> Result<Self, ReadlineError> {
        let config = Config::builder()
            .max_history_size(HISTORY_ENTRIES_MAX)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant::default()));
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let history = home.map(|home| PathBuf::from(home).join(".gannet_history"));
        if let Some(path) = &history {
            // The file does not exist at the first start.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history, unfinished: String::new(), scanner: Scanner::default() })
    }

    /// Reads a line.
    pub(super) fn read(&mut self, prompt: &str) -> Result<Typed, ReadlineError> {
        match self.editor.readline(prompt) {
            Ok(line) => {
                self.remember(&line)?;
                Ok(Typed::Line(line))
            }
            Err(ReadlineError::Interrupted) => {
                self.unfinished.clear();
                self.scanner = Scanner::default();
                Ok(Typed::Interrupted)
            }
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error),
        }
    }

    fn remember(&mut self, line: &str) -> Result<(), ReadlineError> {
        if self.scanner.is_command(line) {
            self.editor.add_history_entry(line.trim_end())?;
            return Ok(());
        }
        self.unfinished.push_str(line.trim_end());
        self.scanner.push_line(line);
        while self.scanner.take_statement().is_some() {}
        if self.scanner.is_blank() {
            self.editor.add_history_entry(std::mem::take(&mut self.unfinished))?;
        } else {
            self.unfinished.push('\n');
        }
        Ok(())
    }

    /// Reads a line of data.
    pub(super) fn read_data(&mut self) -> Result<Typed, ReadlineError> {
        match self.editor.readline("> ") {
            Ok(line) => Ok(Typed::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error),
        }
    }

    /// Sets the names of tables and columns for completion.
    pub(super) fn set_names(&mut self, names: Vec<String>) {
        if let Some(assistant) = self.editor.helper_mut() {
            assistant.names = names;
        }
    }
}

impl Drop for LineEditor {
    fn drop(&mut self) {
        if let Some(path) = &self.history {
            // An unwritable history is not worth an error.
            let _ = self.editor.save_history(path);
        }
    }
}

/// Completes and hints.
#[derive(Default)]
struct Assistant {
    names: Vec<String>,
    files: FilenameCompleter,
    hinter: HistoryHinter,
}

impl Helper for Assistant {}

impl Highlighter for Assistant {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[2m{hint}\x1b[0m"))
    }
}

impl Hinter for Assistant {
    type Hint = String;

    fn hint(&self, line: &str, position: usize, context: &Context<'_>) -> Option<String> {
        self.hinter.hint(line, position, context)
    }
}

impl Validator for Assistant {}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        let files = [".read ", ".import ", ".export ", "\\i "];
        if files.iter().any(|command| before.starts_with(command))
            && before.matches(' ').count() == 1
        {
            return self.files.complete(line, position, context);
        }
        let start = before
            .rfind(|c: char| !c.is_alphanumeric() && c != '_')
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        if before.starts_with('.') && start <= 1 {
            return Ok((
                0,
                pairs(command::NAMES.into_iter().filter(|name| name.starts_with(before))),
            ));
        }
        let word = &before[start..];
        if word.is_empty() {
            return Ok((start, Vec::new()));
        }
        Ok((start, self.words(word)))
    }
}

impl Assistant {
    /// Matching names first, then keywords in the case of the typed word.
    fn words(&self, word: &str) -> Vec<Pair> {
        let begins = |name: &str| {
            name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        let lower = !word.contains(|c: char| c.is_ascii_uppercase());
        let keyword =
            |keyword: &str| if lower { keyword.to_lowercase() } else { keyword.to_owned() };
        let keywords = KEYWORDS.iter().filter(|name| begins(name)).map(|name| keyword(name));
        let mut words: Vec<String> =
            self.names.iter().filter(|name| begins(name)).cloned().chain(keywords).collect();
        words.sort();
        words.dedup();
        pairs(words.iter().map(String::as_str))
    }
}

fn pairs<'a>(words: impl Iterator<Item = &'a str>) -> Vec<Pair> {
    let pair = |word: &str| Pair { display: word.to_owned(), replacement: word.to_owned() };
    words.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed_in_the_case_that_was_typed() {
        let assistant = Assistant { names: vec!["selections".to_owned()], ..Assistant::default() };
        let words = |word| -> Vec<String> {
            assistant.words(word).into_iter().map(|pair| pair.replacement).collect()
        };
        assert_eq!(words("sel"), ["select", "selections"]);
        assert_eq!(words("SELE"), ["SELECT", "selections"]);
        assert_eq!(words("é"), Vec::<String>::new());
    }
}
