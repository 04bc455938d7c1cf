//! `gannet sql`: the command line of the shell.
//!
//! Exit codes: 0 everything succeeded, 1 a statement failed, 2 the shell could not start.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, builder::PossibleValuesParser};
use gannet_engine::{Cluster, ClusterError, ClusterOptions};
use gannet_frontend::{
    Database, Mode, Script, ServerAddress, ShellError, ShellOptions, ShellTarget, SqlError,
    run_shell,
};

use crate::bench::parse_bytes;

/// The port of `gannet serve`.
const PORT: u16 = 5433;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run these statements instead of asking; may be repeated.
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// Run a file's statements instead of asking, after those of -c; may be repeated.
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// How to write results [default: table on a terminal, raw elsewhere].
    #[arg(long, value_parser = PossibleValuesParser::new(Mode::ALL.map(Mode::name)))]
    format: Option<String>,
    /// Go on after a statement of a script failed; the exit code tells.
    #[arg(long)]
    keep_going: bool,
    /// Connect to a server, such as 127.0.0.1:5433, instead of opening a cluster in this process. A
    /// password is taken from PGPASSWORD.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    connect: Option<(String, u16)>,
    /// Who connects to the server [default: $PGUSER or $USER].
    #[arg(long, requires = "connect")]
    user: Option<String>,
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

/// Why the shell could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot open the database: {0}")]
    Database(#[from] SqlError),
    #[error(transparent)]
    Shell(#[from] ShellError),
}

/// Runs the shell; whether everything succeeded.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let target = match arguments.connect {
        Some((host, port)) => {
            let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
            let user = arguments.user.or_else(|| variable("PGUSER")).or_else(|| variable("USER"));
            let user = user.unwrap_or_else(|| "gannet".to_owned());
            let password = variable("PGPASSWORD");
            ShellTarget::Server(ServerAddress { host, port, user, password })
        }
        None => {
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
    };
    Ok(run_shell(options)?)
}

/// `HOST`, `HOST:PORT` or `[HOST]:PORT`.
fn parse_address(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
        }
        _ => (text, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() { Err("name a host".to_owned()) } else { Ok((host.to_owned(), port)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        let address = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(parse_address("a:1"), address("a", 1));
        assert_eq!(parse_address("a"), address("a", PORT));
        assert_eq!(parse_address("[::1]:7"), address("::1", 7));
        assert_eq!(parse_address("::1"), address("::1", PORT));
        assert!(parse_address(":1").is_err());
        assert!(parse_address("a:70000").is_err());
    }
}
