//! Members whose connection passes through a relay that resets it: at any byte, again and again, and for ever.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::frame::{self, Frame, Hello, Seal};
use super::handshake::Connection;
use super::link::Link;
use super::{JoinError, Members, Membership, RdmaPort, Transport};
use crate::accept::Acceptor;
use gannet_rpc::ClusterKey;

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

/// An address whose TCP port is free, and which neither the system nor this gives to anybody else.
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
fn gather<const N: usize>(node: usize, addresses: [SocketAddr; N]) -> Result<Members, JoinError> {
    let membership = Membership {
        node,
        transport: Transport::Udp,
        addresses: addresses.to_vec(),
        key: Some(ClusterKey::new([7; 32])),
        cluster: "test".to_owned(),
        mtu: None,
        rdma: RdmaPort::default(),
        join_timeout: Duration::from_secs(20),
    };
    Members::gather(&membership, BTreeMap::from([("threads".to_owned(), "1".to_owned())]))
}

/// Two members; the second reaches the first through the relay.
fn two(relay: &Relay, first: SocketAddr, second: SocketAddr) -> [Members; 2] {
    std::thread::scope(|scope| {
        let greater = scope.spawn(|| gather(1, [relay.address, second]).unwrap());
        let smaller = gather(0, [first, second]).unwrap();
        [smaller, greater.join().unwrap()]
    })
}

/// Both come to a point, and hear what both have said there.
fn meet(members: &[Members; 2], said: &str) {
    let expected = [format!("0 {said}"), format!("1 {said}")];
    std::thread::scope(|scope| {
        for (member, own) in members.iter().zip(&expected) {
            let (expected, own) = (&expected, own.clone());
            scope.spawn(move || {
                let met = member.meet("meeting", own);
                if met.is_err() {
                    // Else the other waits for ever.
                    members.iter().for_each(Members::leave);
                }
                assert_eq!(met.unwrap(), *expected);
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
    // Within the handshake, which is not over before both have heard both of its last frames.
    relay.way.bytes_left.store(100, Ordering::SeqCst);
    let members = two(&relay, first, second);
    meet(&members, "first");
    for bytes in [1, 4, 5, 40, 77, 150, 230, 300, 400, 500, 650] {
        // In the frames of a meeting, or in the handshake after the last reset.
        relay.way.bytes_left.store(bytes, Ordering::SeqCst);
        relay.way.reset();
        meet(&members, &format!("after {bytes}"));
        relay.way.bytes_left.store(usize::MAX, Ordering::SeqCst);
    }
    // A frame that many others follow before it is heard, or after.
    for round in 0..20 {
        let resets = Arc::clone(&relay.way);
        let resetting = std::thread::spawn(move || resets.reset());
        meet(&members, &format!("round {round}"));
        resetting.join().unwrap();
    }
    assert_eq!(members.each_ref().map(Members::halted), [None, None]);
}

#[test]
fn a_connection_that_one_member_alone_has_lost_is_made_anew() {
    let (first, second) = (free_address(), free_address());
    let relay = Relay::new(first);
    let members = two(&relay, first, second);
    for (round, member) in [0, 1, 0, 1].into_iter().enumerate() {
        members[member].links[0].disconnect();
        meet(&members, &format!("round {round}"));
    }
    assert_eq!(members.each_ref().map(Members::halted), [None, None]);
}

#[test]
fn of_two_new_connections_the_later_is_used() {
    let hello = |node| {
        let (nonce, settings) = ([9; 16], BTreeMap::new());
        Hello { node, incarnation: 7, nonce, resumes: None, settings }
    };
    let said = || Seal::between(None, &hello(0), &hello(1));
    let heard = || Seal::between(None, &hello(1), &hello(0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A connection to node 1, and the end that node 1 has.
    let connection = || {
        let stream = TcpStream::connect(address).unwrap();
        let connection =
            Connection { hello: hello(1), stream, sending: said(), receiving: heard() };
        (connection, listener.accept().unwrap().0)
    };
    let [(first, _silent), (earlier, _as_silent), (later, mut called)] =
        [(); 3].map(|()| connection());
    let later_address = later.stream.local_addr().unwrap();
    let (link, _) = Link::new(address, first).unwrap();
    // The earlier one has been taken, and is not in use yet, when the later one comes.
    link.replace(later);
    let (stream, _) = link.connect(earlier).unwrap();
    assert_eq!(stream.local_addr().unwrap(), later_address);
    link.send(&Frame::Confirmed);
    assert_eq!(frame::read(&mut called, &mut said()).unwrap(), Frame::Confirmed);
}

#[test]
fn the_last_word_of_a_handshake_may_be_lost() {
    let (first, second) = (free_address(), free_address());
    for bytes in (300..700).step_by(25) {
        let relay = Relay::new(first);
        relay.way.bytes_left.store(bytes, Ordering::SeqCst);
        let members = two(&relay, first, second);
        meet(&members, "once");
        assert_eq!(members.each_ref().map(Members::halted), [None, None], "{bytes}");
    }
}

#[test]
fn a_member_that_is_dead_or_another_halts_the_others() {
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
    let another = std::thread::spawn(move || gather(0, [other, free_address()]));
    wait_for("for the other", || TcpStream::connect(other).is_ok());
    *relay.way.target.lock().unwrap() = other;
    relay.way.reset();
    wait_for("to halt", || members[1].halted().is_some());
    let reason = members[1].halted().unwrap();
    assert!(reason.contains("node 0 was started again"), "{reason}");
    drop((members, relay));
    drop(another);
}

#[test]
fn a_member_that_stops_says_so_though_its_connection_is_broken() {
    let (first, second) = (free_address(), free_address());
    let relay = Relay::new(first);
    let [smaller, greater] = two(&relay, first, second);
    relay.way.reset();
    smaller.leave();
    wait_for("to halt", || greater.halted().is_some());
    assert!(greater.halted().unwrap().contains("was stopped"), "{:?}", greater.halted());
}

#[test]
fn a_point_is_met_though_one_stops_before_all_have_heard_of_it() {
    let addresses = [(); 3].map(|()| free_address());
    let members = std::thread::scope(|scope| {
        [0, 1, 2]
            .map(|node| scope.spawn(move || gather(node, addresses).unwrap()))
            .map(|gathering| gathering.join().unwrap())
    });
    let [first, second, third] = &members;
    let arrived = |point| Frame::Arrived { point, what: "end".to_owned(), said: "2".to_owned() };
    std::thread::scope(|scope| {
        let meeting = scope.spawn(|| second.meet("end", "1".to_owned()));
        // The third's words to the second are late.
        third.links[0].send(&arrived(0));
        assert_eq!(first.meet("end", "0".to_owned()).unwrap(), ["0", "1", "2"]);
        first.leave();
        wait_for("to halt", || second.halted().is_some());
        third.links[1].send(&arrived(0));
        assert_eq!(meeting.join().unwrap().unwrap(), ["0", "1", "2"]);
    });
    // To the next point the first has not come.
    third.links[1].send(&arrived(1));
    assert!(matches!(second.meet("end", "1".to_owned()), Err(JoinError::Halted(_))));
}
