//! The `gannet serve` command, as PostgreSQL's own clients use it.
//!
//! Most tests start the built command: a server by `process.rs`, a cluster of processes by `nodes.rs` or `failures/cluster.rs`.
//! *Not here*: sessions without a server (`frontend/tests/session/main.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod anomalies;
mod answers;
mod benchmarks;
mod campaign;
mod chaos;
mod clients;
mod consistency;
mod copy;
mod demonstration;
mod extended;
#[cfg(feature = "mutants")]
mod failure;
mod failures;
mod idle;
mod jdbc;
mod large;
mod limits;
mod malformed;
mod memory;
mod nodes;
mod operators;
mod output;
mod overtaken;
mod process;
mod reconnect;
mod reservations;
mod security;
mod silent;
mod simple;
mod spilled;
mod synced;
mod tokens;
mod tools;
mod unsuitable;
mod waits;
