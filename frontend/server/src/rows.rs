//! Rows on their way to the client, at the client's pace.
//!
//! *Invariants*: a slow client holds no lock and delays no writer. If the client disconnects, the statement ends.
//!
//! *Not here*: the rows' source (`session/rest`).

use super::connection::Connection;
use super::interruption::Interruption;
use super::replies::Replies;
use gannet_frontend::SqlError;
use gannet_frontend::wire::{HELD_BYTES_MAX, Rest, Row, row_bytes};

/// Rows of a result that are not sent yet.
pub(super) struct Rows {
    first: std::vec::IntoIter<Row>,
    /// The rows behind those in memory.
    rest: Option<Rest>,
    sent: usize,
}

impl Rows {
    pub(super) fn new(rows: Vec<Row>, rest: Option<Rest>) -> Self {
        Self { first: rows.into_iter(), rest, sent: 0 }
    }

    /// Whether more rows may follow.
    pub(super) fn may_go_on(&self) -> bool {
        self.first.len() > 0 || self.rest.is_some()
    }

    /// The statement's command tag; the number of rows is filled in if the tag was empty.
    pub(super) fn tag(&self, tag: &str) -> String {
        if tag.is_empty() { format!("SELECT {}", self.sent) } else { tag.to_owned() }
    }
}

impl Connection {
    /// Sends at most `rows_max` rows, as `put` writes them; another thread encodes large rows. Returns the number of rows.
    pub(super) async fn send(
        &mut self,
        rows: &mut Rows,
        rows_max: usize,
        put: impl Fn(&mut Replies, &Row) -> Result<(), SqlError> + Clone + Send + 'static,
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
                let bytes = row_bytes(&row);
                let put = match is_to_end {
                    Err(error) => Err(error),
                    Ok(()) if bytes <= HELD_BYTES_MAX => put(&mut stream.replies, &row),
                    Ok(()) => {
                        let put = put.clone();
                        let written = move || {
                            let mut replies = Replies::default();
                            put(&mut replies, &row).map(|()| replies)
                        };
                        let written = session.computed(bytes, written).await;
                        written.map(|replies| stream.replies.append(&replies))
                    }
                };
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
