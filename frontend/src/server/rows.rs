//! Rows on their way to the client, as fast as it takes them.
//!
//! *Invariants*: a client that reads slowly holds no lock and keeps nobody from writing; its statement ends with it.

use super::connection::Connection;
use super::interruption::Interruption;
use super::replies::Replies;
use crate::error::SqlError;
use crate::execute::Row;
use crate::session::Rest;

/// Rows of a result that are not sent yet.
pub(super) struct Rows {
    first: std::vec::IntoIter<Row>,
    /// What memory did not take.
    rest: Option<Rest>,
    /// Whether there was such a rest, so that nobody knew how many rows there are.
    pub(super) had_rest: bool,
    pub(super) sent: usize,
}

impl Rows {
    pub(super) fn new(rows: Vec<Row>, rest: Option<Rest>) -> Self {
        Self { first: rows.into_iter(), had_rest: rest.is_some(), rest, sent: 0 }
    }

    /// Whether there may be more.
    pub(super) fn may_go_on(&self) -> bool {
        self.first.len() > 0 || self.rest.is_some()
    }
}

impl Connection {
    /// Sends at most `rows_max` rows of a result, each as `put` writes it: how many.
    pub(super) async fn send(
        &mut self,
        rows: &mut Rows,
        rows_max: usize,
        put: impl Fn(&mut Replies, &Row) -> Result<(), SqlError>,
    ) -> Result<usize, Interruption> {
        let before = rows.sent;
        let limits = &self.limits;
        let (stream, session) = (&mut self.stream, &mut self.session);
        let sending = async {
            while rows.sent - before < rows_max {
                let Some(row) = rows.first.next() else {
                    let Some(rest) = &mut rows.rest else { break };
                    match rest.next(session).await? {
                        Some(more) => rows.first = more.into_iter(),
                        None => rows.rest = None,
                    }
                    continue;
                };
                let cancelled = || SqlError::new("57014", "the client takes no more rows");
                let is_to_end = if limits.is_cancelled() { Err(cancelled()) } else { Ok(()) };
                let put = is_to_end.and_then(|()| put(&mut stream.replies, &row));
                if let Err(error) = put {
                    if let Some(rest) = rows.rest.take() {
                        rest.abandon(session).await;
                    }
                    return Err(error.into());
                }
                rows.sent += 1;
                stream.flush_if_full().await?;
            }
            Ok(rows.sent - before)
        };
        limits.send(sending).await
    }
}
