//! The `gannet` command.
#![forbid(unsafe_code)]

mod bench;

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
    /// Run a benchmark on a cluster in this process, and verify its data.
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let Arguments { command: Command::Bench(arguments) } = Arguments::parse();
    match bench::run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gannet: {error}");
            ExitCode::from(2)
        }
    }
}
