//! Nodes that a program embeds one by one with `Cluster::join`, as several processes do: here each is a thread's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use gannet::{
    Abort, Cluster, ClusterError, ClusterKey, ClusterOptions, JoinError, Membership, Outcome,
    RdmaPort, Transport,
};

const NODES: usize = 2;

/// An address whose UDP and TCP ports are free, and which the system gives to nobody else.
fn free_address() -> SocketAddr {
    let address = || {
        let random = RandomState::new().build_hasher().finish();
        SocketAddr::from(([127, 0, 0, 1], 10_000 + u16::try_from(random % 20_000).unwrap()))
    };
    std::iter::repeat_with(address)
        .find(|address| UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok())
        .unwrap()
}

fn memberships(transport: Transport) -> Vec<Membership> {
    let addresses: Vec<_> = (0..NODES).map(|_| free_address()).collect();
    let membership = |node| Membership {
        node,
        transport,
        addresses: addresses.clone(),
        key: Some(ClusterKey::new([7; 32])),
        cluster: "joined".to_owned(),
        mtu: None,
        rdma: RdmaPort::default(),
        join_timeout: Duration::from_secs(60),
    };
    (0..NODES).map(membership).collect()
}

fn join(membership: &Membership) -> Result<Cluster, ClusterError> {
    let options = ClusterOptions {
        nodes: NODES,
        replicas: NODES,
        threads: 1,
        coroutines: 4,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    Cluster::join(options, membership)
}

/// What each node does, on a thread of its own, once all have joined.
fn on_each(memberships: &[Membership], act: impl Fn(usize, &Cluster) + Sync) {
    std::thread::scope(|scope| {
        for (node, membership) in memberships.iter().enumerate() {
            let act = &act;
            scope.spawn(move || act(node, &join(membership).unwrap()));
        }
    });
}

#[test]
fn nodes_that_were_closed_join_again_at_the_same_addresses() {
    for transport in [Transport::Udp, Transport::Memory] {
        let memberships = memberships(transport);
        for _ in 0..3 {
            on_each(&memberships, |node, cluster| {
                assert_eq!(cluster.transport(), Some(transport));
                let table = cluster.create_table("t", 8, 1_000).unwrap();
                for key in (0..200).filter(|key| key % NODES as u64 == node as u64) {
                    let outcome = cluster.run(move |tx| tx.insert(table, key, &key.to_le_bytes()));
                    assert_eq!(outcome.unwrap(), Outcome::Committed(()), "{key}");
                }
                cluster.meet("reading", String::new()).unwrap();
                for key in 0..200_u64 {
                    let outcome = cluster
                        .run(move |tx| Ok::<_, Abort>(tx.get(table, key)?.map(<[u8]>::to_vec)));
                    let expected = Some(key.to_le_bytes().to_vec());
                    assert_eq!(outcome.unwrap(), Outcome::Committed(expected), "{key}");
                }
                cluster.meet("leaving", String::new()).unwrap();
            });
        }
    }
}

#[test]
fn who_waited_in_vain_can_join_later() {
    let memberships = memberships(Transport::Udp);
    let hasty = Membership { join_timeout: Duration::from_millis(300), ..memberships[1].clone() };
    for _ in 0..2 {
        let error = join(&hasty).err().unwrap();
        assert!(matches!(error, ClusterError::Join(JoinError::Missing { .. })), "{error}");
    }
    on_each(&memberships, |_, cluster| {
        assert!(cluster.halted().is_none());
        // Who is first to look does not end before the other has.
        cluster.meet("the end", String::new()).unwrap();
    });
}
