//! The echo of one thread: its nodes, a client in each of their coroutines, and the loop around them.
//!
//! *Invariants*: a client has one batch under way, with a request to each of its targets, and compares each response with
//! its request. A poll of the loop has one time, in nanoseconds: the latency of a batch is the time between two polls.
//! Requests count in the measured interval alone. A thread answers the requests of others until all clients have ended,
//! and nodes of other processes until they are silent, at most 10 s after the interval.
//!
//! *Source*: FaSST section 4.5.
//!
//! *Not here*: transports and threads (`port`), and the bare transport (`bare`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gannet_rpc::{
    Clock, Coroutine, Endpoint, Handler, Incoming, MonotonicClock, Port, ResponseWriter,
};
use hdrhistogram::Histogram;

use super::port::{EndpointPort, ThreadEndpoints};
use super::{EchoSettings, PAYLOAD_BYTES};

/// Polls between two checks of the clock.
const POLLS_PER_LOOK: u32 = 64;
/// Longest wait for the answers to batches in flight at the end.
const LATE_NS: u64 = 10_000_000_000;
/// A node in another process counts as ended after so much silence.
const QUIET_NS: u64 = 300_000_000;

/// The measurements of one thread.
pub(super) struct Measured {
    pub(super) requests: u64,
    pub(super) mismatches: u64,
    pub(super) unanswered: u64,
    pub(super) seconds: f64,
    pub(super) latencies: Histogram<u64>,
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 2).expect("bounds that the library takes")
}

struct Echo;

impl Handler for Echo {
    type Prepared = u16;

    #[inline]
    fn prepare(&self, kind: u16, _payload: &[u8]) -> u16 {
        kind
    }

    fn prefetch(&self, _kind: &u16) {}

    fn prefetch_next(&self, _kind: &u16) {}

    #[inline]
    fn handle(&mut self, kind: u16, payload: &[u8], response: &mut ResponseWriter<'_>) {
        response.push_with(payload.len(), |out| {
            out.copy_from_slice(payload);
            (kind, payload.len())
        });
    }
}

/// The counts of one thread's coroutines.
struct Counts {
    requests: Cell<u64>,
    mismatches: Cell<u64>,
    /// The time of the present poll, with which coroutines measure batches.
    now_ns: Cell<u64>,
    measuring: Cell<bool>,
    stopping: Cell<bool>,
    latencies: RefCell<Histogram<u64>>,
}

impl Counts {
    fn new() -> Self {
        Self {
            requests: Cell::new(0),
            mismatches: Cell::new(0),
            now_ns: Cell::new(0),
            measuring: Cell::new(false),
            stopping: Cell::new(false),
            latencies: RefCell::new(histogram()),
        }
    }
}

/// One node: its endpoint and the client in each of its coroutines.
struct EchoNode<P: Port> {
    endpoint: Endpoint<P::Sender, P::Receiver>,
    clients: Vec<Coroutine>,
}

impl<P: Port> EchoNode<P> {
    fn new(settings: &EchoSettings, endpoint: EndpointPort<P>, counts: &Rc<Counts>) -> Self {
        let coroutines = u16::try_from(settings.coroutines).expect("checked");
        let identity = endpoint.identity(coroutines);
        let targets: Vec<_> = (0..settings.batch).map(|request| endpoint.peer(request)).collect();
        let (sender, receiver) = endpoint.port.split();
        let endpoint = Endpoint::new(identity, sender, receiver);
        let client = |coroutine| client(&endpoint, coroutine, targets.clone(), counts);
        let clients = (0..coroutines).map(client).collect();
        Self { endpoint, clients }
    }

    fn start(&mut self) {
        for (coroutine, client) in (0..).zip(&mut self.clients) {
            client.resume();
            self.endpoint.submit(coroutine, 0);
        }
        self.endpoint.ring_doorbell();
    }

    /// Takes one step. Returns whether packets have come, and how many clients have ended.
    fn step(&mut self, incoming: &mut Vec<Incoming<u16>>, now_ns: u64) -> (bool, usize) {
        let Self { endpoint, clients } = self;
        let mut ended = 0;
        let progressed = endpoint.receive(&mut Echo, incoming, now_ns);
        while let Some(coroutine) = endpoint.take_ready() {
            if clients[usize::from(coroutine)].resume() {
                endpoint.submit(coroutine, now_ns);
            } else {
                ended += 1;
            }
        }
        endpoint.ring_doorbell();
        endpoint.retransmit(now_ns);
        (progressed, ended)
    }
}

