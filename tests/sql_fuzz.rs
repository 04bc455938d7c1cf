//! Random statements: those of the SQL scripts, with words changed, moved and combined.
//!
//! For every statement, the session returns a result or an error with a SQLSTATE. It continues afterwards, leaves no lock
//! behind, and all copies are equal. An internal error (XX000) would be a panic.
//!
//! `GANNET_FUZZ_SECONDS=600 cargo test --profile checked --test sql_fuzz` runs longer.
//!
//! *Not here*: raw bytes, which rarely pass the parser; malformed messages (`tests/server/malformed.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gannet_benchmarks::check_replicas;
use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{CancelHandle, Database, Session, SqlError, StatementResult, Value};
use pollster::block_on;

/// Inputs of one cluster, before it is checked and replaced.
const INPUTS_PER_CLUSTER: u64 = 200;
/// Statements that run longer than this are cancelled.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of words of a statement; further words are dropped.
const WORDS_MAX: usize = 200;

/// The initial tables and rows.
const SETUP: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY, b TEXT, c NUMERIC(10,2), d DATE, e BOOLEAN)",
    "CREATE TABLE IF NOT EXISTS u (id SERIAL PRIMARY KEY, t INT, v DOUBLE PRECISION, w TIMESTAMP, x BYTEA, y UUID, z TIMESTAMPTZ)",
    "INSERT INTO t SELECT n, 'row ' || n, n / 4.0, DATE '2024-02-28' + n, n % 2 = 0 FROM generate_series(1, 20) s (n) \
     ON CONFLICT DO NOTHING",
    "INSERT INTO u (t, v) SELECT n, n * 1.5 FROM generate_series(1, 5) s (n)",
];

/// Words that scripts lack, from the edges of types and syntax.
const EDGES: &str = "NULL -9223372036854775808 9223372036854775807 2147483648 1e308 1e-307 1e999 0 -1 '' '\\' '%_\\' \
    'infinity' 'NaN' '2024-02-30' '0001-01-01' $1 $65535 * :: ( ) [ ] , . ; = <> || -> ~ % ^ \"\" \"a\" E'\\x' U&'\\' \
    DISTINCT ALL ANY EXISTS IN BETWEEN LIKE CASE WHEN THEN ELSE END CAST AS LATERAL NATURAL USING ORDER BY GROUP HAVING \
    LIMIT OFFSET UNION EXCEPT INTERSECT RETURNING DEFAULT VALUES WITH RECURSIVE EXPLAIN ANALYZE COPY TO FROM STDOUT \
    STDIN PREPARE EXECUTE SAVEPOINT ROLLBACK COMMIT BEGIN TRUNCATE t u t.a u.id a b c d e id v w x y z pg_class \
    information_schema.columns generate_series(1,9) count(*) sum(a) avg(v) min(b) now() random() repeat(b,3) length(b) \
    substring(b,2,3) date_trunc('day',w) '2024-01-01 00:00+02' TIMESTAMPTZ (z AT TIME ZONE 'UTC') extract(year) round(v,2) coalesce(a,0) nullif(a,0)";

/// A change of a statement's words. Places are taken modulo the number of words.
#[derive(Clone, Debug, bolero::TypeGenerator)]
enum Mutation {
    Replace {
        at: u16,
        word: u16,
    },
    ReplaceByEdge {
        at: u16,
        edge: u16,
    },
    Insert {
        at: u16,
        word: u16,
    },
    InsertEdge {
        at: u16,
        edge: u16,
    },
    Remove {
        at: u16,
    },
    Swap {
        at: u16,
        with: u16,
    },
    /// Inserts words of another statement.
    Splice {
        at: u16,
        statement: u16,
        from: u16,
        count: u8,
    },
    /// Puts words into parentheses.
    Enclose {
        at: u16,
        count: u8,
    },
    /// Inserts a character anywhere.
    Character {
        at: u16,
        character: char,
    },
}

