//! Endpoints over real UDP sockets, and strangers that send arbitrary datagrams.
//!
//! The sockets belong to this host, with IPv4 or IPv6, with and without a cluster key. A test fails if a request does not
//! run exactly once, if a wake-up of an idle thread is lost, or if an error does not say what to change. Random bytes,
//! replays, and datagrams of another key, cluster, epoch or incarnation must be counted, and run nothing.
//!
//! *Not here*: the layout of datagrams (`rpc/src/udp/datagram.rs`), and networks with faults between processes
//! (`tests/server/chaos`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod echo;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use echo::Echo;
use gannet_rpc::{
    Clock, ClusterKey, Counters, Endpoint, Identity, Incoming, MonotonicClock, PacketReceiver,
    PacketSender, Parking, Port, UdpError, UdpOptions, UdpPort, UdpReceiver, UdpSender,
};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const COROUTINES: u16 = 20;
/// Longest wait for an answer.
const GIVE_UP_NS: u64 = 20_000_000_000;

fn key(byte: u8) -> Option<ClusterKey> {
    Some(ClusterKey::new([byte; 32]))
}

/// Free ports of this host.
fn addresses(ip: IpAddr, count: usize) -> Vec<SocketAddr> {
    // All sockets stay open until the last port is drawn, so that ports differ.
    let held: Vec<_> = (0..count).map(|_| UdpSocket::bind((ip, 0)).unwrap()).collect();
    held.iter().map(|socket| socket.local_addr().unwrap()).collect()
}

fn options(node: u16, addresses: &[SocketAddr], key: Option<ClusterKey>) -> UdpOptions {
    let addresses = addresses.iter().copied().map(Some).collect();
    UdpOptions { node, worker: 0, addresses, mtu: None, key }
}

fn identity(node: u16) -> Identity {
    Identity {
        cluster_id: 1,
        epoch: 1,
        node,
        worker: 0,
        coroutines: COROUTINES,
        incarnations: vec![1; 2],
    }
}

/// One node with its endpoint, handler and transport.
struct Node {
    endpoint: Endpoint<UdpSender, UdpReceiver>,
    handler: Echo,
    incoming: Vec<Incoming<()>>,
}

impl Node {
    fn open(identity: Identity, options: &UdpOptions) -> Self {
        Self::new(identity, UdpPort::open(options).unwrap())
    }

    fn new(identity: Identity, port: UdpPort) -> Self {
        let (sender, receiver) = port.split();
        let endpoint = Endpoint::new(identity, sender, receiver);
        Self { endpoint, handler: Echo::default(), incoming: Vec::new() }
    }

    /// Returns whether there was work.
    fn step(&mut self, now_ns: u64) -> bool {
        let progressed = self.endpoint.receive(&mut self.handler, &mut self.incoming, now_ns);
        self.endpoint.retransmit(now_ns);
        progressed
    }

    /// Sends a batch of payloads of these sizes to node 1.
    fn submit(&mut self, coroutine: u16, sizes: &[usize], now_ns: u64) {
        let batch = self.endpoint.batch(coroutine);
        batch.borrow_mut().clear();
        for (fill, &size) in (0..).zip(sizes) {
            batch.borrow_mut().push(1, 7, &vec![fill; size], size).unwrap();
        }
        self.endpoint.submit(coroutine, now_ns);
        self.endpoint.ring_doorbell();
    }

    fn counters(&self) -> Counters {
        self.endpoint.counters()
    }
}

/// Two nodes on this thread.
struct Pair {
    nodes: [Node; 2],
    clock: MonotonicClock,
}

impl Pair {
    fn new(addresses: &[SocketAddr], mtu: Option<usize>, key: &Option<ClusterKey>) -> Self {
        let node = |node| {
            let options = UdpOptions { mtu, ..options(node, addresses, key.clone()) };
            Node::open(identity(node), &options)
        };
        Self { nodes: [node(0), node(1)], clock: MonotonicClock::new() }
    }

    fn step(&mut self) {
        let now_ns = self.clock.now_ns();
        for node in &mut self.nodes {
            node.step(now_ns);
        }
    }

