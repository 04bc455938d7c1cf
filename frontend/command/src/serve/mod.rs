//! `gannet serve`: the command line of the server, which is a whole cluster or one node of a cluster.
//!
//! ```text
//! settings ─► server, metrics, gateway: bound ─► cluster: opened or joined ─► database, tables ─► gateway: open ─► serve
//! ```
//!
//! *Invariants*: every fault of this host shows before the other members rely on it: all addresses and files are checked
//! before the cluster is joined.
//!
//! Exit codes: 0 stopped by SIGTERM or SIGINT, 1 a worker has died of a bug, 2 the server could not start.

mod metrics;
mod settings;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use gannet_engine::{Cluster, ClusterError, ClusterOptions, Gateway, GatewayError, ThreadHost};
use gannet_frontend::{Database, SqlError};
use gannet_server::{
    Server, ServerError, ServerOptions, ServerThreads, Stopped, Users, UsersError,
};
use tracing::level_filters::LevelFilter;

use crate::log::{Log, LogFormat, announce};
use settings::{Settings, SettingsError, TlsName};

/// How long a process that cannot go on waits for standard error to take the reason.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The exit code of a process that is to be started again: that of a failure that passes (`EX_TEMPFAIL` of sysexits.h).
const RESTART: u8 = 75;
/// How long its sessions have to tell their clients how their statements have ended.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(args_override_self = true)]
pub(crate) struct Arguments {
    /// A TOML file with these settings, under the same names. The command line takes precedence.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Lowest level of messages in the log, which goes to standard error.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
    /// Format of the log.
    #[arg(long, default_value = "text")]
    log_format: LogFormat,
    /// Stop when the parent process ends.
    #[arg(long, hide = true)]
    stop_with_parent: bool,
}

/// Why the server cannot start.
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
    #[cfg(feature = "mutants")]
    #[error(transparent)]
    Mutant(#[from] crate::mutant::NoSuchMutant),
}

/// Serves until a signal stops the process, or an operator restarts it; the exit code.
pub(crate) fn run(arguments: Arguments) -> Result<u8, CommandError> {
    #[cfg(feature = "mutants")]
    let _mutant =
        std::env::var("GANNET_MUTANT").ok().as_deref().map(crate::mutant::named).transpose()?;
    if arguments.stop_with_parent {
        // On a system without this signal, the parent stops this process.
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM);
    }
    let _log =
        Log::start(arguments.log_level, arguments.log_format).map_err(CommandError::Thread)?;
    let settings = match &arguments.config {
        Some(path) => arguments.settings.with_file(path)?,
        None => arguments.settings,
    };
    settings.check()?;
    let defaults = ServerOptions::default();
    let options = ServerOptions {
        users: users(&settings)?,
        tls: settings.tls()?,
        tls_required: settings.tls.map(|tls| tls == TlsName::Required),
        connections_max: settings.connections_max.unwrap_or(defaults.connections_max),
        idle_timeout: settings.idle_timeout,
        statement_timeout: settings.statement_timeout,
        wait_timeout: settings.wait_timeout.or(defaults.wait_timeout),
        shutdown_timeout: settings.shutdown_timeout.unwrap_or(defaults.shutdown_timeout),
        listen: settings.listen.clone().unwrap_or(defaults.listen),
    };
    let statements = settings.statements()?;
    // Faults of this host must show before the other members rely on it.
    let metrics = settings.metrics.as_ref().map(|listen| {
        metrics::bind(listen, settings.metrics_public == Some(true))
            .map_err(|source| CommandError::Metrics { listen: listen.clone(), source })
    });
    let metrics = metrics.transpose()?;
    let server = Server::bind(options)?;
    let gateway = settings.gateway()?.map(Gateway::bind).transpose()?;
    let (cluster, membership) = settings.cluster()?;
    let cluster = ClusterOptions { on_failure: Some(Arc::new(|reason| end(reason))), ..cluster };
    let (cluster, threads) = match membership {
        None => {
            let threads =
                Arc::new(ServerThreads::new(cluster.threads).map_err(CommandError::Thread)?);
            let host: Arc<dyn ThreadHost> = Arc::clone(&threads) as _;
            (Cluster::open(ClusterOptions { host: Some(host), ..cluster })?, Some(threads))
        }
        Some(membership) => (Cluster::join(cluster, &membership)?, None),
    };
    let cluster = Arc::new(cluster);
    if let Some(listener) = metrics {
        metrics::serve(listener, Arc::downgrade(&cluster), server.admission())
            .map_err(CommandError::Thread)?;
    }
    let database = Database::open_within(Arc::clone(&cluster), statements)?;
    let tables = tables::open(&cluster, settings.tables.as_deref().unwrap_or_default())?;
    let clients = gateway.map(|gateway| gateway.open(&cluster, &tables)).transpose()?;
    let stopped = server.serve(database, threads, &|address| {
        let clients = clients.as_ref().map(|clients| clients.address());
        let clients = clients.map(|address| format!("programs connect to {address}\n"));
        announce(format!("listening on {address}\n{}", clients.unwrap_or_default()));
    })?;
    drop(clients);
    cluster.leave();
    Ok(match stopped {
        Stopped::BySignal => 0,
        Stopped::ToRestart => RESTART,
    })
}

/// Ends the process because of a bug, or because the others have removed its node. Its peers and clients see their connections
/// end, and a supervisor restarts it.
fn end(reason: &str) -> ! {
    let line = format!("gannet: {reason}");
    let (done, written) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Standard error may be closed; the exit code tells the failure as well.
        let _ = writeln!(std::io::stderr(), "{line}");
        let _ = done.send(());
    });
    // Standard error may have no reader.
    let _ = written.recv_timeout(LAST_WORDS);
    std::thread::park_timeout(LAST_ANSWERS);
    std::process::exit(1);
}

fn users(settings: &Settings) -> Result<Users, CommandError> {
    let Some(path) = &settings.users else { return Ok(Users::default()) };
    let users = Users::read(path)?;
    if users.is_empty() {
        return Err(CommandError::NoUsers(path.display().to_string()));
    }
    Ok(users)
}
