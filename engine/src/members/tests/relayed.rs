//! Members whose connection passes through a relay that resets it: at any byte, again and again, and for ever.
//!
//! Two members run in this process with their threads, and talk over TCP sockets of this host. A test
//! fails if a change is not made after a reset, if a member halts while the other lives, or if a member
//! does not halt, with the reason, when the other has ended.
//!
//! *Not here*: many members over streams that break (`engine/src/members/tests.rs`), real processes (`tests/server/nodes.rs`).

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gannet_rpc::ClusterKey;

use super::{Fake, hello, table, unformed};
use crate::accept::Acceptor;
use crate::configuration::Configuration;
use crate::members::{ClusterTerms, JoinError, Members, Membership, Transport};
use crate::replica::{Records, Replica};

/// Passes connections on, and resets them.
struct Relay {
    way: Arc<Way>,
    acceptor: Option<Acceptor>,
    address: SocketAddr,
}

struct Way {
    target: Mutex<SocketAddr>,
    /// The connections; the threads that pass them on own them, and close them when either end has ended.
    open: Mutex<Vec<Weak<Ends>>>,
    /// Bytes until all connections are reset.
    bytes_left: AtomicUsize,
}

/// The ends of a connection: of the caller, and of the called one.
struct Ends([TcpStream; 2]);

impl Ends {
    /// Ends the threads that pass the connection on. Both ends are reset when the last of the threads closes them.
    fn reset(&self) {
        for end in &self.0 {
            let _ = rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO));
            let _ = end.shutdown(Shutdown::Read);
        }
    }
}

impl Way {
    fn reset(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        open.iter().filter_map(Weak::upgrade).for_each(|ends| ends.reset());
    }

    fn pass(&self, ends: &Ends, from: usize) {
        let (mut from, mut to) = (&ends.0[from], &ends.0[1 - from]);
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let left = self.bytes_left.load(Ordering::SeqCst);
            let passed = count.min(left);
            if to.write_all(&bytes[..passed]).is_err() {
                break;
            }
            if passed == left {
                self.bytes_left.store(usize::MAX, Ordering::SeqCst);
                self.reset();
                // Nothing follows the bytes that were cut off.
                break;
            } else if left < usize::MAX {
                self.bytes_left.store(left - passed, Ordering::SeqCst);
            }
        }
        ends.reset();
    }
}

impl Relay {
    fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let way = Arc::new(Way {
            target: Mutex::new(target),
            open: Mutex::default(),
            bytes_left: AtomicUsize::new(usize::MAX),
        });
        let passing = Arc::clone(&way);
        let acceptor = Acceptor::start("relay", listener, move |caller| {
            let Ok(called) = TcpStream::connect(*passing.target.lock().unwrap()) else { return };
            let ends = Arc::new(Ends([caller, called]));
            ends.0.iter().for_each(|end| end.set_nodelay(true).unwrap());
            passing.open.lock().unwrap().push(Arc::downgrade(&ends));
            for from in [0, 1] {
                let (way, ends) = (Arc::clone(&passing), Arc::clone(&ends));
                std::thread::spawn(move || way.pass(&ends, from));
            }
        });
        Self { way, acceptor: Some(acceptor.unwrap()), address }
    }

    /// From now on nobody listens at the relay.
    fn close(&mut self) {
        self.acceptor = None;
        self.way.reset();
    }
}

