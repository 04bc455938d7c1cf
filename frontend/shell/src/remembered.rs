//! What the shell remembers of its session at a server, for the case that the connection ends.
//!
//! A statement's first words tell what it may have done; the server is not there to be asked.
//!
//! *Invariants*: a statement that may have changed something is never taken for one that has not. A transaction that may have
//! ended is not taken for an open one.
//!
//! *Source*: PostgreSQL 15, section 4.1 (comments nest) and part VI, SQL commands.
//!
//! *Not here*: the connection (`remote`).

/// Statements that change nothing outside of their session, unless they contain one of [`CHANGES`].
const HARMLESS: [&str; 22] = [
    "ABORT",
    "BEGIN",
    "CLOSE",
    "DEALLOCATE",
    "DECLARE",
    "DISCARD",
    "EXPLAIN",
    "FETCH",
    "LISTEN",
    "PREPARE",
    "RELEASE",
    "RESET",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "START",
    "TABLE",
    "UNLISTEN",
    "VALUES",
    "WITH",
];
/// Words with which a query changes something.
const CHANGES: [&str; 7] = ["DELETE", "INSERT", "INTO", "MERGE", "NEXTVAL", "SETVAL", "UPDATE"];

/// What is lost with a connection while a statement is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The statement alone, which has changed nothing.
    Statement,
    /// The transaction, which has changed nothing.
    Transaction,
    /// The outcome: the statement may have changed something.
    Outcome,
}

/// The state of a session.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    in_transaction: bool,
    /// Names of settings, and the statements that have set them last, in their order.
    settings: Vec<(String, String)>,
    /// Whether a transaction has changed settings, which its end may have undone.
    has_others: bool,
}

impl Remembered {
    /// What is lost if the connection ends during this statement.
    pub(super) fn loss(&self, statement: &str) -> Loss {
        let mut words = words(statement);
        let first = words.next().unwrap_or_default();
        let changes = match first.as_str() {
            "COMMIT" | "END" => return Loss::Outcome,
            _ if self.in_transaction => return Loss::Transaction,
            "COPY" => !words.any(|word| word == "STDOUT"),
            first if HARMLESS.contains(&first) => words.any(|word| CHANGES.contains(&&*word)),
            _ => true,
        };
        if changes { Loss::Outcome } else { Loss::Statement }
    }

    /// A statement was answered; `is_done` if it has succeeded.
    pub(super) fn answered(&mut self, statement: &str, is_done: bool) {
        let mut words = words(statement);
        match words.next().unwrap_or_default().as_str() {
            "BEGIN" | "START" => self.in_transaction |= is_done,
            "COMMIT" | "END" | "ABORT" => self.in_transaction = false,
            "ROLLBACK" => self.in_transaction &= words.any(|word| word == "TO"),
            "SET" if is_done => self.set(statement),
            "RESET" | "DISCARD" if is_done => self.reset(statement),
            _ => {}
        }
    }

    /// The connection has ended. Returns whether a transaction was open.
    pub(super) fn lose_transaction(&mut self) -> bool {
        std::mem::take(&mut self.in_transaction)
    }

    /// The statements that make the settings again.
    pub(super) fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|(_, statement)| statement.as_str())
    }

    /// Whether there may be settings that these statements do not make.
    pub(super) fn has_other_settings(&self) -> bool {
        self.has_others
    }

    fn set(&mut self, statement: &str) {
        let mut names = names(statement);
        let name = match names.next() {
            Some(word) if word == "session" => names.next(),
            word => word,
        };
        // The others are the transaction's own.
        let Some(name) = name.filter(|name| name != "local" && name != "transaction") else {
            return;
        };
        if self.in_transaction {
            self.has_others = true;
            return;
        }
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, statement.to_owned()));
    }

    fn reset(&mut self, statement: &str) {
        let name = names(statement).next().unwrap_or_default();
        if self.in_transaction {
            self.has_others = true;
        } else if name == "all" {
            self.settings.clear();
            self.has_others = false;
        } else {
            self.settings.retain(|(known, _)| *known != name);
        }
    }
}

