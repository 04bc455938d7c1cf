//! RPC echo: how many requests a core answers, without transactions.
//!
//! 32-byte requests and responses, 20 coroutines per worker, each core both client and server. A coroutine sends a batch of b
//! requests, and waits for all responses.
//!
//! ```text
//! uncoalesced   b + 1 nodes, one request to each other node: the figure of FaSST section 4.5
//! coalesced     2 nodes, all b requests in one packet
//! ```
//!
//! The bare transport runs beside each: as many packets of the same size in flight between the same nodes, without sessions
//! or coroutines. The rates of packets are compared. An echo takes two packets for each uncoalesced request, or for each
//! coalesced batch.
//!
//! *Source*: FaSST section 4.5.

mod bare;
mod echo;
mod port;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use core_affinity::CoreId;
use gannet_benchmarks::{
    BenchmarkError, Check, Latency, Report, TransactionReport, TransportReport, Verification,
    cores_used,
};
use gannet_rpc::Port;
use hdrhistogram::Histogram;

use bare::bare;
use echo::{Measured, echo};
use port::{THREADS_APART, ThreadEndpoints};

const PAYLOAD_BYTES: usize = 32;
/// The number of nodes of an echo between two processes.
const NODES_ACROSS: usize = 2;

/// The transport of the packets.
#[derive(Clone, Debug)]
pub enum EchoTransport {
    /// Rings in this process.
    Memory,
    /// Sockets on the loopback.
    Udp,
    /// Queue pairs of these RDMA devices, which nodes take in turn; without names, of any device.
    #[cfg(feature = "verbs")]
    Verbs(Vec<String>),
    /// Rings in memory that two processes share.
    MemoryAcross(Across),
    /// Sockets between two processes.
    UdpAcross(Across),
}

/// This process's side of an echo between two processes. Only the coalesced echo runs then.
#[derive(Clone, Debug)]
pub struct Across {
    /// The node of this process.
    pub node: usize,
    /// Addresses of both nodes.
    pub addresses: Vec<SocketAddr>,
}

/// The settings of an echo.
#[derive(Clone, Debug)]
pub struct EchoSettings {
    /// Requests per batch.
    pub batch: usize,
    /// OS threads, if all nodes of a worker are on one thread.
    pub threads: usize,
    /// Whether two threads on two cores share the nodes, so that packets cross cores. Over a network this is always so.
    pub is_apart: bool,
    /// The transport of the packets.
    pub transport: EchoTransport,
    /// Whether datagrams are encrypted.
    pub with_key: bool,
    /// Coroutines per worker.
    pub coroutines: usize,
    /// Length of each measured interval.
    pub duration: Duration,
    /// Length of the warm-up before each.
    pub warmup: Duration,
}

impl EchoSettings {
    fn across(&self) -> Option<&Across> {
        match &self.transport {
            EchoTransport::MemoryAcross(across) | EchoTransport::UdpAcross(across) => Some(across),
            EchoTransport::Memory | EchoTransport::Udp => None,
            #[cfg(feature = "verbs")]
            EchoTransport::Verbs(_) => None,
        }
    }

    fn is_apart(&self) -> bool {
        self.is_apart || !matches!(self.transport, EchoTransport::Memory)
    }

    fn threads(&self) -> usize {
        match self.across() {
            Some(_) => 1,
            None if self.is_apart() => THREADS_APART,
            None => self.threads,
        }
    }

    fn topology(&self) -> String {
        match self.across() {
            Some(across) => {
                format!("one node on core {}, the other in another process", self.core(across.node))
            }
            None if self.is_apart() => "2 OS threads on 2 cores share the nodes".to_owned(),
            None => format!("{} OS threads, thread i drives worker i of every node", self.threads),
        }
    }

    /// The core of a thread, or of a node that is alone in its process.
    fn core(&self, thread: usize) -> usize {
        thread % std::thread::available_parallelism().map_or(1, usize::from)
    }
}

