//! The `gannet` command: its subcommands, one module each.
//!
//! *Invariants*: a subcommand that could not do its work gives a line on standard error and exit code 2. Exit code 0
//! means that all has succeeded. A build without the simulator has `without_simulator.rs` in the place of `simulate`.
//!
//! *Not here*: the other exit codes, which each subcommand documents; `main`, in the root package.
#![forbid(unsafe_code)]

mod bench;
mod connection;
mod demo;
mod log;
#[cfg(feature = "mutants")]
mod mutant;
mod node;
mod node_process;
mod output;
mod processes;
mod serve;
#[cfg(feature = "simulation")]
mod simulate;
#[cfg(not(feature = "simulation"))]
#[path = "without_simulator.rs"]
mod simulate;
mod sql;
mod status;
mod units;
mod user;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A distributed in-memory OLTP engine.
#[derive(Parser)]
#[command(name = "gannet", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a benchmark on a cluster of its own, and verify its data.
    Bench(Box<bench::Arguments>),
    /// Start a cluster of processes on this host, and its shell.
    Demo(demo::Arguments),
    /// Drain a node of a cluster, or remove one.
    Node(Box<node::Arguments>),
    /// Serve SQL to clients of PostgreSQL, as a whole cluster or as a node of one.
    Serve(Box<serve::Arguments>),
    /// Simulate clusters in virtual time, under faults, from seeds, and check their results.
    Simulate(simulate::Arguments),
    /// Open the SQL shell, on a cluster in this process or on a server.
    Sql(Box<sql::Arguments>),
    /// Show the state of a cluster's nodes.
    Status(Box<status::Arguments>),
    /// Add a user to the users file of `gannet serve`.
    User(user::Arguments),
}

/// Runs the command that the arguments of the process name.
#[must_use]
pub fn run() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => bench::run(&arguments)
            .map(u8::from)
            .map(|passed| 1 - passed)
            .map_err(|error| error.to_string()),
        Command::Demo(arguments) => demo::run(arguments)
            .map(|passed| 1 - u8::from(passed))
            .map_err(|error| error.to_string()),
        Command::Node(arguments) => node::run(*arguments)
            .map(|is_done| 1 - u8::from(is_done))
            .map_err(|error| error.to_string()),
        Command::Serve(arguments) => serve::run(*arguments).map_err(|error| error.to_string()),
        Command::Simulate(arguments) => {
            simulate::run(&arguments).map_err(|error| error.to_string())
        }
        Command::Sql(arguments) => sql::run(*arguments)
            .map(|passed| 1 - u8::from(passed))
            .map_err(|error| error.to_string()),
        Command::Status(arguments) => status::run(*arguments)
            .map(|passed| 1 - u8::from(passed))
            .map_err(|error| error.to_string()),
        Command::User(arguments) => {
            user::run(&arguments).map(|()| 0).map_err(|error| error.to_string())
        }
    };
    match result {
        Ok(exit_code) => ExitCode::from(exit_code),
        Err(error) => {
            // Standard error may be closed; the exit code tells the failure as well.
            let _ = writeln!(std::io::stderr(), "gannet: {error}");
            ExitCode::from(2)
        }
    }
}
