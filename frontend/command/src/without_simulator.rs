//! `gannet simulate` of a build that has no simulator: it says how to get one.
//!
//! *Invariants*: all arguments of the simulator are taken, so that the advice is the only error.
//!
//! *Not here*: the subcommand itself (`simulate/`), with the Cargo feature `simulation`.

use clap::Args;

const ADVICE: &str =
    "this build has no simulator; build it with: cargo build --release --features simulation";

/// This build has no simulator.
#[derive(Debug, thiserror::Error)]
#[error("{}", ADVICE)]
pub(crate) struct NoSimulator;

/// Whatever the simulator would take.
#[derive(Args)]
#[command(after_help = ADVICE)]
pub(crate) struct Arguments {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<String>,
}

pub(crate) fn run(_: &Arguments) -> Result<u8, NoSimulator> {
    Err(NoSimulator)
}
