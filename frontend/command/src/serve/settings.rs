//! The settings of `gannet serve`, on the command line and in a configuration file, under the same names.
//!
//! The command line takes precedence. A file is TOML without sections:
//!
//! ```text
//! node = 0
//! members = ["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]
//! cluster-key = "/etc/gannet/cluster.key"
//! listen = "10.0.0.1:5433"
//! users = "/etc/gannet/users"
//! memory = "16GiB"
//! ```

mod membership;

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use gannet_engine::{ClusterKey, ClusterKeyError, GatewayOptions, JoinError};
use gannet_frontend::MemoryLimits;
use serde::Deserialize;
use toml::de::DeTable;

use crate::processes::TransportName;
use crate::serve::tables::TableName;
use crate::units::{bytes_option, duration_option, parse_bytes, parse_duration};

/// Default limit of connected programs with the client library.
const CLIENTS_MAX: usize = 100;
/// Maximum number of connections: each takes a file descriptor.
const CONNECTIONS_MAX: usize = 1 << 20;

/// Whether clients must use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TlsName {
    /// TLS is required.
    Required,
    /// TLS is optional.
    Offered,
}

/// All settings.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// Address to listen on for SQL clients. Port 0 means any free port, which is printed [default: 127.0.0.1:5433].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Address to offer metrics at, for Prometheus over HTTP under /metrics.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<String>,
    /// Let other hosts read the metrics, without any protection.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(crate) metrics_public: Option<bool>,
    /// Address to listen on for programs that use the client library.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) clients: Option<String>,
    /// File with the secret of those programs, which encrypts their connections. It makes no program a member: it has the
    /// form of --cluster-key, and must be another secret.
    #[arg(long, value_name = "FILE")]
    pub(crate) clients_key: Option<PathBuf>,
    /// Tables for those programs, the same on all nodes. NAME has ordered byte strings; NAME:BYTES has numbers as keys, and
    /// values of so many bytes; NAME:BYTES:ROWS or NAME::ROWS also gives the expected rows [default: 100000].
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub(crate) tables: Option<Vec<TableName>>,
    /// File of users with passwords, written by `gannet user`. Without a file, everybody on this machine may connect.
    #[arg(long, value_name = "FILE")]
    pub(crate) users: Option<PathBuf>,
    /// Certificate chain for TLS, a PEM file.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Whether SQL clients must use TLS [default: required if other hosts can connect and there is a certificate, else
    /// offered].
    #[arg(long, value_enum)]
    pub(crate) tls: Option<TlsName>,
    /// Maximum number of connections of SQL clients, and as many of programs with the client library [default: 100].
    #[arg(long)]
    pub(crate) connections_max: Option<usize>,
    /// Close connections whose client sends nothing for this long, such as 10m.
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) idle_timeout: Option<Duration>,
    /// Cancel statements that run longer, such as 30s.
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) statement_timeout: Option<Duration>,
    /// Give up statements that have waited for so long for another node that does not answer; 0s: never [default: 5s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) wait_timeout: Option<Duration>,
    /// Without --spill, cancel statements whose client takes no rows of a large result for this long [default: 60s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) unread_timeout: Option<Duration>,
    /// Time for running statements to end when the server is stopped [default: 2s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) shutdown_timeout: Option<Duration>,
    /// Nodes of a cluster in this process alone [default: 3].
    #[arg(long)]
    pub(crate) nodes: Option<usize>,
    /// Number of this node, from 0, in a cluster of processes.
    #[arg(long)]
    pub(crate) node: Option<usize>,
    /// Addresses of all nodes of a cluster of processes, in the order of their numbers. Worker i of a node has the UDP port
    /// plus i. The TCP port of the same number is used as well.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) members: Option<Vec<String>>,
    /// Addresses of some members of a cluster that has begun, for a process that joins it, or comes back to it: they tell all that the nodes
    /// have in common.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) join: Option<Vec<String>>,
    /// Where the others find a process that joins, as in --members.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<String>,
    /// How many nodes the cluster can have, those that join later included [default: 16 over UDP, else as many as --members names].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) nodes_max: Option<usize>,
    /// How many of these nodes the cluster begins with [default: all]. The process of another one is let in when it is started.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) first_nodes: Option<usize>,
    /// File with the secret of all members, which encrypts their messages: 64 hexadecimal digits, from `openssl rand -hex
    /// 32`.
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_key: Option<PathBuf>,
    /// Trust the network of members and clients: packets are neither encrypted nor authenticated.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(crate) trusted_network: Option<bool>,
    /// Name of the cluster of processes; members of other clusters are refused [default: gannet].
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster_name: Option<String>,
    /// Transport of packets between the members [default: udp].
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportName>,
    /// MTU of the members' network in bytes, as `ip link` shows [default: 1500, or more on a loopback]. Over verbs: bytes of
    /// a packet, 1024 to 4096 [default: the port's MTU].
    #[arg(long)]
    pub(crate) mtu: Option<usize>,
    /// RDMA device for the transport verbs, as `rdma link` names it [default: the first usable one].
    #[arg(long, value_name = "NAME")]
    pub(crate) rdma_device: Option<String>,
    /// Port of that device, from 1 [default: the first usable one].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rdma_port: Option<u8>,
    /// Address of that port: ipv4, ipv6, or the index of a GID [default: ipv4 if there is one].
    #[arg(long, value_name = "GID")]
    pub(crate) rdma_gid: Option<String>,
    /// How long to wait for the other members [default: 5m].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) join_timeout: Option<Duration>,
    /// How long a node may answer after the others have last confirmed that it is a member; one that stands still for longer is removed
    /// [default: 500ms].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) lease: Option<Duration>,
    /// Have transactions that only read wait until the other nodes have confirmed that this node is still a member. Use this option where
    /// the clock of a host may stand still, such as in virtual machines that are paused or moved.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(crate) confirm_reads: Option<bool>,
    /// How long a copy of a partition may be missing before another node is filled with the partition, if one has room
    /// [default: 30s].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) copies_after: Option<Duration>,
    /// Bytes that each worker of this node copies at most in a second, when the node is filled with partitions [default: 16MiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    #[serde(deserialize_with = "bytes_option")]
    pub(crate) copy_rate: Option<usize>,
    /// Keep the log of the cluster's membership and tables in this directory, synced; without one it is in memory.
    #[arg(long, value_name = "DIR")]
    pub(crate) manager_data: Option<PathBuf>,
    /// Forget what an earlier run has left in the directory of --manager-data.
    #[arg(long)]
    #[serde(skip)]
    pub(crate) begin_anew: bool,
    /// Failure domain of this node, such as its rack: the copies of each row, and logs, are spread over as many zones as possible
    /// [default: one of its own].
    #[arg(long, value_name = "NAME")]
    pub(crate) zone: Option<String>,
    /// Copies of every row, at most one per node [default: 3].
    #[arg(long)]
    pub(crate) replicas: Option<usize>,
    /// Workers of each node; in one process, one OS thread drives worker i of every node [default: all cores].
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Table memory of each node, such as 512MiB [default: its share of 70 % of the free memory].
    #[arg(long, value_parser = parse_bytes)]
    #[serde(deserialize_with = "bytes_option")]
    pub(crate) memory: Option<usize>,
    /// Memory that a statement may keep, with the rows that its transaction has read, such as 1GiB [default: 256MiB].
    #[arg(long, value_parser = parse_bytes)]
    #[serde(deserialize_with = "bytes_option")]
    pub(crate) statement_memory: Option<usize>,
    /// Memory that all statements of this process may keep together [default: 1GiB, or --statement-memory if that is more].
    #[arg(long, value_parser = parse_bytes)]
    #[serde(deserialize_with = "bytes_option")]
    pub(crate) query_memory: Option<usize>,
    /// How long what became of a client's last transaction under a token is kept, such as 90m [default: 1440m, a day].
    #[arg(long, value_parser = parse_duration)]
    #[serde(deserialize_with = "duration_option")]
    pub(crate) token_ttl: Option<Duration>,
    /// Directory for temporary files of results, sorts, groups, sets and joins that take more than half of a statement's
    /// memory.
    #[arg(long, value_name = "DIR")]
    pub(crate) spill: Option<PathBuf>,
    /// The lines of settings in the file.
    #[arg(skip)]
    #[serde(skip)]
    file: Option<SettingsFile>,
}

