//! A benchmark on a cluster of processes. As in FaSST's evaluation, each process runs the same command for its own node.
//!
//! ```text
//! gannet bench tatp --processes        starts ─► the same command with --node 0, --node 1, ...
//! gannet bench tatp --node 0 ...       process 0 prints the report of all
//! ```
//!
//! *Not here*: what the processes exchange (`gannet_benchmarks::members`).

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use clap::Args;
use gannet_engine::{ClusterKey, ClusterKeyError, Membership, RdmaPort, Transport};
use gannet_microbenchmarks::rpc_echo::Across;
use tokio::signal::unix::SignalKind;

use crate::processes::{Folder, TransportName, free_addresses};
use crate::units::{parse_bytes, parse_duration};

/// How long a process waits for the others.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of benchmarks on processes.
#[derive(Args)]
pub(super) struct Processes {
    /// Make each node a process of this host.
    #[arg(long, global = true)]
    processes: bool,
    /// Transport of packets: between processes [default: udp], or those of the RPC echo [default: memory].
    #[arg(long, global = true, value_enum)]
    pub(super) transport: Option<TransportName>,
    /// RDMA devices for the transport verbs; node i takes the i-th in turn [default: the first usable one].
    #[arg(long, global = true, value_delimiter = ',', requires = "transport")]
    rdma_device: Vec<String>,
    /// Leave packets unencrypted, because only the cluster uses the network.
    #[arg(long, global = true)]
    trusted_network: bool,
    /// Number of this node, from 0. Run the same command for each other node, here or on other hosts.
    #[arg(long, global = true, requires = "members")]
    node: Option<usize>,
    /// Addresses of all nodes, in the order of their numbers, such as 10.0.0.1:7000,10.0.0.2:7000.
    #[arg(long, global = true, value_name = "ADDRESS", value_delimiter = ',', requires = "node")]
    members: Vec<SocketAddr>,
    /// File with the secret of all nodes, which encrypts their packets, as for `gannet serve`.
    #[arg(long, global = true, value_name = "FILE", requires = "node")]
    cluster_key: Option<PathBuf>,
    /// How long a node of a process may answer after the others have last confirmed it; one that stands still for longer is removed.
    #[arg(long, global = true, value_parser = parse_duration, default_value = "500ms")]
    lease: Duration,
    /// Drain the last node so often while transactions are measured, and give it its share again; the measured time ends then.
    #[arg(long, global = true, default_value_t = 0)]
    drains: usize,
    /// Bytes that each worker copies at most in a second, as for `gannet serve` [default: 16MiB].
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_bytes, requires = "drains")]
    copy_rate: Option<usize>,
}

/// Why the processes cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessesError {
    #[error("cannot start the processes: {0}")]
    System(#[from] std::io::Error),
    #[error("no {0} free ports follow one another; use fewer nodes or threads")]
    Ports(usize),
    #[error(transparent)]
    Key(#[from] ClusterKeyError),
    #[error("the number of nodes is 0; use at least 1")]
    NoNodes,
    #[error("node {node} ended without a report; the output of node 0 is above{said}")]
    Failed { node: usize, said: String },
    #[error("--rdma-device is for --transport verbs: leave it out, or give that transport")]
    Rdma,
    #[error(
        "give --cluster-key, a file of 64 hexadecimal digits, or --trusted-network if only the nodes use the network"
    )]
    NoKey,
    #[error("give one of --cluster-key and --trusted-network")]
    KeyAndTrust,
    #[error(
        "packets over RDMA are neither encrypted nor authenticated: give --trusted-network if only trusted hosts are on \
         its network; a --cluster-key beside it authenticates the nodes' messages over TCP"
    )]
    OpenRdma,
    #[error("the nodes are those of --members: leave --nodes out")]
    Nodes,
}

impl Processes {
    /// Refuses options that would have no effect; `has_nodes` tells whether a number of nodes is given.
    pub(super) fn check(&self, has_nodes: bool) -> Result<(), ProcessesError> {
        // A process that another one has started has that one's options, too.
        if has_nodes && !self.members.is_empty() && !self.processes {
            return Err(ProcessesError::Nodes);
        }
        if !self.rdma_device.is_empty() && self.transport != Some(TransportName::Verbs) {
            return Err(ProcessesError::Rdma);
        }
        Ok(())
    }

    /// Whether this process starts the others.
    pub(super) fn starts(&self) -> bool {
        self.processes && self.node.is_none()
    }

    /// Whether this process is a node of the cluster.
    pub(super) fn is_member(&self) -> bool {
        self.node.is_some()
    }

    /// The other node of an echo between two processes, if this process is one of the two.
    pub(super) fn across(&self) -> Option<Across> {
        self.node.map(|node| Across { node, addresses: self.members.clone() })
    }

