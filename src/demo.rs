//! `gannet demo`: a cluster of processes on this host, and its shell.
//!
//! The nodes are `gannet serve` processes on free ports of the loopback, with a key of their own; they end with the
//! shell.
//!
//! Exit codes: 0 everything succeeded, 1 a statement failed, 2 the cluster could not start.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::{Args, builder::PossibleValuesParser};
use gannet_frontend::{
    AddressError, Mode, Script, ServerAddress, ShellError, ShellOptions, ShellTarget, run_shell,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::units::parse_bytes;

/// Where free ports are looked for, up to the last one.
const FIRST_PORT: u16 = 7_400;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Nodes, each of which is a process.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Copies of every row, at most one per node [default: 3, or fewer for fewer nodes].
    #[arg(long)]
    replicas: Option<usize>,
    /// Workers of each node.
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Table memory of each node, such as 512MiB.
    #[arg(long, default_value = "256MiB", value_parser = parse_bytes)]
    memory: usize,
    /// Run these statements instead of asking; may be repeated.
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// How to write results [default: table on a terminal, raw elsewhere].
    #[arg(long, value_parser = PossibleValuesParser::new(Mode::ALL.map(Mode::name)))]
    format: Option<String>,
}

/// Why the cluster could not start.
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

/// Starts the nodes, runs the shell, and stops the nodes; whether all statements succeeded.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let folder = Folder::new()?;
    let key = folder.write_key()?;
    let first = free_ports(arguments.nodes * usize::from(arguments.threads))?;
    let ports = (first..).step_by(usize::from(arguments.threads)).take(arguments.nodes);
    let members: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    let mut nodes = Vec::new();
    for number in 0..arguments.nodes {
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

/// A folder for the key and the logs, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("gannet-demo-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    fn write_key(&self) -> std::io::Result<PathBuf> {
        let path = self.0.join("cluster.key");
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(digits.as_bytes())?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A node's process, stopped when dropped.
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
        let log = folder.0.join(format!("node-{number}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["serve", "--stop-with-parent", "--listen", "127.0.0.1:0"])
            .args(["--node", &number.to_string(), "--members", members])
            .arg("--cluster-key")
            .arg(key)
            .args(["--threads", &arguments.threads.to_string()])
            .args(["--memory", &arguments.memory.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Ctrl-C is for the statement in the shell.
            .process_group(0);
        if let Some(replicas) = arguments.replicas {
            command.args(["--replicas", &replicas.to_string()]);
        }
        Ok(Self { number, child: command.spawn()?, log })
    }

    /// Waits until it listens; where clients connect.
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
        // It may have ended by itself.
        if let Ok(id) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let _ = self.child.wait();
    }
}

/// The first of some ports that follow one another and are free, for UDP and for TCP.
fn free_ports(count: usize) -> Result<u16, CommandError> {
    let is_free = |port: u16| {
        let address = (Ipv4Addr::LOCALHOST, port);
        UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
    };
    let mut found = 0;
    for port in FIRST_PORT..=u16::MAX {
        found = if is_free(port) { found + 1 } else { 0 };
        if found == count.max(1) {
            return Ok(port - u16::try_from(found - 1).expect("there are 2^16 ports"));
        }
    }
    Err(CommandError::Ports(count))
}