/// The words of a statement in upper case, without the comments before it.
fn words(statement: &str) -> impl Iterator<Item = String> {
    let is_between = |c: char| !c.is_alphanumeric() && c != '_';
    let words = uncommented(statement).split(is_between).filter(|word| !word.is_empty());
    words.map(str::to_ascii_uppercase)
}

/// What follows the first word of SET or RESET, in lower case.
fn names(statement: &str) -> impl Iterator<Item = String> {
    let is_between = |c: char| c.is_whitespace() || c == '=';
    let words = uncommented(statement).split(is_between).filter(|word| !word.is_empty());
    words.skip(1).map(str::to_ascii_lowercase)
}

/// A statement without the comments before it.
fn uncommented(statement: &str) -> &str {
    let mut rest = statement.trim_start();
    loop {
        let after = if let Some(line) = rest.strip_prefix("--") {
            line.split_once('\n').map_or("", |(_, after)| after)
        } else if rest.starts_with("/*") {
            after_comment(rest)
        } else {
            return rest;
        };
        rest = after.trim_start();
    }
}

/// What follows the comment that a text begins with; nothing if the comment has no end.
fn after_comment(text: &str) -> &str {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0, 0);
    while let Some(pair) = bytes.get(at..at + 2) {
        match pair {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return &text[at..];
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_tell_what_may_have_changed() {
        let session = Remembered::default();
        for statement in [
            "INSERT INTO t VALUES (1)",
            "create table t (id int)",
            "COMMIT",
            "-- all\n/* of /* them */ é */ delete from t",
            "WITH gone AS (DELETE FROM t RETURNING id) SELECT * FROM gone",
            "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
            "SELECT setval('s', 7)",
            "COPY t FROM STDIN",
            "EXECUTE add(1)",
            "/* without an end",
        ] {
            assert_eq!(session.loss(statement), Loss::Outcome, "{statement}");
        }
        for statement in [
            "SELECT 1",
            "(SELECT 1)",
            "--\nWITH a AS (SELECT 1) SELECT * FROM a",
            "show all",
            "COPY (SELECT * FROM t) TO STDOUT",
            "BEGIN",
            "SET application_name = 'x'",
        ] {
            assert_eq!(session.loss(statement), Loss::Statement, "{statement}");
        }
    }

    #[test]
    fn a_transaction_is_open_until_it_may_have_ended() {
        for end in ["COMMIT", "end", "ABORT", "ROLLBACK", "/* now */ rollback work"] {
            let mut session = Remembered::default();
            session.answered("BEGIN", false);
            assert_eq!(session.loss("DELETE FROM t"), Loss::Outcome);
            session.answered("start transaction", true);
            session.answered("DELETE FROM t", false);
            session.answered("ROLLBACK TO SAVEPOINT s", true);
            assert_eq!(session.loss("DELETE FROM t"), Loss::Transaction);
            assert_eq!(session.loss("COMMIT"), Loss::Outcome);
            session.answered(end, false);
            assert_eq!(session.loss("DELETE FROM t"), Loss::Outcome, "{end}");
            assert!(!session.lose_transaction());
        }
    }

    #[test]
    fn settings_are_remembered_until_they_are_reset() {
        let mut session = Remembered::default();
        for (statement, is_done) in [
            ("SET a = 1", true),
            ("set session B to 2", true),
            ("SET my.c=3", true),
            ("SET A TO 4", true),
            ("SET b = 'no'", false),
            ("SET LOCAL d = 5", true),
            ("RESET my.c", true),
        ] {
            session.answered(statement, is_done);
        }
        let settings =
            |session: &Remembered| session.settings().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(settings(&session), ["set session B to 2", "SET A TO 4"]);
        assert!(!session.has_other_settings());
        session.answered("BEGIN", true);
        session.answered("SET e = 6", true);
        assert!(session.has_other_settings() && settings(&session).len() == 2);
        session.answered("ROLLBACK", true);
        session.answered("DISCARD ALL", true);
        assert!(!session.has_other_settings() && settings(&session).is_empty());
    }
}