/// The client loop of one coroutine, which sends a request to each of `targets` at once.
fn client<S, R>(
    endpoint: &Endpoint<S, R>,
    coroutine: u16,
    targets: Vec<u16>,
    counts: &Rc<Counts>,
) -> Coroutine
where
    S: gannet_rpc::PacketSender,
    R: gannet_rpc::PacketReceiver,
{
    let counts = Rc::clone(counts);
    let batch = endpoint.batch(coroutine);
    Coroutine::new(usize::from(coroutine), move |suspend| {
        let mut payload = [0; PAYLOAD_BYTES];
        let mut serial = u64::from(coroutine) << 32;
        while !counts.stopping.get() {
            let start_ns = counts.now_ns.get();
            {
                let mut batch = batch.borrow_mut();
                batch.clear();
                for (number, &target) in (serial..).zip(&targets) {
                    payload[..8].copy_from_slice(&number.to_le_bytes());
                    batch
                        .push(target, 1, &payload, PAYLOAD_BYTES)
                        .expect("the batch was checked to fit a packet");
                }
            }
            suspend.suspend();
            let mut batch = batch.borrow_mut();
            for (number, &target) in (serial..).zip(&targets) {
                payload[..8].copy_from_slice(&number.to_le_bytes());
                if batch.next_response(target).payload != payload {
                    counts.mismatches.set(counts.mismatches.get() + 1);
                }
            }
            serial += targets.len() as u64;
            if counts.measuring.get() {
                counts.requests.set(counts.requests.get() + targets.len() as u64);
                let took = counts.now_ns.get() - start_ns;
                counts.latencies.borrow_mut().saturating_record(took.max(1));
            }
        }
    })
}

/// The measured interval of a thread.
struct Interval {
    warmup_ns: u64,
    duration_ns: u64,
    /// The start of the warm-up. With nodes in other processes, the time of the first packet from one.
    begin_ns: Option<u64>,
    measured_from: u64,
    measured_to: u64,
}

impl Interval {
    fn new(settings: &EchoSettings) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            warmup_ns: nanoseconds(settings.warmup),
            duration_ns: nanoseconds(settings.duration),
            begin_ns: (settings.across().is_none()).then_some(0),
            measured_from: 0,
            measured_to: 0,
        }
    }

    /// Starts and stops measuring.
    fn look(&mut self, counts: &Counts, now_ns: u64) {
        let since_ns = self.begin_ns.map_or(0, |begin_ns| now_ns - begin_ns);
        let is_over = since_ns >= self.warmup_ns + self.duration_ns;
        if !counts.measuring.get() && self.measured_to == 0 && since_ns >= self.warmup_ns {
            counts.measuring.set(true);
            self.measured_from = now_ns;
        } else if counts.measuring.get() && is_over {
            counts.measuring.set(false);
            counts.stopping.set(true);
            self.measured_to = now_ns;
        }
    }

    /// Whether the remaining answers are so late that they will not come.
    fn is_hopeless(&self, now_ns: u64) -> bool {
        let end_ns = self.begin_ns.unwrap_or(0) + self.warmup_ns + self.duration_ns;
        now_ns > end_ns + LATE_NS
    }

    fn seconds(&self) -> f64 {
        self.measured_to.saturating_sub(self.measured_from) as f64 / 1e9
    }
}

/// Runs the nodes of one thread. `running` counts the clients of all threads: a thread serves the others until their clients
/// have ended, and nodes of other processes until they are silent.
pub(super) fn echo<P: Port>(
    settings: &EchoSettings,
    endpoints: ThreadEndpoints<P>,
    running: &AtomicUsize,
) -> Measured {
    let counts = Rc::new(Counts::new());
    let mut nodes: Vec<EchoNode<P>> =
        endpoints.into_iter().map(|endpoint| EchoNode::new(settings, endpoint, &counts)).collect();
    let clock = MonotonicClock::new();
    let start_ns = clock.now_ns();
    nodes.iter_mut().for_each(EchoNode::start);
    let mut interval = Interval::new(settings);
    let mut incoming = Vec::new();
    let mut unanswered = nodes.len() * settings.coroutines;
    let (mut polls, mut heard_ns) = (0_u32, 0);
    loop {
        polls = polls.wrapping_add(1);
        let now_ns = clock.now_ns() - start_ns;
        counts.now_ns.set(now_ns);
        if polls.is_multiple_of(POLLS_PER_LOOK) {
            interval.look(&counts, now_ns);
            // Relaxed: the value only ends the loop.
            let have_all_ended = running.load(Ordering::Relaxed) == 0;
            let is_quiet = settings.across().is_none() || now_ns - heard_ns > QUIET_NS;
            if (have_all_ended && is_quiet) || interval.is_hopeless(now_ns) {
                break;
            }
        }
        for node in &mut nodes {
            let (progressed, ended) = node.step(&mut incoming, now_ns);
            if progressed {
                heard_ns = now_ns;
                interval.begin_ns.get_or_insert(now_ns);
            }
            if ended > 0 {
                unanswered -= ended;
                running.fetch_sub(ended, Ordering::Relaxed);
            }
        }
    }
    Measured {
        requests: counts.requests.get(),
        mismatches: counts.mismatches.get(),
        unanswered: unanswered as u64,
        seconds: interval.seconds(),
        latencies: counts.latencies.replace(histogram()),
    }
}
