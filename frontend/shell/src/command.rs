//! The shell's own commands: `.name`, or psql's `\name` for some of them.
//!
//! *Invariants*: a command is one line; a semicolon behind it is dropped. Within a statement that is typed, a line is a
//! command only if its name is known or begins with a backslash, as a line of SQL may begin with a dot. In a script a
//! command stands between statements. A line with words that are left over is an error.
//!
//! *Source*: PostgreSQL 15 documentation, psql, "Meta-Commands", for the names that begin with a backslash.
//!
//! *Not here*: what the commands do (`lib`, `describe`, `transfer`); commands of the program around the shell (`added`).

use super::render::Mode;

/// The text of `.help`.
pub(super) const HELP: &str = "\
.help                  this text                                  (\\?, help)
.tables                tables                                     (\\dt, \\d)
.schema [TABLE]        statements that create a table, or all
.indexes               indexes                                    (\\di)
.databases             databases                                  (\\l)
.mode [MODE]           table, csv, json, line, markdown or raw    (\\x: line on and off)
.timing [on|off]       how long statements take                   (\\timing)
.read FILE             run a file's statements                    (\\i FILE)
.import FILE TABLE     load a CSV file (.tsv: tabs); a first line that names columns is a header
.export FILE QUERY     write a result to FILE: CSV, or JSON or Markdown by its ending
.dump                  statements that create everything again
.bail [on|off]         stop at the first statement that fails
.quit                  leave                                      (\\q, exit, quit)
\\d TABLE               columns and indexes of a table
Statements end with a semicolon. Ctrl-C cancels one, or gives up what is typed.";

/// Commands, for completion.
pub(super) const NAMES: [&str; 13] = [
    ".help",
    ".tables",
    ".schema",
    ".indexes",
    ".databases",
    ".mode",
    ".timing",
    ".read",
    ".import",
    ".export",
    ".dump",
    ".bail",
    ".quit",
];
/// Words for help and for leaving.
const WORDS: [&str; 3] = ["help", "exit", "quit"];

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Tables,
    Schema(Option<String>),
    Indexes,
    Databases,
    Describe(String),
    /// The new mode; None shows the mode.
    Mode(Option<Mode>),
    ToggleLines,
    /// On or off; None toggles.
    Timing(Option<bool>),
    Read(String),
    Import {
        file: String,
        table: String,
    },
    Export {
        file: String,
        query: String,
    },
    Dump,
    Bail(Option<bool>),
    Quit,
}

/// Whether a line is a command rather than part of a statement.
pub(super) fn is_command(line: &str) -> bool {
    let mut characters = line.chars();
    match characters.next() {
        Some('\\') => true,
        Some('.') => characters.next().is_some_and(|c| c.is_ascii_alphabetic()),
        _ => false,
    }
}

/// Whether a typed line is a command, even within a statement.
pub(super) fn is_typed(line: &str, within: bool) -> bool {
    let line = without_semicolon(line);
    let name = line.split_whitespace().next().unwrap_or_default();
    // A line of a statement may begin with a column's name.
    let is_known = || name.starts_with('\\') || name == ".exit" || NAMES.contains(&name);
    is_word(line) || is_command(line) && (!within || is_known())
}

fn is_word(line: &str) -> bool {
    WORDS.iter().any(|word| line.eq_ignore_ascii_case(word))
}

/// The name of a command, and what follows it.
pub(super) fn split(line: &str) -> (&str, &str) {
    let line = without_semicolon(line);
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (name, rest.trim())
}

/// Removes the semicolon that people sometimes put after a command.
fn without_semicolon(line: &str) -> &str {
    line.trim().trim_end_matches(';').trim_end()
}

