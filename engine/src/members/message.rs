//! Messages between members: who each is, and everything they say to each other besides requests.
//!
//! ```text
//! caller    Opening: hello, number of the connection, and the incarnation that it resumes a connection with; or a question
//! called    Welcome: its own hello, or why there is no connection
//! both      Message: changes of the configuration, leases, reports, and that a member has halted or leaves
//! ```
//! *Not here*: the bytes, which are those of the link; who calls whom, in `calls.rs`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::change_message::ChangeMessage;
use crate::configuration::MemberEntry;
use crate::members::leases::Voters;
use crate::members::terms::ClusterTerms;
use crate::statistics::NodeReport;

/// The identity and the settings of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) node: usize,
    /// Its part of the first configuration.
    pub(crate) entry: MemberEntry,
    /// What all members must agree on, by name.
    pub(crate) settings: BTreeMap<String, String>,
}

/// What a caller says at the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Opening {
    /// It is a member, or wants to be one.
    Member(Box<Call>),
    /// It wants to know the terms of the cluster.
    Question,
}

/// A call of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(super) hello: Hello,
    /// Of two members the one with the greater number counts their connections. From the other: the last one, which it has lost.
    pub(super) connection: u64,
    /// Whether the caller is a member of a cluster.
    pub(super) is_formed: bool,
    /// By node: where it is, as far as a member of a cluster that goes on knows. A process that comes back may know old addresses.
    pub(super) addresses: Vec<Option<SocketAddr>>,
    /// The incarnation of the called member, if the two have been connected, and the number of the last message heard from it.
    pub(super) resumes: Option<(u32, u64)>,
    /// The incarnation before the caller whose log of the membership the caller has.
    pub(super) predecessor: Option<u32>,
}

/// What the called member answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Welcome {
    /// The two are connected. `heard` is the number of the last message heard from the caller.
    Connected { hello: Hello, addresses: Vec<Option<SocketAddr>>, heard: u64 },
    /// The caller is to wait until it is called.
    WillCall,
    /// The called process is another incarnation than the one that the caller resumes a connection with.
    Another,
    /// The caller cannot be a member.
    Refused(String),
    /// All members have come, and the caller cannot be one.
    TooLate(String),
    /// The caller is let in when the process before it was removed.
    NotYet(String),
    /// So it is, and as long as it waits the two carry what the manager's replicas say, that of the caller's predecessor being one. The
    /// called member is this incarnation.
    Waits { reason: String, incarnation: u32 },
    /// The called member leaves, and why if it does not do so on request.
    Leaving(Option<String>),
    /// The caller was removed from the membership.
    Removed,
    /// The terms of the cluster that the called process is a member of.
    Terms(Box<ClusterTerms>),
}

/// What members say to each other from then on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A part in a change of the configuration.
    Change(ChangeMessage),
    /// What the manager's replica of one says to that of the other; it may be lost.
    Manager(Vec<u8>),
    /// The member's report, every second.
    Report(NodeReport),
    /// The receiver is to stop, and to be started again.
    Restart,
    /// The member was told to stop, and goes on until it leaves.
    Stops,
    /// The member leaves, and why if it does not do so on request.
    Leaving(Option<String>),
    /// The member has heard that the other leaves.
    Farewell,
    /// The member has halted, and why.
    Halted(String),
    /// The member wants its lease to last longer. It names the place of the members of the manager's log, or none, and whom it complains about.
    Renew { index: u64, sent_ns: u64, complaints: Vec<u16> },
    /// The member has granted this renewal, as a voter.
    Granted { index: u64, sent_ns: u64 },
    /// A renewal named another place than this one, at which the sender's log has these voters.
    Voting { index: u64, sets: Voters },
    /// The receiver was removed from the membership.
    Removed,
}

/// What two members do not agree on, from the view of the called one.
pub(super) fn difference(own: &Hello, other: &Hello) -> Option<String> {
    // Defaults of others follow from the transport.
    let transport = "transport".to_owned();
    let names = std::iter::once(&transport).chain(own.settings.keys()).chain(other.settings.keys());
    let mut differing = names.filter(|name| own.settings.get(*name) != other.settings.get(*name));
    let name = differing.next()?;
    let value = |of: &Hello| of.settings.get(name).map_or("nothing", String::as_str).to_owned();
    Some(format!(
        "{name}: node {} has {} and node {} has {}; give all nodes the same",
        own.node,
        value(own),
        other.node,
        value(other)
    ))
}
