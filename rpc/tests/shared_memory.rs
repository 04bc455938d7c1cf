//! Endpoints over rings in memory that is mapped twice, as by two processes; and a process that is killed during its work.
//!
//! One test starts its own program again as node 1, with `the_other_process`, which does nothing in an ordinary run.
//! Another test has two threads, whose sleeps end after 1 ms at the latest. A test fails if an answer is wrong or
//! missing, if the killed process leaves an invalid frame, or if memory of another shape or process is taken.
//!
//! *Not here*: lost wake-ups, for which the unit tests in `rpc/src/parking.rs` look within one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod echo;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use echo::Echo;
use gannet_rpc::{
    Clock, Endpoint, Identity, MemoryReceiver, MemorySender, MonotonicClock, PacketReceiver,
    Parking, SharedRings, SharedRingsError,
};

const MTU_BYTES: usize = 16 << 10;
const RING_BYTES: usize = 64 << 10;
const COROUTINES: u16 = 4;
const SIZES: [usize; 4] = [0, 32, 20_000, 1 << 20];
/// Set in the process that a test starts from its own program: the number of answers before it stops.
const PEER: &str = "GANNET_TEST_PEER";
/// Longest wait for an answer.
const GIVE_UP_NS: u64 = 60_000_000_000;

/// A node, and the waker of its thread.
struct Node {
    endpoint: Endpoint<MemorySender, MemoryReceiver>,
    parking: Parking,
    clock: MonotonicClock,
    handler: Echo,
}

impl Node {
    fn new(node: u16, rings: SharedRings, handles: &[String]) -> Self {
        let identity = Identity {
            cluster_id: 1,
            epoch: 1,
            node,
            worker: 0,
            coroutines: COROUTINES,
            incarnations: vec![1; handles.len()],
        };
        let handles: Vec<_> = handles.iter().cloned().map(Some).collect();
        let (parking, (sender, receiver)) = rings.connect(&handles).unwrap().remove(0);
        let endpoint = Endpoint::new(identity, sender, receiver);
        Self { endpoint, parking, clock: MonotonicClock::new(), handler: Echo::default() }
    }

    fn step(&mut self) {
        let now_ns = self.clock.now_ns();
        let progressed = self.endpoint.receive(&mut self.handler, &mut Vec::new(), now_ns);
        self.endpoint.retransmit(now_ns);
        if !progressed {
            let receiver = self.endpoint.receiver();
            self.parking.sleep(Duration::from_millis(1), || receiver.has_packets());
        }
    }

    /// Sends a payload to node 1, and waits so long for the answer. Returns whether a correct answer came.
    fn calls(&mut self, size: usize, wait_ns: u64) -> bool {
        self.send(size);
        let start_ns = self.clock.now_ns();
        while self.endpoint.take_ready().is_none() {
            self.step();
            if self.clock.now_ns() - start_ns > wait_ns {
                return false;
            }
        }
        let batch = self.endpoint.batch(0);
        batch.borrow_mut().next_response(1).payload == vec![8; size]
    }

    fn send(&mut self, size: usize) {
        let payload = vec![7; size];
        let batch = self.endpoint.batch(0);
        batch.borrow_mut().clear();
        batch.borrow_mut().push(1, 1, &payload, size).unwrap();
        self.endpoint.submit(0, self.clock.now_ns());
        self.endpoint.ring_doorbell();
    }
}

fn rings(node: usize) -> SharedRings {
    SharedRings::create(node, (2, 1), MTU_BYTES, RING_BYTES).unwrap()
}

/// Another process with node 1 in it: this program again.
struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the process, which answers so many requests. Returns its handle.
    fn start(answers: u64) -> (Self, String) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture"])
            .env(PEER, answers.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("handle ") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the other process has ended");
        }
        let handle = line["handle ".len()..].trim().to_owned();
        (Self { process, input, output }, handle)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have failed by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs in the other process: node 1 answers a number of requests, and then spins until it is killed.
