//! The part of a group in leases: it renews that of its member, and has members removed that are silent or complained
//! about.
//!
//! *Invariants*: a renewal counts from the moment at which the renewal was sent, and carries the complaints of its
//! member. A member that votes grants its own renewal by a call. Only the decider suspects; a decider that suspects
//! itself leaves. Voters and removals come from the manager's log, each with its place; what the log gives up is taken
//! back.
//!
//! *Source*: `docs/protocol.md`, "Leases".
//!
//! *Not here*: what is granted, and who is suspected, in `leases.rs`; messages that come, in `group.rs`.

use std::collections::BTreeSet;

use crate::change_message::Loss;
use crate::configuration::Configuration;
use crate::decision::Standing;
use crate::members::group::{Event, Group, Stage};
use crate::members::leases::Voters;
use crate::members::message::Message;

impl Group {
    /// Whether this member renews its lease.
    pub(super) fn renews(&self) -> bool {
        self.stage == Stage::Formed && self.halted().is_none() && self.leases.renews()
    }

    /// The next look at the time renews the lease.
    pub(crate) fn renew_now(&mut self) {
        self.leases.renews_at_ns = 0;
    }

    /// Wants its lease to last longer, and complains about members that do not answer.
    pub(crate) fn renew(&mut self, complaints: &[u16]) {
        let sent_ns = self.now_ns;
        let others: BTreeSet<u16> = self.others().collect();
        let Some((index, voters)) = self.leases.renew(&others, sent_ns) else { return };
        for voter in voters {
            if usize::from(voter) == self.node() {
                let own = (voter, self.incarnation());
                if self.leases.grant(own, (index, complaints), sent_ns) {
                    self.granted(voter, (index, sent_ns));
                }
            } else {
                let complaints = complaints.to_vec();
                self.pass(usize::from(voter), &Message::Renew { index, sent_ns, complaints });
            }
        }
        self.suspect();
    }

    pub(super) fn granted(&mut self, voter: u16, renewal: (u64, u64)) {
        if let Some(until_ns) = self.leases.granted(voter, renewal) {
            self.events.push_back(Event::Lease(until_ns));
        }
    }

    /// The other members.
    fn others(&self) -> impl Iterator<Item = u16> {
        let others = self.peers.values().filter(|peer| peer.is_member());
        others.filter_map(|peer| u16::try_from(peer.node).ok())
    }

    /// Has members removed that are silent or that others complain about, if this one decides.
    fn suspect(&mut self) {
        let others = self.others().collect();
        for (node, why) in self.leases.suspects(&others, self.now_ns) {
            self.suspicions += 1;
            if let Some(suppressed) = self.log.permit_at(self.now_ns) {
                tracing::warn!("node {node} {why}, and is suspected{suppressed}");
            }
            if usize::from(node) == self.node() {
                return self.has_to_go(format!("it {why}"));
            }
            self.tell_loss(usize::from(node), Loss::Silent);
        }
    }

    /// The members that this one suspects now, if it decides.
    pub(crate) fn silent(&self) -> BTreeSet<u16> {
        self.leases.suspected()
    }

    /// These vote on the membership from now on, as the manager's log has taken it.
    pub(crate) fn set_voters(&mut self, index: u64, voters: Voters) {
        self.leases.set_voters(index, voters);
    }

    /// The manager's log has taken the removal of a member, or has let a node in.
    pub(crate) fn log_standing(&mut self, index: u64, (node, standing): (u16, Standing)) {
        self.leases.stand(index, node, standing);
    }

    /// The manager's log has given up what it had from this place on.
    pub(crate) fn log_truncated(&mut self, from: u64) {
        self.leases.truncate(from);
    }

    /// Whether the membership changes now.
    pub(crate) fn set_changing(&mut self, is_changing: bool) {
        self.leases.set_changing(is_changing);
    }

    /// The log begins behind a snapshot, which has this configuration.
    pub(crate) fn log_installed(&mut self, index: u64, configuration: &Configuration) {
        let removed = configuration.removed().map(|(node, _)| (node, Standing::Removed));
        let members = configuration.member_numbers().map(|node| {
            (node, Standing::Member(configuration.members[usize::from(node)].incarnation))
        });
        self.leases.install(index, removed.chain(members).collect());
    }

    /// This member grants no leases any more.
    pub(crate) fn vote_no_more(&mut self) {
        self.leases.vote_no_more();
    }

    /// Whether this member decides from now on.
    pub(crate) fn set_decides(&mut self, decides: bool) {
        self.leases.set_decides(decides, self.now_ns);
    }
}
