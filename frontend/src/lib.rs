//! SQL on transactions: catalog, planner, executor, sessions; the shell and the PostgreSQL server.
//!
//! ```text
//! server/ (psql, drivers)   shell/ (gannet sql)
//!            └──── Session ────┘
//! text ─ parser ─ plan ─ execute ─ Deferred transaction (engine)
//! ```
//!
//! *Invariants*: rows, index entries, the catalog and counters are rows of the engine's ordered tables; SQL keeps no
//! other state but caches. A statement computes in a coroutine of the engine, on a stack of `parser`, or on the threads of
//! `parser` and `aside`.
//!
//! *Not here*: packets, buckets, locks and replication, which are the engine's.
#![forbid(unsafe_code)]

mod array;
mod aside;
mod catalog;
mod clock;
mod connect;
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
mod server;
mod server_address;
mod session;
mod settings;
mod settler;
mod shell;
mod spill;
mod text;
mod value;

pub use array::Element;
pub use connect::{ConnectError, Connected, ServerConnection, connect_to_first, server_error_text};
pub use database::Database;
pub use error::{SqlError, Subject};
pub use memory::MemoryLimits;
pub use server::{
    Admission, Server, ServerError, ServerOptions, ServerThreads, Stopped, TlsError, Users,
    UsersError, add_user,
};
pub use server_address::{AddressError, ServerAddress, SslMode};
pub use session::{
    CancelHandle, Column, CopyFormat, CopyOptions, PreparedStatement, QueryRows, Session,
    StatementResult, TransactionStatus,
};
pub use shell::{
    Mode, RunCommand, Script, ShellCommand, ShellError, ShellOptions, ShellTarget, run_shell,
};
pub use value::{DataType, Value};