/// Parses a line for which [`is_command`] or [`is_typed`] holds.
///
/// # Errors
/// The error's message.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let (name, mut rest) = split(line);
    let line = without_semicolon(line);
    let lower = if is_word(line) { line.to_ascii_lowercase() } else { String::new() };
    let command = match if lower.is_empty() { name } else { lower.as_str() } {
        ".help" | "\\?" | "\\h" | "help" => Command::Help,
        ".tables" | "\\dt" => Command::Tables,
        "\\d" | "\\d+" => match word(&mut rest)? {
            Some(table) => Command::Describe(table),
            None => Command::Tables,
        },
        ".schema" => Command::Schema(word(&mut rest)?),
        ".indexes" | "\\di" => Command::Indexes,
        ".databases" | "\\l" => Command::Databases,
        ".mode" => Command::Mode(match word(&mut rest)? {
            Some(name) => Some(Mode::from_name(&name).ok_or_else(|| unknown_mode(&name))?),
            None => None,
        }),
        "\\x" => Command::ToggleLines,
        ".timing" | "\\timing" => Command::Timing(switch(&mut rest)?),
        ".read" | "\\i" => Command::Read(required(&mut rest, name, "FILE")?),
        ".import" => Command::Import {
            file: required(&mut rest, name, "FILE TABLE")?,
            table: required(&mut rest, name, "FILE TABLE")?,
        },
        ".export" => {
            let file = required(&mut rest, name, "FILE QUERY")?;
            let query = std::mem::take(&mut rest).trim().trim_end_matches(';').to_owned();
            if query.is_empty() {
                return Err(usage(name, "FILE QUERY"));
            }
            Command::Export { file, query }
        }
        ".dump" => Command::Dump,
        ".bail" => Command::Bail(switch(&mut rest)?),
        ".quit" | ".exit" | "\\q" | "exit" | "quit" => Command::Quit,
        _ => return Err(unknown_command(name)),
    };
    if rest.is_empty() { Ok(command) } else { Err(format!("{name} takes no {rest:?}; see .help")) }
}

fn unknown_command(name: &str) -> String {
    let nearest = NAMES.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
    match nearest {
        Some((1..=2, known)) => format!("there is no command {name}; did you mean {known}?"),
        _ => format!("there is no command {name}; see .help"),
    }
}

fn unknown_mode(name: &str) -> String {
    format!("there is no mode {name}; use {}", Mode::ALL.map(Mode::name).join(", "))
}

fn usage(name: &str, arguments: &str) -> String {
    format!("use {name} {arguments}")
}

fn required(rest: &mut &str, name: &str, arguments: &str) -> Result<String, String> {
    word(rest)?.ok_or_else(|| usage(name, arguments))
}

fn switch(rest: &mut &str) -> Result<Option<bool>, String> {
    match word(rest)?.as_deref() {
        None => Ok(None),
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(other) => Err(format!("{other} is neither on nor off")),
    }
}

/// Takes a word, which may be in quotes of either kind. The quotes are removed; a name in double quotes keeps its case.
fn word(rest: &mut &str) -> Result<Option<String>, String> {
    let text = rest.trim_start();
    let (word, after) = match text.chars().next() {
        None => return Ok(None),
        Some(quote @ ('"' | '\'')) => {
            text[1..].split_once(quote).ok_or_else(|| format!("the quote {quote} is not closed"))?
        }
        Some(_) => text.split_once(char::is_whitespace).unwrap_or((text, "")),
    };
    *rest = after.trim_start();
    Ok(Some(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_two_spellings() {
        assert_eq!(parse(".tables"), Ok(Command::Tables));
        assert_eq!(parse("\\d accounts;"), Ok(Command::Describe("accounts".to_owned())));
        assert_eq!(parse(".mode json"), Ok(Command::Mode(Some(Mode::Json))));
        assert_eq!(parse("\\timing"), Ok(Command::Timing(None)));
        let import = Command::Import { file: "a b.csv".to_owned(), table: "t".to_owned() };
        assert_eq!(parse(".import 'a b.csv' t"), Ok(import));
        let query = "SELECT ';' x".to_owned();
        let export = Command::Export { file: "o.csv".to_owned(), query };
        assert_eq!(parse(".export o.csv SELECT ';' x;"), Ok(export));
    }

    #[test]
    fn typed_commands_are_recognized_within_statements() {
        assert_eq!((parse("Quit;"), parse("help ")), (Ok(Command::Quit), Ok(Command::Help)));
        for line in [".help", "\\q", "exit", "QUIT ;", ".mode json"] {
            assert!(is_typed(line, true) && is_typed(line, false), "{line}");
        }
        assert!(is_typed(".nam", false) && !is_typed(".nam", true));
        assert!(!is_typed("help me", true) && !is_typed("SELECT 1", false));
    }

    #[test]
    fn errors_of_commands_say_what_to_do() {
        assert_eq!(
            parse(".tabels").unwrap_err(),
            "there is no command .tabels; did you mean .tables?"
        );
        assert_eq!(parse(".import x").unwrap_err(), "use .import FILE TABLE");
        assert!(parse(".mode xml").unwrap_err().contains("use table, csv"));
        assert!(parse(".quit now").is_err());
        assert!(parse(".read 'x").is_err());
        assert_eq!(parse("\\l;"), Ok(Command::Databases));
        assert!(!is_command("SELECT 1") && !is_command(".5") && is_command("\\q"));
    }
}