/// A statement of the scripts, with mutations.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Fuzzed {
    statement: u16,
    mutations: Vec<Mutation>,
    /// The number of mutations to apply: with many of them, a statement fails early.
    made: u8,
    /// If given, the statement is prepared first, with these parameters.
    parameters: Option<[u16; 3]>,
}

/// The statements of the scripts, split into words.
struct Corpus {
    statements: Vec<Vec<String>>,
    words: Vec<String>,
    edges: Vec<String>,
}

impl Corpus {
    fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("frontend/tests/slt");
        let mut statements = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for record in text.split("\n\n") {
                let body = record.split("----").next().unwrap();
                let lines = body.lines().skip_while(|line| line.starts_with('#'));
                let mut lines = lines.skip_while(|line| line.is_empty());
                let head = lines.next().unwrap_or_default();
                if head.starts_with("statement") || head.starts_with("query") {
                    statements.push(split(&lines.collect::<Vec<_>>().join(" ")));
                }
            }
        }
        assert!(statements.len() > 100, "only {} statements in the scripts", statements.len());
        statements.sort();
        let mut words: Vec<String> = statements.iter().flatten().cloned().collect();
        words.sort();
        words.dedup();
        let edges = EDGES.split(' ').map(str::to_owned).collect();
        Self { statements, words, edges }
    }

    /// The text of a statement after its mutations.
    fn text(&self, fuzzed: &Fuzzed) -> String {
        let mut words = pick(&self.statements, fuzzed.statement).clone();
        let mut characters = Vec::new();
        for mutation in fuzzed.mutations.iter().take(usize::from(fuzzed.made % 4)) {
            let length = words.len();
            let place = |at: u16| usize::from(at) % (length + 1);
            let inside = |at: u16| usize::from(at) % length.max(1);
            match *mutation {
                Mutation::Replace { at, word } if length > 0 => {
                    words[inside(at)] = pick(&self.words, word).clone();
                }
                Mutation::ReplaceByEdge { at, edge } if length > 0 => {
                    words[inside(at)] = pick(&self.edges, edge).clone();
                }
                Mutation::Insert { at, word } => {
                    words.insert(place(at), pick(&self.words, word).clone());
                }
                Mutation::InsertEdge { at, edge } => {
                    words.insert(place(at), pick(&self.edges, edge).clone());
                }
                Mutation::Remove { at } if length > 0 => drop(words.remove(inside(at))),
                Mutation::Swap { at, with } if length > 0 => words.swap(inside(at), inside(with)),
                Mutation::Splice { at, statement, from, count } => {
                    let other = pick(&self.statements, statement);
                    let from = usize::from(from) % (other.len() + 1);
                    let part = other[from..].iter().take(count.into()).cloned();
                    words.splice(place(at)..place(at), part.collect::<Vec<_>>());
                }
                Mutation::Enclose { at, count } => {
                    words.insert(place(at), "(".to_owned());
                    words.insert(
                        (place(at) + 1 + usize::from(count)).min(length + 1),
                        ")".to_owned(),
                    );
                }
                Mutation::Character { at, character } => characters.push((at, character)),
                _ => {}
            }
            words.truncate(WORDS_MAX);
        }
        let mut text: Vec<char> = words.join(" ").chars().collect();
        for (at, character) in characters {
            let at = usize::from(at) % (text.len() + 1);
            text.insert(at, character);
        }
        text.into_iter().collect()
    }
}

fn pick<T>(all: &[T], number: u16) -> &T {
    &all[usize::from(number) % all.len()]
}

