//! Connections that have not authenticated yet: bounded by address, and in all.
//!
//! A client that says nothing costs a socket, and perhaps a thread. When an address has too many pending connections, its oldest
//! is evicted; when all addresses together have too many, the oldest of the address with the most is. So silent clients keep
//! nobody out, neither at their own address nor at others, and a client that proceeds has logged in before it is evicted.
//!
//! *Not here*: the time-out of a handshake, which its protocol sets; connections that have authenticated.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first 64 bits of an IPv6 address: a host with one address of a network may use all of them.
const NETWORK: u128 = !0 << 64;

/// The source that an address counts for: itself, or with IPv6 its network.
#[must_use]
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Ends a connection.
type Close = Box<dyn FnOnce() + Send>;

/// The pending connections of one port.
pub struct PendingConnections {
    of_one_max: usize,
    all_max: usize,
    admitted: Mutex<Admitted>,
}

#[derive(Default)]
struct Admitted {
    last: u64,
    evicted: u64,
    /// From the oldest on.
    by_number: BTreeMap<u64, (IpAddr, Close)>,
}

/// A pending connection, until this is dropped.
pub struct PendingConnection {
    pending: Arc<PendingConnections>,
    number: u64,
}

impl PendingConnections {
    /// Admits up to `of_one_max` connections of one address, and up to `all_max` in all.
    #[must_use]
    pub fn new(of_one_max: usize, all_max: usize) -> Arc<Self> {
        Arc::new(Self { of_one_max, all_max, admitted: Mutex::default() })
    }

    /// Admits a connection from an address; `close` closes it when it is evicted.
    pub fn admit(
        self: &Arc<Self>,
        from: IpAddr,
        close: impl FnOnce() + Send + 'static,
    ) -> PendingConnection {
        let (number, evicted) = {
            let mut admitted = self.lock();
            admitted.last += 1;
            let number = admitted.last;
            let from = source(from);
            admitted.by_number.insert(number, (from, Box::new(close)));
            (number, admitted.evict_one(from, self))
        };
        if let Some(close) = evicted {
            close();
        }
        PendingConnection { pending: Arc::clone(self), number }
    }

    /// Connections that were evicted.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.lock().evicted
    }

    fn lock(&self) -> MutexGuard<'_, Admitted> {
        // Nothing panics between two changes of a map, so the data behind a poisoned lock are whole.
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
    /// Evicts a connection if `from` has too many, or all addresses have.
    fn evict_one(&mut self, from: IpAddr, pending: &PendingConnections) -> Option<Close> {
        let count =
            |address: IpAddr| self.by_number.values().filter(|(of, _)| *of == address).count();
        let of = if count(from) > pending.of_one_max {
            from
        } else if self.by_number.len() > pending.all_max {
            self.by_number.values().map(|(of, _)| *of).max_by_key(|address| count(*address))?
        } else {
            return None;
        };
        let oldest = self.by_number.iter().find(|(_, (address, _))| *address == of)?;
        let number = *oldest.0;
        self.evicted += 1;
        self.by_number.remove(&number).map(|(_, close)| close)
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.pending.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const C: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));

    #[test]
    fn the_oldest_of_an_address_makes_room() {
        let pending = PendingConnections::new(2, 3);
        let last = Arc::new(AtomicUsize::new(0));
        let admit = |from, number| {
            let last = Arc::clone(&last);
            pending.admit(from, move || last.store(number, Ordering::Relaxed))
        };
        let evicted = || last.load(Ordering::Relaxed);
        let _first = admit(A, 1);
        let _second = admit(A, 2);
        let _third = admit(B, 3);
        assert_eq!(evicted(), 0);
        let _fourth = admit(A, 4);
        assert_eq!(evicted(), 1);
        // All that fit are admitted: A has the most.
        let fifth = admit(C, 5);
        assert_eq!((evicted(), pending.evicted()), (2, 2));
        drop(fifth);
        let _sixth = admit(C, 6);
        assert_eq!(pending.evicted(), 2);
    }

    #[test]
    fn all_of_a_network_are_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), A);
        assert_ne!(A, B);
    }
}
