//! The nodes of an echo, their transports, and the threads that drive them.
//!
//! ```text
//! together   thread i drives worker i of every node: packets cross no core
//! apart      two threads, each on a core of its own, share the nodes: between two nodes all packets cross cores
//! ```

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use gannet_benchmarks::BenchmarkError;
use gannet_rpc::{
    ClusterKey, Identity, MemoryFabric, MemoryPort, Parking, SharedRings, UdpOptions, UdpPort,
};
#[cfg(feature = "verbs")]
use gannet_rpc::{VerbsOptions, VerbsPort};

use crate::rpc_echo::Across;

const MTU_BYTES: usize = 4 << 10;
const RING_BYTES: usize = 16 << 10;
/// Bytes of a ring between two threads: more packets wait, because the other thread may be busy.
const RING_BYTES_APART: usize = 64 << 10;
/// Threads of the topology *apart*.
pub(super) const THREADS_APART: usize = 2;
/// How often a process calls the other one before it gives up.
const CALLS_MAX: usize = 600;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// A key that protects nothing, and costs as much as any.
const KEY: [u8; 32] = [7; 32];

/// One node's worker.
pub(super) struct EndpointPort<P> {
    pub(super) node: u16,
    pub(super) worker: u16,
    pub(super) nodes: usize,
    pub(super) port: P,
}

/// The workers of one thread.
pub(super) type ThreadEndpoints<P> = Vec<EndpointPort<P>>;

impl<P> EndpointPort<P> {
    pub(super) fn identity(&self, coroutines: u16) -> Identity {
        Identity {
            cluster_id: 1,
            epoch: 1,
            node: self.node,
            worker: self.worker,
            coroutines,
            incarnations: vec![1; self.nodes],
        }
    }

    /// The number of another node, counted from this one.
    pub(super) fn peer(&self, other: usize) -> u16 {
        number((usize::from(self.node) + 1 + other % (self.nodes - 1)) % self.nodes)
    }
}

fn number(index: usize) -> u16 {
    u16::try_from(index).expect("few nodes and workers")
}

/// Rings with all nodes of a worker on one thread.
pub(super) fn memory_together(threads: usize, nodes: usize) -> Vec<ThreadEndpoints<MemoryPort>> {
    let on_thread = |thread| {
        let waker = Parking::new().waker();
        let wakers = vec![waker.clone(); nodes];
        let mut fabric = MemoryFabric::new(nodes, 1, MTU_BYTES, RING_BYTES);
        let endpoint = |node| EndpointPort {
            node: number(node),
            worker: number(thread),
            nodes,
            port: fabric.take(node, 0, &waker, &wakers),
        };
        (0..nodes).map(endpoint).collect()
    };
    (0..threads).map(on_thread).collect()
}

/// Rings between two threads.
pub(super) fn memory_apart(nodes: usize) -> Vec<ThreadEndpoints<MemoryPort>> {
    let mut fabric = MemoryFabric::new(nodes, 1, MTU_BYTES, RING_BYTES_APART);
    let of_threads: Vec<_> = (0..THREADS_APART).map(|_| Parking::new().waker()).collect();
    let waker = |node: usize| &of_threads[node % THREADS_APART];
    let wakers: Vec<_> = (0..nodes).map(|node| waker(node).clone()).collect();
    apart(nodes, |node| Ok(fabric.take(node, 0, waker(node), &wakers))).expect("rings are ready")
}

/// Sockets on this host.
pub(super) fn udp(
    nodes: usize,
    with_key: bool,
) -> Result<Vec<ThreadEndpoints<UdpPort>>, BenchmarkError> {
    let any: SocketAddr = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0).into();
    // All sockets stay open until the last port is drawn, so that ports differ.
    let held: Vec<_> = (0..nodes)
        .map(|_| UdpSocket::bind(any))
        .collect::<Result<_, _>>()
        .map_err(BenchmarkError::Runtime)?;
    let addresses: Result<Vec<_>, _> = held.iter().map(UdpSocket::local_addr).collect();
    let addresses = addresses.map_err(BenchmarkError::Runtime)?;
    drop(held);
    apart(nodes, |node| open(node, &addresses, with_key))
}