/// The words, quoted texts and signs of a statement.
fn split(statement: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = statement.trim();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '$';
        let end = if first == '\'' {
            rest[1..].find('\'').map_or(rest.len(), |end| end + 2)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            rest.find(|c: char| is_word(c) || c == '\'' || c == ' ' || "(),".contains(c))
                .unwrap_or(rest.len())
                .max(first.len_utf8())
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    words
}

/// A cluster with a session on it, and a thread that cancels long statements.
struct Target {
    cluster: Arc<Cluster>,
    session: Session,
    /// Statements begun.
    begun: Arc<AtomicU64>,
}

impl Target {
    fn open() -> Self {
        let options = ClusterOptions {
            threads: 1,
            memory_limit_bytes: Some(64 << 20),
            ..ClusterOptions::default()
        };
        let cluster = Arc::new(Cluster::open(options).unwrap());
        let session = Database::open(Arc::clone(&cluster)).unwrap().session("tester");
        let begun = Arc::new(AtomicU64::new(0));
        let (watched, cancel) = (Arc::downgrade(&begun), session.cancel_handle());
        std::thread::spawn(move || cancel_what_takes_long(&watched, &cancel));
        Self { cluster, session, begun }
    }

    fn run(&mut self, text: &str, parameters: Option<&[u16; 3]>) -> Result<(), SqlError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let result = match parameters {
            None => block_on(self.session.execute(text))?,
            Some(numbers) => {
                let prepared = block_on(self.session.prepare(text, &[]))?;
                let values = prepared.parameters.iter().zip(numbers.iter().cycle());
                let values = values.map(|(_, number)| match number % 4 {
                    0 => Value::Null,
                    1 => Value::Text(number.to_string()),
                    2 => Value::Integer(i64::from(*number)),
                    _ => Value::Float(f64::from(*number)),
                });
                block_on(self.session.execute_prepared(&prepared, values.collect()))?
            }
        };
        if matches!(result, StatementResult::CopyIn { .. }) {
            block_on(self.session.copy_in(b"1\tx\n\\N,2\n"))?;
            block_on(self.session.copy_end(None))?;
        }
        Ok(())
    }

    /// Checks the cluster after the transactions have ended.
    fn check(&mut self) {
        let wrong = check_replicas(&self.cluster).into_iter().filter(|check| !check.passed);
        let wrong: Vec<_> = wrong.collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// Cancels a statement that is still the last one begun after a while; ends with its session.
fn cancel_what_takes_long(begun: &std::sync::Weak<AtomicU64>, cancel: &CancelHandle) {
    let mut last = 0;
    while let Some(begun) = begun.upgrade() {
        let now = begun.load(Ordering::Relaxed);
        if now == last {
            cancel.cancel();
        }
        last = now;
        drop(begun);
        std::thread::park_timeout(RESPONSE_TIMEOUT);
    }
}

#[test]
fn fuzz_statements() {
    let corpus = Corpus::read();
    let state = std::sync::Mutex::new((Target::open(), 0, 0_u64, 0_u64));
    let seconds = std::env::var("GANNET_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    bolero::check!()
        .with_type::<Vec<Fuzzed>>()
        .with_test_time(Duration::from_secs(seconds.unwrap_or(5)))
        .with_iterations(usize::MAX)
        .for_each(|input| {
            let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let (target, inputs, succeeded, failed) = &mut *state;
            if *inputs == INPUTS_PER_CLUSTER {
                target.check();
                (*target, *inputs) = (Target::open(), 0);
            }
            *inputs += 1;
            for statement in SETUP {
                // Earlier statements may have replaced the tables.
                let _ = target.run(statement, None);
            }
            for fuzzed in input {
                let text = corpus.text(fuzzed);
                match target.run(&text, fuzzed.parameters.as_ref()) {
                    Ok(()) => *succeeded += 1,
                    Err(error) => {
                        *failed += 1;
                        let code = error.code;
                        assert!(code.len() == 5 && code != "XX000", "{text:?}: {error:?}");
                    }
                }
            }
            let _ = target.run("ROLLBACK", None);
            let one = block_on(target.session.execute("SELECT 1"));
            assert!(matches!(one, Ok(StatementResult::Rows { .. })), "after {input:?}: {one:?}");
        });
    let (target, _, succeeded, failed) = &mut *state.lock().unwrap();
    target.check();
    println!("{succeeded} statements succeeded, {failed} failed");
    assert!(*succeeded > 0 && *failed > 0, "both kinds are generated");
}
