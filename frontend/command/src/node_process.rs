//! The nodes of a cluster on this host, each a `gannet serve` process.
//!
//! *Invariants*: the system gives the number of a process that has ended to no other one before the [`NodeProcess`] is dropped,
//! as nobody waits for the process earlier.
//!
//! *Not here*: what is done with the nodes (`demo`, `bench/recovery`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use gannet_engine::Transport;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::processes::{Folder, Started, TransportName, free_addresses};

/// How the nodes are started.
pub(crate) struct NodeOptions<'o> {
    /// How many there are.
    pub(crate) count: usize,
    /// Copies of every row; by default those of `gannet serve`.
    pub(crate) replicas: Option<usize>,
    /// Workers of each.
    pub(crate) threads: usize,
    /// Table memory of each in bytes; by default that of `gannet serve`.
    pub(crate) memory: Option<usize>,
    pub(crate) transport: TransportName,
    /// The file of the cluster's key.
    pub(crate) key: &'o Path,
    /// Further arguments of `gannet serve`.
    pub(crate) further: Vec<OsString>,
}

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("cannot prepare the nodes: {0}")]
    System(#[from] io::Error),
    #[error("no {0} free ports follow one another; use fewer nodes or threads")]
    Ports(usize),
    #[error("node {node} did not start: {log}")]
    NotStarted { node: usize, log: String },
}

/// A node's process. Dropping this stops the process.
pub(crate) struct NodeProcess {
    number: usize,
    child: Child,
    output: BufReader<ChildStdout>,
    log: PathBuf,
    /// Where it serves SQL.
    address: String,
    started: Started,
    is_killed: bool,
    is_told_to_stop: bool,
}

/// The processes of all nodes of a cluster. Dropping this stops all at once, so that none waits for the others.
pub(crate) struct NodeProcesses(Vec<NodeProcess>);

impl Deref for NodeProcesses {
    type Target = [NodeProcess];

    fn deref(&self) -> &[NodeProcess] {
        &self.0
    }
}

impl DerefMut for NodeProcesses {
    fn deref_mut(&mut self) -> &mut [NodeProcess] {
        &mut self.0
    }
}

impl Drop for NodeProcesses {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(NodeProcess::stop);
    }
}

impl NodeProcess {
    /// Starts the nodes of a cluster, and waits until all of them listen.
    pub(crate) fn start_all(
        folder: &Folder,
        options: &NodeOptions<'_>,
    ) -> Result<NodeProcesses, NodeError> {
        let &NodeOptions { count, threads, .. } = options;
        let addresses = free_addresses(count, threads);
        let addresses = addresses.ok_or(NodeError::Ports(count.saturating_mul(threads)))?;
        let members: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut nodes = NodeProcesses(Vec::new());
        for number in 0..count {
            nodes.0.push(Self::start(number, &members.join(","), folder, options)?);
        }
        for node in nodes.iter_mut() {
            node.address = node.announced("listening on ")?;
        }
        Ok(nodes)
    }

    fn start(
        number: usize,
        members: &str,
        folder: &Folder,
        options: &NodeOptions<'_>,
    ) -> Result<Self, NodeError> {
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
            .arg(options.key)
            .args(["--threads", &options.threads.to_string()])
            .args(["--transport", Transport::from(options.transport).name()])
            .args(&options.further)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Ctrl-C must reach the program of the user alone.
            .process_group(0);
        if options.transport == TransportName::Verbs {
            // RDMA packets are unencrypted, which a node accepts only with this option.
            command.arg("--trusted-network");
        }
        if let Some(memory) = options.memory {
            command.args(["--memory", &memory.to_string()]);
        }
        if let Some(replicas) = options.replicas {
            command.args(["--replicas", &replicas.to_string()]);
        }
        let mut child = folder.spawn(&mut command)?;
        let output = child.stdout.take().expect("standard output is a pipe, as set above");
        let started = folder.started().clone();
        let output = BufReader::new(output);
        let address = String::new();
        let (is_killed, is_told_to_stop) = (false, false);
        Ok(Self { number, child, output, log, address, started, is_killed, is_told_to_stop })
    }

    /// The rest of the next line of the node's output, which starts with these words.
    pub(crate) fn announced(&mut self, words: &str) -> Result<String, NodeError> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().strip_prefix(words).map(str::to_owned).ok_or_else(|| {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            NodeError::NotStarted { node: self.number, log: log.trim_end().to_owned() }
        })
    }

    /// Where the node serves SQL.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The number of the process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process in the middle of what it does, by SIGKILL.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.is_killed = true;
        Ok(())
    }

    /// Whether the process has ended, or does so because of [`Self::kill`].
    pub(crate) fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // The process is a child of this one that nobody has waited for, so the system knows it.
        let status = self.id().map(|id| waitid(Id::Pid(id), flags));
        self.is_killed || !matches!(status, Some(Ok(WaitStatus::StillAlive)))
    }

    /// Tells the process to stop, once.
    fn stop(&mut self) {
        if let Some(id) = self.id().filter(|_| !self.is_told_to_stop) {
            // The process may have ended by itself; then this has no effect.
            let _ = kill(id, Signal::SIGTERM);
        }
        self.is_told_to_stop = true;
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().map(Pid::from_raw)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.stop();
        let _ = self.child.wait();
        self.started.forget(&self.child);
    }
}