/// Queue pairs of this host's RDMA devices, which nodes take in turn.
#[cfg(feature = "verbs")]
pub(super) fn verbs(
    nodes: usize,
    devices: &[String],
) -> Result<Vec<ThreadEndpoints<VerbsPort>>, BenchmarkError> {
    let options = |node: usize| VerbsOptions {
        node: number(node),
        worker: 0,
        nodes,
        device: devices.get(node % devices.len().max(1)).cloned(),
        port: None,
        gid: None,
        mtu: None,
        key: None,
    };
    let ports = (0..nodes).map(|node| VerbsPort::open(&options(node)));
    let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<_> = ports.iter().map(VerbsPort::address).map(Some).collect();
    ports.iter_mut().try_for_each(|port| port.connect(&addresses))?;
    let mut ports = ports.into_iter();
    apart(nodes, |_| Ok(ports.next().expect("each node has one")))
}

/// The socket of this process's node; the other node is in another process.
pub(super) fn udp_local(
    across: &Across,
    with_key: bool,
) -> Result<Vec<ThreadEndpoints<UdpPort>>, BenchmarkError> {
    Ok(local(across, open(across.node, &across.addresses, with_key)?))
}

/// Rings shared with another process, which is met at the first address.
pub(super) fn memory_local(
    across: &Across,
) -> Result<Vec<ThreadEndpoints<MemoryPort>>, BenchmarkError> {
    let count = (across.addresses.len(), 1);
    let rings = SharedRings::create(across.node, count, MTU_BYTES, RING_BYTES_APART)?;
    let handle = rings.handle();
    let failed = |source| BenchmarkError::Meeting { place: across.addresses[0], source };
    let mut meeting = BufReader::new(connect_to_other(across).map_err(failed)?);
    let other = exchange(&mut meeting, &handle).map_err(failed)?;
    let handles = if across.node == 0 { [handle, other] } else { [other, handle] }.map(Some);
    // Both processes have mapped the other's memory before either continues, and may end.
    let mut connected = rings.connect(&handles)?;
    exchange(&mut meeting, "connected").map_err(failed)?;
    let (_, port) = connected.remove(0);
    Ok(local(across, port))
}

/// The connection to the other process, once that process is there.
fn connect_to_other(across: &Across) -> std::io::Result<TcpStream> {
    let place = across.addresses[0];
    let listener = if across.node == 0 { Some(TcpListener::bind(place)?) } else { None };
    listener.as_ref().map_or(Ok(()), |listener| listener.set_nonblocking(true))?;
    let call = || match &listener {
        Some(listener) => listener.accept().map(|(stream, _)| stream),
        None => TcpStream::connect(place),
    };
    // The other process may not be there yet.
    let stream = std::iter::repeat_with(call)
        .inspect(|met| {
            if met.is_err() {
                std::thread::park_timeout(RETRY_INTERVAL);
            }
        })
        .take(CALLS_MAX)
        .find_map(Result::ok)
        .ok_or_else(|| std::io::Error::other("the other process has not come"))?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Sends a line to the other process, and receives one.
fn exchange(meeting: &mut BufReader<TcpStream>, line: &str) -> std::io::Result<String> {
    writeln!(meeting.get_mut(), "{line}")?;
    let mut heard = String::new();
    if meeting.read_line(&mut heard)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(heard.trim_end().to_owned())
}

fn local<P>(across: &Across, port: P) -> Vec<ThreadEndpoints<P>> {
    let nodes = across.addresses.len();
    vec![vec![EndpointPort { node: number(across.node), worker: 0, nodes, port }]]
}

fn open(node: usize, addresses: &[SocketAddr], with_key: bool) -> Result<UdpPort, BenchmarkError> {
    let key = with_key.then(|| ClusterKey::new(KEY));
    let addresses = addresses.iter().copied().map(Some).collect();
    let options = UdpOptions { node: number(node), worker: 0, addresses, mtu: None, key };
    Ok(UdpPort::open(&options)?)
}

fn apart<P>(
    nodes: usize,
    mut port: impl FnMut(usize) -> Result<P, BenchmarkError>,
) -> Result<Vec<ThreadEndpoints<P>>, BenchmarkError> {
    let mut threads: Vec<_> = (0..THREADS_APART).map(|_| Vec::new()).collect();
    for node in 0..nodes {
        let endpoint = EndpointPort { node: number(node), worker: 0, nodes, port: port(node)? };
        threads[node % THREADS_APART].push(endpoint);
    }
    Ok(threads)
}
