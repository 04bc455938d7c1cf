//! Lists that many connections read and append to: their history must be strictly serializable.
//!
//! A transaction touches one to four lists out of a few, by key or as a range, with prepared statements over the wire. Every
//! read shows the order of the appends before it, so the checkers need not know how the server orders transactions.
//!
//! *Not here*: the checkers, which are `gannet_benchmarks::consistency` and the crate `adya`; clients whose sessions break, in
//! `failures`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gannet_benchmarks::Check;
use gannet_benchmarks::consistency::{Fate, History, Operation, judge_lists};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Builder;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Statement};

use crate::process::Server;

/// Lists at a time.
pub(crate) const LISTS: i32 = 6;
const CONNECTIONS: u64 = 8;
/// Minimum number of transactions of each connection.
const TRANSACTIONS: u64 = 150;
/// Transactions of a connection before it turns to new lists, because lists grow.
const TRANSACTIONS_PER_LISTS: u64 = 30;

struct Statements {
    read: Statement,
    scan: Statement,
    append: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Self, Error> {
        Ok(Self {
            read: client.prepare("SELECT elements FROM list WHERE key = $1").await?,
            scan: client
                .prepare("SELECT key, elements FROM list WHERE key BETWEEN $1 AND $2 ORDER BY key")
                .await?,
            append: client
                .prepare(
                    "INSERT INTO list VALUES ($1, $2) ON CONFLICT (key) \
                     DO UPDATE SET elements = list.elements || ',' || excluded.elements",
                )
                .await?,
        })
    }
}

fn elements(text: &str) -> Vec<u64> {
    text.split(',').map(|element| element.parse().unwrap()).collect()
}

fn key_of(list: i32) -> u64 {
    u64::try_from(list).unwrap()
}

/// What a transaction has done so far.
#[derive(Default)]
pub(crate) struct Attempt {
    pub(crate) operations: Vec<Operation>,
    /// The statement that runs now commits if it succeeds.
    pub(crate) commits: bool,
}

/// A connection that runs random transactions on shared lists.
pub(crate) struct Worker {
    client: Client,
    statements: Statements,
    random: SmallRng,
    next_value: Arc<AtomicU64>,
}

impl Worker {
    /// A connection whose transactions are drawn from a seed, and whose appends have values that nobody else appends.
    pub(crate) async fn new(
        client: Client,
        seed: u64,
        next_value: Arc<AtomicU64>,
    ) -> Result<Self, Error> {
        let statements = Statements::prepare(&client).await?;
        Ok(Self { client, statements, random: SmallRng::seed_from_u64(seed), next_value })
    }

    /// Runs a transaction on the lists from `first` on, and records its operations.
    pub(crate) async fn transact(
        &mut self,
        first: i32,
        attempt: &mut Attempt,
    ) -> Result<(), Error> {
        let count = self.random.random_range(1..=4);
        // A single operation is a transaction by itself.
        attempt.commits = count == 1;
        if count > 1 {
            self.client.batch_execute("BEGIN").await?;
        }
        let operations = &mut attempt.operations;
        for _ in 0..count {
            let list = first + self.random.random_range(0..LISTS);
            match self.random.random_range(0..8) {
                0..3 => self.append(list, operations).await?,
                3 => self.scan(list, list + 2, operations).await?,
                _ => self.read(list, operations).await?,
            }
        }
        if count > 1 {
            attempt.commits = true;
            self.client.batch_execute("COMMIT").await?;
        }
        Ok(())
    }

    /// Ends a transaction block that has failed, if there is one.
    pub(crate) async fn roll_back(&self) -> Result<(), Error> {
        self.client.batch_execute("ROLLBACK").await
    }

    async fn append(&self, list: i32, operations: &mut Vec<Operation>) -> Result<(), Error> {
        let value = self.next_value.fetch_add(1, Ordering::Relaxed);
        operations.push(Operation::Append { key: key_of(list), value });
        self.client.execute(&self.statements.append, &[&list, &value.to_string()]).await?;
        Ok(())
    }

    async fn read(&self, list: i32, operations: &mut Vec<Operation>) -> Result<(), Error> {
        let row = self.client.query_opt(&self.statements.read, &[&list]).await?;
        let elements = row.map_or_else(Vec::new, |row| elements(row.get(0)));
        operations.push(Operation::ReadList { key: key_of(list), elements });
        Ok(())
    }

    async fn scan(&self, from: i32, to: i32, operations: &mut Vec<Operation>) -> Result<(), Error> {
        let rows = self.client.query(&self.statements.scan, &[&from, &to]).await?;
        let mut found: BTreeMap<i32, Vec<u64>> =
            rows.iter().map(|row| (row.get(0), elements(row.get(1)))).collect();
        for list in from..=to {
            let elements = found.remove(&list).unwrap_or_default();
            operations.push(Operation::ReadList { key: key_of(list), elements });
        }
        Ok(())
    }

