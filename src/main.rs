//! The `gannet` command.
//!
//! *Not here*: its subcommands (`gannet_command`).
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// One thread often allocates what another one frees, which this allocator does well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gannet_command::run()
}
