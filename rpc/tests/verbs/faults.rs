//! Missing peers, killed peers, and queue pairs that fail.
//!
//! One test starts this program again as a peer and kills it. Another takes the interface v0 down, so that SENDs fail. A
//! test fails if a request to a missing peer is given up or keeps answers of others back, if a peer is not found at its
//! new queue pair, or if a queue pair does not go on after a failed SEND or after packets that no RECV has taken.
//!
//! *Not here*: a `gannet serve` process that is killed and comes back (`tests/verbs/guest`).

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Command, Stdio};

use gannet_rpc::{
    Clock, Identity, MonotonicClock, PacketReceiver, PacketSender, Port, VerbsPort, VerbsReceiver,
    VerbsSender,
};

use crate::nodes::{COROUTINES, GIVE_UP_NS, Node, Pair, connected, identity, options, run};

/// Set in a process that is the peer of a test.
const IS_PEER: &str = "GANNET_VERBS_PEER";

/// Calls node 2 from node 0 of three nodes, while node 1 may not answer.
fn call_node_2(nodes: &mut [&mut Node], clock: &MonotonicClock, times: u32) {
    let start_ns = clock.now_ns();
    for _ in 0..times {
        nodes[0].submit(1, 2, &[64, 3_000], clock.now_ns());
        loop {
            nodes.iter_mut().for_each(|node| _ = node.step(clock.now_ns()));
            std::thread::yield_now();
            match nodes[0].endpoint.take_ready() {
                Some(1) => break,
                other => assert_eq!(other, None, "no other node answers"),
            }
            assert!(clock.now_ns() - start_ns < GIVE_UP_NS, "node 2 does not answer");
        }
        nodes[0].check(1, 2, &[64, 3_000]);
    }
}

#[test]
fn requests_to_a_missing_peer_are_sent_again_and_again() {
    let mut ports = [0, 2].map(|node| VerbsPort::open(&options(node, 3)).unwrap());
    let gone = VerbsPort::open(&options(1, 3)).unwrap().address();
    let addresses = [ports[0].address(), gone, ports[1].address()].map(Some);
    ports.iter_mut().for_each(|port| port.connect(&addresses).unwrap());
    let [first, third] = ports;
    let mut nodes = [Node::new(identity(0, 3), first), Node::new(identity(2, 3), third)];
    let [client, server] = &mut nodes;
    let clock = MonotonicClock::new();
    client.submit(0, 1, &[32], clock.now_ns());
    while client.counters().retransmitted < 4 {
        call_node_2(&mut [client, server], &clock, 10);
    }
    assert!(client.endpoint.open_requests() > 0, "a request is never abandoned");
}

#[test]
fn a_peer_that_comes_back_is_found_at_its_new_queue_pair() {
    let ports = connected([options(0, 2), options(1, 2)]);
    let address = ports[0].address();
    let nodes = [0, 1].into_iter().zip(ports);
    let nodes: Vec<_> = nodes.map(|(node, port)| Node::new(identity(node, 2), port)).collect();
    let mut pair = Pair { nodes: nodes.try_into().ok().unwrap(), clock: MonotonicClock::new() };
    for incarnation in 2..5 {
        pair.call(&[32, 3_000]);
        let mut port = VerbsPort::open(&options(1, 2)).unwrap();
        port.connect(&[Some(address.clone()), None]).unwrap();
        let told = port.address();
        let of = |node| Identity { incarnations: vec![1, incarnation], ..identity(node, 2) };
        pair.nodes[1] = Node::new(of(1), port);
        let client = &mut pair.nodes[0].endpoint;
        assert_eq!(client.others_than(&of(0)), [1]);
        client.sender_mut().reconnect(1, &told).unwrap();
        client.admit(of(0));
        let error = client.sender_mut().reconnect(1, "nowhere").unwrap_err();
        assert!(error.contains("nowhere"), "{error}");
    }
    pair.call(&[32, 3_000]);
    assert_eq!(pair.nodes[1].handler.handled, 2 * u64::from(COROUTINES));
}

