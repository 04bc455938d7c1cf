//! `gannet sql`: the command line of the shell.
//!
//! Exit codes: 0 everything succeeded, 1 a statement failed, 2 the shell could not start.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, builder::PossibleValuesParser};
use gannet_engine::{Cluster, ClusterError, ClusterOptions};
use gannet_frontend::{
    AddressError, Database, Mode, Script, ServerAddress, ShellError, ShellOptions, ShellTarget,
    SqlError, SslMode, run_shell,
};

use crate::units::parse_bytes;

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
    /// Connect to a server instead of opening a cluster in this process: 127.0.0.1:5433, or
    /// postgres://user:password@host:port/database. A password is taken from PGPASSWORD.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    connect: Option<ServerAddress>,
    /// Who connects to the server [default: $PGUSER or $USER].
    #[arg(long, requires = "connect")]
    user: Option<String>,
    /// How the connection is protected, as libpq does [default: $PGSSLMODE or prefer].
    #[arg(long, value_name = "MODE", requires = "connect",
        value_parser = PossibleValuesParser::new(SslMode::ALL.map(SslMode::name)))]
    sslmode: Option<String>,
    /// Certificates that the server's must be signed by, a PEM file [default: $PGSSLROOTCERT].
    #[arg(long, value_name = "FILE", requires = "connect")]
    ssl_root_cert: Option<PathBuf>,
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
    Address(#[from] AddressError),
    #[error(transparent)]
    Shell(#[from] ShellError),
}

/// Runs the shell; whether everything succeeded.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let target = match arguments.connect {
        Some(mut address) => {
            let mode = arguments.sslmode.map(|mode| mode.parse()).transpose()?;
            complete(&mut address, arguments.user, mode, arguments.ssl_root_cert)?;
            ShellTarget::Server(Box::new(address))
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

/// Adds to an address what options say, and what neither says from the environment, as libpq does.
fn complete(
    address: &mut ServerAddress,
    user: Option<String>,
    ssl_mode: Option<SslMode>,
    ssl_root_certificate: Option<PathBuf>,
) -> Result<(), AddressError> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let ServerAddress { config, .. } = address;
    if let Some(user) = user {
        config.user(user);
    } else if config.get_user().is_none() {
        let user = variable("PGUSER").or_else(|| variable("USER"));
        config.user(user.unwrap_or_else(|| "gannet".to_owned()));
    }
    if let Some(password) = variable("PGPASSWORD").filter(|_| config.get_password().is_none()) {
        config.password(password);
    }
    if config.get_application_name().is_none() {
        config.application_name("gannet sql");
    }
    let in_environment = variable("PGSSLMODE").map(|mode| mode.parse()).transpose();
    address.ssl_mode = match ssl_mode.or(address.ssl_mode) {
        Some(mode) => Some(mode),
        None => in_environment?,
    };
    address.ssl_root_certificate = ssl_root_certificate
        .or_else(|| address.ssl_root_certificate.take())
        .or_else(|| variable("PGSSLROOTCERT").map(PathBuf::from));
    Ok(())
}

/// `HOST`, `HOST:PORT`, `[HOST]:PORT`, or a URL.
fn parse_address(text: &str) -> Result<ServerAddress, String> {
    if text.contains("://") {
        return ServerAddress::parse(text).map_err(|error| error.to_string());
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
        }
        _ => (text, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err("name a host".to_owned());
    }
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port);
    Ok(ServerAddress { config, ssl_mode: None, ssl_root_certificate: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        use tokio_postgres::config::Host;
        let address =
            |host: &str, port| Ok::<_, String>((vec![Host::Tcp(host.to_owned())], vec![port]));
        let parse_address = |text: &str| {
            let address = parse_address(text)?;
            Ok((address.config.get_hosts().to_vec(), address.config.get_ports().to_vec()))
        };
        assert_eq!(parse_address("a:1"), address("a", 1));
        assert_eq!(parse_address("a"), address("a", PORT));
        assert_eq!(parse_address("[::1]:7"), address("::1", 7));
        assert_eq!(parse_address("::1"), address("::1", PORT));
        assert_eq!(parse_address("postgres://b@a:5/d"), address("a", 5));
        for refused in ["a:70000", ":1", "postgres:///d"] {
            assert!(super::parse_address(refused).is_err(), "{refused}");
        }
    }
}
