//! Clients of a cluster whose nodes fail: lists that they read and append to, and what they know about their transactions.
//!
//! ```text
//! a session breaks, or its node halts ─▶ a session of the next node
//! COMMIT, or a statement on its own: 08007, or a broken connection ─▶ unknown
//! anything before COMMIT, and any other error of the classes 40 and 57 ─▶ aborted: none of the appends may be found
//! ```
//! A transaction that has no answer for three minutes fails the test: nothing may hang.
//!
//! *Not here*: the transactions and their checkers, in `consistency`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gannet_benchmarks::consistency::{Fate, History, judge_lists};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, NoTls};

use crate::consistency::{Attempt, LISTS, Worker, read_all_lists};
use crate::failures::cluster::{Cluster, PATIENCE, awaited};
use crate::nodes::Over;

const SESSIONS_PER_NODE: usize = 2;
/// Transactions of all sessions before they turn to new lists, because lists grow.
const TRANSACTIONS_PER_LISTS: u64 = 250;
/// Longest wait for a session, after which another node is tried.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// Between two nodes that are tried.
const RETRY: Duration = Duration::from_millis(10);
/// Longest wait for the answer to a transaction: its statements have time-outs of half a minute.
const TRANSACTION_WAIT: Duration = Duration::from_secs(180);

/// What the tables have at the start: the lists, and rows in many partitions, to see whether all of them are served.
const TABLES: [&str; 4] = [
    "DROP TABLE IF EXISTS list, mark",
    "CREATE TABLE list (key INT PRIMARY KEY, elements TEXT)",
    "CREATE TABLE mark (id INT PRIMARY KEY, n INT)",
    "INSERT INTO mark SELECT n, 0 FROM generate_series(1, 64) n",
];

/// Clients that run transactions until the failures are over.
pub(crate) struct Clients<'c> {
    cluster: &'c Cluster,
    history: History,
    next_value: Arc<AtomicU64>,
    begun: AtomicU64,
    unknown: AtomicU64,
    /// By node.
    committed: Vec<AtomicU64>,
    /// By node: sessions that have broken, or whose node has halted.
    broken: Vec<AtomicU64>,
    is_over: AtomicBool,
}

/// What the clients have seen.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) committed: u64,
    pub(crate) unknown: u64,
    /// By node: sessions that have broken.
    pub(crate) broken: Vec<u64>,
}