/// The other process of the test below: node 1 of three, until it is killed.
fn serve_as_peer() -> ! {
    let mut port = VerbsPort::open(&options(1, 3)).unwrap();
    println!("\nat {}", port.address());
    let mut lines = std::io::stdin().lines();
    let addresses: Vec<_> = (0..3).map(|_| Some(lines.next().unwrap().unwrap())).collect();
    port.connect(&addresses).unwrap();
    let (mut node, clock) = (Node::new(identity(1, 3), port), MonotonicClock::new());
    loop {
        node.step(clock.now_ns());
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_peer_does_not_stop_the_others() {
    if std::env::var_os(IS_PEER).is_some() {
        serve_as_peer();
    }
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::a_killed_peer_does_not_stop_the_others", "--nocapture"])
        .env(IS_PEER, "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ports = [0, 2].map(|node| VerbsPort::open(&options(node, 3)).unwrap());
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines().map(Result::unwrap);
    let peers =
        lines.filter_map(|line| line.strip_prefix("at ").map(str::to_owned)).next().unwrap();
    let addresses = [ports[0].address(), peers, ports[1].address()];
    let mut stdin = peer.stdin.take().unwrap();
    addresses.iter().for_each(|address| writeln!(stdin, "{address}").unwrap());
    ports.iter_mut().for_each(|port| port.connect(&addresses.clone().map(Some)).unwrap());
    let [first, third] = ports;
    let (mut client, mut server) =
        (Node::new(identity(0, 3), first), Node::new(identity(2, 3), third));
    let clock = MonotonicClock::new();
    let start_ns = clock.now_ns();
    for _ in 0..50 {
        client.submit(0, 1, &[32, 5_000], clock.now_ns());
        while client.endpoint.take_ready().is_none() {
            client.step(clock.now_ns());
            std::thread::yield_now();
            assert!(clock.now_ns() - start_ns < GIVE_UP_NS, "the peer does not answer");
        }
        client.check(0, 1, &[32, 5_000]);
    }
    peer.kill().unwrap();
    peer.wait().unwrap();
    let before = client.counters().retransmitted;
    client.submit(0, 1, &[32, 5_000], clock.now_ns());
    while client.counters().retransmitted < before + 4 {
        call_node_2(&mut [&mut client, &mut server], &clock, 10);
    }
}

/// Raises the interface v0, and restores the address of its other end, which the kernel has removed.
fn raise_v0() {
    run("ip", "link set v0 up");
    let address = std::fs::read_to_string("/sys/class/net/v1/address").unwrap();
    run("ip", &format!("neigh replace 10.1.0.2 lladdr {} dev v0", address.trim()));
}

#[test]
fn a_failed_queue_pair_is_reset() {
    let mut pair = Pair::new(|_| {});
    pair.call(&[32, 9_000]);
    // If the interface is down, Soft-RoCE fails the SEND and stops the queue pair.
    for _ in 0..3 {
        let dropped = pair.nodes[0].endpoint.dropped();
        let mut steps = 0_u32;
        run("ip", "link set v0 down");
        pair.call_and(&[32, 9_000], |pair| {
            if pair.nodes[0].endpoint.dropped() > dropped {
                steps += 1;
            }
            if steps == 100 {
                raise_v0();
            }
        });
        assert!(steps >= 100, "no SEND has failed");
    }
    assert_eq!(pair.nodes[1].handler.handled, 4 * 2 * u64::from(COROUTINES), "each ran once");
    for _ in 0..50 {
        pair.call(&[32]);
    }
}

/// Sends numbered packets.
fn send(sender: &mut VerbsSender, numbers: Range<u64>) {
    for number in numbers {
        let mut packet = [0; 100];
        packet[92..].copy_from_slice(&number.to_le_bytes());
        sender.queue(1, &packet);
    }
    sender.ring_doorbell();
}

/// Receives packets up to the last of these numbers. Returns the numbers that have arrived.
fn receive(receiver: &mut VerbsReceiver, numbers: Range<u64>) -> Vec<u64> {
    let (clock, mut arrived) = (MonotonicClock::new(), Vec::new());
    let start_ns = clock.now_ns();
    while arrived.last() != numbers.clone().last().as_ref() {
        for index in 0..receiver.poll() {
            arrived.push(u64::from_le_bytes(*receiver.packet(index).last_chunk().unwrap()));
        }
        receiver.release();
        std::thread::yield_now();
        assert!(clock.now_ns() - start_ns < GIVE_UP_NS, "{} arrived", arrived.len());
    }
    arrived
}

#[test]
fn packets_without_a_recv_are_lost_and_the_ring_goes_on() {
    // As many as a worker of two nodes posts.
    const RECVS: u64 = 256;
    let [first, second] = connected([options(0, 2), options(1, 2)]);
    let (mut sender, _first) = first.split();
    let (_second, mut receiver) = second.split();
    for round in 0..10 {
        let start = round * 1_000;
        send(&mut sender, start..start + 600);
        let arrived = receive(&mut receiver, start..start + RECVS);
        assert!(arrived.iter().copied().eq(start..start + RECVS), "the first ones arrive");
        send(&mut sender, start + 700..start + 800);
        let arrived = receive(&mut receiver, start + 700..start + 800);
        assert!(arrived.iter().copied().eq(start + 700..start + 800), "those between are lost");
    }
    assert_eq!(sender.dropped(), 0, "the sender had room for all");
}
