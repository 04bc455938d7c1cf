//! The table of tokens: what became of the last transaction of each client.
//!
//! ```text
//! key    the client, 1 to 64 bytes
//! value  outcome (1 byte: 0 aborted, 1 committed) | sequence (8, LE) | ms since 1970 (8, LE) | result (0 to 1,024)
//! ```
//! The row belongs to the write set of the transaction itself: it is read first and written last. So of two runs under one token
//! one meets a conflict, runs again, and finds what the other has decided. To ask for an outcome decides it: where nothing is
//! there, the question writes *aborted*, and a run that is still under way meets a conflict on the row.
//!
//! A row that is older than [`ClusterOptions::token_ttl`](crate::ClusterOptions::token_ttl) may go. Each transaction adds at most
//! one row; every [`USES_PER_SWEEP`]th looks at [`SWEPT_ROWS`] rows for old ones, which is four for each that may have been
//! added. So the rows are bounded by those of the clients that were there within the time to live, and about a quarter more.
//!
//! *Invariants*: a transaction under a token writes the token's row if it commits, and nothing else does but a question. Between
//! two removals of a row, its sequence only rises.
//!
//! *Not here*: what a token is, in `token`; programs beside the cluster, in `clients`.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gannet_rules::rule;
use gannet_storage::Direction;

use crate::cluster::{Cluster, ClusterError};
use crate::coordinator::Coordinator;
use crate::deferred::Deferred;
use crate::key_range::KeyRange;
use crate::outcome::{Abort, Failure, Misuse, Outcome};
use crate::table_id::TableId;
use crate::token::{Once, TOKEN_RESULT_BYTES_MAX, Token, TokenOutcome, TokenRefusal};
use crate::transaction::{Change, Transaction};

/// Name of the table.
const TABLE: &str = "idempotency tokens";
/// Expected clients; more fit as well.
const CLIENTS: u64 = 1_024;
/// Runs of a question before its conflict is reported.
const ATTEMPTS_MAX: u32 = 200;
/// Transactions under tokens of which one looks for old rows.
const USES_PER_SWEEP: u64 = 8;
/// Rows that it looks at.
const SWEPT_ROWS: usize = 32;
/// Bytes of a row before its result.
const HEADER_BYTES: usize = 17;

/// The tokens of a cluster: runs transactions under tokens, and tells what became of them. A handle, which may be cloned.
#[derive(Clone)]
pub struct Tokens(Arc<TokenTable>);

struct TokenTable {
    table: TableId,
    ttl_ms: u64,
    uses: AtomicU64,
    /// Where the next sweep begins.
    next: Mutex<Vec<u8>>,
}

/// A row of the table.
struct Row {
    is_committed: bool,
    sequence: u64,
    written_ms: u64,
    result: Vec<u8>,
}

impl Row {
    /// # Errors
    /// [`Failure::Refused`] if the bytes are no row: another program writes to the table.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Abort> {
        let (header, result) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Failure::Refused)?;
        let number = |at: usize| {
            let bytes = header[at..at + 8].try_into().expect("a slice of eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (sequence, written_ms) = (number(1), number(9));
        Ok(Self { is_committed: header[0] == 1, sequence, written_ms, result: result.to_vec() })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.result.len());
        bytes.push(u8::from(self.is_committed));
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.written_ms.to_le_bytes());
        bytes.extend_from_slice(&self.result);
        bytes
    }

    /// What it says of a token; none if the token is not decided.
    fn says(self, token: &Token) -> Option<TokenOutcome> {
        if !rule!(TOKENS) {
            return None;
        }
        match self.sequence.cmp(&token.sequence()) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Greater => Some(TokenOutcome::Superseded),
            std::cmp::Ordering::Equal if self.is_committed => {
                Some(TokenOutcome::Committed(self.result))
            }
            std::cmp::Ordering::Equal => Some(TokenOutcome::Aborted),
        }
    }
}

/// The result of an earlier run, if there was one.
///
/// # Errors
/// [`Misuse::Token`] if the transaction cannot be run under its token any more.
fn earlier(said: Option<TokenOutcome>) -> Result<Option<Vec<u8>>, Abort> {
    match said {
        None => Ok(None),
        Some(TokenOutcome::Committed(result)) => Ok(Some(result)),
        Some(TokenOutcome::Aborted) => Err(TokenRefusal::Aborted.into()),
        Some(TokenOutcome::Superseded) => Err(TokenRefusal::Superseded.into()),
    }
}

/// The row of a transaction that commits now.
fn committed(token: &Token, result: &[u8], now_ms: u64) -> Result<Vec<u8>, Abort> {
    if result.len() > TOKEN_RESULT_BYTES_MAX {
        return Err(TokenRefusal::ResultTooLong.into());
    }
    Ok(row(token, true, result, now_ms))
}

fn row(token: &Token, is_committed: bool, result: &[u8], written_ms: u64) -> Vec<u8> {
    let (sequence, result) = (token.sequence(), result.to_vec());
    Row { is_committed, sequence, written_ms, result }.to_bytes()
}

