//! A bank inside a program: a cluster of three nodes, tellers on threads of their own, and an audit.
//!
//! ```text
//! cargo run --release --example bank
//! ```
//! Read it from top to bottom: what a transaction is, how its outcomes are handled, how a cluster is opened and filled, and
//! how ordinary threads submit work. The program exits with 1 if money has appeared or vanished.

use std::process::ExitCode;

use gannet::{
    Abort, Cluster, ClusterError, ClusterOptions, Failure, LockMode, Outcome, TableId, Transaction,
};

const ACCOUNTS: u64 = 64;
/// The initial balance of each account, in cents.
const OPENING_CENTS: u64 = 10_000;
const TELLERS: u64 = 4;
const TRANSFERS_PER_TELLER: u64 = 500;
/// Refusals by full queues after which a teller gives up.
const BUSY_MAX: u32 = 10_000;

// ---- What a transaction does -------------------------------------------------------------------

/// Why a transfer was refused: the bank's own reason, or the engine's.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("the account holds only {cents} cents")]
    InsufficientFunds { cents: u64 },
    #[error(transparent)]
    Engine(Abort),
}

/// Lets `?` pass the engine's aborts through the bank's code.
impl From<Abort> for TransferError {
    fn from(abort: Abort) -> Self {
        Self::Engine(abort)
    }
}

/// Moves `cents` between two different accounts.
///
/// The closure may run many times before it commits once, so it has no effect outside of the transaction.
fn transfer(
    tx: &mut Transaction<'_>,
    accounts: TableId,
    (from, to): (u64, u64),
    cents: u64,
) -> Result<(), TransferError> {
    // Name all keys first; one call then locks and reads them, in one round trip.
    let from = tx.add_to_write_set(accounts, from, LockMode::Update);
    let to = tx.add_to_write_set(accounts, to, LockMode::Update);
    tx.execute()?;
    // value_mut gives the bytes that commit will write, or Misuse::NotFound if there is no such row.
    let balance = to_cents(tx.value_mut(from)?);
    let Some(rest) = balance.checked_sub(cents) else {
        // An error releases the locks and writes nothing.
        return Err(TransferError::InsufficientFunds { cents: balance });
    };
    tx.put(from, &rest.to_le_bytes())?;
    let balance = to_cents(tx.value_mut(to)?);
    tx.put(to, &(balance + cents).to_le_bytes())?;
    // The transaction commits after the closure has returned Ok.
    Ok(())
}

/// Sums all accounts at one moment: the transaction commits only if none of the rows has changed since it was read.
fn audit(tx: &mut Transaction<'_>, accounts: TableId) -> Result<u64, Abort> {
    let rows: Vec<_> = (0..=ACCOUNTS).map(|key| tx.add_to_read_set(accounts, key)).collect();
    tx.execute()?;
    // A missing row has no value, which is no error for a read.
    Ok(rows.iter().filter_map(|&row| tx.value(row)).map(to_cents).sum())
}

fn to_cents(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("the table has values of 8 bytes"))
}

// ---- How its outcomes are handled --------------------------------------------------------------

/// Why the bank stops.
#[derive(Debug, thiserror::Error)]
enum BankError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("a transaction cannot succeed: {0}")]
    Refused(Abort),
    #[error("a transaction panicked: {0}")]
    Panicked(String),
    #[error("the audit found {found} cents instead of {expected}")]
    Audit { found: u64, expected: u64 },
}

/// The outcomes of the transfers.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    insufficient: u64,
    gave_up: u64,
}

impl Tally {
    /// Counts an expected outcome; other outcomes are errors.
    fn count(&mut self, outcome: Outcome<(), TransferError>) -> Result<(), BankError> {
        match outcome {
            // On every copy, and visible to all later transactions.
            Outcome::Committed(()) => self.done += 1,
            // The closure's own decision, on rows that were valid together. Nothing was written.
            Outcome::Failed(TransferError::InsufficientFunds { .. }) => self.insufficient += 1,
            // An abort that the closure passed on, and that a repetition does not cure: a missing row.
            Outcome::Failed(TransferError::Engine(abort)) => return Err(BankError::Refused(abort)),
            // Too many conflicts in a row. Nothing was written; it may be run again later.
            Outcome::Aborted(abort) if abort.is_conflict() => self.gave_up += 1,
            // The commit has refused the transaction for good, for example because its changes are too large.
            Outcome::Aborted(abort) => return Err(BankError::Refused(abort)),
            // Nothing was written, and the cluster goes on. This program stops.
            Outcome::Panicked(message) => return Err(BankError::Panicked(message)),
            // The cluster halted in the commit. A bank would look at the accounts before it runs the transfer again.
            Outcome::Unknown => return Err(BankError::Refused(Failure::Unknown.into())),
        }
        Ok(())
    }

    fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.insufficient += other.insufficient;
        self.gave_up += other.gave_up;
    }
}

// ---- How work enters a cluster -----------------------------------------------------------------

/// A teller at work, on a thread of its own.
fn teller(cluster: &Cluster, accounts: TableId, number: u64) -> Result<Tally, BankError> {
    let mut tally = Tally::default();
    for turn in 0..TRANSFERS_PER_TELLER {
        let from = (7 * turn + 13 * number) % ACCOUNTS;
        let to = (from + 1 + turn % (ACCOUNTS - 1)) % ACCOUNTS;
        let cents = 40 * (turn % 100);
        // The closure runs on a coroutine of some worker, again after each conflict, while this thread waits.
        let outcome =
            unless_busy(|| cluster.run(move |tx| transfer(tx, accounts, (from, to), cents)))?;
        tally.count(outcome)?;
    }
    Ok(tally)
}

/// Submits work to the cluster, and again if all its queues are full.
///
/// Queues are bounded, so excess work is refused at once. This program's thread yields and tries again; a server would pass
/// the refusal on to its client.
fn unless_busy<T>(mut give: impl FnMut() -> Result<T, ClusterError>) -> Result<T, ClusterError> {
    for _ in 1..BUSY_MAX {
        match give() {
            Err(ClusterError::Busy) => std::thread::yield_now(),
            given => return given,
        }
    }
    give()
}

// ---- The bank ----------------------------------------------------------------------------------

/// Creates the table and its accounts; a transaction inserts the last one, number `ACCOUNTS`.
fn open_accounts(cluster: &Cluster) -> Result<TableId, BankError> {
    let accounts = cluster.create_table("accounts", size_of::<u64>(), ACCOUNTS + 1)?;
    // The fast way for initial rows: no locks and no messages, before any transaction runs.
    let mut loader = cluster.loader();
    for key in 0..ACCOUNTS {
        loader.add(accounts, key, &OPENING_CENTS.to_le_bytes()).map_err(ClusterError::from)?;
    }
    loader.finish().map_err(ClusterError::from)?;
    // The ordinary way.
    let outcome = cluster.run(move |tx| tx.insert(accounts, ACCOUNTS, &0_u64.to_le_bytes()))?;
    match outcome {
        Outcome::Committed(()) => Ok(accounts),
        Outcome::Aborted(abort) | Outcome::Failed(abort) => Err(BankError::Refused(abort)),
        Outcome::Panicked(message) => Err(BankError::Panicked(message)),
        Outcome::Unknown => Err(BankError::Refused(Failure::Unknown.into())),
    }
}

fn run_bank() -> Result<Tally, BankError> {
    // Three nodes, three copies of each row, a thread per core: the default. Memory is per node.
    let cluster = Cluster::open(ClusterOptions {
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    })?;
    let accounts = open_accounts(&cluster)?;

    // Tellers on OS threads share the cluster by reference; an Arc works as well.
    let mut tally = Tally::default();
    let cluster_ref = &cluster;
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let tellers: Vec<_> = (0..TELLERS)
            .map(|number| scope.spawn(move || teller(cluster_ref, accounts, number)))
            .collect();
        tellers.into_iter().map(|teller| teller.join().expect("a teller returns errors")).collect()
    });
    for teller in tallies {
        tally.add(&teller?);
    }

    // Without waiting: submit returns at once. The completion is also a Future.
    let completion = cluster.submit(move |tx| transfer(tx, accounts, (0, ACCOUNTS), 1_000_000))?;
    let outcome = completion.wait().map_err(ClusterError::from)?;
    tally.count(outcome)?; // More than the account can hold: InsufficientFunds.

    let expected = ACCOUNTS * OPENING_CENTS;
    match cluster.run(move |tx| audit(tx, accounts))? {
        Outcome::Committed(found) if found == expected => {}
        Outcome::Committed(found) => return Err(BankError::Audit { found, expected }),
        Outcome::Aborted(abort) | Outcome::Failed(abort) => return Err(BankError::Refused(abort)),
        Outcome::Panicked(message) => return Err(BankError::Panicked(message)),
        Outcome::Unknown => return Err(BankError::Refused(Failure::Unknown.into())),
    }
    // Completes the accepted work, and ends the threads. Dropping the cluster does the same.
    cluster.close();
    Ok(tally)
}

fn main() -> ExitCode {
    match run_bank() {
        Ok(Tally { done, insufficient, gave_up }) => {
            println!(
                "{done} transfers done, {insufficient} refused for lack of funds, {gave_up} given up"
            );
            println!("the sum of all accounts is unchanged");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bank: {error}");
            ExitCode::FAILURE
        }
    }
}
