//! What the processes of a cluster on this host need: free addresses, a key that they share, and a transport.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use gannet_engine::Transport;
use serde::Deserialize;

/// Where free ports are looked for: above those of services, below those that the system gives out.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 32_767;
/// Whoever looks at the same moment begins elsewhere, up to so many ports behind the first.
const STARTS: u32 = 20_000;

/// What carries packets between processes, as a setting.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransportName {
    /// Datagrams, between any hosts.
    Udp,
    /// Memory that processes of one host share.
    Memory,
    /// Datagrams of RDMA devices, on a network that is trusted; only in a build with the feature `verbs`.
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

/// A folder for what the processes need, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> io::Result<Self> {
        let number = getrandom::u64()?;
        let path = std::env::temp_dir().join(format!("gannet-{number:016x}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file with a key that nobody else has.
    pub(crate) fn write_key(&self) -> io::Result<PathBuf> {
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

/// Addresses on the loopback of `nodes` nodes with a worker each for `threads` ports that are free, for UDP and for TCP.
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
