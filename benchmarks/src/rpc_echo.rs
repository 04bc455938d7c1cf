//! RPC echo: how many requests a core answers, without transactions.
//!
//! 32-byte requests and responses, 20 coroutines per worker, each core both client and server. A
//! coroutine sends a batch of b requests and waits for all responses. *Uncoalesced*: b + 1 nodes, a
//! request to each other node, the figure of FaSST section 4.5. *Coalesced*: all b in one packet.
//! Beside them the bare transport: packets of the same size, without sessions or coroutines.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use gannet_rpc::{
    Coroutine, Endpoint, HEADER_BYTES, Handler, Identity, Incoming, MemoryFabric, MemoryReceiver,
    MemorySender, PacketReceiver, PacketSender, Parking, ResponseWriter,
};
use hdrhistogram::Histogram;

use crate::check::Check;
use crate::report::{Latency, Report, TransactionReport, Verification, cores_used};
use crate::workload::BenchmarkError;

const PAYLOAD_BYTES: usize = 32;
const MTU_BYTES: usize = 4 << 10;
const RING_BYTES: usize = 16 << 10;
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 256;
/// Packets that the bare transport keeps in flight per pair of nodes.
const BARE_PACKETS: usize = 8;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct EchoSettings {
    /// Requests per batch.
    pub batch: usize,
    /// OS threads.
    pub threads: usize,
    /// Coroutines per worker.
    pub coroutines: usize,
    /// Length of each of the three measured intervals.
    pub duration: Duration,
    /// Length of the warm-up before each.
    pub warmup: Duration,
}

/// What one thread measured.
struct Measured {
    requests: u64,
    mismatches: u64,
    unanswered: u64,
    seconds: f64,
    latencies: Histogram<u64>,
}

/// Runs the echo both ways, and the bare transport.
///
/// # Errors
/// [`BenchmarkError::Setting`] for sizes out of range.
///
/// # Panics
/// If a thread cannot be started.
pub fn run(settings: &EchoSettings) -> Result<Report, BenchmarkError> {
    check(settings)?;
    let uncoalesced = on_threads(settings, |thread| echo(settings, thread, settings.batch + 1));
    let coalesced = on_threads(settings, |thread| echo(settings, thread, 2));
    let bare = on_threads(settings, |_| bare_transport(settings));
    let cores = cores_used(settings.threads);
    let rate = |measured: &[Measured]| -> f64 {
        measured.iter().map(|one| one.requests as f64 / one.seconds).sum()
    };
    let row = |name, measured: &[Measured]| {
        let requests = measured.iter().map(|one| one.requests).sum();
        let latency_us = Latency::of(&together(measured));
        let rate = rate(measured);
        TransactionReport { name, attempted: requests, succeeded: requests, rate, latency_us }
    };
    let sum = |field: fn(&Measured) -> u64| {
        uncoalesced.iter().chain(&coalesced).map(|one| i128::from(field(one))).sum()
    };
    let checks = vec![
        Check::equal("responses that differ from their request", 0, sum(|one| one.mismatches)),
        Check::equal("requests unanswered", 0, sum(|one| one.unanswered)),
    ];
    let requests_per_second = rate(&uncoalesced);
    Ok(Report {
        workload: "rpc",
        settings: BTreeMap::from([
            ("batch", settings.batch.to_string()),
            ("nodes", format!("{} uncoalesced, 2 coalesced", settings.batch + 1)),
            ("threads", settings.threads.to_string()),
            ("coroutines", settings.coroutines.to_string()),
            ("payload bytes", PAYLOAD_BYTES.to_string()),
        ]),
        seconds: uncoalesced[0].seconds,
        cores,
        topology: format!(
            "{} OS threads, thread i drives worker i of every node",
            settings.threads
        ),
        durability: "none",
        load: None,
        attempted_per_second: requests_per_second,
        committed_per_second: requests_per_second,
        committed_per_second_per_core: requests_per_second / cores as f64,
        rows_per_second: None,
        aborts: BTreeMap::new(),
        counted: BTreeMap::new(),
        transactions: vec![
            row("echo, uncoalesced", &uncoalesced),
            row("echo, coalesced", &coalesced),
        ],
        latency_us: Latency::of(&together(&uncoalesced)),
        floor: None,
        transport_packets_per_second_per_core: Some(rate(&bare) / cores as f64),
        verify: Verification::new(checks),
    })
}

