//! Retries: transactions that run under tokens, again and again, at all nodes.
//!
//! ```text
//! client   its latest number, which all coroutines share    row   runs (8, LE) | latest number (8, LE) | runs out of turn (8, LE)
//! ```
//! Two clients per node. A transaction takes a client's latest number, or the next one, and counts a run in the client's row: the
//! count is its result. 45 % take the latest number, decided or not, as a program does that has lost its answer; 45 % the next
//! one; 10 % ask what became of the latest. All coroutines that are told of a number must be told the same, and a number counts
//! once.
//!
//! *Not here*: tokens that end after a time (`tests/tokens.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gannet_engine::{
    Abort, Cluster, Coordinator, Failure, LockMode, Misuse, Once, Outcome, TableId, Token,
    TokenOutcome, TokenRefusal, Tokens, Transaction,
};
use rand::RngExt;

use crate::check::Check;
use crate::rows::for_each_row;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

const CLIENTS_PER_NODE: u64 = 2;
const VALUE_BYTES: usize = 24;
const AGAIN: usize = 0;
const NEXT: usize = 1;
const ASK: usize = 2;

/// The workload.
#[derive(Default)]
pub struct Retries {
    opened: Option<(TableId, Tokens)>,
    /// By client: the latest number.
    latest: Vec<AtomicU64>,
    /// By client and number: what became of the transaction, as it was told first.
    told: Mutex<BTreeMap<(u64, u64), TokenOutcome>>,
    /// How often a client was told what cannot be.
    wrong: AtomicU64,
}

/// The three numbers of a client's row.
fn numbers(value: &[u8]) -> [u64; 3] {
    let (numbers, _) = value.as_chunks();
    [0, 1, 2].map(|at| u64::from_le_bytes(numbers[at]))
}

impl Retries {
    fn opened(&self) -> &(TableId, Tokens) {
        self.opened.as_ref().expect("the harness creates the tables first")
    }

    /// Counts a run in the client's row. Returns the count.
    fn count(
        &self,
        tx: &mut Transaction<'_>,
        client: u64,
        number: u64,
    ) -> std::result::Result<Vec<u8>, Abort> {
        let row = tx.add_to_write_set(self.opened().0, client, LockMode::Update);
        tx.execute()?;
        let value = tx.value_mut(row)?;
        let [runs, latest, out_of_turn] = numbers(value);
        let counted = [runs + 1, latest.max(number), out_of_turn + u64::from(latest >= number)];
        for (bytes, number) in value.chunks_exact_mut(8).zip(counted) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        Ok(counted[0].to_le_bytes().to_vec())
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), TokenOutcome>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest number of a client that another client was told of.
    fn highest_told(&self, client: u64) -> u64 {
        let told = self.told();
        told.range((client, 0)..=(client, u64::MAX))
            .next_back()
            .map_or(0, |((_, number), _)| *number)
    }

    /// A client was told of a number; when it asked, `highest` was the highest that any client had been told of.
    fn note(&self, (client, number): (u64, u64), highest: u64, outcome: &TokenOutcome) {
        let is_wrong = if *outcome == TokenOutcome::Superseded {
            number >= self.latest_of(client)
        } else {
            let mut told = self.told();
            let first = told.entry((client, number)).or_insert_with(|| outcome.clone());
            first != outcome || number < highest
        };
        self.wrong.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
    }

    fn latest_of(&self, client: u64) -> u64 {
        let index = usize::try_from(client).expect("a client's number is an index");
        self.latest[index].load(Ordering::Relaxed)
    }

    fn committed(&self) -> u64 {
        let told = self.told();
        told.values().filter(|outcome| matches!(outcome, TokenOutcome::Committed(_))).count() as u64
    }
}

fn token_of(client: u64, number: u64) -> Token {
    Token::new(client.to_le_bytes(), number).expect("a name of 8 bytes, and numbers from 1 on")
}

/// What a run has told of its token.
fn told_by(run: Outcome<Once, Abort>) -> std::result::Result<TokenOutcome, Abort> {
    match run {
        Outcome::Committed(once) => Ok(TokenOutcome::Committed(once.result)),
        Outcome::Aborted(Abort::Misuse(Misuse::Token(TokenRefusal::Aborted))) => {
            Ok(TokenOutcome::Aborted)
        }
        Outcome::Aborted(Abort::Misuse(Misuse::Token(TokenRefusal::Superseded))) => {
            Ok(TokenOutcome::Superseded)
        }
        Outcome::Aborted(abort) | Outcome::Failed(abort) => Err(abort),
        Outcome::Unknown => Err(Failure::Unknown.into()),
        Outcome::Panicked(message) => panic!("{message}"),
    }
}

impl Workload for Retries {
    fn name(&self) -> &'static str {
        "retries"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["again", "next", "ask"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("clients per node", CLIENTS_PER_NODE.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let clients = CLIENTS_PER_NODE * cluster.options().nodes as u64;
        self.latest = (0..clients).map(|_| AtomicU64::new(1)).collect();
        let rows = cluster.open_table("retries", VALUE_BYTES, 0)?;
        self.opened = Some((rows, cluster.open_tokens()?));
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        let mut loader = cluster.loader();
        for client in (0..self.latest.len() as u64).filter(|client| client % shares == share) {
            loader.add(self.opened().0, client, &[0; VALUE_BYTES])?;
        }
        Ok(loader.finish()?)
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let tokens = &self.opened().1;
        let index = random.random_range(0..self.latest.len());
        let (client, latest) = (index as u64, &self.latest[index]);
        let transaction = match random.random_range(0..100) {
            0..45 => AGAIN,
            45..90 => NEXT,
            _ => ASK,
        };
        // Relaxed: the count alone.
        let number = match transaction {
            NEXT => latest.fetch_add(1, Ordering::Relaxed) + 1,
            _ => latest.load(Ordering::Relaxed),
        };
        let (token, highest) = (token_of(client, number), self.highest_told(client));
        let outcome = if transaction == ASK {
            tokens.decide(coordinator, &token)
        } else {
            let body = |tx: &mut Transaction<'_>| self.count(tx, client, number);
            told_by(coordinator.run_once(tokens, &token, body))
        };
        let result = match outcome {
            Err(abort) => Result::Aborted(abort),
            Ok(outcome) => {
                self.note((client, number), highest, &outcome);
                let is_committed = matches!(outcome, TokenOutcome::Committed(_));
                if is_committed { Result::Qualified } else { Result::RowsMissing }
            }
        };
        Ran { transaction, result, tally: None }
    }

    fn verify(&self, cluster: &Cluster, _: &Totals) -> Vec<Check> {
        let (mut runs, mut out_of_turn) = (0, 0);
        for_each_row(cluster, self.opened().0, |_, value| {
            let [counted, _, wrong] = numbers(value);
            runs += counted;
            out_of_turn += wrong;
        });
        // Relaxed: no transaction runs any more.
        let (wrong, told) = (self.wrong.load(Ordering::Relaxed), self.committed());
        vec![
            Check::equal("outcomes that contradict earlier ones", 0, wrong.into()),
            Check::equal("runs under a number that was decided", 0, out_of_turn.into()),
            Check::new(
                "commits that were told are counted",
                runs >= told,
                format!("{runs} runs, {told} commits"),
            ),
            Check::equal("runs that were counted", told.into(), runs.into()).of_all_outcomes(),
        ]
    }
}
