//! Gannet: a distributed in-memory OLTP engine, embedded.
//!
//! Tables map 64-bit keys to values of a fixed size, or ordered byte strings to byte strings. The nodes of a cluster keep
//! several copies. Transactions over any of the rows are strictly serializable. All nodes live in one process, or each in a
//! process of its own.
//!
//! ```text
//! Cluster::open(ClusterOptions)        nodes, their memory, their threads
//!   ├─ create_table ─ loader           tables and their first rows
//!   ├─ run, submit                     a closure as a transaction, retried after conflicts
//!   │     └─ Transaction               add keys ─ execute ─ value, put ─ return
//!   └─ spawn                           a job that starts transactions itself, on a chosen worker
//! ```
//!
//! # A transaction
//!
//! ```
//! use gannet::{Abort, Cluster, ClusterOptions, Failure, LockMode, Outcome};
//!
//! /// What the application itself can object to, and what the engine does.
//! #[derive(Debug)]
//! enum StockError {
//!     SoldOut,
//!     Engine(Abort),
//! }
//!
//! impl From<Abort> for StockError {
//!     fn from(abort: Abort) -> Self {
//!         Self::Engine(abort)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Three nodes with three copies of every row, in this process.
//! let cluster = Cluster::open(ClusterOptions {
//!     memory_limit_bytes: Some(16 << 20),
//!     ..ClusterOptions::default()
//! })?;
//! // About 100 rows with values of 8 bytes.
//! let stock = cluster.create_table("stock", 8, 100)?;
//!
//! let item = 42;
//! let inserted = cluster.run(move |tx| tx.insert(stock, item, &2_u64.to_le_bytes()))?;
//! assert_eq!(inserted, Outcome::Committed(()));
//!
//! for _ in 0..3 {
//!     let outcome = cluster.run(move |tx| {
//!         let row = tx.add_to_write_set(stock, item, LockMode::Update);
//!         tx.execute()?;
//!         let value = tx.value_mut(row)?;
//!         let left = u64::from_le_bytes(value.try_into().expect("values have 8 bytes"));
//!         let left = left.checked_sub(1).ok_or(StockError::SoldOut)?;
//!         tx.put(row, &left.to_le_bytes())?;
//!         Ok::<u64, StockError>(left)
//!     })?;
//!     match outcome {
//!         // On every copy, and visible to every transaction that begins from now on.
//!         Outcome::Committed(left) => println!("sold; {left} left"),
//!         // The closure returned an error of its own, on rows that were valid together.
//!         Outcome::Failed(StockError::SoldOut) => println!("sold out"),
//!         // It passed on an abort that running it again would not cure, such as a missing row.
//!         Outcome::Failed(StockError::Engine(abort)) => return Err(abort.into()),
//!         // Conflicts as often as the bound on retries allows, or commit refused it for good:
//!         // `Abort::is_conflict` tells which.
//!         Outcome::Aborted(abort) => return Err(abort.into()),
//!         // The closure panicked; the cluster goes on.
//!         Outcome::Panicked(message) => return Err(message.into()),
//!         // The cluster halted in the commit: whether one was sold is unknown.
//!         Outcome::Unknown => return Err(Failure::Unknown.into()),
//!     }
//! }
//!
//! // Reads: the transaction commits only if what it read was all true at one moment.
//! let left = cluster.run(move |tx| {
//!     let value = tx.get(stock, item)?;
//!     Ok::<_, Abort>(value.map(<[u8]>::to_vec))
//! })?;
//! assert_eq!(left, Outcome::Committed(Some(0_u64.to_le_bytes().to_vec())));
//! # Ok(())
//! # }
//! ```
//!
//! Unless an outcome is [`Outcome::Committed`] or [`Outcome::Unknown`], nothing was written and no lock is held.
//!
//! # Rules for closures
//!
//! - A closure may run several times: effects outside of the transaction belong after its outcome.
//! - A closure gives up by returning an error. It does not call [`Transaction::commit`] or [`Transaction::abort`]: those are
//!   for jobs of [`Cluster::spawn`], which begin transactions themselves. A commit in a closure is refused, and so is the
//!   transaction.
//! - A closure may see rows that do not belong together. Such a run never commits; its errors and panics are not reported but
//!   retried.
//! - A closure runs on a coroutine with a stack of 256 KiB, whose overflow ends the process. The thread below also serves
//!   other transactions: the closure must not block, wait for a [`Completion`], or call [`Cluster::run`].
//! - A row read by [`Transaction::add_to_read_set`] keeps the value in the table, whatever the transaction writes. A key may
//!   be in the write set once.
//!
//! # Transactions whose outcome is unknown
//!
//! [`Cluster::run_once`] runs a closure under a [`Token`], the name of a client and the number of its transaction. However often
//! it is run under the same token, at whatever nodes, it commits at most once, and each later run gives the result of that one:
//! so a transaction is run again safely that ended with [`Outcome::Unknown`], or whose answer was lost. [`Cluster::decide`] asks
//! for the outcome, and aborts what is still under way. [`Cluster::open_tokens`] opens the table of outcomes, which keeps the
//! last one of each client for [`ClusterOptions::token_ttl`]. [`Client::run_once`] and [`Client::outcome`] are the same for
//! programs beside the cluster.
//!
//! # Full queues
//!
//! Work enters through bounded queues. When all are full, [`Cluster::run`] and [`Cluster::submit`] return
//! [`ClusterError::Busy`] at once, without running the closure.
//!
//! # Nodes in processes of their own
//!
//! [`Cluster::join`] makes a process one node of a cluster, given the addresses of all nodes. Each process opens its tables
//! by [`Cluster::open_table`]; the first to open a table creates it for all. Each process adds all initial rows, and keeps
//! those of its node. A process waits for another by a row that the other writes. When a process ends, the others go on without its
//! node; [`Cluster::halted`] tells when they cannot.
//!
//! # Programs beside the cluster
//!
//! [`Gateway`] lets programs beside the cluster run transactions; `gannet serve --clients` has one. The programs call
//! [`Client::run`], with closures like those above that read, scan and put through a [`RemoteTransaction`], which takes no
//! lock before it commits. `examples/client.rs` is such a program.
//!
//! `examples/bank.rs` is a whole program.
//!
//! *Not here*: durability on disk; SQL, which is the crate `gannet_frontend`, and in the shell `gannet sql`.
#![forbid(unsafe_code)]

pub use gannet_engine::{
    Abort, BulkLoad, Change, ChangeCounts, ChangeError, Client, ClientError, ClientOptions,
    Clients, Cluster, ClusterError, ClusterKey, ClusterKeyError, ClusterOptions, Completion,
    Configuration, Conflict, Coordinator, Deferred, Direction, Driver, Failure, Gateway,
    GatewayError, GatewayOptions, JoinError, Key, KeyRange, KeyStart, KeyValue, LeaseLeft, Loader,
    LockMode, LogObserver, Losses, Lost, Membership, MembershipStatus, Misuse, Node, NodeReport,
    NodeState, NodeStatus, Obstacle, OnFailure, Once, OnlyCopies, Outcome, Page, Phase, RdmaPort,
    RemoteTransaction, RowId, RowKey, RowProblem, Rows, Savepoint, SilentNode, Statistics,
    StorageError, TOKEN_RESULT_BYTES_MAX, TableId, ThreadHost, Token, TokenError, TokenOutcome,
    TokenRefusal, Tokens, Topology, Transaction, Transport, WorkerId, block_on,
};
