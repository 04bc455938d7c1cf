//! `gannet sql`: the command line of the shell.
//!
//! *Not here*: the shell itself (`gannet_shell`).
//!
//! Exit codes: 0 everything succeeded, 1 a statement failed, 2 the shell could not start.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, builder::PossibleValuesParser};
use gannet_engine::{Cluster, ClusterError, ClusterOptions};
use gannet_frontend::{Database, SqlError};
use gannet_shell::{AddressError, Mode, Script, ShellError, ShellOptions, ShellTarget, run_shell};

use crate::connection::{Addresses, Credentials, parse_addresses};
use crate::units::parse_bytes;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run these statements instead of an interactive shell; may be repeated.
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// Run a file's statements instead of an interactive shell, after those of -c; may be repeated.
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Format of results [default: table on a terminal, raw elsewhere].
    #[arg(long, value_parser = PossibleValuesParser::new(Mode::ALL.map(Mode::name)))]
    format: Option<String>,
    /// Continue after a failed statement of a script; the exit code tells the failure.
    #[arg(long)]
    keep_going: bool,
    /// Connect to a server instead of opening a cluster in this process: 127.0.0.1:5433, or
    /// postgres://user:password@host:port/database. The password may come from PGPASSWORD. Of several nodes, separated by commas,
    /// the first that answers is taken, and the next when the connection ends.
    #[arg(long, value_name = "ADDRESSES", value_parser = parse_addresses)]
    connect: Option<Addresses>,
    #[command(flatten)]
    credentials: Credentials,
    /// Nodes of the cluster, all in this process.
    #[arg(long, default_value_t = 3, conflicts_with = "connect")]
    nodes: usize,
    /// Copies of every row, at most one per node.
    #[arg(long, default_value_t = 3, conflicts_with = "connect")]
    replicas: usize,
    /// Table memory of each node, such as 512MiB [default: its share of 70 % of the free memory].
    #[arg(long, value_parser = parse_bytes, conflicts_with = "connect")]
    memory: Option<usize>,
}

/// Why the shell cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot open the database: {0}")]
    Database(#[from] SqlError),
    #[error("{0} is for a server: give --connect too")]
    NoServer(&'static str),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Shell(#[from] ShellError),
}

/// Runs the shell. Returns whether everything succeeded.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let target = match arguments.connect {
        Some(addresses) => {
            let mut addresses = arguments.credentials.complete(addresses)?;
            for address in &mut addresses {
                if address.config.get_application_name().is_none() {
                    address.config.application_name("gannet sql");
                }
            }
            ShellTarget::Servers(addresses)
        }
        None => {
            if let Some(option) = arguments.credentials.given() {
                return Err(CommandError::NoServer(option));
            }
            let cluster = Cluster::open(ClusterOptions {
                nodes: arguments.nodes,
                replicas: arguments.replicas,
                memory_limit_bytes: arguments.memory,
                ..ClusterOptions::default()
            })?;
            ShellTarget::Embedded(Database::open(Arc::new(cluster))?)
        }
    };
    let texts = arguments.command.into_iter().map(Script::Text);
    let scripts = texts.chain(arguments.file.into_iter().map(Script::File)).collect();
    let options = ShellOptions {
        target,
        scripts,
        mode: arguments.format.as_deref().and_then(Mode::from_name),
        bail: arguments.keep_going.then_some(false),
        commands: Vec::new(),
    };
    Ok(run_shell(options)?)
}
