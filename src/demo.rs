//! `gannet demo`: a cluster of processes on this host, and its shell.
//!
//! The nodes are `gannet serve` processes on free ports of the loopback, with a key of their own. They end with the shell.
//!
//! *Not here*: nodes on other hosts (`serve`).
//!
//! Exit codes: 0 everything succeeded, 1 a statement failed, 2 the cluster could not start.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::{Args, builder::PossibleValuesParser};
use gannet_engine::Transport;
use gannet_frontend::{
    AddressError, Mode, Script, ServerAddress, ShellError, ShellOptions, ShellTarget, run_shell,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::SignalKind;

use crate::processes::{Folder, TransportName, free_addresses};
use crate::units::parse_bytes;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Nodes, each in a process of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    nodes: u8,
    /// Copies of every row, at most one per node [default: 3, or fewer for fewer nodes].
    #[arg(long)]
    replicas: Option<usize>,
    /// Workers of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    threads: u8,
    /// Transport of packets between the nodes.
    #[arg(long, value_enum, default_value_t = TransportName::Udp)]
    transport: TransportName,
    /// Table memory of each node, such as 512MiB.
    #[arg(long, default_value = "256MiB", value_parser = parse_bytes)]
    memory: usize,
    /// Run these statements instead of an interactive shell; may be repeated.
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// Format of results [default: table on a terminal, raw elsewhere].
    #[arg(long, value_parser = PossibleValuesParser::new(Mode::ALL.map(Mode::name)))]
    format: Option<String>,
}

/// Why the cluster cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("cannot prepare the nodes: {0}")]
    System(#[from] std::io::Error),
    #[error("no {0} free ports follow one another; use fewer nodes or threads")]
    Ports(usize),
    #[error("node {node} did not start: {log}")]
    Node { node: usize, log: String },
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Shell(#[from] ShellError),
}

/// Starts the nodes, runs the shell, and stops the nodes. Returns whether all statements succeeded.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let folder = Folder::new(&[SignalKind::terminate(), SignalKind::hangup()])?;
    let key = folder.write_key()?;
    let (count, threads) = (usize::from(arguments.nodes), usize::from(arguments.threads));
    let addresses = free_addresses(count, threads);
    let addresses = addresses.ok_or(CommandError::Ports(count * threads))?;
    let members: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let mut nodes = Vec::new();
    for number in 0..count {
        nodes.push(Node::start(number, &members.join(","), &key, &folder, &arguments)?);
    }
    let mut addresses = Vec::new();
    for node in &mut nodes {
        addresses.push(node.listening()?);
    }
    for (number, address) in addresses.iter().enumerate() {
        // Standard error may be closed; the shell goes on.
        let _ = writeln!(std::io::stderr(), "node {number} serves SQL at {address}");
    }
    let url = addresses.first().map(|address| format!("postgres://gannet@{address}/gannet"));
    let target = ServerAddress::parse(&url.unwrap_or_default())?;
    Ok(run_shell(ShellOptions {
        target: ShellTarget::Server(Box::new(target)),
        scripts: arguments.command.into_iter().map(Script::Text).collect(),
        mode: arguments.format.as_deref().and_then(Mode::from_name),
        bail: None,
    })?)
}

/// A node's process. Dropping this stops the process.
struct Node {
    number: usize,
    child: Child,
    log: PathBuf,
}

impl Node {
    fn start(
        number: usize,
        members: &str,
        key: &Path,
        folder: &Folder,
        arguments: &Arguments,
    ) -> std::io::Result<Self> {
        let log = folder.path().join(format!("node-{number}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([
                "serve",
                "--stop-with-parent",
                "--listen",
                "127.0.0.1:0",
                "--join-timeout",
                "30s",
            ])
            .args(["--node", &number.to_string(), "--members", members])
            .arg("--cluster-key")
            .arg(key)
            .args(["--threads", &arguments.threads.to_string()])
            .args(["--memory", &arguments.memory.to_string()])
            .args(["--transport", Transport::from(arguments.transport).name()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Ctrl-C must reach the shell alone.
            .process_group(0);
        if arguments.transport == TransportName::Verbs {
            // RDMA packets are unencrypted, which a node accepts only with this option.
            command.arg("--trusted-network");
        }
        if let Some(replicas) = arguments.replicas {
            command.args(["--replicas", &replicas.to_string()]);
        }
        Ok(Self { number, child: folder.spawn(&mut command)?, log })
    }

    /// Waits until the node listens. Returns the address for clients.
    fn listening(&mut self) -> Result<String, CommandError> {
        let mut line = String::new();
        if let Some(output) = &mut self.child.stdout {
            BufReader::new(output).read_line(&mut line)?;
        }
        line.trim().strip_prefix("listening on ").map(str::to_owned).ok_or_else(|| {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            CommandError::Node { node: self.number, log: log.trim_end().to_owned() }
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended by itself.
        if let Ok(id) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let _ = self.child.wait();
    }
}