    /// Node 0 sends a batch from every coroutine to node 1 and checks the answers.
    fn call(&mut self, sizes: &[usize]) {
        self.call_and(sizes, |_| {});
    }

    fn call_and(&mut self, sizes: &[usize], mut meanwhile: impl FnMut(&mut Self)) {
        let start_ns = self.clock.now_ns();
        for coroutine in 0..COROUTINES {
            self.nodes[0].submit(coroutine, sizes, start_ns);
        }
        let mut answered = 0;
        while answered < COROUTINES {
            meanwhile(self);
            self.step();
            while let Some(coroutine) = self.nodes[0].endpoint.take_ready() {
                answered += 1;
                let batch = self.nodes[0].endpoint.batch(coroutine);
                let mut batch = batch.borrow_mut();
                for (fill, &size) in (0_u8..).zip(sizes) {
                    let answer = batch.next_response(1).payload;
                    assert_eq!(answer, vec![fill + 1; size]);
                }
            }
            let took_ns = self.clock.now_ns() - start_ns;
            assert!(took_ns < GIVE_UP_NS, "{answered} answered: {:?}", self.nodes[1].counters());
        }
    }
}

#[test]
fn messages_of_every_size_cross_sockets() {
    for (ip, mtu, key) in [
        (V4, None, None),
        (V4, Some(1_500), key(1)),
        (V6, None, key(1)),
        (V6, Some(1_500), None),
        (V4, Some(65_535), key(1)),
        (V6, Some(65_535), None),
    ] {
        let mut pair = Pair::new(&addresses(ip, 2), mtu, &key);
        let calls: [&[usize]; 5] = [&[32], &[0, 5, 1_400], &[100; 40], &[40_000], &[1 << 20]];
        let mut requests = 0;
        for sizes in calls {
            pair.call(sizes);
            requests += sizes.len() as u64 * u64::from(COROUTINES);
        }
        assert_eq!(pair.nodes[1].handler.handled, requests, "each request ran once");
        for node in &pair.nodes {
            let seen = node.counters();
            assert_eq!((seen.foreign, seen.unauthentic, seen.corrupt), (0, 0, 0));
            assert_eq!((seen.malformed, seen.wrong_cluster, seen.wrong_incarnation), (0, 0, 0));
        }
    }
}

