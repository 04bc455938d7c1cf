//! `gannet serve`: the command line of the server.
//!
//! Exit codes: 0 stopped by SIGTERM or SIGINT, 2 the server could not start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use gannet_engine::{Cluster, ClusterError, ClusterOptions};
use gannet_frontend::{Database, ServerError, ServerOptions, SqlError, Users, UsersError};

use crate::bench::{parse_bytes, parse_duration};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Address to listen on; with port 0 a free port is taken and printed.
    #[arg(long, default_value = "127.0.0.1:5433")]
    listen: String,
    /// Users who may connect, with passwords; write it with `gannet user`. Without it, everybody on
    /// this machine may.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Certificate chain for TLS, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Connections at a time.
    #[arg(long, default_value_t = 100)]
    connections_max: usize,
    /// Close connections whose client sends nothing for so long, such as 10m.
    #[arg(long, value_parser = parse_duration)]
    idle_timeout: Option<Duration>,
    /// Cancel statements that run longer, such as 30s.
    #[arg(long, value_parser = parse_duration)]
    statement_timeout: Option<Duration>,
    /// Wait so long for running statements when told to stop.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    shutdown_timeout: Duration,
    /// Nodes of the cluster, all in this process.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Copies of every row, at most one per node.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Workers of each node; one OS thread drives worker i of every node [default: all cores].
    #[arg(long)]
    threads: Option<usize>,
    /// Table memory of each node, such as 512MiB [default: its share of 70 % of the free memory].
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<usize>,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Users(#[from] UsersError),
    #[error("{0} names no user; add one with `gannet user`")]
    NoUsers(String),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot open the database: {0}")]
    Database(#[from] SqlError),
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Removes the rule of the engine that `GANNET_MUTANT` names, to see that a client notices. Only builds for tests can.
#[cfg(feature = "mutants")]
fn activate_mutant() {
    use gannet_engine::mutant::{Mutant, activate};
    if let Ok(name) = std::env::var("GANNET_MUTANT") {
        let named = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name);
        activate(named.unwrap_or_else(|| panic!("there is no mutant {name}")));
    }
}

/// Serves until the process is told to stop.
pub(crate) fn run(arguments: Arguments) -> Result<(), CommandError> {
    #[cfg(feature = "mutants")]
    activate_mutant();
    let users = match &arguments.users {
        None => Users::default(),
        Some(path) => {
            let users = Users::read(path)?;
            if users.is_empty() {
                return Err(CommandError::NoUsers(path.display().to_string()));
            }
            users
        }
    };
    let defaults = ClusterOptions::default();
    let cluster = Cluster::open(ClusterOptions {
        nodes: arguments.nodes,
        replicas: arguments.replicas,
        threads: arguments.threads.unwrap_or(defaults.threads),
        memory_limit_bytes: arguments.memory,
        ..defaults
    })?;
    let database = Database::open(Arc::new(cluster))?;
    let options = ServerOptions {
        listen: arguments.listen,
        users,
        tls: arguments.tls_cert.zip(arguments.tls_key),
        connections_max: arguments.connections_max,
        idle_timeout: arguments.idle_timeout,
        statement_timeout: arguments.statement_timeout,
        shutdown_timeout: arguments.shutdown_timeout,
    };
    gannet_frontend::serve(database, options, |address| println!("listening on {address}"))?;
    Ok(())
}