    /// Runs all transactions of a connection, and further ones while `goes_on`.
    async fn run(mut self, history: Arc<History>, goes_on: impl Fn() -> bool) {
        for number in (0..).take_while(|number| *number < TRANSACTIONS || goes_on()) {
            let first = i32::try_from(number / TRANSACTIONS_PER_LISTS).unwrap() * LISTS;
            let mut attempt = Attempt::default();
            let invoked = history.invoke();
            let fate = match self.transact(first, &mut attempt).await {
                Ok(()) => Fate::Committed,
                Err(error) => {
                    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error}");
                    self.roll_back().await.unwrap();
                    Fate::Aborted
                }
            };
            history.complete(invoked, fate, attempt.operations);
        }
    }
}

/// Runs a transaction that reads every list, as a part of the history.
pub(crate) async fn read_all_lists(client: &Client, history: &History) -> BTreeMap<u64, Vec<u64>> {
    let invoked = history.invoke();
    let rows = client.query("SELECT key, elements FROM list", &[]).await.unwrap();
    let found: BTreeMap<u64, Vec<u64>> =
        rows.iter().map(|row| (key_of(row.get(0)), elements(row.get(1)))).collect();
    let read = |(&key, elements): (&u64, &Vec<u64>)| Operation::ReadList {
        key,
        elements: elements.clone(),
    };
    history.complete(invoked, Fate::Committed, found.iter().map(read).collect());
    found
}

/// Runs connections to the servers in turn, which are one database. `enter` moves a thread to its server's network.
/// Connections continue while `goes_on`. Returns the checks, and the number of committed transactions.
pub(crate) fn run_on(
    servers: &[Server],
    enter: impl Fn(usize) + Sync,
    goes_on: impl Fn() -> bool + Sync,
) -> (Vec<Check>, usize) {
    let (history, next_value) = (Arc::new(History::default()), Arc::new(AtomicU64::new(1)));
    let at = |number: usize| {
        enter(number % servers.len());
        Builder::new_current_thread().enable_all().build().unwrap()
    };
    let in_thread = |run: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    };
    in_thread(&|| {
        at(0).block_on(async {
            let setup = servers[0].client().await;
            let create = "CREATE TABLE list (key INT PRIMARY KEY, elements TEXT)";
            setup.batch_execute(create).await.unwrap();
        });
    });
    std::thread::scope(|scope| {
        for seed in 0..CONNECTIONS {
            let (at, goes_on) = (&at, &goes_on);
            let (history, next_value) = (Arc::clone(&history), Arc::clone(&next_value));
            scope.spawn(move || {
                let number = usize::try_from(seed).unwrap();
                at(number).block_on(async {
                    let client = servers[number % servers.len()].client().await;
                    let worker = Worker::new(client, seed, next_value).await.unwrap();
                    worker.run(history, goes_on).await;
                });
            });
        }
    });
    let lists = Mutex::new(BTreeMap::new());
    in_thread(&|| {
        let found = at(0).block_on(async {
            let reader = servers[0].client().await;
            read_all_lists(&reader, &history).await
        });
        *lists.lock().unwrap() = found;
    });
    let transactions = history.transactions();
    let committed = transactions.iter().filter(|one| one.fate == Fate::Committed).count();
    (judge_lists(&transactions, &lists.into_inner().unwrap()), committed)
}

#[test]
fn lists_over_the_wire_are_strictly_serializable() {
    let server = Server::start(&[]);
    let (checks, committed) = run_on(&[server], |_| {}, || false);
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    // Transactions on one list that run alone always commit, so a tenth is a weak requirement.
    let all = CONNECTIONS * TRANSACTIONS;
    println!("{committed} of {all} transactions committed");
    assert!(committed as u64 > all / 10, "only {committed} of {all} transactions committed");
}

#[cfg(feature = "mutants")]
#[test]
fn the_checkers_notice_a_server_that_does_not_validate() {
    // The number of concurrent transactions depends on the machine.
    let noticed = (0..10).find_map(|_| {
        let server = Server::start_without(Some("READ_VALIDATION"), &[]);
        let (checks, _) = run_on(&[server], |_| {}, || false);
        let failed: Vec<Check> = checks.into_iter().filter(|check| !check.passed).collect();
        let names = |name: &str| failed.iter().any(|check| check.name == name);
        (names("strictly serializable") && names("adya: strictly serializable")).then_some(failed)
    });
    println!("READ_VALIDATION: {:?}", noticed.expect("both checkers notice"));
}