#[test]
fn the_other_process() {
    let Ok(answers) = std::env::var(PEER) else { return };
    let rings = rings(1);
    let own = rings.handle();
    println!("\nhandle {own}");
    let mut other = String::new();
    std::io::stdin().read_line(&mut other).unwrap();
    let mut node = Node::new(1, rings, &[other.trim().to_owned(), own]);
    while node.handler.handled < answers.parse().unwrap() {
        node.step();
    }
    println!("enough");
    std::io::stdin().read_line(&mut other).unwrap();
}

#[test]
fn a_process_that_dies_leaves_no_corruption() {
    let own = rings(0);
    let (mut peer, handle) = Peer::start(401);
    writeln!(peer.input, "{}", own.handle()).unwrap();
    let mut node = Node::new(0, own, &[String::new(), handle.clone()]);
    for size in SIZES.into_iter().cycle().take(400) {
        assert!(node.calls(size, GIVE_UP_NS), "a payload of {size} bytes");
    }
    // The process stops within its next answer, and takes no further packet: rings fill, and senders continue.
    node.send(1 << 20);
    let (has_stopped, stopped_itself) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lines = peer.output.by_ref().lines().map_while(Result::ok);
            stopped_itself.store(lines.any(|line| line.contains("enough")), Ordering::Release);
            has_stopped.store(true, Ordering::Release);
        });
        while !has_stopped.load(Ordering::Acquire) {
            node.step();
            assert!(node.endpoint.take_ready().is_none(), "it stopped within its answer");
        }
    });
    assert!(stopped_itself.into_inner(), "the other process has failed");
    drop(peer);
    for _ in 0..100 {
        node.step();
    }
    assert_eq!(node.endpoint.receiver().refused().foreign, 0);
    // The memory exists as long as a process maps it, but cannot be opened any more.
    let error = rings(0).connect(&[None, Some(handle)]).err().unwrap();
    assert!(matches!(error, SharedRingsError::Unreachable { node: 1, .. }), "{error}");
}

#[test]
fn threads_that_sleep_are_woken_through_the_memory() {
    let (first, second) = (rings(0), rings(1));
    let handles = [first.handle(), second.handle()];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut node = Node::new(1, second, &handles);
            while !done.load(Ordering::Acquire) {
                node.step();
            }
        });
        let mut node = Node::new(0, first, &handles);
        for size in SIZES.into_iter().cycle().take(2_000) {
            assert!(node.calls(size, GIVE_UP_NS), "a payload of {size} bytes");
        }
        done.store(true, Ordering::Release);
    });
}

#[test]
fn unsuitable_memory_is_refused() {
    let own = || SharedRings::create(0, (2, 1), MTU_BYTES, RING_BYTES).unwrap();
    let connect = |handle: &str| {
        let error = own().connect(&[None, Some(handle.to_owned())]).err();
        error.unwrap_or_else(|| panic!("{handle:?} is taken")).to_string()
    };
    for nonsense in ["", "1", "1 2", "x 1 1", "1 2 3 4", "../../etc 0 1", "1 2 zz"] {
        let error = connect(nonsense);
        assert!(error.contains("give all nodes the same transport"), "{error}");
    }
    let process = std::process::id();
    let error = connect(&format!("{process} 99999 0"));
    assert!(error.contains("use the udp transport") && error.contains("No such file"), "{error}");
    // Another shape, another start of the process, and a file of another kind.
    let wider = SharedRings::create(1, (2, 2), MTU_BYTES, RING_BYTES).unwrap();
    assert!(connect(&wider.handle()).contains("of this shape"));
    let shape = SharedRings::create(1, (2, 1), MTU_BYTES / 2, RING_BYTES).unwrap();
    assert!(connect(&shape.handle()).contains("of another shape"));
    let right = SharedRings::create(1, (2, 1), MTU_BYTES, RING_BYTES).unwrap();
    let (place, _) = right.handle().rsplit_once(' ').map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    assert!(connect(&format!("{place} 0123456789abcdef")).contains("another process' memory"));
    assert!(connect(&format!("{process} 0 0")).contains("node 1"));
    assert!(own().connect(&[None, Some(right.handle())]).is_ok());
}
