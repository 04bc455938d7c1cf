//! Recovery of a cluster of `gannet serve` processes on this host, one of which is killed by SIGKILL.
//!
//! ```text
//! nodes that live on ◀── probes, a thread for each partition    write one row of it again and again
//!                    ◀── clients, a thread each                 write random rows
//! ```
//! TATP needs the rows in its own process, so clients change single rows instead.
//!
//! *Invariants*: a write counts that began after the signal was sent.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use gannet_benchmarks::recovery::{
    BEFORE, KillReport, RecoveryReport, RecoverySettings, Watch, keys_of_partitions,
};
use gannet_benchmarks::{Progress, seeded};
use gannet_engine::{
    Abort, Client, ClientError, ClientOptions, ClusterKey, ClusterKeyError, Failure, Outcome,
    TableId, Transport,
};
use rand::RngExt;
use tokio::signal::unix::SignalKind;

use crate::node_process::{NodeError, NodeOptions, NodeProcess, NodeProcesses};
use crate::processes::{Folder, TransportName};

/// The table of the probes.
const PROBES: &str = "recovery_probe";
/// The table of the clients.
const ROWS: &str = "recovery_rows";
/// Bytes of its values, as many as TATP's subscribers have.
const ROW_BYTES: usize = 40;
/// Rows that a transaction loads.
const LOADED_AT_ONCE: usize = 200;
/// Pause of a client whose node did not run its transaction.
const PAUSE: Duration = Duration::from_millis(1);

/// Why the processes cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("cannot prepare the nodes: {0}")]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Key(#[from] ClusterKeyError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the rows could not be loaded: {0}; use fewer --subscribers, or more --memory")]
    NotLoaded(String),
    #[error("a node said that it takes programs at {0:?}; run the same program again")]
    Address(String),
}

/// Kills nodes while `clients` clients change `rows` rows. Ends after a kill from which a partition did not come back.
pub(super) fn run(
    settings: &RecoverySettings,
    rows: u64,
    clients: usize,
    (transport, lease): (TransportName, Duration),
) -> Result<RecoveryReport, RecoveryError> {
    let cluster = &settings.cluster;
    let progress = Progress::new("recovery");
    let folder =
        Folder::new(&[SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()])?;
    let key = folder.write_key("cluster.key")?;
    let clients_key = folder.write_key("clients.key")?;
    let tables = format!("{PROBES}:8:{},{ROWS}:{ROW_BYTES}:{rows}", cluster.partitions);
    let further = ["--clients", "127.0.0.1:0", "--tables", tables.as_str(), "--clients-key"];
    let mut further: Vec<_> = further.iter().map(OsString::from).collect();
    further.push(clients_key.clone().into_os_string());
    further.push(format!("--lease={}ms", lease.as_millis()).into());
    let options = NodeOptions {
        count: cluster.nodes,
        replicas: Some(cluster.replicas),
        threads: cluster.threads,
        memory: cluster.memory_limit_bytes,
        transport,
        key: &key,
        further,
    };
    let bench = Bench { settings, rows, clients, key: ClusterKey::read(&clients_key)? };
    let mut kills = Vec::new();
    for number in 0..settings.kills {
        let node = number % cluster.nodes;
        progress.say(format!("kill {} of {}, of node {node}", number + 1, settings.kills));
        let kill = bench.kill(NodeProcess::start_all(&folder, &options)?, node)?;
        let is_back = kill.recovery_ms.is_some();
        kills.push(kill);
        if !is_back {
            break;
        }
    }
    let mut texts = settings.texts();
    texts.insert("clients", clients.to_string());
    let carrier = Transport::from(transport).name();
    let (nodes, threads) = (cluster.nodes, cluster.threads);
    let topology = format!("{nodes} processes over {carrier}, {threads} OS threads in each");
    Ok(RecoveryReport::new(texts, topology, kills))
}

/// What is the same for all kills.
struct Bench<'s> {
    settings: &'s RecoverySettings,
    rows: u64,
    clients: usize,
    /// The key of clients.
    key: ClusterKey,
}