/// Whether a row was written before a time.
fn is_older(bytes: &[u8], oldest_ms: u64) -> bool {
    Row::from_bytes(bytes).is_ok_and(|row| row.written_ms < oldest_ms)
}

impl Tokens {
    /// What became of a token, or nothing, in a transaction that may then become the token's own with [`Self::write`]: the result
    /// if it is committed.
    ///
    /// # Errors
    /// [`Misuse::Token`] if it was aborted or superseded, and those of [`Deferred::get_many`].
    pub fn read(
        &self,
        deferred: &mut Deferred,
        coordinator: &mut Coordinator<'_>,
        token: &Token,
    ) -> Result<Option<Vec<u8>>, Abort> {
        earlier(self.said(deferred, coordinator, token)?)
    }

    /// Has the commit of a transaction, which has read the token and found nothing, decide the token with this result.
    ///
    /// # Errors
    /// [`Misuse::Token`] if the result has more than [`TOKEN_RESULT_BYTES_MAX`] bytes.
    pub fn write(
        &self,
        deferred: &mut Deferred,
        coordinator: &Coordinator<'_>,
        token: &Token,
        result: &[u8],
    ) -> Result<(), Abort> {
        let row = committed(token, result, coordinator.time_of_day_ms())?;
        deferred.put(self.0.table, token.client().to_vec(), row);
        Ok(())
    }

    /// What became of a token. If nothing did, it is aborted for good: a transaction under it that has not committed yet never
    /// will.
    ///
    /// # Errors
    /// Conflicts, which may be tried again, and why the cluster cannot tell. After [`Failure::Unknown`], ask again.
    pub fn decide(
        &self,
        coordinator: &mut Coordinator<'_>,
        token: &Token,
    ) -> Result<TokenOutcome, Abort> {
        let is_conflict = |abort: &Abort| abort.is_conflict();
        let outcome = coordinator.retried(ATTEMPTS_MAX, is_conflict, |coordinator, _| {
            let mut deferred = Deferred::new();
            let outcome = match self.said(&mut deferred, coordinator, token)? {
                Some(outcome) => outcome,
                None => {
                    let row = row(token, false, &[], coordinator.time_of_day_ms());
                    deferred.put(self.0.table, token.client().to_vec(), row);
                    TokenOutcome::Aborted
                }
            };
            deferred.commit(coordinator)?;
            Ok(outcome)
        })?;
        self.sweep(coordinator);
        Ok(outcome)
    }

    fn said(
        &self,
        deferred: &mut Deferred,
        coordinator: &mut Coordinator<'_>,
        token: &Token,
    ) -> Result<Option<TokenOutcome>, Abort> {
        let client = token.client().to_vec();
        let found = deferred.get_many(coordinator, self.0.table, &[client])?.pop().flatten();
        Ok(found.map(|bytes| Row::from_bytes(&bytes)).transpose()?.and_then(|row| row.says(token)))
    }

    /// Counts a transaction under a token, which has committed; now and then removes some old rows.
    pub fn sweep(&self, coordinator: &mut Coordinator<'_>) {
        // Relaxed: a count alone.
        if !self.0.uses.fetch_add(1, Ordering::Relaxed).is_multiple_of(USES_PER_SWEEP) {
            return;
        }
        // What cannot be removed now, because of a conflict or the end of the node, a later sweep removes.
        let _: Result<(), Abort> =
            coordinator.without_cancellation(|coordinator| self.remove_old(coordinator));
    }

    fn remove_old(&self, coordinator: &mut Coordinator<'_>) -> Result<(), Abort> {
        let TokenTable { table, ttl_ms, .. } = *self.0;
        let from = {
            let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *next)
        };
        let from = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
        let range = KeyRange { from, to: Bound::Unbounded };
        // What the scan sees need not be true at one moment: each row is read again before it is removed.
        let scanned =
            Deferred::new().scan(coordinator, table, &range, Direction::Ascending, SWEPT_ROWS)?;
        // After the last row of the table the next sweep begins with the first one.
        let next = match scanned.rest.map(|rest| rest.from) {
            Some(Bound::Included(key)) => key,
            Some(Bound::Excluded(mut key)) => {
                key.push(0);
                key
            }
            Some(Bound::Unbounded) | None => Vec::new(),
        };
        *self.0.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
        let oldest_ms = coordinator.time_of_day_ms().saturating_sub(ttl_ms);
        for (client, bytes) in scanned.rows.iter() {
            if !is_older(bytes, oldest_ms) {
                continue;
            }
            let (client, mut deferred) = (client.to_vec(), Deferred::new());
            let found = deferred.get_many(coordinator, table, std::slice::from_ref(&client))?.pop();
            if found.flatten().is_some_and(|bytes| is_older(&bytes, oldest_ms)) {
                deferred.delete(table, client);
                deferred.commit(coordinator)?;
            }
        }
        Ok(())
    }

    /// The token's row in a transaction: whether there is one, and what it says.
    fn look(
        &self,
        transaction: &mut Transaction<'_>,
        token: &Token,
    ) -> Result<(bool, Option<TokenOutcome>), Abort> {
        let found = transaction.get(self.0.table, token.client())?;
        let row = found.map(Row::from_bytes).transpose()?;
        Ok((row.is_some(), row.and_then(|row| row.says(token))))
    }
}

