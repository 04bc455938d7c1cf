//! A benchmark on a cluster of processes: each runs the same command for its own node, as FaSST's did.
//!
//! The first process of them prints the report.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use gannet_engine::{ClusterKey, ClusterKeyError, Membership, RdmaPort, Transport};

use crate::processes::{Folder, TransportName, free_addresses};

/// How long the other processes are waited for.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of benchmarks on processes.
#[derive(Args)]
pub(super) struct Processes {
    /// Make each node a process of this host.
    #[arg(long, global = true)]
    processes: bool,
    /// What carries packets: between processes [default: udp], or those of the RPC echo [default: memory].
    #[arg(long, global = true, value_enum)]
    pub(super) transport: Option<TransportName>,
    /// RDMA devices for the transport verbs; node i takes the i-th in turn [default: the first that is fit].
    #[arg(long, global = true, value_delimiter = ',', requires = "transport")]
    rdma_device: Vec<String>,
    /// Leave packets unencrypted, as on a network that only the cluster uses.
    #[arg(long, global = true, requires = "processes")]
    trusted_network: bool,
    /// Be this node of the processes.
    #[arg(long, global = true, hide = true, requires = "member_addresses")]
    member: Option<usize>,
    #[arg(long, global = true, hide = true, value_delimiter = ',')]
    member_addresses: Vec<SocketAddr>,
    #[arg(long, global = true, hide = true)]
    member_key: Option<PathBuf>,
}

/// Why the processes could not run.
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
    #[error("node {0} ended without a report; what node 0 says is above")]
    Failed(usize),
}

impl Processes {
    /// Whether this process is to start the others.
    pub(super) fn starts(&self) -> bool {
        self.processes && self.member.is_none()
    }

    /// Whether this process is one of them.
    pub(super) fn is_member(&self) -> bool {
        self.member.is_some()
    }

    /// Whether this process is to write the report.
    pub(super) fn reports(&self) -> bool {
        self.member.is_none_or(|node| node == 0)
    }

    /// This process's place among them.
    pub(super) fn membership(&self) -> Result<Option<Membership>, ProcessesError> {
        let Some(node) = self.member else { return Ok(None) };
        Ok(Some(Membership {
            node,
            transport: self.transport.map_or_else(Transport::default, Transport::from),
            addresses: self.member_addresses.clone(),
            key: self.member_key.as_deref().map(ClusterKey::read).transpose()?,
            cluster: "benchmark".to_owned(),
            mtu: None,
            rdma: self.rdma_port(node),
            join_timeout: JOIN_TIMEOUT,
        }))
    }

    /// The RDMA devices that nodes take in turn.
    #[cfg(feature = "verbs")]
    pub(super) fn rdma_devices(&self) -> Vec<String> {
        self.rdma_device.clone()
    }

    /// Where a node finds its RDMA network.
    fn rdma_port(&self, node: usize) -> RdmaPort {
        let device = self.rdma_device.get(node % self.rdma_device.len().max(1)).cloned();
        RdmaPort { device, ..RdmaPort::default() }
    }

    /// Runs this command in `nodes` processes with `threads` workers each; whether the data were right.
    pub(super) fn run(&self, nodes: usize, threads: usize) -> Result<bool, ProcessesError> {
        if nodes == 0 {
            return Err(ProcessesError::NoNodes);
        }
        let folder = Folder::new()?;
        let key = if self.trusted_network { None } else { Some(folder.write_key()?) };
        let addresses = free_addresses(nodes, threads);
        let addresses = addresses.ok_or(ProcessesError::Ports(nodes * threads))?;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut started = Vec::new();
        for node in 0..nodes {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).args([
                "--member",
                &node.to_string(),
                "--member-addresses",
                &addresses.join(","),
            ]);
            if let Some(key) = &key {
                command.arg("--member-key").arg(key);
            }
            if node > 0 {
                // What is wrong with the command would be said as often as there are nodes.
                command.stderr(Stdio::null());
            }
            started.push(Running(command.spawn()?));
        }
        let mut passed = true;
        for (node, running) in started.iter_mut().enumerate() {
            match running.0.wait()?.code() {
                Some(0) => {}
                Some(1) => passed = false,
                _ => return Err(ProcessesError::Failed(node)),
            }
        }
        Ok(passed)
    }
}

/// A process that ends with this one's interest in it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended by itself, unless another has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
