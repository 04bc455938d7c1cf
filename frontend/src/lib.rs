//! SQL on transactions: catalog, planner, executor, sessions.
//!
//! ```text
//! gannet_server (psql, drivers)   gannet_shell (gannet sql)   programs
//!               └────────────────── Session ──────────────────┘
//! text ─ parser ─ plan ─ execute ─ Deferred transaction (engine)
//! ```
//!
//! *Invariants*: rows, index entries, the catalog and counters are rows of the engine's ordered tables; SQL keeps no
//! other state but caches. A statement computes in a coroutine of the engine, on a stack of `parser`, or on the threads of
//! `parser` and `aside`.
//!
//! *Not here*: the shell and the PostgreSQL server, crates beside this one; packets, buckets, locks and replication, which are the
//! engine's.
#![forbid(unsafe_code)]

mod array;
mod aside;
mod catalog;
mod clock;
mod database;
mod encoding;
mod error;
mod execute;
mod expression;
mod fold;
mod key_map;
mod memory;
mod parser;
mod plan;
mod postgres_type;
pub mod rules;
mod session;
mod settings;
mod settler;
mod spill;
mod text;
mod value;
pub mod wire;

pub use array::Element;
pub use database::Database;
pub use error::{SqlError, Subject};
pub use memory::MemoryLimits;
pub use session::{
    CancelHandle, Column, CopyFormat, CopyOptions, PreparedStatement, QueryRows, Session,
    StatementResult, TransactionStatus,
};
pub use value::{DataType, Value};
