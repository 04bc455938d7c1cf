//! The needs of a cluster of processes on this host: free addresses, a shared key, and a transport.
//!
//! *Invariants*: each address has as many consecutive ports as a node has threads, from 10,000 to 32,767; all were free
//! for UDP and TCP at that moment. A folder has mode 700, a key's file 600. A signal ends the started processes by
//! SIGTERM, removes the folder, and ends this process with 128 + the signal's number. No signal goes to a process that
//! was forgotten, as its number may be that of another one.
//!
//! *Not here*: the processes themselves (`node_process`, `bench/symmetric`).

use std::fs::{self, OpenOptions};
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use clap::ValueEnum;
use gannet_engine::Transport;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

/// The first port to try: above those of services, below those that the system assigns.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 32_767;
/// Range of random starting points, so that two searches at the same moment seldom collide.
const STARTS: u32 = 20_000;

/// The transport of packets between processes, as a setting.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransportName {
    /// Datagrams, between any hosts.
    Udp,
    /// Memory that processes of one host share.
    Memory,
    /// Datagrams of RDMA devices, on a trusted network; only in builds with the feature `verbs`.
    Verbs,
}

impl From<TransportName> for Transport {
    fn from(name: TransportName) -> Self {
        match name {
            TransportName::Udp => Self::Udp,
            TransportName::Memory => Self::Memory,
            TransportName::Verbs => Self::Verbs,
        }
    }
}

/// Processes that end if a signal ends this one.
#[derive(Clone, Default)]
pub(crate) struct Started(Arc<Mutex<Vec<Pid>>>);

impl Started {
    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        // Nothing panics while it is held, so the data behind a poisoned lock are whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has been waited for: its number may be that of another one from now on.
    pub(crate) fn forget(&self, process: &Child) {
        self.lock().retain(|started| u32::try_from(started.as_raw()) != Ok(process.id()));
    }
}

/// A folder for files of the processes. The folder is removed at the end, also if a signal ends this process.
pub(crate) struct Folder {
    path: PathBuf,
    /// The processes started here.
    started: Started,
}

impl Folder {
    /// Creates a folder. Each of these signals removes the folder and ends this process, with exit code 128 + the signal's
    /// number.
    pub(crate) fn new(ended_by: &[SignalKind]) -> io::Result<Self> {
        let number = getrandom::u64()?;
        let path = std::env::temp_dir().join(format!("gannet-{number:016x}"));
        let folder = Self { path, started: Started::default() };
        let (path, started) = (folder.path.clone(), folder.started.clone());
        on_signal(ended_by, move |number| {
            // The lock is held to the end: `Drop` waits for it, so the exit code is always the signal's.
            let started = started.lock();
            for process in started.iter() {
                // The process may have ended by itself.
                let _ = kill(*process, Signal::SIGTERM);
            }
            // Remaining files lie in the system's folder for temporary files.
            let _ = fs::remove_dir_all(&path);
            std::process::exit(128 + number)
        })?;
        fs::DirBuilder::new().mode(0o700).create(&folder.path)?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a process that ends if a signal ends this one.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut started = self.started.lock();
        let child = command.spawn()?;
        started.extend(i32::try_from(child.id()).ok().map(Pid::from_raw));
        Ok(child)
    }

    /// The processes started here.
    pub(crate) fn started(&self) -> &Started {
        &self.started
    }

    /// Writes a file with a new random key.
    pub(crate) fn write_key(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
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
        let _signal_has_come = self.started.lock();
        // Remaining files lie in the system's folder for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Calls `act` with the signal's number when one of these signals arrives.
fn on_signal(signals: &[SignalKind], act: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let arriving = |kind: &SignalKind| Ok((kind.as_raw_value(), signal(*kind)?));
    let mut arriving = signals.iter().map(arriving).collect::<io::Result<Vec<_>>>()?;
    drop(entered);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let number = runtime.block_on(poll_fn(|context| {
            let arrived = arriving.iter_mut().find_map(|(number, signal)| {
                signal.poll_recv(context).is_ready().then_some(*number)
            });
            arrived.map_or(Poll::Pending, Poll::Ready)
        }));
        act(number);
    })?;
    Ok(())
}

/// Addresses on the loopback for `nodes` nodes. Each has `threads` consecutive ports that are free for UDP and TCP.
pub(crate) fn free_addresses(nodes: usize, threads: usize) -> Option<Vec<SocketAddr>> {
    let count = nodes.saturating_mul(threads);
    let is_free = |port: u16| {
        let address = (Ipv4Addr::LOCALHOST, port);
        UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
    };
    let start = FIRST_PORT + u16::try_from(getrandom::u32().ok()? % STARTS).ok()?;
    let mut found = 0;
    for port in start..=LAST_PORT {
        found = if is_free(port) { found + 1 } else { 0 };
        if found == count.max(1) {
            let first = usize::from(port) + 1 - found;
            let ports = (first..).step_by(threads.max(1)).take(nodes);
            let address = |port| Some((Ipv4Addr::LOCALHOST, u16::try_from(port).ok()?).into());
            return ports.map(address).collect();
        }
    }
    None
}
