//! `gannet simulate` of a build that has no simulator: it says how to get one.

use clap::Args;

/// This build has no simulator.
#[derive(Debug, thiserror::Error)]
#[error("this build has no simulator; build it with: cargo build --release --features simulation")]
pub(crate) struct NoSimulator;

/// Whatever the simulator would take.
#[derive(Args)]
#[command(
    after_help = "This build has no simulator. Build it with: cargo build --release --features simulation"
)]
pub(crate) struct Arguments {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<String>,
}

pub(crate) fn run(_: &Arguments) -> Result<u8, NoSimulator> {
    Err(NoSimulator)
}
