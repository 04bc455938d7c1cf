//! Transactions of a client under tokens: each is applied once, also if the answer to its commit is lost.
//!
//! ```text
//! run_once ─▶ token read ─┬─ decided ─▶ the result that is kept
//!                         └─ nothing ─▶ the closure ─▶ commit, and the result with it ─┬─ answered
//!                    ▲                                                                 └─ unknown ─▶ again, elsewhere
//!                    └─────────────────────────────────────────────────────────────────────────┘
//! ```
//! *Invariant*: after an outcome was unknown, only what is kept under the token tells it.
//!
//! *Not here*: the table of tokens, in `tokens`.

use std::time::Duration;

use crate::clients::client::{Client, ClientError};
use crate::clients::message::{Answer, Operation};
use crate::clients::remote_transaction::{Interruption, RemoteTransaction, unexpected};
use crate::outcome::{Abort, Misuse, Outcome};
use crate::token::{Once, TOKEN_RESULT_BYTES_MAX, Token, TokenOutcome, TokenRefusal};
use crate::tokens::{Ended, as_aborted};

/// Runs of a transaction, or of a question, whose outcome is unknown each time.
const RUNS_MAX: u32 = 20;
/// Pause before a further one: other nodes may have to notice first that a node has gone.
const PAUSE: Duration = Duration::from_millis(100);

impl Client {
    /// As [`Self::run`], under a token: of all runs under it, by whatever client and at whatever nodes, at most one commits, and
    /// the result of that one is what each later run gives. `body` returns that result, of at most [`TOKEN_RESULT_BYTES_MAX`]
    /// bytes.
    ///
    /// A transaction whose outcome is unknown is run again under the token by itself. It ends with [`Misuse::Token`] if the token
    /// was decided as aborted, or a later token of the client was used.
    ///
    /// # Errors
    /// As [`Self::run`]. After [`ClientError::Unknown`], run it again under the same token, or ask with [`Self::outcome`].
    pub fn run_once<E: From<Abort>>(
        &self,
        token: &Token,
        mut body: impl FnMut(&mut RemoteTransaction<'_>) -> Result<Vec<u8>, E>,
    ) -> Result<Outcome<Once, E>, ClientError> {
        let mut unknown = None;
        for _ in 0..RUNS_MAX {
            let run = self.run(|transaction| run_under(transaction, token, &mut body));
            match run.map(as_aborted) {
                Err(ClientError::Unknown(reason)) => unknown = Some(reason),
                Err(error) => return Err(unknown.map_or(error, ClientError::Unknown)),
                Ok(
                    outcome @ (Outcome::Committed(_)
                    | Outcome::Aborted(Abort::Misuse(Misuse::Token(_)))),
                ) => {
                    return Ok(outcome);
                }
                // Nothing of this run was written; what became of an earlier one is another question.
                Ok(outcome) => {
                    return match unknown {
                        None => Ok(outcome),
                        Some(reason) => self.settled(token, outcome, reason),
                    };
                }
            }
            std::thread::park_timeout(PAUSE);
        }
        Err(ClientError::Unknown(unknown.unwrap_or_default()))
    }

    /// The outcome of several runs under a token, of which the last has written nothing and an earlier one is unknown.
    fn settled<E>(
        &self,
        token: &Token,
        last: Outcome<Once, E>,
        reason: String,
    ) -> Result<Outcome<Once, E>, ClientError> {
        match self.outcome(token) {
            Ok(TokenOutcome::Committed(result)) => {
                Ok(Outcome::Committed(Once { result, is_repeated: true }))
            }
            Ok(TokenOutcome::Aborted) => Ok(last),
            Ok(TokenOutcome::Superseded) => Ok(Outcome::Aborted(TokenRefusal::Superseded.into())),
            Err(_) => Err(ClientError::Unknown(reason)),
        }
    }

    /// What became of the transaction under a token. If nothing did, it is aborted for good: a run under it that has not
    /// committed yet never will.
    ///
    /// # Errors
    /// Why the nodes cannot tell; ask again then.
    pub fn outcome(&self, token: &Token) -> Result<TokenOutcome, ClientError> {
        let mut last = None;
        for _ in 0..RUNS_MAX {
            let asked = self.run(|transaction| -> Result<TokenOutcome, Abort> {
                match transaction.request(Operation::Decide(token.clone()))? {
                    Answer::Outcome(outcome) => Ok(outcome),
                    _ => Err(transaction.fail(Interruption::Final(unexpected()))),
                }
            });
            match asked {
                Ok(Outcome::Committed(outcome)) => return Ok(outcome),
                Ok(Outcome::Aborted(abort) | Outcome::Failed(abort)) => {
                    return Err(ClientError::Interrupted(abort.to_string()));
                }
                Ok(Outcome::Panicked(message)) => return Err(ClientError::Interrupted(message)),
                Ok(Outcome::Unknown) => {}
                Err(ClientError::Unknown(reason)) => last = Some(reason),
                Err(error) => return Err(error),
            }
            std::thread::park_timeout(PAUSE);
        }
        Err(ClientError::Unknown(last.unwrap_or_default()))
    }
}

/// Runs a closure as the transaction of a token that is not decided.
fn run_under<E: From<Abort>>(
    transaction: &mut RemoteTransaction<'_>,
    token: &Token,
    body: &mut impl FnMut(&mut RemoteTransaction<'_>) -> Result<Vec<u8>, E>,
) -> Result<Once, Ended<E>> {
    match transaction.request(Operation::ReadToken(token.clone()))? {
        Answer::Token(None) => {}
        Answer::Token(Some(result)) => return Ok(Once { result, is_repeated: true }),
        _ => return Err(transaction.fail(Interruption::Final(unexpected())).into()),
    }
    let result = body(transaction).map_err(Ended::Failed)?;
    if result.len() > TOKEN_RESULT_BYTES_MAX {
        return Err(Abort::from(TokenRefusal::ResultTooLong).into());
    }
    transaction.keep_under(token.clone(), result.clone());
    Ok(Once { result, is_repeated: false })
}