/// Runs the echo in both ways, and the bare transport.
///
/// # Errors
/// [`BenchmarkError::Setting`] for sizes out of range; [`BenchmarkError::Udp`] if there are no sockets.
///
/// # Panics
/// If a thread cannot be started.
pub fn run(settings: &EchoSettings) -> Result<Report, BenchmarkError> {
    check(settings)?;
    match &settings.transport {
        EchoTransport::Memory if settings.is_apart => {
            compare(settings, |nodes| Ok(port::memory_apart(nodes)))
        }
        EchoTransport::Memory => {
            compare(settings, |nodes| Ok(port::memory_together(settings.threads, nodes)))
        }
        EchoTransport::Udp => compare(settings, |nodes| port::udp(nodes, settings.with_key)),
        #[cfg(feature = "verbs")]
        EchoTransport::Verbs(devices) => compare(settings, |nodes| port::verbs(nodes, devices)),
        EchoTransport::UdpAcross(across) => {
            Ok(one_side(settings, port::udp_local(across, settings.with_key)?))
        }
        EchoTransport::MemoryAcross(across) => Ok(one_side(settings, port::memory_local(across)?)),
    }
}

/// Runs the coalesced echo with the other process.
fn one_side<P: Port>(settings: &EchoSettings, threads: Vec<ThreadEndpoints<P>>) -> Report {
    let across = Shape { name: "echo, coalesced", nodes: NODES_ACROSS, messages: settings.batch };
    let measured = across.echo(settings, threads);
    report(settings, &[(across, measured)], Vec::new())
}

/// A way to run an echo.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    nodes: usize,
    /// Messages in each packet.
    messages: usize,
}

impl Shape {
    fn echo<P: Port>(
        &self,
        settings: &EchoSettings,
        threads: Vec<ThreadEndpoints<P>>,
    ) -> Vec<Measured> {
        let clients: usize =
            threads.iter().map(|endpoints| endpoints.len() * settings.coroutines).sum();
        let running = AtomicUsize::new(clients);
        on_threads(settings, threads, |endpoints| echo(settings, endpoints, &running))
    }
}

/// Runs each shape, and the bare transport in the same shape right after it.
fn compare<P: Port>(
    settings: &EchoSettings,
    ports: impl Fn(usize) -> Result<Vec<ThreadEndpoints<P>>, BenchmarkError>,
) -> Result<Report, BenchmarkError> {
    let batch = settings.batch;
    let shapes = [
        Shape { name: "echo, uncoalesced", nodes: batch + 1, messages: 1 },
        Shape { name: "echo, coalesced", nodes: 2, messages: batch },
    ];
    let cores = cores_used(settings.threads()) as f64;
    let (mut echoes, mut transport) = (Vec::new(), Vec::new());
    for shape in shapes {
        let measured = shape.echo(settings, ports(shape.nodes)?);
        let bounced = on_threads(settings, ports(shape.nodes)?, |endpoints| {
            bare(settings, endpoints, shape.messages)
        });
        let rpc_packets = 2.0 * rate(&measured) / shape.messages as f64;
        let bare_packets = rate(&bounced);
        transport.push(TransportReport {
            name: shape.name,
            packets_per_second_per_core: bare_packets / cores,
            rpc_packets_per_second_per_core: rpc_packets / cores,
            ratio: rpc_packets / bare_packets,
        });
        echoes.push((shape, measured));
    }
    Ok(report(settings, &echoes, transport))
}

fn rate(measured: &[Measured]) -> f64 {
    measured.iter().map(|one| one.requests as f64 / one.seconds.max(1e-9)).sum()
}