/// A configuration file, and the line of each setting.
#[derive(Clone, Debug)]
struct SettingsFile {
    path: PathBuf,
    lines: BTreeMap<String, usize>,
}

impl SettingsFile {
    /// The lines of settings in a valid TOML text.
    fn new(path: &Path, text: &str) -> Self {
        let line = |at: usize| text[..at].matches('\n').count() + 1;
        let table = DeTable::parse(text).map(toml::Spanned::into_inner).unwrap_or_default();
        let lines = table.keys().map(|key| (key.get_ref().to_string(), line(key.span().start)));
        Self { path: path.to_owned(), lines: lines.collect() }
    }

    /// The lines of these settings, for errors; empty if the file has none of them.
    fn places(&self, names: &[&str]) -> String {
        let named = names.iter().filter_map(|name| Some((name, self.lines.get(*name)?)));
        let places: Vec<_> = named.map(|(name, line)| format!("{name} in line {line}")).collect();
        if places.is_empty() {
            return String::new();
        }
        format!("; {} has {}", self.path.display(), places.join(", "))
    }
}

/// Why settings are refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("cannot read {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Syntax { path: PathBuf, source: toml::de::Error },
    #[error("{0}")]
    Contradiction(String),
    #[error("member {number} is {address:?}, which is no address ({reason}); use host:port")]
    Address { number: usize, address: String, reason: String },
    #[error("{name} is {address:?}, which is no address ({reason}); use host:port")]
    OtherAddress { name: &'static str, address: String, reason: String },
    #[error(transparent)]
    Key(#[from] ClusterKeyError),
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl Settings {
    /// Adds the settings of a file.
    pub(crate) fn with_file(self, path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::File { path: path.to_owned(), source })?;
        let file: Self = toml::from_str(&text)
            .map_err(|source| SettingsError::Syntax { path: path.to_owned(), source })?;
        Ok(self.or(Self { file: Some(SettingsFile::new(path, &text)), ..file }))
    }

    /// Takes out of the other's settings what are alternatives to settings that are given here.
    fn take_alternatives_of(&self, other: &mut Self) {
        if self.nodes.is_some() {
            // All settings of clusters of processes.
            (other.node, other.members, other.join_timeout) = (None, None, None);
            (other.lease, other.confirm_reads, other.manager_data) = (None, None, None);
            (other.copies_after, other.copy_rate, other.first_nodes) = (None, None, None);
            (other.zone, other.join, other.address, other.nodes_max) = (None, None, None, None);
            (other.cluster_key, other.trusted_network) = (None, None);
            (other.cluster_name, other.transport, other.mtu) = (None, None, None);
            (other.rdma_device, other.rdma_port, other.rdma_gid) = (None, None, None);
        }
        if self.node.is_some() || self.members.is_some() || self.join.is_some() {
            other.nodes = None;
        }
        if self.join.is_some() {
            (other.members, other.first_nodes, other.nodes_max) = (None, None, None);
        }
        if self.members.is_some() {
            (other.join, other.address) = (None, None);
        }
        if self.transport == Some(TransportName::Memory) {
            other.mtu = None;
        }
        if self.transport.is_some_and(|transport| transport != TransportName::Verbs) {
            (other.rdma_device, other.rdma_port, other.rdma_gid) = (None, None, None);
        }
        // Over RDMA both are meaningful.
        if self.transport.or(other.transport) != Some(TransportName::Verbs) {
            if self.cluster_key.is_some() {
                other.trusted_network = None;
            }
            if self.trusted_network == Some(true) {
                other.cluster_key = None;
            }
        }
    }

    /// Adds the other's settings, except alternatives to settings that are given here.
    fn or(self, mut other: Self) -> Self {
        self.take_alternatives_of(&mut other);
        Self {
            listen: self.listen.or(other.listen),
            metrics: self.metrics.or(other.metrics),
            metrics_public: self.metrics_public.or(other.metrics_public),
            clients: self.clients.or(other.clients),
            clients_key: self.clients_key.or(other.clients_key),
            tables: self.tables.or(other.tables),
            users: self.users.or(other.users),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            tls: self.tls.or(other.tls),
            connections_max: self.connections_max.or(other.connections_max),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            statement_timeout: self.statement_timeout.or(other.statement_timeout),
            wait_timeout: self.wait_timeout.or(other.wait_timeout),
            unread_timeout: self.unread_timeout.or(other.unread_timeout),
            shutdown_timeout: self.shutdown_timeout.or(other.shutdown_timeout),
            nodes: self.nodes.or(other.nodes),
            node: self.node.or(other.node),
            members: self.members.or(other.members),
            join: self.join.or(other.join),
            address: self.address.or(other.address),
            nodes_max: self.nodes_max.or(other.nodes_max),
            first_nodes: self.first_nodes.or(other.first_nodes),
            cluster_key: self.cluster_key.or(other.cluster_key),
            trusted_network: self.trusted_network.or(other.trusted_network),
            cluster_name: self.cluster_name.or(other.cluster_name),
            transport: self.transport.or(other.transport),
            mtu: self.mtu.or(other.mtu),
            rdma_device: self.rdma_device.or(other.rdma_device),
            rdma_port: self.rdma_port.or(other.rdma_port),
            rdma_gid: self.rdma_gid.or(other.rdma_gid),
            join_timeout: self.join_timeout.or(other.join_timeout),
            lease: self.lease.or(other.lease),
            confirm_reads: self.confirm_reads.or(other.confirm_reads),
            copies_after: self.copies_after.or(other.copies_after),
            copy_rate: self.copy_rate.or(other.copy_rate),
            manager_data: self.manager_data.or(other.manager_data),
            begin_anew: self.begin_anew,
            zone: self.zone.or(other.zone),
            replicas: self.replicas.or(other.replicas),
            threads: self.threads.or(other.threads),
            memory: self.memory.or(other.memory),
            statement_memory: self.statement_memory.or(other.statement_memory),
            query_memory: self.query_memory.or(other.query_memory),
            token_ttl: self.token_ttl.or(other.token_ttl),
            spill: self.spill.or(other.spill),
            file: self.file.or(other.file),
        }
    }

    /// The files of the certificate chain and its key.
    pub(crate) fn tls(&self) -> Result<Option<(PathBuf, PathBuf)>, SettingsError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate.clone(), key.clone()))),
            (None, None) => Ok(None),
            _ => {
                Err(self
                    .contradiction("give both of tls-cert and tls-key", &["tls-cert", "tls-key"]))
            }
        }
    }

    /// The limits for what statements keep.
    pub(crate) fn statements(&self) -> Result<MemoryLimits, SettingsError> {
        let defaults = MemoryLimits::default();
        let (statement, all) = (self.statement_memory, self.query_memory);
        if statement.zip(all).is_some_and(|(statement, all)| statement > all) {
            let text = "statement-memory is more than query-memory, which is for all statements";
            return Err(self.contradiction(text, &["statement-memory", "query-memory"]));
        }
        let statement_bytes = statement.unwrap_or(defaults.statement_bytes);
        let all_bytes = all.unwrap_or(defaults.all_bytes.max(statement_bytes));
        let statement_bytes = statement_bytes.min(all_bytes);
        let unread_timeout = self.unread_timeout.unwrap_or(defaults.unread_timeout);
        Ok(MemoryLimits { statement_bytes, all_bytes, spill: self.spill.clone(), unread_timeout })
    }

    /// Checks the ranges of numbers.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        match self.connections_max {
            Some(value) if !(1..=CONNECTIONS_MAX).contains(&value) => Err(self.contradiction(
                &format!("connections-max is {value}; use 1 to {CONNECTIONS_MAX}"),
                &["connections-max"],
            )),
            _ => Ok(()),
        }
    }

    /// The gateway for programs with the client library, if configured.
    pub(crate) fn gateway(&self) -> Result<Option<GatewayOptions>, SettingsError> {
        let has_tables = self.tables.as_ref().is_some_and(|tables| !tables.is_empty());
        let contradiction = |text| Err(self.contradiction(text, &["clients", "tables"]));
        let Some(address) = &self.clients else {
            if has_tables && self.members.is_none() && self.join.is_none() {
                return contradiction("tables are for programs that connect: give clients too");
            }
            if self.clients_key.is_some() {
                let text = "clients-key is for programs that connect: give clients too";
                return Err(self.contradiction(text, &["clients-key"]));
            }
            return Ok(None);
        };
        if !has_tables {
            return contradiction("clients needs tables: those that programs may use");
        }
        let listen = named("clients", address)?;
        Ok(Some(GatewayOptions {
            listen,
            key: self.clients_key()?,
            is_trusted_network: self.trusted_network == Some(true),
            connections_max: self.connections_max.unwrap_or(CLIENTS_MAX),
            idle_timeout: self.idle_timeout,
        }))
    }

    /// The key of programs' connections. It differs from the cluster key, whose holders can become members.
    fn clients_key(&self) -> Result<Option<ClusterKey>, SettingsError> {
        let contradiction = |text| Err(self.contradiction(text, &["clients-key", "cluster-key"]));
        let read = |path: &Option<PathBuf>| path.as_deref().map(ClusterKey::read).transpose();
        match (read(&self.clients_key)?, read(&self.cluster_key)?) {
            (None, Some(_)) => contradiction(
                "clients beside a cluster-key needs clients-key: another file with 64 hexadecimal digits, which makes no \
                 program a member",
            ),
            (Some(own), Some(of_members)) if own == of_members => contradiction(
                "clients-key and cluster-key are the same, and programs could become members: give another one",
            ),
            (key, _) => Ok(key),
        }
    }

    /// The error for settings that contradict each other, with their lines.
    fn contradiction(&self, text: &str, names: &[&str]) -> SettingsError {
        let places = self.file.as_ref().map_or_else(String::new, |file| file.places(names));
        SettingsError::Contradiction(format!("{text}{places}"))
    }
}

fn named(name: &'static str, address: &str) -> Result<SocketAddr, SettingsError> {
    resolved(address).map_err(|reason| {
        let address = address.to_owned();
        SettingsError::OtherAddress { name, address, reason }
    })
}

fn resolved(address: &str) -> Result<SocketAddr, String> {
    let mut addresses = address.to_socket_addrs().map_err(|reason| reason.to_string())?;
    addresses.next().ok_or_else(|| "it names no host".to_owned())
}

#[cfg(test)]
mod tests;
