//! `gannet serve`: the command line of the server, which is a whole cluster or one node of it.
//!
//! Exit codes: 0 stopped by SIGTERM or SIGINT, 2 the server could not start.

mod metrics;
mod settings;
mod tables;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use gannet_engine::{Cluster, ClusterError, ClusterOptions, Gateway, GatewayError, ThreadHost};
use gannet_frontend::{
    Database, Server, ServerError, ServerOptions, ServerThreads, SqlError, Users, UsersError,
};
use tracing::level_filters::LevelFilter;

use settings::{Settings, SettingsError};

#[derive(Args)]
#[command(args_override_self = true)]
pub(crate) struct Arguments {
    /// A TOML file with these settings, under the same names; the command line wins.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Least important lines of the log, which goes to standard error.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
    /// How the log is written.
    #[arg(long, default_value = "text")]
    log_format: LogFormat,
    /// Stop when the process that started this one ends.
    #[arg(long, hide = true)]
    stop_with_parent: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Users(#[from] UsersError),
    #[error("{0} names no user; add one with `gannet user`")]
    NoUsers(String),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("cannot offer metrics at {listen}: {source}; choose another --metrics")]
    Metrics { listen: String, source: std::io::Error },
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error("the operating system refused a thread: {0}")]
    Thread(std::io::Error),
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
    if arguments.stop_with_parent {
        // Where the system has no such signal, whoever started this process stops it.
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM);
    }
    log(arguments.log_level, arguments.log_format);
    let settings = match &arguments.config {
        Some(path) => arguments.settings.with_file(path)?,
        None => arguments.settings,
    };
    let defaults = ServerOptions::default();
    let options = ServerOptions {
        users: users(&settings)?,
        tls: settings.tls()?,
        connections_max: settings.connections_max.unwrap_or(defaults.connections_max),
        idle_timeout: settings.idle_timeout,
        statement_timeout: settings.statement_timeout,
        shutdown_timeout: settings.shutdown_timeout.unwrap_or(defaults.shutdown_timeout),
        listen: settings.listen.clone().unwrap_or(defaults.listen),
    };
    // Everything that can be wrong on this host is found before the other members count on it.
    let metrics = settings.metrics.as_ref().map(|listen| {
        metrics::bind(listen)
            .map_err(|source| CommandError::Metrics { listen: listen.clone(), source })
    });
    let metrics = metrics.transpose()?;
    let server = Server::bind(options)?;
    let gateway = settings.gateway()?.map(Gateway::bind).transpose()?;
    let (cluster, threads) = match settings.cluster()? {
        (cluster, None) => {
            let threads =
                Arc::new(ServerThreads::new(cluster.threads).map_err(CommandError::Thread)?);
            let host: Arc<dyn ThreadHost> = Arc::clone(&threads) as _;
            (Cluster::open(ClusterOptions { host: Some(host), ..cluster })?, Some(threads))
        }
        (cluster, Some(membership)) => (Cluster::join(cluster, &membership)?, None),
    };
    let cluster = Arc::new(cluster);
    if let Some(listener) = metrics {
        metrics::serve(listener, Arc::downgrade(&cluster)).map_err(CommandError::Thread)?;
    }
    let database = Database::open(Arc::clone(&cluster))?;
    let tables = tables::create(&cluster, settings.tables.as_deref().unwrap_or_default())?;
    // Whoever has been given other tables finds itself elsewhere.
    cluster.meet("serving", String::new())?;
    let clients = gateway.map(|gateway| gateway.open(&cluster, &tables)).transpose()?;
    server.serve(database, threads, |address| {
        println!("listening on {address}");
        if let Some(clients) = &clients {
            println!("programs connect to {}", clients.address());
        }
    })?;
    drop(clients);
    cluster.leave();
    Ok(())
}

fn users(settings: &Settings) -> Result<Users, CommandError> {
    let Some(path) = &settings.users else { return Ok(Users::default()) };
    let users = Users::read(path)?;
    if users.is_empty() {
        return Err(CommandError::NoUsers(path.display().to_string()));
    }
    Ok(users)
}

fn log(level: LevelFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