    /// How long a lease of a node lasts.
    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether a cluster key is given.
    pub(super) fn has_key(&self) -> bool {
        self.cluster_key.is_some()
    }

    /// How often the last node is drained.
    pub(super) fn drains(&self) -> usize {
        self.drains
    }

    /// The number of nodes, if their addresses are given.
    pub(super) fn count(&self) -> Option<usize> {
        self.node.map(|_| self.members.len())
    }

    /// Whether this process is the first node, or the only process.
    pub(super) fn is_first(&self) -> bool {
        self.node.is_none_or(|node| node == 0)
    }

    /// This process's membership.
    pub(super) fn membership(&self) -> Result<Option<Membership>, ProcessesError> {
        let Some(node) = self.node else { return Ok(None) };
        Ok(Some(Membership {
            node,
            transport: self.transport.map_or_else(Transport::default, Transport::from),
            addresses: self.members.clone(),
            first_nodes: self.members.len(),
            key: self.key()?,
            cluster: "benchmark".to_owned(),
            rdma: self.rdma_port(node),
            join_timeout: JOIN_TIMEOUT,
            lease: self.lease,
            copy_bytes_per_second: self
                .copy_rate
                .map_or(Membership::COPY_BYTES_PER_SECOND, |bytes| bytes as u64),
            ..Membership::default()
        }))
    }

    /// The key of the nodes' messages over TCP, and of packets over UDP.
    fn key(&self) -> Result<Option<ClusterKey>, ProcessesError> {
        let is_verbs = self.transport == Some(TransportName::Verbs);
        match &self.cluster_key {
            _ if is_verbs && !self.trusted_network => Err(ProcessesError::OpenRdma),
            Some(_) if self.trusted_network && !is_verbs => Err(ProcessesError::KeyAndTrust),
            Some(path) => Ok(Some(ClusterKey::read(path)?)),
            None if self.trusted_network => Ok(None),
            None => Err(ProcessesError::NoKey),
        }
    }

    /// The RDMA devices that nodes take in turn.
    #[cfg(feature = "verbs")]
    pub(super) fn rdma_devices(&self) -> Vec<String> {
        self.rdma_device.clone()
    }

    /// The RDMA device and port of a node.
    fn rdma_port(&self, node: usize) -> RdmaPort {
        let device = self.rdma_device.get(node % self.rdma_device.len().max(1)).cloned();
        RdmaPort { device, ..RdmaPort::default() }
    }

    /// Runs this command in `nodes` processes with `threads` workers each. Returns whether the data were right.
    pub(super) fn run(&self, nodes: usize, threads: usize) -> Result<bool, ProcessesError> {
        if nodes == 0 {
            return Err(ProcessesError::NoNodes);
        }
        let folder =
            Folder::new(&[SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()])?;
        let key = if self.trusted_network { None } else { Some(folder.write_key("cluster.key")?) };
        let addresses = free_addresses(nodes, threads);
        let addresses = addresses.ok_or(ProcessesError::Ports(nodes * threads))?;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut started = Vec::new();
        for node in 0..nodes {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).args([
                "--node",
                &node.to_string(),
                "--members",
                &addresses.join(","),
            ]);
            if let Some(key) = &key {
                command.arg("--cluster-key").arg(key);
            }
            if node > 0 {
                // Otherwise every node would print the same error of the command.
                command.stderr(File::create(log(&folder, node))?);
            }
            started.push(Running(folder.spawn(&mut command)?));
        }
        let mut passed = true;
        for (node, running) in started.iter_mut().enumerate() {
            match running.0.wait()?.code() {
                Some(0) => {}
                Some(1) => passed = false,
                _ => {
                    return Err(ProcessesError::Failed { node, said: said(&folder, nodes) });
                }
            }
        }
        Ok(passed)
    }
}

/// The file for the standard error of a node above 0.
fn log(folder: &Folder, node: usize) -> PathBuf {
    folder.path().join(format!("node-{node}.log"))
}

/// The last line of each of them, unless all lines are equal: node 0 prints that one, too.
fn said(folder: &Folder, nodes: usize) -> String {
    let last = |node| {
        let text = std::fs::read_to_string(log(folder, node)).unwrap_or_default();
        text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    };
    let lines: Vec<_> = (1..nodes).map(last).collect();
    if lines.len() > 1 && lines.iter().all(|line| *line == lines[0]) {
        return String::new();
    }
    let spoken = (1..).zip(lines).filter_map(|(node, line)| Some((node, line?)));
    spoken.map(|(node, line)| format!("; node {node}: {line}")).collect()
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process has ended by itself, unless another one has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