/// Runs clients of all nodes while failures strike. `strike` returns a node that serves; all lists are read there at the end.
///
/// # Panics
/// If the history is not strictly serializable, or an acknowledged append is lost.
pub(crate) fn record(cluster: &Cluster, strike: impl FnOnce(&Clients<'_>) -> usize) -> Summary {
    let counters = || cluster.nodes.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let clients = Clients {
        cluster,
        history: History::default(),
        next_value: Arc::new(AtomicU64::new(1)),
        begun: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        committed: counters(),
        broken: counters(),
        is_over: AtomicBool::new(false),
    };
    cluster.attempt(0, &TABLES).unwrap();
    let reader = std::thread::scope(|scope| {
        let over = Over(&clients.is_over);
        for number in 0..SESSIONS_PER_NODE * cluster.nodes.len() {
            let clients = &clients;
            scope.spawn(move || clients.work(number));
        }
        clients.wait_for(&cluster.all(), 5);
        let reader = strike(&clients);
        drop(over);
        reader
    });
    clients.judge(reader)
}

/// Why a connection has ended.
type Ended = JoinHandle<Result<(), Error>>;

/// What a client knows about its transaction after an error, and whether its session goes on.
fn judged(error: &Error, commits: bool) -> (Fate, bool) {
    let undecided = if commits { Fate::Unknown } else { Fate::Aborted };
    match error.code().map(SqlState::code) {
        // The connection has broken.
        None => (undecided, false),
        // The node has ended it, and has not run the statement.
        Some("57P01") => (Fate::Aborted, false),
        Some("57014") => (Fate::Aborted, true),
        Some(code) if code.starts_with("40") => (Fate::Aborted, true),
        Some(code) if code.starts_with("08") => (undecided, true),
        Some(code) if code.starts_with("57") => (Fate::Aborted, false),
        Some(_) => panic!("a failure of a node is no reason for {error:?}"),
    }
}

impl Clients<'_> {
    /// Runs transactions until the failures are over, at one node after the other.
    fn work(&self, number: usize) {
        let runtime = runtime();
        for turn in number.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let node = turn % self.cluster.nodes.len();
            self.cluster.site.enter(node);
            runtime.block_on(self.use_node(node, u64::try_from(turn).unwrap()));
        }
    }

    /// Runs transactions in a session of a node until it breaks, if there is one.
    async fn use_node(&self, node: usize, seed: u64) {
        let Ok(Ok((mut worker, mut connection))) =
            timeout(CONNECT_WAIT, self.open(node, seed)).await
        else {
            return sleep(RETRY).await;
        };
        while !self.is_over.load(Ordering::Relaxed) {
            let answered =
                timeout(TRANSACTION_WAIT, self.transact(&mut worker, &mut connection, node)).await;
            if !answered.unwrap_or_else(|_| panic!("a transaction hangs at node {node}")) {
                self.broken[node].fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// A session, and the end of its connection.
    async fn open(&self, node: usize, seed: u64) -> Result<(Worker, Ended), Error> {
        let (client, connection) = self.cluster.nodes[node].config().connect(NoTls).await?;
        let connection = tokio::spawn(connection);
        Ok((Worker::new(client, seed, Arc::clone(&self.next_value)).await?, connection))
    }

    /// Runs a transaction. Whether the session goes on.
    async fn transact(&self, worker: &mut Worker, connection: &mut Ended, node: usize) -> bool {
        let turn = self.begun.fetch_add(1, Ordering::Relaxed) / TRANSACTIONS_PER_LISTS;
        let first = i32::try_from(turn).unwrap() * LISTS;
        let mut attempt = Attempt::default();
        let invoked = self.history.invoke();
        let result = worker.transact(first, &mut attempt).await;
        let (fate, goes_on) = match &result {
            Ok(()) => (Fate::Committed, true),
            // The node may have told why it ended the connection before the client sent anything.
            Err(error) if error.is_closed() => match connection.await {
                Ok(Err(told)) => judged(&told, attempt.commits),
                Ok(Ok(())) | Err(_) => judged(error, attempt.commits),
            },
            Err(error) => judged(error, attempt.commits),
        };
        self.history.complete(invoked, fate, attempt.operations);
        match fate {
            Fate::Committed => self.committed[node].fetch_add(1, Ordering::Relaxed),
            Fate::Unknown => self.unknown.fetch_add(1, Ordering::Relaxed),
            Fate::Aborted => 0,
        };
        goes_on && (result.is_ok() || worker.roll_back().await.is_ok())
    }

    /// Transactions that have committed at a node.
    pub(crate) fn committed(&self, node: usize) -> u64 {
        self.committed[node].load(Ordering::Relaxed)
    }

    /// Waits until further transactions have committed at each of these nodes.
    pub(crate) fn wait_for(&self, nodes: &BTreeSet<usize>, more: u64) {
        let goals: Vec<_> =
            nodes.iter().map(|node| (*node, self.committed(*node) + more)).collect();
        awaited(&format!("transactions commit at the nodes {nodes:?}"), || {
            goals.iter().all(|(node, goal)| self.committed(*node) >= *goal).then_some(())
        });
    }

    /// Waits until further transactions have committed, wherever their sessions are now.
    pub(crate) fn wait_for_some(&self, more: u64) {
        let count = || self.cluster.all().into_iter().map(|node| self.committed(node)).sum::<u64>();
        let goal = count() + more;
        awaited("transactions commit", || (count() >= goal).then_some(()));
    }

    /// A node, one of these, that has changed rows in all partitions. Waits until there is one.
    pub(crate) fn serving(&self, nodes: &BTreeSet<usize>) -> usize {
        let change = ["SET statement_timeout = '5s'", "UPDATE mark SET n = n + 1"];
        let serves = |node: &usize| self.cluster.attempt(*node, &change).is_ok();
        awaited(&format!("one of the nodes {nodes:?} serves all partitions"), || {
            nodes.iter().copied().find(serves)
        })
    }

    /// Reads all lists at a node, and has the checkers judge the history.
    fn judge(self, reader: usize) -> Summary {
        let read = || {
            self.cluster.site.enter(reader);
            runtime().block_on(async {
                let client = self.cluster.nodes[reader].client().await;
                timeout(PATIENCE, read_all_lists(&client, &self.history)).await.unwrap()
            })
        };
        let lists = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
        let checks = judge_lists(&self.history.transactions(), &lists);
        assert!(checks.iter().all(|check| check.passed), "{checks:?}");
        Summary {
            committed: self.committed.iter().map(|one| one.load(Ordering::Relaxed)).sum(),
            unknown: self.unknown.load(Ordering::Relaxed),
            broken: self.broken.iter().map(|one| one.load(Ordering::Relaxed)).collect(),
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}