/// How the code of a transaction under a token has ended without a result.
pub(crate) enum Ended<E> {
    /// The token does not let it run.
    Refused(Abort),
    /// By an error of its own.
    Failed(E),
}

impl<E: From<Abort>> From<Abort> for Ended<E> {
    fn from(abort: Abort) -> Self {
        match abort {
            Abort::Misuse(Misuse::Token(_)) => Self::Refused(abort),
            _ => Self::Failed(E::from(abort)),
        }
    }
}

/// The outcome as the caller sees it: a refusal by the token is no error of the caller's code.
pub(crate) fn as_aborted<T, E>(outcome: Outcome<T, Ended<E>>) -> Outcome<T, E> {
    match outcome {
        Outcome::Committed(value) => Outcome::Committed(value),
        Outcome::Aborted(abort) | Outcome::Failed(Ended::Refused(abort)) => Outcome::Aborted(abort),
        Outcome::Failed(Ended::Failed(error)) => Outcome::Failed(error),
        Outcome::Panicked(message) => Outcome::Panicked(message),
        Outcome::Unknown => Outcome::Unknown,
    }
}

impl<'s> Coordinator<'s> {
    /// As [`Self::run`], under a token: of all runs under it, at whatever nodes, at most one commits, and the result of that one
    /// is what each later run gives. `body` returns that result, of at most [`TOKEN_RESULT_BYTES_MAX`] bytes.
    ///
    /// After [`Outcome::Unknown`], run it again under the same token, or ask with [`Tokens::decide`]. Until one of the two has
    /// told, another outcome than [`Outcome::Committed`] or [`Misuse::Token`] is that of the later run alone. It ends with
    /// [`Misuse::Token`] if the token was decided as aborted, or a later token of the client was used.
    pub fn run_once<E: From<Abort>>(
        &mut self,
        tokens: &Tokens,
        token: &Token,
        mut body: impl FnMut(&mut Transaction<'s>) -> Result<Vec<u8>, E>,
    ) -> Outcome<Once, E> {
        let now_ms = self.time_of_day_ms();
        let outcome = self.run(|transaction| -> Result<Once, Ended<E>> {
            let (is_there, said) = tokens.look(transaction, token)?;
            if let Some(result) = earlier(said)? {
                return Ok(Once { result, is_repeated: true });
            }
            let result = body(transaction).map_err(Ended::Failed)?;
            let row = committed(token, &result, now_ms)?;
            let change = if is_there { Change::Update(&row) } else { Change::Insert(&row) };
            transaction.add_row_to_write_set(tokens.0.table, token.client(), change);
            Ok(Once { result, is_repeated: false })
        });
        let outcome = as_aborted(outcome);
        if matches!(outcome, Outcome::Committed(_)) {
            tokens.sweep(self);
        }
        outcome
    }
}

impl Cluster {
    /// The tokens of the cluster. Their table is created when they are opened first. Blocks, so it must not be called on a thread
    /// that drives workers.
    ///
    /// # Errors
    /// As [`Cluster::open_table`].
    pub fn open_tokens(&self) -> Result<Tokens, ClusterError> {
        let table = self.open_ordered_table(TABLE, CLIENTS)?;
        let ttl_ms = u64::try_from(self.options().token_ttl.as_millis()).unwrap_or(u64::MAX);
        let (uses, next) = (AtomicU64::new(0), Mutex::default());
        Ok(Tokens(Arc::new(TokenTable { table, ttl_ms, uses, next })))
    }

    /// As [`Coordinator::run_once`], on some worker, and waits for the outcome. After an error, too, the outcome may be unknown:
    /// run it again under the same token, or ask with [`Self::decide`].
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn run_once<E>(
        &self,
        tokens: &Tokens,
        token: &Token,
        body: impl FnMut(&mut Transaction<'_>) -> Result<Vec<u8>, E> + Send + 'static,
    ) -> Result<Outcome<Once, E>, ClusterError>
    where
        E: From<Abort> + Send + 'static,
    {
        let (tokens, token) = (tokens.clone(), token.clone());
        let job =
            self.spawn_anywhere(move |coordinator| coordinator.run_once(&tokens, &token, body))?;
        job.wait().map_err(|lost| self.loss(lost))
    }

    /// As [`Tokens::decide`], on some worker, and waits for the answer.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn decide(
        &self,
        tokens: &Tokens,
        token: &Token,
    ) -> Result<Result<TokenOutcome, Abort>, ClusterError> {
        let (tokens, token) = (tokens.clone(), token.clone());
        let job = self.spawn_anywhere(move |coordinator| tokens.decide(coordinator, &token))?;
        job.wait().map_err(|lost| self.loss(lost))
    }
}