/// A node that comes later tells where it is.
#[test]
fn a_peer_is_found_at_the_address_that_it_tells() {
    let addresses = addresses(V4, 2);
    let without =
        UdpOptions { addresses: vec![Some(addresses[0]), None], ..options(0, &addresses, key(1)) };
    let nodes = [
        Node::open(identity(0), &without),
        Node::open(identity(1), &options(1, &addresses, key(1))),
    ];
    let mut pair = Pair { nodes, clock: MonotonicClock::new() };
    pair.nodes[0].submit(0, &[8], 0);
    let sender = pair.nodes[0].endpoint.sender_mut();
    assert_eq!(sender.dropped(), 1, "nobody knows where the peer is");
    for (told, reason) in [
        ("nonsense", "no address"),
        ("0.0.0.0:7000", "names no host and port"),
        ("[::1]:7000", "use one family"),
    ] {
        let error = sender.reconnect(1, told).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    sender.reconnect(1, &addresses[1].to_string()).unwrap();
    let started_ns = pair.clock.now_ns();
    while pair.nodes[0].endpoint.take_ready().is_none() {
        pair.step();
        assert!(pair.clock.now_ns() - started_ns < GIVE_UP_NS);
    }
    pair.call(&[100; 4]);
}

#[test]
fn each_worker_has_the_next_port() {
    let first = addresses(V4, 1)[0];
    let worker = |worker| UdpPort::open(&UdpOptions { worker, ..options(0, &[first], None) });
    let ports: Vec<_> = (0..3).map(worker).collect();
    for (port, opened) in (first.port()..).zip(&ports) {
        // Another program may use one of the ports.
        let is_taken = opened.is_ok() || matches!(opened, Err(UdpError::PortInUse { .. }));
        assert!(is_taken && UdpSocket::bind((V4, port)).is_err(), "{opened:?}");
    }
}

/// A source of bytes: Knuth's multiplicative generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}

#[test]
fn random_bytes_are_dropped_and_counted_while_traffic_goes_on() {
    for key in [None, key(1)] {
        let addresses = addresses(V4, 2);
        let mut pair = Pair::new(&addresses, None, &key);
        let stranger = UdpSocket::bind((V4, 0)).unwrap();
        let (mut random, mut sent) = (Random(5), 0);
        for _ in 0..30 {
            pair.call_and(&[32, 3_000], |_| {
                let size = random.below(200);
                let mut bytes = random.bytes(size);
                // Most resemble our datagrams, and the others resemble none.
                for prefix in [&b"GN\x01\x00"[..], b"GN\x01\x01"] {
                    if random.below(3) > 0 && size > prefix.len() {
                        bytes[..prefix.len()].copy_from_slice(prefix);
                    }
                }
                stranger.send_to(&bytes, addresses[1]).unwrap();
                sent += 1;
            });
        }
        // The last datagrams may still be in flight.
        pair.call(&[1]);
        let seen = pair.nodes[1].counters();
        let dropped = seen.foreign + seen.unauthentic + seen.corrupt;
        assert!(dropped >= sent && sent > 0, "{sent} sent: {seen:?}");
        assert!(seen.foreign > 0 && seen.unauthentic > 0, "{seen:?}");
        assert_eq!(pair.nodes[1].handler.handled, (30 * 2 + 1) * u64::from(COROUTINES));
    }
}

/// The counters of node 1 of a pair with key 1, after another node 0 with a changed identity has sent to it.
fn counted(key: Option<ClusterKey>, change: impl FnOnce(&mut Identity)) -> (Counters, u64) {
    let addresses = addresses(V4, 2);
    let mut pair = Pair::new(&addresses, None, &self::key(1));
    let mut stranger = identity(0);
    change(&mut stranger);
    // From another address, because node 0's is in use: the address of the sender does not matter.
    let elsewhere = [self::addresses(V4, 1)[0], addresses[1]];
    let mut stranger = Node::open(stranger, &options(0, &elsewhere, key));
    stranger.submit(0, &[32], pair.clock.now_ns());
    pair.call(&[32]);
    (pair.nodes[1].counters(), pair.nodes[1].handler.handled - u64::from(COROUTINES))
}

#[test]
fn wrong_keys_clusters_epochs_and_lives_are_counted_and_not_run() {
    type Case = (Option<ClusterKey>, fn(&mut Identity), fn(&Counters) -> u64);
    let cases: [Case; 5] = [
        (key(2), |_| {}, |seen| seen.unauthentic),
        (None, |_| {}, |seen| seen.unauthentic),
        (key(1), |stranger| stranger.cluster_id = 2, |seen| seen.wrong_cluster),
        (key(1), |stranger| stranger.epoch = 2, |seen| seen.wrong_epoch),
        (key(1), |stranger| stranger.incarnations[0] = 2, |seen| seen.wrong_incarnation),
    ];
    for (number, (key, change, counter)) in cases.into_iter().enumerate() {
        let (seen, handled) = counted(key, change);
        assert_eq!((counter(&seen), handled), (1, 0), "case {number}: {seen:?}");
    }
}

#[test]
fn replayed_datagrams_run_nothing() {
    // Node 0 takes a tap for node 1.
    let real = addresses(V4, 3);
    let tap = UdpSocket::bind(real[2]).unwrap();
    tap.set_nonblocking(true).unwrap();
    let mut pair = Pair {
        nodes: [
            Node::open(identity(0), &options(0, &[real[0], real[2]], key(1))),
            Node::open(identity(1), &options(1, &real[..2], key(1))),
        ],
        clock: MonotonicClock::new(),
    };
    let (mut recorded, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let mut pass_on = |recorded: &mut Vec<Vec<u8>>| {
        while let Ok(count) = tap.recv(&mut buffer) {
            tap.send_to(&buffer[..count], real[1]).unwrap();
            recorded.push(buffer[..count].to_vec());
        }
    };
    for _ in 0..20 {
        pair.call_and(&[32, 30_000], |_| pass_on(&mut recorded));
    }
    let handled = pair.nodes[1].handler.handled;
    assert!(handled == 40 * u64::from(COROUTINES) && recorded.len() >= 20);
    let mut random = Random(9);
    for _ in 0..500 {
        let again = &recorded[random.below(recorded.len())];
        tap.send_to(again, real[1]).unwrap();
        pair.step();
    }
    assert_eq!(pair.nodes[1].handler.handled, handled, "a replay runs nothing");
    assert!(pair.nodes[1].counters().duplicates > 0);
    pair.call_and(&[64], |_| pass_on(&mut recorded));
    assert_eq!(pair.nodes[1].handler.handled, handled + u64::from(COROUTINES));
}

/// Two threads, each of which sleeps when it is idle.
#[test]
fn idle_threads_sleep_until_a_datagram_comes() {
    // A lost wake-up costs this much, and a single one is too many.
    const SLEEP: Duration = Duration::from_secs(600);
    let addresses = addresses(V4, 2);
    let port = |node| UdpPort::open(&options(node, &addresses, key(1))).unwrap();
    let ports = [port(0), port(1)];
    let [client_parking, server_parking] =
        ports.each_ref().map(|port| Parking::watching(&[port]).unwrap());
    let server_waker = server_parking.waker();
    let [client_port, server_port] = ports;
    let finished = AtomicBool::new(false);
    let (clock, mut sleeps) = (MonotonicClock::new(), 0);
    let start_ns = clock.now_ns();
    std::thread::scope(|scope| {
        let (clock, finished) = (&clock, &finished);
        scope.spawn(move || {
            let mut server = Node::new(identity(1), server_port);
            while !finished.load(Ordering::Acquire) {
                if !server.step(clock.now_ns()) {
                    let has_work = || {
                        finished.load(Ordering::Acquire) || server.endpoint.receiver().has_packets()
                    };
                    server_parking.sleep(SLEEP, has_work);
                }
            }
            assert_eq!(server.handler.handled, 300);
        });
        let mut client = Node::new(identity(0), client_port);
        for _ in 0..300 {
            client.submit(0, &[32], clock.now_ns());
            while client.endpoint.take_ready().is_none() {
                if !client.step(clock.now_ns()) {
                    sleeps += 1;
                    client_parking.sleep(SLEEP, || client.endpoint.receiver().has_packets());
                }
            }
        }
        finished.store(true, Ordering::Release);
        server_waker.wake();
    });
    assert!(sleeps > 0, "the client never had to wait");
    assert!(u128::from(clock.now_ns() - start_ns) < SLEEP.as_nanos(), "a wake-up was lost");
}

#[test]
fn errors_say_what_to_change() {
    let addresses = addresses(V4, 2);
    let message = |options: &UdpOptions| UdpPort::open(options).unwrap_err().to_string();
    let right = options(0, &addresses, None);
    let held = UdpPort::open(&right).unwrap();
    let error = message(&right);
    assert!(error.contains(&format!("{} is in use", addresses[0])), "{error}");
    drop(held);
    let with = |own: SocketAddr| options(0, &[own, addresses[1]], None);
    let error = message(&with("198.51.100.1:7000".parse().unwrap()));
    assert!(error.contains("no address of this host"), "{error}");
    let peer = "255.255.255.255:7000".parse().unwrap();
    let error = message(&options(0, &[addresses[0], peer], None));
    assert!(error.contains("no route") && error.contains("node 1"), "{error}");
    for mtu in [0, 1_279, 65_536] {
        let error = message(&UdpOptions { mtu: Some(mtu), ..right.clone() });
        assert!(error.contains("1280 to 65535"), "{error}");
    }
    for placeholder in ["0.0.0.0:7000", "127.0.0.1:0"] {
        let error = message(&with(placeholder.parse().unwrap()));
        assert!(error.contains("names no host and port"), "{error}");
    }
    let error = message(&with("[::1]:7000".parse().unwrap()));
    assert!(error.contains("node 1 has the address 127.0.0.1"), "{error}");
    let error = message(&UdpOptions { worker: 10, ..with("127.0.0.1:65530".parse().unwrap()) });
    assert!(error.contains("worker 10"), "{error}");
    let error = UdpPort::open(&UdpOptions { node: 2, ..right }).unwrap_err();
    assert!(matches!(error, UdpError::NoAddress { node: 2, nodes: 2 }), "{error}");
}