/// An address whose TCP port is free. Neither the system nor this function gives the port to another caller.
fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = 10_000 + u16::try_from(random % 20_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if GIVEN.lock().unwrap().insert(port) && TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A member, which finds them at these addresses.
fn join<const N: usize>(node: usize, addresses: [SocketAddr; N]) -> Result<Members, JoinError> {
    join_with(node, addresses, Fake::default())
}

fn join_with<const N: usize>(
    node: usize,
    addresses: [SocketAddr; N],
    replica: impl Replica<Prepared = Configuration> + Send + 'static,
) -> Result<Members, JoinError> {
    let membership = Membership {
        node,
        transport: Transport::Udp,
        addresses: addresses.to_vec(),
        first_nodes: N,
        key: Some(ClusterKey::new([7; 32])),
        cluster: "test".to_owned(),
        join_timeout: Duration::from_secs(20),
        // Connections are away for long here.
        lease: Duration::from_secs(60),
        ..Membership::default()
    };
    let mut hello = hello(node, 1);
    hello.entry.incarnation =
        u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap();
    let terms = ClusterTerms {
        addresses: membership.known_addresses(N),
        first_nodes: N,
        lease: membership.lease,
        ..ClusterTerms::default()
    };
    let members = Members::start(&membership, terms, (hello.entry, None), unformed(N), replica)?;
    members.wait_until_joined().map(|()| members)
}

/// Two members; the second reaches the first through the relay.
fn two(relay: &Relay, first: SocketAddr, second: SocketAddr) -> [Members; 2] {
    std::thread::scope(|scope| {
        let greater = scope.spawn(|| join(1, [relay.address, second]).unwrap());
        let smaller = join(0, [first, second]).unwrap();
        [smaller, greater.join().unwrap()]
    })
}

/// Both make a change, which both must hear of.
fn make_changes(members: &[Members; 2], name: &str) {
    std::thread::scope(|scope| {
        for (node, member) in members.iter().enumerate() {
            scope.spawn(move || {
                member.propose(table(format!("{name} of {node}"))).unwrap().unwrap();
            });
        }
    });
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("{what} in vain");
}

#[test]
fn a_connection_that_is_reset_anywhere_is_made_anew() {
    let (first, second) = (free_address(), free_address());
    let relay = Relay::new(first);
    // Within the handshake.
    relay.way.bytes_left.store(100, Ordering::SeqCst);
    let members = two(&relay, first, second);
    make_changes(&members, "first");
    for bytes in [1, 4, 5, 40, 77, 150, 230, 300, 400, 500, 650] {
        // In the messages of a change, or in the handshake after the last reset.
        relay.way.bytes_left.store(bytes, Ordering::SeqCst);
        relay.way.reset();
        make_changes(&members, &format!("after {bytes}"));
        relay.way.bytes_left.store(usize::MAX, Ordering::SeqCst);
    }
    for round in 0..20 {
        let resets = Arc::clone(&relay.way);
        let resetting = std::thread::spawn(move || resets.reset());
        make_changes(&members, &format!("round {round}"));
        resetting.join().unwrap();
    }
    assert_eq!(members.each_ref().map(Members::halted), [None, None]);
}

#[test]
fn a_member_that_is_dead_halts_the_others_and_another_at_its_address_does_not() {
    let (first, second) = (free_address(), free_address());
    let mut relay = Relay::new(first);
    let members = two(&relay, first, second);
    relay.close();
    wait_for("to halt", || members[1].halted().is_some());
    let reason = members[1].halted().unwrap();
    assert!(reason.contains("node 0 at") && reason.contains("its process has ended"), "{reason}");
    drop(members);

    let relay = Relay::new(first);
    let members = two(&relay, first, second);
    // A process at the address of the first, which waits for the second.
    let other = free_address();
    let another = std::thread::spawn(move || join(0, [other, free_address()]));
    wait_for("for the other", || TcpStream::connect(other).is_ok());
    *relay.way.target.lock().unwrap() = other;
    relay.way.reset();
    wait_for("for calls of the other", || relay.way.open.lock().unwrap().len() > 3);
    assert_eq!(members.each_ref().map(Members::halted), [None, None]);
    // It is not taken for the first, and when that can be reached again, the two go on.
    *relay.way.target.lock().unwrap() = first;
    relay.way.reset();
    make_changes(&members, "later");
    drop((members, relay));
    drop(another);
}

#[test]
fn a_member_that_stops_says_so_though_its_connection_is_broken() {
    let (first, second) = (free_address(), free_address());
    let relay = Relay::new(first);
    let [smaller, greater] = two(&relay, first, second);
    relay.way.reset();
    drop(smaller);
    wait_for("to halt", || greater.halted().is_some());
    assert!(greater.halted().unwrap().contains("was stopped"), "{:?}", greater.halted());
}

/// A member that panics when it prepares.
struct Panicking;

impl Replica for Panicking {
    type Prepared = Configuration;

    fn prepare(&mut self, _: &Arc<Configuration>) -> Result<Configuration, String> {
        panic!("no such case")
    }

    fn check_room(&self, _: &Configuration) -> Result<(), String> {
        Ok(())
    }

    fn abandon(&mut self) {}

    fn begin_hand_over(&mut self, _: &Configuration) {}

    fn has_no_lock_holders(&self) -> bool {
        true
    }

    fn undo_hand_over(&mut self) {}

    fn count_hand_over(&mut self, _: Duration) {}

    fn adopt(&mut self, _: Configuration) {}

    fn has_adopted(&self) -> bool {
        true
    }

    fn stop(&mut self, _: &Arc<Configuration>) {}

    fn records(&self) -> Option<Records> {
        None
    }

    fn flush(&mut self, _: &Records) -> Result<(), String> {
        Ok(())
    }

    fn begin_epoch(&mut self, _: &Arc<Configuration>) {}
}

#[test]
fn a_member_that_panics_fails_and_halts_the_others() {
    let addresses = [free_address(), free_address()];
    let other = std::thread::spawn(move || join(0, addresses));
    let bug = "it has met a bug: no such case; start the cluster again";
    let failures = [join_with(1, addresses, Panicking), other.join().unwrap()];
    for failure in failures.map(|joined| joined.err().unwrap().to_string()) {
        assert!(failure.contains(bug), "{failure}");
    }
}
