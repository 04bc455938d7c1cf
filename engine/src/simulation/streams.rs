//! Simulated streams between members: bytes that arrive in order and late, connections that break, and calls that nobody answers.
//!
//! ```text
//! call ─▶ Called at a member that listens ─▶ Connected at the caller ─▶ bytes, both ways ─▶ Ended
//!      └▶ NobodyListens
//! ```
//! A stream that breaks loses what is under way behind some byte. One end, or each, notices after a while; an end that has not
//! noticed does so when it sends.
//!
//! *Invariants*: all delays and breaks come from the seed. Bytes of one direction arrive in the order in which they were sent.
//!
//! *Not here*: packets of requests, in `network.rs`; what is said, in `members`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::simulation::faults::Fault;

/// One way of a stream, in nanoseconds of virtual time.
const DELAY_NS: Range<u64> = 2_000..200_000;
/// How long it takes an end to notice that a stream has broken.
const NOTICE_NS: Range<u64> = 1_000..20_000_000;

/// A node, and the number of the connection there.
type End = (usize, u64);

/// What arrives at a member.
pub(super) enum Arrived {
    /// A call. The member says by [`Streams::accept`] which number its connection has.
    Called(usize),
    Connected,
    NobodyListens,
    Bytes(Vec<u8>),
    Ended,
}

struct Stream {
    /// The caller's end, and the other one when the call was accepted; none after it has ended.
    ends: [Option<End>; 2],
    called: usize,
    /// By end: when the last of what is under way arrives.
    last_ns: [u64; 2],
    /// Nothing that is sent from now on arrives.
    is_broken: bool,
}

