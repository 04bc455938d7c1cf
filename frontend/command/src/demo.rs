//! `gannet demo`: a cluster of processes on this host, and its shell.
//!
//! The nodes are `gannet serve` processes on free ports of the loopback, with a key of their own. They end with the shell. Its
//! command `.kill` ends one of them before, as a fault would.
//!
//! *Not here*: the processes (`node_process`); nodes on other hosts (`serve`).
//!
//! Exit codes: 0 everything succeeded, 1 a statement failed, 2 the cluster could not start.

use std::io::Write;

use clap::{Args, builder::PossibleValuesParser};
use gannet_shell::{
    AddressError, Mode, Script, ServerAddress, ShellCommand, ShellError, ShellOptions, ShellTarget,
    run_shell,
};
use tokio::signal::unix::SignalKind;

use crate::node_process::{NodeError, NodeOptions, NodeProcess, NodeProcesses};
use crate::processes::{Folder, TransportName};
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
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Shell(#[from] ShellError),
}

/// Starts the nodes, runs the shell, and stops the nodes. Returns whether all statements succeeded.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let folder = Folder::new(&[SignalKind::terminate(), SignalKind::hangup()])?;
    let key = folder.write_key("cluster.key")?;
    let options = NodeOptions {
        count: usize::from(arguments.nodes),
        replicas: arguments.replicas,
        threads: usize::from(arguments.threads),
        memory: Some(arguments.memory),
        transport: arguments.transport,
        key: &key,
        further: Vec::new(),
    };
    let nodes = NodeProcess::start_all(&folder, &options)?;
    for (number, node) in nodes.iter().enumerate() {
        // Standard error may be closed; the shell goes on.
        let (address, process) = (node.address(), node.process());
        let _ = writeln!(
            std::io::stderr(),
            "node {number}, process {process}, serves SQL at {address}"
        );
    }
    let of_node = |node: &NodeProcess| {
        ServerAddress::parse(&format!("postgres://gannet@{}/gannet", node.address()))
    };
    let servers = nodes.iter().map(of_node).collect::<Result<Vec<_>, _>>()?;
    Ok(run_shell(ShellOptions {
        target: ShellTarget::Servers(servers),
        scripts: arguments.command.into_iter().map(Script::Text).collect(),
        mode: arguments.format.as_deref().and_then(Mode::from_name),
        bail: None,
        commands: vec![kill_command(nodes)],
    })?)
}

/// The command `.kill` of the shell. A shell whose own node ends goes on at another by itself.
fn kill_command(mut nodes: NodeProcesses) -> ShellCommand {
    ShellCommand {
        name: ".kill",
        usage: ".kill N",
        help: "end the process of node N by SIGKILL",
        run: Box::new(move |arguments: &str| kill(&mut nodes, arguments)),
    }
}

/// Ends a node; what there is to say.
fn kill(nodes: &mut [NodeProcess], arguments: &str) -> Result<String, String> {
    let last = nodes.len() - 1;
    let usage = || format!("use .kill N, where N is the number of a node, 0 to {last}");
    let number: usize = arguments.parse().map_err(|_| usage())?;
    let left = nodes.iter().filter(|node| !node.has_ended()).count();
    match nodes.get(number).map(NodeProcess::has_ended) {
        None => return Err(format!("there is no node {number}; {}", usage())),
        Some(true) => return Err(format!("node {number} has ended before; kill another one")),
        Some(false) if left == 1 => {
            return Err(format!("node {number} is the only one left; .quit ends it, too"));
        }
        Some(false) => {}
    }
    let killed = nodes[number].kill();
    killed.map_err(|error| format!("cannot kill node {number}: {error}"))?;
    let (left, all) = (left - 1, nodes.len());
    Ok(format!("node {number} was killed, and {left} of {all} nodes are left"))
}
