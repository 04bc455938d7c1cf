//! Another member, as this one knows it: its identity, the connection to it, what it has not heard yet, and how it is.
//!
//! *Invariants*: at most one connection is in use. Messages that are kept belong to one incarnation of the peer. A
//! newcomer is there, and is no member. Silence is counted in reports of this member, one a second: after more than two
//! the peer counts as silent, and is not removed for that.
//!
//! *Not here*: who calls whom (`calls.rs`); kept messages and their numbers (`link`); the silence for which a member is
//! removed (`leases.rs`).

use std::net::SocketAddr;

use crate::configuration::MemberEntry;
use crate::link::Delivery;
use crate::statistics::{NodeReport, NodeState, NodeStatus};

/// Reports of a peer may be this late before they count as missing.
const REPORTS_LATE: u64 = 2;

/// Another member.
pub(super) struct Peer {
    pub(super) node: usize,
    /// Where it is called; none of a node that has not come yet, and tells then.
    pub(super) address: Option<SocketAddr>,
    /// The incarnation that has come, with what it told of itself.
    pub(super) entry: Option<MemberEntry>,
    /// The two have been connected.
    pub(super) has_come: bool,
    pub(super) delivery: Delivery,
    /// The connection in use.
    pub(super) present: Option<u64>,
    /// When the last one has ended.
    pub(super) apart_since_ns: u64,
    /// A call under way.
    pub(super) attempt: Option<u64>,
    /// When to call next.
    pub(super) call_at_ns: u64,
    /// Number of the last connection, as the greater of the two members counts them.
    pub(super) connection: u64,
    report: Option<NodeReport>,
    /// Own reports since the last one of the peer.
    silence: u64,
    /// It has ended, or knows that it was removed.
    pub(super) is_gone: bool,
    /// It was removed from the membership, as is decided.
    pub(super) is_removed: bool,
    /// It has come back, and is no member yet, as far as this one knows.
    pub(super) is_newcomer: bool,
    /// It knows that this member leaves.
    pub(super) is_told: bool,
    /// It was told to stop.
    pub(super) stops: bool,
}

impl Peer {
    pub(super) fn new(node: usize, address: Option<SocketAddr>) -> Self {
        Self {
            node,
            address,
            entry: None,
            has_come: false,
            delivery: Delivery::default(),
            present: None,
            apart_since_ns: 0,
            attempt: None,
            call_at_ns: 0,
            connection: 0,
            report: None,
            silence: 0,
            is_gone: false,
            is_removed: false,
            is_newcomer: false,
            is_told: false,
            stops: false,
        }
    }

    /// Whether it was neither lost nor removed. It may be a newcomer.
    pub(super) fn is_there(&self) -> bool {
        !self.is_gone && !self.is_removed
    }

    /// Whether it is a member, as far as this one knows.
    pub(super) fn is_member(&self) -> bool {
        self.is_there() && !self.is_newcomer
    }

    /// Another process has its number, and wants to be a member.
    pub(super) fn come_back(&mut self, entry: MemberEntry) {
        let new = Self::new(self.node, entry.address.or(self.address));
        *self = Self { entry: Some(entry), is_newcomer: true, ..new };
    }

    /// Where it is, behind its name in a sentence.
    pub(super) fn at_address(&self) -> String {
        self.address.map(|address| format!(" at {address}")).unwrap_or_default()
    }

    pub(super) fn incarnation(&self) -> Option<u32> {
        self.entry.as_ref().map(|entry| entry.incarnation)
    }

    /// The peer is this incarnation; what was said to another one is forgotten. Whether it was another one.
    pub(super) fn become_incarnation(&mut self, entry: &MemberEntry) -> bool {
        let is_new = self.incarnation() != Some(entry.incarnation);
        if is_new {
            self.forget();
        }
        self.address = entry.address.or(self.address);
        self.entry = Some(entry.clone());
        is_new
    }

    /// Forgets the incarnation that was there.
    pub(super) fn forget(&mut self) {
        self.entry = None;
        self.has_come = false;
        self.delivery = Delivery::default();
    }

    /// Notes a report of the peer.
    pub(super) fn reported(&mut self, report: NodeReport) {
        if self.silence > REPORTS_LATE {
            tracing::info!("node {} speaks again", self.node);
        }
        (self.report, self.silence) = (Some(report), 0);
    }

    /// Counts a report of this member.
    pub(super) fn count_silence(&mut self) {
        self.silence += 1;
        if self.silence == REPORTS_LATE + 1 && !self.is_gone {
            let Self { node, silence, .. } = self;
            tracing::warn!("node {node} says nothing for {silence} s; what needs it waits");
        }
    }

    /// What it has last said of itself.
    pub(super) fn report(&self) -> Option<&NodeReport> {
        self.report.as_ref()
    }

    /// For how many of this member's reports it has said nothing, which come every second.
    pub(super) fn silence(&self) -> u64 {
        self.silence
    }

    /// How the peer is.
    pub(super) fn status(&self) -> NodeStatus {
        let state = match self.silence {
            _ if !self.is_member() => NodeState::Gone,
            0..=REPORTS_LATE => NodeState::Up,
            seconds => NodeState::Silent(seconds),
        };
        NodeStatus { node: self.node, address: self.address, state, report: self.report.clone() }
    }
}