impl Bench<'_> {
    /// Kills one of some nodes under load, and waits until all partitions are back.
    fn kill(&self, mut nodes: NodeProcesses, node: usize) -> Result<KillReport, RecoveryError> {
        let mut living = Vec::new();
        for (number, process) in nodes.iter_mut().enumerate() {
            if number != node {
                living.push(self.connect(process)?);
            }
        }
        self.load(&living)?;
        let (settings, rows) = (self.settings, self.rows);
        let warmup = settings.warmup.max(BEFORE);
        let watch = &Watch::new(settings.cluster.partitions, self.clients, warmup);
        let keys = keys_of_partitions(settings.cluster.partitions);
        std::thread::scope(|scope| {
            for ((partition, key), client) in (0..).zip(keys).zip(living.iter().cycle()) {
                scope.spawn(move || probe(watch, client, partition, key));
            }
            for (lane, client) in (0..self.clients).zip(living.iter().cycle()) {
                let stream = (settings.seed, lane as u64);
                scope.spawn(move || change_rows(watch, client, lane, stream, rows));
            }
            watch.pause(warmup);
            let killed = watch.kill(|| nodes[node].kill());
            if killed.is_ok() && watch.wait_until_back(settings.timeout) {
                watch.wait_for_report();
            }
            watch.end();
            killed
        })?;
        let report = KillReport::new(node, watch.recovery());
        // They have nothing to keep, and end sooner so.
        nodes.iter_mut().try_for_each(NodeProcess::kill)?;
        Ok(report)
    }

    /// A client of a node, and the tables there.
    fn connect(&self, process: &mut NodeProcess) -> Result<Connected, RecoveryError> {
        let address = process.announced("programs connect to ")?;
        let address: SocketAddr = address.parse().map_err(|_| RecoveryError::Address(address))?;
        let client = Client::connect(ClientOptions {
            addresses: vec![address],
            key: Some(self.key.clone()),
            timeout: self.settings.timeout,
        })?;
        let (probes, rows) = (client.table(PROBES)?, client.table(ROWS)?);
        Ok(Connected { client, probes, rows })
    }

    /// Loads the rows, each client its share of them.
    fn load(&self, living: &[Connected]) -> Result<(), RecoveryError> {
        let shares = self.clients as u64;
        std::thread::scope(|scope| {
            let loaders: Vec<_> = (0..shares)
                .zip(living.iter().cycle())
                .map(|(share, client)| {
                    let rows = share * self.rows / shares..(share + 1) * self.rows / shares;
                    scope.spawn(move || load(client, rows))
                })
                .collect();
            loaders
                .into_iter()
                .try_for_each(|loader| loader.join().expect("a loader returns its errors"))
        })
    }
}

/// A client of a node, and the tables there.
struct Connected {
    client: Client,
    probes: TableId,
    rows: TableId,
}

impl Connected {
    /// Writes rows in a transaction.
    fn write(
        &self,
        table: TableId,
        keys: Range<u64>,
        value: &[u8],
    ) -> Result<Outcome<(), Abort>, ClientError> {
        self.client.run(|tx| keys.clone().try_for_each(|key| tx.put(table, key, value)))
    }
}

fn load(client: &Connected, rows: Range<u64>) -> Result<(), RecoveryError> {
    for first in rows.clone().step_by(LOADED_AT_ONCE) {
        let keys = first..rows.end.min(first + LOADED_AT_ONCE as u64);
        match client.write(client.rows, keys, &[0; ROW_BYTES])? {
            Outcome::Committed(()) => {}
            Outcome::Aborted(abort) | Outcome::Failed(abort) => {
                return Err(RecoveryError::NotLoaded(abort.to_string()));
            }
            Outcome::Panicked(message) => return Err(RecoveryError::NotLoaded(message)),
            Outcome::Unknown => {
                return Err(RecoveryError::NotLoaded(Failure::Unknown.to_string()));
            }
        }
    }
    Ok(())
}

/// Writes the row of a partition again and again.
fn probe(watch: &Watch, client: &Connected, partition: u16, key: u64) {
    let mut number = 0_u64;
    while !watch.is_over() {
        let is_after = watch.is_dead();
        match client.write(client.probes, key..key + 1, &number.to_le_bytes()) {
            Ok(Outcome::Committed(())) => {
                if is_after {
                    watch.is_back(partition);
                }
                number += 1;
            }
            // Without an outcome it goes on: what became of one write does not matter.
            Ok(_) | Err(_) => std::thread::park_timeout(PAUSE),
        }
    }
}

/// Changes random rows one after the other.
fn change_rows(
    watch: &Watch,
    client: &Connected,
    lane: usize,
    (seed, stream): (u64, u64),
    rows: u64,
) {
    let mut random = seeded(seed, stream + 1);
    while !watch.is_over() {
        let key = random.random_range(0..rows);
        let value = [random.random::<u8>(); ROW_BYTES];
        match client.write(client.rows, key..key + 1, &value) {
            Ok(Outcome::Committed(())) => watch.count(lane),
            Ok(_) | Err(_) => std::thread::park_timeout(PAUSE),
        }
    }
}
