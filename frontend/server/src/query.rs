//! The simple protocol: a text of statements, and all of their results.
//!
//! *Source*: PostgreSQL 15, section 55.2.2. Several statements in one text are one transaction, unless they control
//! transactions themselves (55.2.2.1).
//!
//! *Not here*: COPY's data (`copy`), and sending rows (`rows`).

use super::connection::Connection;
use super::interruption::Interruption;
use super::replies::Replies;
use super::rows::Rows;
use gannet_frontend::wire::{Row, Takes};
use gannet_frontend::{SqlError, StatementResult, TransactionStatus};

/// The effect of a statement on the transaction around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Begins a transaction.
    Begin,
    /// Ends the transaction, or rolls back to a savepoint.
    End,
    /// Cannot run in a transaction.
    Outside,
    /// No effect.
    None,
}

impl Control {
    /// Judges by the statement's first word.
    pub(super) fn of(statement: &str) -> Self {
        let first = first_word(statement);
        let is = |words: &[&str]| words.iter().any(|word| first.eq_ignore_ascii_case(word));
        if is(&["BEGIN", "START"]) {
            Self::Begin
        } else if is(&["COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"]) {
            Self::End
        } else if is(&["VACUUM"]) {
            Self::Outside
        } else {
            Self::None
        }
    }
}

/// The first word of a statement, after blanks and comments.
pub(super) fn first_word(statement: &str) -> &str {
    let mut rest = statement.trim_start();
    loop {
        rest = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n').map_or("", |(_, rest)| rest).trim_start()
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/").map_or("", |(_, rest)| rest).trim_start()
        } else {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            return &rest[..end.unwrap_or(rest.len())];
        };
    }
}

impl Connection {
    /// Runs the statements of a text.
    pub(super) async fn query(&mut self, text: &str) -> Result<(), Interruption> {
        self.statements.remove("");
        self.portals.remove("");
        if !text.trim_end_matches([';', ' ', '\n']).contains(';') {
            return self.run_simple(text).await;
        }
        let statements = self.session.split_aside(text).await?;
        if statements.is_empty() {
            self.stream.replies.empty_query();
            return Ok(());
        }
        let one_transaction = statements.len() > 1
            && self.session.status() == TransactionStatus::Idle
            && statements
                .iter()
                .all(|(_, text)| matches!(Control::of(text), Control::None | Control::Outside));
        if one_transaction {
            self.session.execute("BEGIN").await?;
        }
        let mut done = Ok(());
        for (offset, statement) in &statements {
            // Yields to other connections.
            tokio::task::consume_budget().await;
            done = self.run_simple(statement).await.map_err(|error| shift(error, *offset));
            if done.is_err() {
                break;
            }
        }
        if one_transaction && self.session.status() != TransactionStatus::Idle {
            let ending = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
            let ended = self.limits.run(&self.stream, self.session.execute(ending)).await;
            done?;
            ended?;
            return Ok(());
        }
        done
    }

    async fn run_simple(&mut self, statement: &str) -> Result<(), Interruption> {
        if self.deallocate(statement) {
            self.stream.replies.command_complete("DEALLOCATE");
            return Ok(());
        }
        self.session.take_large(Takes::All);
        let result = self.limits.run(&self.stream, self.session.execute(statement)).await?;
        match result {
            StatementResult::Rows { columns, rows, tag } => {
                self.stream.replies.row_description(&columns, &[])?;
                let mut result = Rows::new(rows, self.session.take_rest());
                let put = move |replies: &mut Replies, row: &Row| replies.row(&columns, &[], row);
                self.send(&mut result, usize::MAX, put).await?;
                self.stream.replies.command_complete(&result.tag(&tag));
            }
            other => self.finish(other).await?,
        }
        // An idle session keeps no rows that were sent.
        drop(self.session.take_result());
        Ok(())
    }

    /// Sends a result other than rows.
    pub(super) async fn finish(&mut self, result: StatementResult) -> Result<(), Interruption> {
        match result {
            StatementResult::Done { tag, notices } => {
                notices.iter().for_each(|notice| self.stream.replies.notice(notice));
                if matches!(tag.as_str(), "SET" | "RESET" | "DISCARD ALL" | "ROLLBACK") {
                    self.reported.report(&self.session, &mut self.stream.replies);
                    self.limits.follow(&self.session);
                }
                if matches!(tag.as_str(), "DISCARD ALL" | "DEALLOCATE ALL") {
                    self.statements.clear();
                }
                self.stream.replies.command_complete(&tag);
            }
            StatementResult::Empty => self.stream.replies.empty_query(),
            StatementResult::CopyIn { columns, .. } => self.copy_in(columns.len()).await?,
            StatementResult::CopyOut { columns, options, lines, tag } => {
                self.copy_out(&columns, &options, lines, &tag).await?;
            }
            StatementResult::Rows { tag, .. } => self.stream.replies.command_complete(&tag),
        }
        Ok(())
    }

    /// Removes a statement that the extended protocol has prepared, if this statement is its DEALLOCATE: both protocols share
    /// the names.
    fn deallocate(&mut self, statement: &str) -> bool {
        if !first_word(statement).eq_ignore_ascii_case("DEALLOCATE") {
            return false;
        }
        let name = statement.split_whitespace().next_back().unwrap_or_default();
        let name = name.trim_end_matches(';').trim_matches('"');
        !name.eq_ignore_ascii_case("ALL") && self.statements.remove(name).is_some()
    }
}

/// Moves an error's position by `offset` characters, at which the statement begins in the text.
fn shift(interruption: Interruption, offset: usize) -> Interruption {
    match interruption {
        Interruption::Statement(error) => {
            let position = error.position.map(|position| position + offset);
            Interruption::Statement(SqlError { position, ..error })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_follows_blanks_and_comments() {
        assert_eq!(first_word("  -- a\n /* b */ select 1"), "select");
        assert_eq!(first_word("/* open"), "");
        assert_eq!(Control::of("/* x */ Begin;"), Control::Begin);
        assert_eq!(Control::of("beginning"), Control::None);
        assert_eq!(Control::of("vacuum (full) t"), Control::Outside);
        assert_eq!(Control::of("rollback to a"), Control::End);
    }
}
