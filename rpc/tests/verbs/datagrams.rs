//! Messages of all sizes, networks that lose and duplicate packets, and threads that sleep.
//!
//! Two nodes share a thread, or have one each that sleeps when it is idle; netem loses and doubles a tenth of the packets. A
//! test fails if a request does not run exactly once, if packets of a cluster with another key arrive, or if a wake-up is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gannet_rpc::{
    Clock, ClusterKey, GidChoice, MonotonicClock, PacketReceiver, Parking, VerbsOptions,
};

use crate::nodes::{COROUTINES, Node, Pair, connected, identity, options, run};

#[test]
fn messages_of_every_size_cross_queue_pairs() {
    let cases: [fn(&mut VerbsOptions); 4] = [
        |_| {},
        |options| options.mtu = Some(1_024),
        |options| options.key = Some(ClusterKey::new([7; 32])),
        // Link-local addresses; both ends are on one device.
        |options| {
            options.gid = Some(GidChoice::Ipv6);
            options.device = Some("rx0".to_owned());
        },
    ];
    for change in cases {
        let mut pair = Pair::new(change);
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
            assert_eq!(node.endpoint.open_requests(), 0);
        }
    }
}

#[test]
fn each_request_runs_once_over_a_network_that_loses_and_doubles_packets() {
    run("tc", "qdisc add dev v0 root netem loss 10% duplicate 10%");
    run("tc", "qdisc add dev v1 root netem loss 10% duplicate 10%");
    let mut pair = Pair::new(|_| {});
    for _ in 0..20 {
        pair.call(&[32, 200]);
        pair.call(&[9_000]);
    }
    run("tc", "qdisc del dev v0 root");
    run("tc", "qdisc del dev v1 root");
    assert_eq!(pair.nodes[1].handler.handled, 20 * 3 * u64::from(COROUTINES));
    let (client, server) = (pair.nodes[0].counters(), pair.nodes[1].counters());
    assert!(client.retransmitted > 0, "nothing was lost: {client:?}");
    assert!(server.duplicates > 0, "nothing came twice: {server:?}");
}

#[test]
fn clusters_with_other_keys_do_not_hear_each_other() {
    let key = |byte| Some(ClusterKey::new([byte; 32]));
    let with_key = |node, key| VerbsOptions { key, ..options(node, 2) };
    let ports = connected([with_key(0, key(1)), with_key(1, key(2))]);
    let mut node = 0..;
    let nodes = ports.map(|port| Node::new(identity(node.next().unwrap(), 2), port));
    let mut pair = Pair { nodes, clock: MonotonicClock::new() };
    pair.nodes[0].submit(0, 1, &[32], pair.clock.now_ns());
    while pair.nodes[0].counters().retransmitted < 4 {
        pair.step();
    }
    assert_eq!(pair.nodes[1].counters().packets, 0, "the device drops packets with another Q_Key");
}

/// Two threads, each of which sleeps when it is idle.
#[test]
fn idle_threads_sleep_until_a_datagram_comes() {
    // A lost wake-up costs this much, and a single one is too many.
    const SLEEP: Duration = Duration::from_secs(300);
    let ports = connected([options(0, 2), options(1, 2)]);
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
            let mut server = Node::new(identity(1, 2), server_port);
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
        let mut client = Node::new(identity(0, 2), client_port);
        for _ in 0..300 {
            client.submit(0, 1, &[32], clock.now_ns());
            while client.endpoint.take_ready().is_none() {
                if !client.step(clock.now_ns()) {
                    sleeps += 1;
                    // Packets that the server's first RECVs have missed are sent again.
                    let due_ns = client.endpoint.next_due_ns().unwrap_or(u64::MAX);
                    let until_due = Duration::from_nanos(due_ns.saturating_sub(clock.now_ns()));
                    let has_packets = || client.endpoint.receiver().has_packets();
                    client_parking.sleep(SLEEP.min(until_due), has_packets);
                }
            }
        }
        finished.store(true, Ordering::Release);
        server_waker.wake();
    });
    assert!(sleeps > 0, "the client never had to wait");
    assert!(u128::from(clock.now_ns() - start_ns) < SLEEP.as_nanos(), "a wake-up was lost");
}
