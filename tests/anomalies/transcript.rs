//! Scripts of anomalies: statements of several sessions in turn, with their results.
//! ```text
//! # A description of the anomaly.
//! # rule: READ_VALIDATION               a rule whose removal changes the transcript
//! a: BEGIN                              session, statement; no line below it: it succeeded
//! a: UPDATE t SET v = 1 WHERE id = 2
//!   1 row                               the number of changed rows, or a query's rows, or (no rows)
//! a: COMMIT
//!   error 40001                         the SQLSTATE
//! ```
//! Running a script writes its transcript; the test passes if the transcript equals the script.
//!
//! *Invariants*: statements run one after the other, so the transcript depends on the script alone.
//!
//! *Not here*: sessions, which are `embedded.rs` here and `tests/server/anomalies.rs` over the wire.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The result of a statement.
pub(crate) enum Given {
    /// The rows of a query, cells separated by `|`.
    Rows(Vec<String>),
    /// The number of changed rows.
    Count(u64),
    /// The SQLSTATE of its error.
    Error(String),
}

/// A client's session.
pub(crate) trait Client {
    /// Runs a statement.
    fn run(&mut self, sql: &str) -> Given;
}

/// A script and its name.
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Script {
    /// All scripts of this folder, in the order of their names.
    pub(crate) fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anomalies");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|end| end == "script")).collect();
        files.sort();
        let read = |path: PathBuf| Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            text: std::fs::read_to_string(&path).unwrap(),
        };
        files.into_iter().map(read).collect()
    }

    /// The transcript: the script with the statements' present results.
    pub(crate) fn transcript<C: Client>(&self, connect: impl Fn() -> C) -> String {
        let mut clients: BTreeMap<&str, C> = BTreeMap::new();
        let mut transcript = String::new();
        for line in self.text.lines().filter(|line| !line.starts_with("  ")) {
            transcript.push_str(line);
            transcript.push('\n');
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, sql) = line.split_once(": ").unwrap_or_else(|| {
                panic!("{}: {line:?} is neither a comment nor `session: statement`", self.name)
            });
            let client = clients.entry(name).or_insert_with(|| {
                let mut client = connect();
                // A statement that waits for a row of another session, which comes later in the script, gets it soon.
                let given = client.run("SET gannet.reservation_timeout = '20ms'");
                assert!(!matches!(given, Given::Error(_)), "the setting is refused");
                client
            });
            for given in lines(sql, client.run(sql)) {
                transcript.push_str(&format!("  {given}\n"));
            }
        }
        transcript
    }
}

/// The lines below a statement.
fn lines(sql: &str, given: Given) -> Vec<String> {
    match given {
        Given::Rows(rows) if rows.is_empty() => vec!["(no rows)".to_owned()],
        Given::Rows(rows) => rows,
        Given::Count(1) => vec!["1 row".to_owned()],
        Given::Count(count) if count > 1 || changes_rows(sql) => vec![format!("{count} rows")],
        Given::Count(_) => Vec::new(),
        Given::Error(code) => vec![format!("error {code}")],
    }
}

/// Whether the transcript shows a statement's number of changed rows.
fn changes_rows(sql: &str) -> bool {
    ["INSERT", "UPDATE", "DELETE"].iter().any(|word| sql.starts_with(word))
}