fn check(settings: &EchoSettings) -> Result<(), BenchmarkError> {
    let range = |setting, value: usize, max: usize| {
        if (1..=max).contains(&value) {
            return Ok(());
        }
        let (value, allowed) = (value.to_string(), format!("1 to {max}"));
        Err(BenchmarkError::Setting { setting, value, allowed })
    };
    // What fits a packet of the coalesced run.
    range("--batch", settings.batch, 64)?;
    range("--threads", settings.threads, 256)?;
    range("--coroutines", settings.coroutines, 256)
}

fn on_threads(settings: &EchoSettings, run: impl Fn(usize) -> Measured + Sync) -> Vec<Measured> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            (0..settings.threads).map(|thread| scope.spawn(move || run(thread))).collect();
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

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 2).expect("bounds that the library takes")
}

struct Echo;

impl Handler for Echo {
    type Prepared = u16;

    #[inline]
    fn prepare(&self, kind: u16, _payload: &[u8]) -> u16 {
        kind
    }

    fn prefetch_next(&self, _kind: &u16) {}

    #[inline]
    fn handle(&mut self, kind: u16, payload: &[u8], response: &mut ResponseWriter<'_>) {
        response.push_with(payload.len(), |out| {
            out.copy_from_slice(payload);
            (kind, payload.len())
        });
    }
}

/// What the coroutines of one thread count.
struct Counts {
    requests: Cell<u64>,
    mismatches: Cell<u64>,
    /// The time of the present poll; a coroutine measures its batch with it.
    now_ns: Cell<u64>,
    measuring: Cell<bool>,
    stopping: Cell<bool>,
    latencies: std::cell::RefCell<Histogram<u64>>,
}

fn ends(nodes: usize) -> Vec<(MemorySender, MemoryReceiver)> {
    let waker = Parking::new().waker();
    let wakers = vec![waker.clone(); nodes];
    let mut fabric = MemoryFabric::new(nodes, 1, MTU_BYTES, RING_BYTES);
    (0..nodes).map(|node| fabric.take(node, 0, &waker, &wakers)).collect()
}

/// The client loop of one coroutine on `node`.
fn client(
    endpoint: &Endpoint<MemorySender, MemoryReceiver>,
    (node, coroutine): (usize, u16),
    settings: &EchoSettings,
    nodes: usize,
    counts: &Rc<Counts>,
) -> Coroutine {
    let (requests, counts) = (settings.batch, Rc::clone(counts));
    let batch = endpoint.batch(coroutine);
    Coroutine::new(usize::from(coroutine), move |suspend| {
        let mut payload = [0; PAYLOAD_BYTES];
        let mut serial = u64::from(coroutine) << 32;
        let target = |request: usize| {
            let other = request % (nodes - 1);
            u16::try_from((node + 1 + other) % nodes).expect("few nodes")
        };
        while !counts.stopping.get() {
            let start_ns = counts.now_ns.get();
            {
                let mut batch = batch.borrow_mut();
                batch.clear();
                for request in 0..requests {
                    payload[..8].copy_from_slice(&(serial + request as u64).to_le_bytes());
                    batch
                        .push(target(request), 1, &payload, PAYLOAD_BYTES)
                        .expect("the batch was checked to fit a packet");
                }
            }
            suspend.suspend();
            let mut batch = batch.borrow_mut();
            for request in 0..requests {
                payload[..8].copy_from_slice(&(serial + request as u64).to_le_bytes());
                if batch.next_response(target(request)).payload != payload {
                    counts.mismatches.set(counts.mismatches.get() + 1);
                }
            }
            serial += requests as u64;
            if counts.measuring.get() {
                counts.requests.set(counts.requests.get() + requests as u64);
                let took = counts.now_ns.get() - start_ns;
                counts.latencies.borrow_mut().saturating_record(took.max(1));
            }
        }
    })
}

/// One node: its endpoint and the client in each of its coroutines.
type EchoNode = (Endpoint<MemorySender, MemoryReceiver>, Vec<Coroutine>);

fn echo_nodes(
    settings: &EchoSettings,
    worker: u16,
    nodes: usize,
    counts: &Rc<Counts>,
) -> Vec<EchoNode> {
    let coroutines = u16::try_from(settings.coroutines).expect("checked");
    let build = |(node, (sender, receiver)): (usize, _)| {
        let identity = Identity {
            cluster_id: 1,
            epoch: 1,
            node: u16::try_from(node).expect("few nodes"),
            worker,
            coroutines,
            incarnations: vec![1; nodes],
        };
        let endpoint = Endpoint::new(identity, sender, receiver);
        let clients = (0..coroutines)
            .map(|coroutine| client(&endpoint, (node, coroutine), settings, nodes, counts))
            .collect();
        (endpoint, clients)
    };
    ends(nodes).into_iter().enumerate().map(build).collect()
}

