//! The `gannet serve` command, as PostgreSQL's own clients meet it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod anomalies;
mod benchmarks;
mod campaign;
mod chaos;
mod clients;
mod consistency;
mod copy;
mod extended;
mod jdbc;
mod limits;
mod malformed;
mod nodes;
mod overtaken;
mod process;
mod security;
mod simple;
mod tools;
