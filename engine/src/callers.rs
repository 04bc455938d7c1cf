//! Connections that have not shown yet who they are: bounded by address, and in all.
//!
//! A caller who says nothing costs a socket, and perhaps a thread. When an address has too many of them, its oldest makes room for
//! its newest; when all addresses together have, the oldest of the address with the most does. Somebody who is silent thereby
//! keeps nobody out, neither at its own address nor elsewhere, and somebody who proceeds is in before that comes to pass.
//!
//! *Not here*: how long a greeting may take, which the one who greets knows; those who have been let in.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_rpc::{Clock, MonotonicClock};

/// The first 64 bits of an IPv6 address: whoever has one address of a network has all of them.
const NETWORK: u128 = !0 << 64;

/// Whom an address stands for: itself, or with IPv6 its network.
#[must_use]
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Ends a connection.
type Dismiss = Box<dyn FnOnce() + Send>;

/// Callers at one port.
pub struct Callers {
    of_one_max: usize,
    all_max: usize,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    last: u64,
    dismissed: u64,
    /// By number, and so from the oldest on.
    taken: BTreeMap<u64, (IpAddr, Dismiss)>,
}

/// A place, which is free again when this is dropped.
pub struct Caller {
    callers: Arc<Callers>,
    number: u64,
}

impl Callers {
    /// Room for so many of one address, and so many in all.
    #[must_use]
    pub fn new(of_one_max: usize, all_max: usize) -> Arc<Self> {
        Arc::new(Self { of_one_max, all_max, places: Mutex::default() })
    }

    /// Takes a place for a caller; `dismiss` ends its connection if another one needs the place.
    pub fn enter(
        self: &Arc<Self>,
        from: IpAddr,
        dismiss: impl FnOnce() + Send + 'static,
    ) -> Caller {
        let (number, dismissed) = {
            let mut places = self.places();
            places.last += 1;
            let number = places.last;
            let from = source(from);
            places.taken.insert(number, (from, Box::new(dismiss)));
            (number, places.too_many(from, self))
        };
        if let Some(dismiss) = dismissed {
            dismiss();
        }
        Caller { callers: Arc::clone(self), number }
    }

    /// Callers who had to make room.
    #[must_use]
    pub fn dismissed(&self) -> u64 {
        self.places().dismissed
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        // Nothing panics between two changes of a map, so a poisoned lock guards nothing broken.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// Whom to dismiss after `from` has come.
    fn too_many(&mut self, from: IpAddr, callers: &Callers) -> Option<Dismiss> {
        let count = |address: IpAddr| self.taken.values().filter(|(of, _)| *of == address).count();
        let of = if count(from) > callers.of_one_max {
            from
        } else if self.taken.len() > callers.all_max {
            self.taken.values().map(|(of, _)| *of).max_by_key(|address| count(*address))?
        } else {
            return None;
        };
        let oldest = self.taken.iter().find(|(_, (address, _))| *address == of)?;
        let number = *oldest.0;
        self.dismissed += 1;
        self.taken.remove(&number).map(|(_, dismiss)| dismiss)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.callers.places().taken.remove(&self.number);
    }
}

/// Lines of one kind in the log: a few at once, then one for a time, which says how many were left out.
#[derive(Default)]
pub struct Lines {
    clock: MonotonicClock,
    counted: Mutex<Counted>,
}

/// Lines that may follow each other at once.
const LINES_AT_ONCE: u32 = 5;
/// Time in which one more may be written.
const LINE_INTERVAL_NS: u64 = 10_000_000_000;

#[derive(Debug, Default)]
struct Counted {
    written: u32,
    left_out: u64,
    since_ns: u64,
}

impl Lines {
    /// Whether a line may be written now, and how many were left out before it.
    #[must_use]
    pub fn next(&self) -> Option<LeftOut> {
        self.at(self.clock.now_ns())
    }

    fn at(&self, now_ns: u64) -> Option<LeftOut> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let intervals = now_ns.saturating_sub(counted.since_ns) / LINE_INTERVAL_NS;
        if intervals > 0 {
            let fewer = u32::try_from(intervals).unwrap_or(u32::MAX);
            counted.written = counted.written.saturating_sub(fewer);
            counted.since_ns = now_ns;
        }
        if counted.written >= LINES_AT_ONCE {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(LeftOut(std::mem::take(&mut counted.left_out)))
    }
}

/// The end of a line that tells how many of its kind were left out.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftOut(u64);

impl std::fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(formatter, " ({count} lines like this were left out)"),
        }
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
        let callers = Callers::new(2, 3);
        let last = Arc::new(AtomicUsize::new(0));
        let enter = |from, number| {
            let last = Arc::clone(&last);
            callers.enter(from, move || last.store(number, Ordering::Relaxed))
        };
        let dismissed = || last.load(Ordering::Relaxed);
        let _first = enter(A, 1);
        let _second = enter(A, 2);
        let _third = enter(B, 3);
        assert_eq!(dismissed(), 0);
        let _fourth = enter(A, 4);
        assert_eq!(dismissed(), 1);
        // All places are taken: A has the most.
        let fifth = enter(C, 5);
        assert_eq!((dismissed(), callers.dismissed()), (2, 2));
        drop(fifth);
        let _sixth = enter(C, 6);
        assert_eq!(callers.dismissed(), 2);
    }

    #[test]
    fn all_of_a_network_are_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), A);
        assert_ne!(A, B);
    }

    #[test]
    fn lines_are_left_out_and_counted() {
        let lines = Lines::default();
        let now = LINE_INTERVAL_NS * 7;
        let written = (0..20).filter(|_| lines.at(now).is_some()).count();
        assert_eq!(written, LINES_AT_ONCE as usize);
        assert_eq!(lines.at(now + LINE_INTERVAL_NS), Some(LeftOut(15)));
        assert_eq!(lines.at(now + LINE_INTERVAL_NS), None);
        assert_eq!(LeftOut(0).to_string(), "");
        assert!(LeftOut(3).to_string().contains("3 lines"));
    }
}