/// All streams of a simulation.
pub(super) struct Streams {
    random: SmallRng,
    last: u64,
    streams: BTreeMap<u64, Stream>,
    by_end: BTreeMap<End, (u64, usize)>,
    /// By arrival and number: the stream, its end, and what arrives there.
    under_way: BTreeMap<(u64, u64), (u64, usize, Arrived)>,
    listening: BTreeSet<usize>,
    /// One more than the greatest number of a member that has started.
    nodes: usize,
    /// Nodes that hear nothing before a time.
    stands_until_ns: BTreeMap<usize, u64>,
    /// Faults that keep bytes between some nodes from arriving, and their ends.
    cuts: Vec<(u64, Fault)>,
    /// Of 1,000 messages so many break their stream.
    pub(super) breaks_permille: u32,
    /// Of 1,000 messages so many are changed on their way.
    pub(super) changes_permille: u32,
    /// Streams that were broken.
    pub(super) broken: u64,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            last: 0,
            streams: BTreeMap::new(),
            by_end: BTreeMap::new(),
            under_way: BTreeMap::new(),
            listening: BTreeSet::new(),
            nodes: 0,
            stands_until_ns: BTreeMap::new(),
            cuts: Vec::new(),
            breaks_permille: 0,
            changes_permille: 0,
            broken: 0,
        }
    }

    /// A member has started.
    pub(super) fn listen(&mut self, node: usize) {
        self.listening.insert(node);
        self.nodes = self.nodes.max(node + 1);
    }

    /// A node hears nothing before this time. What arrives meanwhile waits.
    pub(super) fn stand(&mut self, node: usize, until_ns: u64) {
        self.stands_until_ns.insert(node, until_ns);
    }

    /// Nothing arrives between the nodes that a fault cuts off before this time. It waits, as the two hosts send it again.
    pub(super) fn cut(&mut self, fault: Fault, until_ns: u64) {
        self.cuts.push((until_ns, fault));
    }

    /// When what a node sends to another arrives, if it is cut off at this time.
    fn cut_until_ns(&self, from: usize, to: usize, at_ns: u64) -> Option<u64> {
        let number = |node: usize| u16::try_from(node).expect("nodes are numbered with 16 bits");
        let (from, to, nodes) = (number(from), number(to), number(self.nodes));
        let lasts =
            |(until_ns, fault): &&(u64, Fault)| *until_ns > at_ns && fault.cuts(from, to, nodes);
        self.cuts.iter().filter(lasts).map(|(until_ns, _)| *until_ns).max()
    }

    /// When what a node sends at this time, or when it goes on, arrives at another.
    pub(super) fn reach_ns(&self, from: usize, to: usize, at_ns: u64) -> u64 {
        let stands = |node: usize| self.stands_until_ns.get(&node).copied().unwrap_or(0);
        let stands_ns = stands(from).max(stands(to));
        let cut_ns = self.cut_until_ns(from, to, at_ns).unwrap_or(0);
        at_ns.max(stands_ns).max(cut_ns)
    }

    /// A member has ended: its streams end, and nobody listens there any more.
    pub(super) fn kill(&mut self, node: usize, now_ns: u64) {
        self.listening.remove(&node);
        let ends: Vec<_> = self.by_end.keys().copied().filter(|(of, _)| *of == node).collect();
        ends.into_iter().for_each(|end| self.close(end, now_ns));
    }

    /// Breaks all streams of a node.
    pub(super) fn break_all(&mut self, node: usize, now_ns: u64) {
        let of = self.by_end.iter().filter(|((of, _), _)| *of == node);
        let streams: Vec<_> = of.map(|(_, (stream, _))| *stream).collect();
        streams.into_iter().for_each(|stream| self.break_one(stream, now_ns));
    }

    /// A member calls another one.
    pub(super) fn call(&mut self, from: End, called: usize, now_ns: u64) {
        self.last += 1;
        let ends = [Some(from), None];
        let stream = Stream { ends, called, last_ns: [0; 2], is_broken: false };
        self.streams.insert(self.last, stream);
        self.by_end.insert(from, (self.last, 0));
        let delay_ns = self.random.random_range(DELAY_NS);
        self.arrive(self.last, 1, now_ns + delay_ns, Arrived::Called(called));
    }

    /// The called member has accepted a call with this number.
    pub(super) fn accept(&mut self, stream: u64, number: u64, now_ns: u64) {
        let Some(accepted) = self.streams.get_mut(&stream) else { return };
        let end = (accepted.called, number);
        accepted.ends[1] = Some(end);
        self.by_end.insert(end, (stream, 1));
        let delay_ns = self.random.random_range(DELAY_NS);
        self.arrive(stream, 0, now_ns + delay_ns, Arrived::Connected);
    }

    /// Sends bytes from an end.
    pub(super) fn send(&mut self, from: End, mut bytes: Vec<u8>, now_ns: u64) {
        let Some(&(stream, side)) = self.by_end.get(&from) else { return };
        let delay_ns = self.random.random_range(DELAY_NS);
        let breaks = self.random.random_ratio(self.breaks_permille, 1_000);
        if self.random.random_ratio(self.changes_permille, 1_000) {
            let at = self.random.random_range(0..bytes.len());
            bytes[at] ^= 1 << self.random.random_range(0..8);
        }
        let (is_broken, is_gone) = self
            .streams
            .get(&stream)
            .map_or((true, true), |stream| (stream.is_broken, stream.ends[1 - side].is_none()));
        if is_broken || is_gone {
            // The other end has no such stream any more.
            self.arrive(stream, side, now_ns + delay_ns, Arrived::Ended);
            return;
        }
        if breaks {
            let kept = self.random.random_range(0..=bytes.len());
            bytes.truncate(kept);
        }
        self.arrive(stream, 1 - side, now_ns + delay_ns, Arrived::Bytes(bytes));
        if breaks {
            self.break_one(stream, now_ns);
        }
    }

    /// A member closes its end.
    pub(super) fn close(&mut self, end: End, now_ns: u64) {
        let Some((stream, side)) = self.by_end.remove(&end) else { return };
        let delay_ns = self.random.random_range(DELAY_NS);
        let Some(closed) = self.streams.get_mut(&stream) else { return };
        closed.ends[side] = None;
        match (closed.ends[1 - side], closed.is_broken) {
            (None, _) => drop(self.streams.remove(&stream)),
            (Some(_), false) => self.arrive(stream, 1 - side, now_ns + delay_ns, Arrived::Ended),
            (Some(_), true) => {}
        }
    }

    fn break_one(&mut self, number: u64, now_ns: u64) {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.is_broken) else {
            return;
        };
        stream.is_broken = true;
        self.broken += 1;
        // Often one end alone notices.
        let first = self.random.random_range(0..2);
        let notice_ns = now_ns + self.random.random_range(NOTICE_NS);
        self.arrive(number, first, notice_ns, Arrived::Ended);
        if self.random.random_bool(0.5) {
            let notice_ns = now_ns + self.random.random_range(NOTICE_NS);
            self.arrive(number, 1 - first, notice_ns, Arrived::Ended);
        }
    }

    fn arrive(&mut self, number: u64, side: usize, at_ns: u64, what: Arrived) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let at_ns = at_ns.max(stream.last_ns[side]);
        stream.last_ns[side] = at_ns;
        self.last += 1;
        self.under_way.insert((at_ns, self.last), (number, side, what));
    }

    /// When something arrives next.
    pub(super) fn next_arrival_ns(&self) -> Option<u64> {
        self.under_way.first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    /// What has arrived next, and where: the node and the number of the connection, or of the stream for a call.
    pub(super) fn take_arrived(&mut self, now_ns: u64) -> Option<(End, Arrived)> {
        loop {
            let arrives = self.under_way.first_entry().filter(|it| it.key().0 <= now_ns)?;
            let (_, order) = *arrives.key();
            let (number, side, what) = arrives.remove();
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            let node_at = |side: usize| stream.ends[side].map_or(stream.called, |(node, _)| node);
            let (from, node) = (node_at(1 - side), node_at(side));
            let stands_until_ns = self.stands_until_ns.get(&node).copied();
            let until_ns = stands_until_ns.max(self.cut_until_ns(from, node, now_ns)).unwrap_or(0);
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            if until_ns > now_ns {
                self.under_way.insert((until_ns, order), (number, side, what));
                continue;
            }
            match (what, stream.ends[side]) {
                (Arrived::Called(node), _) if self.listening.contains(&node) => {
                    return Some(((node, number), Arrived::Called(node)));
                }
                (Arrived::Called(_), _) => {
                    let delay_ns = self.random.random_range(DELAY_NS);
                    self.arrive(number, 0, now_ns + delay_ns, Arrived::NobodyListens);
                }
                (_, None) => {}
                (Arrived::Ended, Some(end)) => {
                    stream.ends[side] = None;
                    if stream.ends[1 - side].is_none() {
                        self.streams.remove(&number);
                    }
                    self.by_end.remove(&end);
                    return Some((end, Arrived::Ended));
                }
                (what, Some(end)) => return Some((end, what)),
            }
        }
    }
}