impl Counts {
    fn new() -> Self {
        Self {
            requests: Cell::new(0),
            mismatches: Cell::new(0),
            now_ns: Cell::new(0),
            measuring: Cell::new(false),
            stopping: Cell::new(false),
            latencies: std::cell::RefCell::new(histogram()),
        }
    }
}

/// One step of all nodes of a thread; returns how many clients ended.
fn step(nodes: &mut [EchoNode], incoming: &mut Vec<Incoming<u16>>, now_ns: u64) -> usize {
    let mut ended = 0;
    for (endpoint, clients) in nodes {
        endpoint.receive(&mut Echo, incoming, now_ns);
        while let Some(coroutine) = endpoint.take_ready() {
            if clients[usize::from(coroutine)].resume() {
                endpoint.submit(coroutine, now_ns);
            } else {
                ended += 1;
            }
        }
        endpoint.ring_doorbell();
        endpoint.retransmit(now_ns);
    }
    ended
}

/// Runs `nodes` nodes on this thread.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn echo(settings: &EchoSettings, thread: usize, nodes: usize) -> Measured {
    let counts = Rc::new(Counts::new());
    let worker = u16::try_from(thread).expect("checked");
    let mut workers = echo_nodes(settings, worker, nodes, &counts);
    let start = Instant::now();
    for (endpoint, clients) in &mut workers {
        for (coroutine, client) in (0..).zip(clients) {
            client.resume();
            endpoint.submit(coroutine, 0);
        }
        endpoint.ring_doorbell();
    }
    let (mut incoming, mut measured_from, mut measured_to) = (Vec::new(), 0, 0);
    let mut running = nodes * settings.coroutines;
    let mut polls = 0_u32;
    // After the end, every batch in flight must still be answered; this bounds the wait.
    let give_up = settings.warmup + settings.duration + Duration::from_secs(10);
    while running > 0 && start.elapsed() < give_up {
        polls = polls.wrapping_add(1);
        let now_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counts.now_ns.set(now_ns);
        if polls.is_multiple_of(POLLS_PER_LOOK) {
            let now = Duration::from_nanos(now_ns);
            if !counts.measuring.get() && measured_to == 0 && now >= settings.warmup {
                counts.measuring.set(true);
                measured_from = now_ns;
            } else if counts.measuring.get() && now >= settings.warmup + settings.duration {
                counts.measuring.set(false);
                counts.stopping.set(true);
                measured_to = now_ns;
            }
        }
        running -= step(&mut workers, &mut incoming, now_ns);
    }
    Measured {
        requests: counts.requests.get(),
        mismatches: counts.mismatches.get(),
        unanswered: running as u64,
        seconds: (measured_to - measured_from) as f64 / 1e9,
        latencies: counts.latencies.replace(histogram()),
    }
}

/// Packets bounced between three nodes of this thread, without anything above the transport.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn bare_transport(settings: &EchoSettings) -> Measured {
    let packet = [7; HEADER_BYTES + 8 + PAYLOAD_BYTES];
    let nodes = 3;
    let mut ends = ends(nodes);
    for (node, (sender, _)) in ends.iter_mut().enumerate() {
        for peer in (0..nodes).filter(|&peer| peer != node) {
            for _ in 0..BARE_PACKETS {
                sender.queue(u16::try_from(peer).expect("few nodes"), &packet);
            }
        }
        sender.ring_doorbell();
    }
    let (start, mut packets) = (Instant::now(), 0_u64);
    let mut next = [0_usize; 3];
    while start.elapsed() < settings.duration {
        for _ in 0..POLLS_PER_LOOK {
            for (node, (sender, receiver)) in ends.iter_mut().enumerate() {
                let count = receiver.poll();
                for index in 0..count {
                    // Each node answers its two peers in turn: as many go out as came in.
                    next[node] ^= 1;
                    let peer = u16::try_from((node + 1 + next[node]) % nodes).expect("few nodes");
                    sender.queue(peer, receiver.packet(index));
                }
                packets += count as u64;
                receiver.release();
                sender.ring_doorbell();
            }
        }
    }
    Measured {
        requests: packets,
        mismatches: 0,
        unanswered: 0,
        seconds: start.elapsed().as_secs_f64(),
        latencies: histogram(),
    }
}