fn report(
    settings: &EchoSettings,
    echoes: &[(Shape, Vec<Measured>)],
    transport: Vec<TransportReport>,
) -> Report {
    let cores = cores_used(settings.threads());
    let row = |(shape, measured): &(Shape, Vec<Measured>)| {
        let requests = measured.iter().map(|one| one.requests).sum();
        TransactionReport {
            name: shape.name,
            attempted: requests,
            succeeded: requests,
            rate: rate(measured),
            latency_us: Latency::of(&together(measured)),
        }
    };
    let sum = |field: fn(&Measured) -> u64| {
        echoes.iter().flat_map(|(_, measured)| measured).map(|one| i128::from(field(one))).sum()
    };
    let checks = vec![
        Check::equal("responses that differ from their request", 0, sum(|one| one.mismatches)),
        Check::equal("requests unanswered", 0, sum(|one| one.unanswered)),
    ];
    let first = &echoes[0].1;
    let requests_per_second = rate(first);
    let nodes: Vec<_> = echoes.iter().map(|(shape, _)| shape.nodes.to_string()).collect();
    let transport_name = match settings.transport {
        EchoTransport::Memory => "memory",
        EchoTransport::MemoryAcross(_) => "memory of two processes",
        #[cfg(feature = "verbs")]
        EchoTransport::Verbs(_) => "verbs",
        EchoTransport::Udp | EchoTransport::UdpAcross(_) if settings.with_key => "udp, sealed",
        EchoTransport::Udp | EchoTransport::UdpAcross(_) => "udp",
    };
    Report {
        workload: "rpc",
        settings: BTreeMap::from([
            ("batch", settings.batch.to_string()),
            ("nodes", nodes.join(" and ")),
            ("threads", settings.threads().to_string()),
            ("transport", transport_name.to_owned()),
            ("coroutines", settings.coroutines.to_string()),
            ("payload bytes", PAYLOAD_BYTES.to_string()),
        ]),
        seconds: first[0].seconds,
        cores,
        topology: settings.topology(),
        durability: "none",
        load: None,
        attempted_per_second: requests_per_second,
        committed_per_second: requests_per_second,
        committed_per_second_per_core: requests_per_second / cores as f64,
        rows_per_second: None,
        aborts: BTreeMap::new(),
        counted: BTreeMap::new(),
        transactions: echoes.iter().map(row).collect(),
        latency_us: Latency::of(&together(first)),
        moves: None,
        floor: None,
        transport,
        verify: Verification::new(checks),
    }
}

fn check(settings: &EchoSettings) -> Result<(), BenchmarkError> {
    let range = |setting, value: usize, max: usize| {
        if (1..=max).contains(&value) {
            return Ok(());
        }
        let (value, allowed) = (value.to_string(), format!("1 to {max}"));
        Err(BenchmarkError::Setting { setting, value, allowed })
    };
    // The batch must fit a packet of the coalesced echo.
    range("--batch", settings.batch, 64)?;
    range("--threads", settings.threads, 256)?;
    range("--coroutines", settings.coroutines, 256)?;
    if let Some(Across { node, addresses }) = settings.across() {
        let other = |setting, value: String, allowed: &str| {
            Err(BenchmarkError::Setting { setting, value, allowed: allowed.to_owned() })
        };
        if addresses.len() != NODES_ACROSS {
            let value = format!("a list of {}", addresses.len());
            return other("--members", value, "two, one for each node");
        }
        if *node > 1 {
            return other("--node", node.to_string(), "0 or 1");
        }
    }
    Ok(())
}

/// Runs each thread's nodes on an OS thread, pinned to a core if the topology requires that.
fn on_threads<P: Port>(
    settings: &EchoSettings,
    threads: Vec<ThreadEndpoints<P>>,
    run: impl Fn(ThreadEndpoints<P>) -> Measured + Sync,
) -> Vec<Measured> {
    let own_node = settings.across().map_or(0, |across| across.node);
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |(thread, endpoints)| {
            let core = settings.is_apart().then(|| settings.core(thread + own_node));
            scope.spawn(move || {
                // If the host does not allow pinning, the scheduler decides.
                core.map(|id| core_affinity::set_for_current(CoreId { id }));
                run(endpoints)
            })
        };
        let threads: Vec<_> = threads.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("an echo does not panic")).collect()
    })
}

fn together(measured: &[Measured]) -> Histogram<u64> {
    let mut sum = measured[0].latencies.clone();
    for one in &measured[1..] {
        sum.add(&one.latencies).expect("all histograms have the same bounds");
    }
    sum
}
