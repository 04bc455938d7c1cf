//! The connections of a member: who calls whom, what the two ends say first, and what the end of a connection means.
//!
//! ```text
//!            the greater number                          the smaller number
//! calls      until it is answered                        too: it learns whether the other still runs, and is told that it will be called
//! is called  answers WillCall, and calls at once if the  answers Connected, and uses the new connection in place of the present one
//!            caller has lost the present connection
//! ```
//! The greater counts the connections. A call that arrives late, when a later connection is in use, is so known from a new one. The words
//! of a caller are sealed with keys of this very connection, so nobody can repeat them.
//!
//! *Invariants*: of two members the one with the smaller number is called. A handshake ends within five seconds. Once
//! the group is formed, nothing that is not sealed with the key halts a member, but for the word of its own host that nobody listens.

use crate::change_message::Loss;
use crate::link::{LinkError, Role, Session, User, decoded, encoded};
use crate::members::JoinError;
use crate::members::group::{Action, Event, Group, Stage};
use crate::members::message::{Call, Hello, Message, Opening, Welcome, difference};
use crate::members::peer::Peer;
use crate::members::terms::ClusterTerms;

/// Longest time from the beginning of a connection to its use.
const HANDSHAKE_TIMEOUT_NS: u64 = 5_000_000_000;
/// A call that has not been answered for so long is made anew if the called member calls in the meantime: that member has no connection,
/// and may have lost the call's unnoticed by this one.
const UNANSWERED_CALL_NS: u64 = 500_000_000;
/// Between two calls of a member that is not there yet.
pub(super) const CALL_INTERVAL_NS: u64 = 100_000_000;
/// The same for a node whose process has ended: another process may be there, and know no address of a member.
const GONE_CALL_INTERVAL_NS: u64 = 1_000_000_000;
/// From the break of a connection until the member with the smaller number calls.
const BROKEN_CALL_NS: u64 = 5_000_000;

/// What the owner has seen of a connection.
#[derive(Debug)]
pub(crate) enum Input<'b> {
    /// It is there.
    Connected,
    /// Nobody listens at the address.
    NobodyListens,
    /// The called host does not answer, or not now.
    Unreachable,
    /// The other has sent these bytes.
    Heard(&'b [u8]),
    /// It has ended.
    Ended,
}

/// A connection, with the time until which its handshake must have ended.
pub(super) enum Connection {
    /// This member has called.
    Connecting { node: usize, until_ns: u64 },
    /// This member waits for the other's welcome.
    Calling { node: usize, session: Box<Session>, until_ns: u64 },
    /// A process has called from an address.
    Called { from: String, session: Box<Session>, until_ns: u64 },
    /// It is in use.
    Open { node: usize, session: Box<Session> },
    /// The caller waits to be let in. Its messages are those of the manager's replicas.
    Waiting { node: usize, session: Box<Session> },
}

impl Connection {
    fn session(&mut self) -> Option<&mut Session> {
        match self {
            Self::Connecting { .. } => None,
            Self::Calling { session, .. }
            | Self::Called { session, .. }
            | Self::Open { session, .. }
            | Self::Waiting { session, .. } => Some(session),
        }
    }

    fn until_ns(&self) -> Option<u64> {
        match self {
            Self::Connecting { until_ns, .. }
            | Self::Calling { until_ns, .. }
            | Self::Called { until_ns, .. } => Some(*until_ns),
            Self::Open { .. } | Self::Waiting { .. } => None,
        }
    }
}

/// A member that is connected, as the group hears it.
pub(super) struct Speaker<'g> {
    group: &'g mut Group,
    node: usize,
}

impl User for Speaker<'_> {
    const ROLE: Role = Role::Member;
    type Opening = Opening;
    type Welcome = Welcome;
    type Message = Message;

    fn hear(&mut self, message: Message) -> Result<(), LinkError> {
        self.group.hear(self.node, message)
    }

    fn outlives(&self, _: &LinkError) -> bool {
        let is_gone = self.group.peers.get(&self.node).is_none_or(|peer| peer.is_gone);
        self.group.stage == Stage::Formed && !is_gone
    }
}

impl Group {
    /// A process has connected, from an address that the log names; the connection's number.
    pub(crate) fn accepted(&mut self, from: String) -> u64 {
        let session = Box::new(Session::answer(Role::Member, self.setup.key.as_ref()));
        let until_ns = self.now_ns + HANDSHAKE_TIMEOUT_NS;
        self.last_connection += 1;
        let called = Connection::Called { from, session, until_ns };
        self.connections.insert(self.last_connection, called);
        self.last_connection
    }

    /// Takes what the owner has seen of a connection; nothing of one that was closed.
    pub(crate) fn take(&mut self, number: u64, input: &Input<'_>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let taken = match (input, connection) {
            (Input::Connected, Connection::Connecting { node, until_ns }) => {
                let (node, until_ns) = (*node, *until_ns);
                self.open_call(number, node, until_ns)
            }
            (Input::NobodyListens, Connection::Connecting { node, .. }) => {
                let node = *node;
                self.end(number, LinkError::Ended);
                if self.stage == Stage::Formed {
                    self.lose(node, Loss::Gone, "is gone: its process has ended");
                }
                Ok(())
            }
            (Input::Heard(bytes), connection) => match connection.session() {
                Some(session) => {
                    let heard = session.hear(bytes);
                    self.send(number);
                    heard.and_then(|()| self.hear_messages(number))
                }
                None => Err(LinkError::Malformed),
            },
            (Input::Connected | Input::NobodyListens | Input::Unreachable | Input::Ended, _) => {
                Err(LinkError::Ended)
            }
        };
        if let Err(error) = taken {
            self.end(number, error);
        }
    }

    /// Handles the messages that have come whole, for as long as the connection is there.
    fn hear_messages(&mut self, number: u64) -> Result<(), LinkError> {
        while let Some(connection) = self.connections.get_mut(&number) {
            let Some(message) = connection.session().map_or(Ok(None), Session::next)? else {
                break;
            };
            match connection {
                Connection::Connecting { .. } => {}
                Connection::Calling { node, .. } => {
                    let node = *node;
                    self.hear_welcome(number, node, decoded(&message)?)?;
                }
                Connection::Called { .. } => match decoded(&message)? {
                    Opening::Member(call) => self.hear_call(number, &call)?,
                    Opening::Question => self.answer_question(number),
                },
                Connection::Open { node, .. } => {
                    let node = *node;
                    let Some(peer) = self.peers.get_mut(&node) else { break };
                    if let Some(message) = peer.delivery.hear(&message)? {
                        Speaker { group: self, node }.hear(message)?;
                    }
                }
                Connection::Waiting { node, .. } => {
                    let node = u16::try_from(*node).map_err(|_| LinkError::Malformed)?;
                    self.events.push_back(Event::Manager(node, message));
                }
            }
        }
        Ok(())
    }

    /// Ends handshakes that take too long.
    pub(super) fn end_handshakes(&mut self) {
        let is_late =
            |connection: &Connection| connection.until_ns().is_some_and(|at| at <= self.now_ns);
        let late = self.connections.iter().filter(|(_, connection)| is_late(connection));
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end(number, LinkError::TimedOut);
        }
    }

    /// Calls the members that are not connected, if it is time.
    pub(super) fn call_members(&mut self) {
        let is_due = |peer: &&Peer| peer.call_at_ns <= self.now_ns && self.calls(peer);
        let due: Vec<_> = self.peers.values().filter(is_due).map(|peer| peer.node).collect();
        for node in due {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let Some(address) = peer.address else { continue };
            self.last_connection += 1;
            let connection = self.last_connection;
            peer.attempt = Some(connection);
            let until_ns = self.now_ns + HANDSHAKE_TIMEOUT_NS;
            self.connections.insert(connection, Connection::Connecting { node, until_ns });
            self.actions.push_back(Action::Call { connection, node, address });
        }
    }

    /// When a handshake ends or a member is called next.
    pub(super) fn connections_deadline_ns(&self) -> Option<u64> {
        let handshakes = self.connections.values().filter_map(Connection::until_ns);
        let called = self.peers.values().filter(|peer| self.calls(peer));
        let calls = called.map(|peer| peer.call_at_ns);
        handshakes.chain(calls).min()
    }

    /// Begins the handshake with a member that was called.
    fn open_call(&mut self, number: u64, node: usize, until_ns: u64) -> Result<(), LinkError> {
        let (is_greater, addresses) = (self.node() > node, self.known_addresses());
        let Some(peer) = self.peers.get_mut(&node) else { return Err(LinkError::Ended) };
        peer.connection += u64::from(is_greater);
        let resumed = peer.incarnation().filter(|_| peer.has_come);
        let call = Call {
            hello: self.setup.hello.clone(),
            connection: peer.connection,
            is_formed: self.stage == Stage::Formed,
            addresses,
            resumes: resumed.map(|incarnation| (incarnation, peer.delivery.heard())),
            predecessor: self.setup.predecessor,
        };
        let opening = Opening::Member(Box::new(call));
        let session = Session::call(Speaker::ROLE, self.setup.key.as_ref(), &opening)?;
        let calling = Connection::Calling { node, session: Box::new(session), until_ns };
        self.connections.insert(number, calling);
        self.send(number);
        Ok(())
    }

    /// Answers a caller.
    fn hear_call(&mut self, number: u64, opening: &Call) -> Result<(), LinkError> {
        let node = opening.hello.node;
        if let Some(refusal) = self.judge(opening) {
            match &refusal {
                Welcome::Refused(reason) | Welcome::TooLate(reason) => {
                    if let Some(Connection::Called { from, .. }) = self.connections.get(&number) {
                        self.log_call(&from.clone(), reason);
                    }
                }
                Welcome::Leaving(_) => {
                    self.peers.get_mut(&node).into_iter().for_each(|peer| peer.is_told = true);
                }
                Welcome::Connected { .. }
                | Welcome::WillCall
                | Welcome::NotYet(_)
                | Welcome::Waits { .. }
                | Welcome::Another
                | Welcome::Terms(_)
                | Welcome::Removed => {}
            }
            self.say(number, encoded(&refusal));
            if let Welcome::Waits { .. } = refusal {
                return self.keep_waiting(number, node);
            }
            self.close(number);
            return Ok(());
        }
        let Some(peer) = self.peers.get_mut(&node) else { return Err(LinkError::Malformed) };
        if opening.resumes.is_none() && peer.delivery.heard() > 0 {
            // The caller is a member since, and has forgotten what was said before.
            peer.forget();
        }
        peer.become_incarnation(&opening.hello.entry);
        peer.connection = opening.connection;
        let (hello, heard) = (self.setup.hello.clone(), peer.delivery.heard());
        let session = self.connections.get_mut(&number).and_then(Connection::session);
        session.into_iter().for_each(Session::trust);
        let addresses = self.known_addresses();
        self.say(number, encoded(&Welcome::Connected { hello, addresses, heard }));
        self.hear_of_cluster(node, &opening.addresses);
        self.use_connection(number, node, opening.resumes.map_or(0, |(_, heard)| heard))
    }

    /// Tells a process the terms of the cluster, if this process is a member of one that has begun.
    fn answer_question(&mut self, number: u64) {
        let is_member = self.stage == Stage::Formed && self.has_joined && self.halted().is_none();
        let welcome = if is_member {
            let addresses = self.known_addresses();
            Welcome::Terms(Box::new(ClusterTerms { addresses, ..self.setup.terms.clone() }))
        } else {
            Welcome::NotYet("it is no member of a cluster that has begun".to_owned())
        };
        self.say(number, encoded(&welcome));
        self.close(number);
    }

    /// Why there is no connection with a caller; none if there is.
    fn judge(&mut self, opening: &Call) -> Option<Welcome> {
        let Call { hello: Hello { node, entry, .. }, connection, resumes, .. } = opening;
        let misfit = difference(&self.setup.hello, &opening.hello);
        if misfit.is_none() {
            self.learn_of_cluster(&opening.addresses);
        }
        let own = &self.setup.hello;
        // First: what this process leaves for is no news of the one that the caller means.
        if resumes.is_some_and(|(incarnation, _)| incarnation != own.entry.incarnation) {
            return Some(Welcome::Another);
        }
        if self.stage == Stage::Leaving {
            return Some(Welcome::Leaving(self.because.clone()));
        }
        let is_formed = self.stage == Stage::Formed;
        let refusal = if is_formed { Welcome::TooLate } else { Welcome::Refused };
        if let Some(misfit) = misfit {
            return Some(refusal(misfit));
        }
        let Some(peer) = self.peers.get_mut(node) else {
            let all = self.setup.terms.addresses.len();
            return Some(refusal(format!("node {node} is not another node of {all}")));
        };
        if !is_formed && !opening.is_formed && (*node).max(own.node) >= self.setup.terms.first_nodes
        {
            let reason = "the cluster has not begun with its first nodes";
            return Some(Welcome::NotYet(format!("node {node} is not let in yet: {reason}")));
        }
        let is_known = peer.incarnation() == Some(entry.incarnation);
        if is_known && is_formed && !peer.is_there() {
            return Some(if peer.is_removed { Welcome::Removed } else { Welcome::WillCall });
        }
        if is_formed && !is_known {
            if let Some(reason) = self.halted() {
                return Some(Welcome::TooLate(format!("the cluster has halted: {reason}")));
            }
            if opening.is_formed {
                // One that was removed, before or after another one with its number.
                return Some(Welcome::Removed);
            }
            if let Some(reason) = self.wait_of_newcomer(*node) {
                self.lose_if_replaced(*node);
                return Some(self.have_wait(*node, opening.predecessor, reason));
            }
            self.meet_newcomer(*node, entry);
            // What the two have said to each other before is forgotten here.
            return if resumes.is_some() { Some(Welcome::Another) } else { self.judge(opening) };
        }
        if *node > own.node {
            // If this call is an earlier one, a later connection is in use.
            return (is_known && *connection <= peer.connection).then_some(Welcome::WillCall);
        }
        if !is_formed && !is_known && peer.present.is_some() {
            // The process in use was started again.
            peer.forget();
            peer.call_at_ns = self.now_ns;
            self.end_present(*node);
            return Some(Welcome::WillCall);
        }
        if resumes.is_some() && peer.present.is_some() && peer.connection <= *connection {
            // The caller has lost the connection in use.
            peer.call_at_ns = self.now_ns;
            self.end_present(*node);
        }
        self.call_anew_if_unanswered(*node);
        Some(Welcome::WillCall)
    }

    /// The called member has called in the meantime, so it may have lost the call.
    fn call_anew_if_unanswered(&mut self, node: usize) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let attempt = peer.attempt.and_then(|attempt| self.connections.get(&attempt));
        let Some(until_ns) = attempt.and_then(Connection::until_ns) else { return };
        if until_ns + UNANSWERED_CALL_NS <= self.now_ns + HANDSHAKE_TIMEOUT_NS {
            peer.call_at_ns = self.now_ns;
            self.end_attempt(node);
        }
    }

    /// A called member has answered.
    fn hear_welcome(&mut self, number: u64, node: usize, said: Welcome) -> Result<(), LinkError> {
        let is_formed = self.stage == Stage::Formed;
        let Some(peer) = self.peers.get_mut(&node) else { return Err(LinkError::Malformed) };
        match said {
            // The call tells the process that answers of the cluster, and no answer counts.
            _ if peer.is_gone => self.end(number, LinkError::Ended),
            Welcome::Connected { hello, .. } if hello.node != node => {
                self.end(number, LinkError::Ended);
                self.refused(node, format!("it is node {} and not {node}", hello.node));
            }
            // Of two members the one with the smaller number is called.
            Welcome::Connected { .. } if node > self.setup.hello.node => {
                return Err(LinkError::Malformed);
            }
            Welcome::Connected { hello, addresses, heard } => {
                if is_formed && peer.incarnation() != Some(hello.entry.incarnation) {
                    self.another_answers(number, node, "it is another one");
                    return Ok(());
                }
                peer.become_incarnation(&hello.entry);
                self.hear_of_cluster(node, &addresses);
                return self.use_connection(number, node, heard);
            }
            Welcome::WillCall => self.end(number, LinkError::Ended),
            // Nothing was asked.
            Welcome::Terms(_) => return Err(LinkError::Malformed),
            Welcome::NotYet(reason) => {
                self.end(number, LinkError::Ended);
                self.hear_not_yet(node, reason);
            }
            Welcome::Waits { .. } if self.stage != Stage::Gathering => {
                self.end(number, LinkError::Ended);
            }
            Welcome::Waits { reason, incarnation } => {
                self.hear_not_yet(node, reason);
                self.keep_waiting(number, node)?;
                self.offer_vote_of_predecessor(node, incarnation);
            }
            Welcome::Removed => {
                self.end(number, LinkError::Ended);
                self.was_removed();
            }
            Welcome::Another if is_formed => {
                self.another_answers(number, node, "it is another one");
            }
            Welcome::Another => {
                peer.forget();
                self.end(number, LinkError::Ended);
            }
            Welcome::TooLate(reason) | Welcome::Refused(reason) if is_formed => {
                self.another_answers(number, node, &reason);
            }
            Welcome::TooLate(reason) => {
                self.end(number, LinkError::Ended);
                self.refused(node, reason);
            }
            Welcome::Refused(reason) => {
                self.end(number, LinkError::Ended);
                // Of two that do not fit the one with the greater number ends.
                if node < self.node() {
                    self.refused(node, reason);
                }
            }
            Welcome::Leaving(because) => {
                self.end(number, LinkError::Ended);
                self.left(node, because);
            }
        }
        Ok(())
    }

    /// Another process answers at the address of a member. That alone proves no death: behind one address there may be two processes. If
    /// the member is apart from this one for longer than a lease lasts, it is gone.
    fn another_answers(&mut self, number: u64, node: usize, reason: &str) {
        if !self.has_joined {
            self.lose(node, Loss::Gone, "was started again before all had joined");
            return;
        }
        self.end(number, LinkError::Ended);
        self.lose_if_replaced(node);
        if let Some(suppressed) = self.log.permit_at(self.now_ns) {
            let place = self.peers.get(&node).map(Peer::at_address).unwrap_or_default();
            tracing::warn!(
                "a process that is not node {node} answers{place}: {reason}{suppressed}"
            );
        }
    }

    /// A member refuses this process.
    fn refused(&mut self, node: usize, reason: String) {
        let place = self.peers.get(&node).map(Peer::at_address).unwrap_or_default();
        self.fail(JoinError::Refused { node, place, reason });
    }

    /// Uses a connection in place of the one before, and says again what the other has not heard.
    fn use_connection(&mut self, number: u64, node: usize, heard: u64) -> Result<(), LinkError> {
        self.end_present(node);
        let is_formed = self.stage == Stage::Formed;
        if self.peers.get(&node).is_some_and(|peer| peer.attempt != Some(number)) {
            self.end_attempt(node);
        }
        let Some(Connection::Calling { session, .. } | Connection::Called { session, .. }) =
            self.connections.remove(&number)
        else {
            return Err(LinkError::Malformed);
        };
        self.connections.insert(number, Connection::Open { node, session });
        let Some(peer) = self.peers.get_mut(&node) else { return Err(LinkError::Malformed) };
        (peer.present, peer.attempt) = (Some(number), None);
        let state = if is_formed && peer.has_come { "connected again" } else { "there" };
        peer.has_come = true;
        tracing::info!("node {node} is {state}");
        let again: Vec<_> = peer.delivery.again(heard)?.map(<[u8]>::to_vec).collect();
        self.actions.push_back(Action::Admit { connection: number });
        again.into_iter().for_each(|message| self.say(number, Ok(message)));
        self.send(number);
        if self.peers.get(&node).is_some_and(|peer| peer.is_removed) {
            self.pass(node, &Message::Removed);
        }
        self.tell_newcomer(node);
        self.form_if_complete();
        Ok(())
    }

    /// Says a message on a connection. One that could not be sealed is the last one of the connection.
    pub(super) fn say(&mut self, number: u64, message: Result<Vec<u8>, LinkError>) {
        let session = self.connections.get_mut(&number).and_then(Connection::session);
        let Some(session) = session else { return };
        match message.and_then(|message| session.say(&message)) {
            Ok(()) => self.send(number),
            Err(error) => self.end(number, error),
        }
    }

    /// Sends what the session has said.
    pub(super) fn send(&mut self, connection: u64) {
        let session = self.connections.get_mut(&connection).and_then(Connection::session);
        let bytes = session.map(Session::take_said).unwrap_or_default();
        if !bytes.is_empty() {
            self.actions.push_back(Action::Send { connection, bytes });
        }
    }

    fn close(&mut self, number: u64) {
        if self.connections.remove(&number).is_some() {
            self.actions.push_back(Action::Close { connection: number });
        }
    }

    /// Ends a call of a member that is under way.
    pub(super) fn end_attempt(&mut self, node: usize) {
        let attempt = self.peers.get_mut(&node).and_then(|peer| peer.attempt.take());
        attempt.into_iter().for_each(|attempt| self.close(attempt));
    }

    /// Ends the connection to a member that is in use.
    pub(super) fn end_present(&mut self, node: usize) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let Some(present) = peer.present.take() {
            peer.apart_since_ns = self.now_ns;
            self.close(present);
        }
    }

    /// A connection has ended, and why.
    fn end(&mut self, number: u64, error: LinkError) {
        let Some(connection) = self.connections.remove(&number) else { return };
        self.actions.push_back(Action::Close { connection: number });
        match connection {
            Connection::Called { from, .. } => {
                if !matches!(error, LinkError::Ended | LinkError::TimedOut) {
                    self.log_call(&from, &error.to_string());
                }
            }
            Connection::Connecting { node, .. } | Connection::Calling { node, .. } => {
                self.call_ended(node, &error);
            }
            Connection::Waiting { node, .. } => {
                self.call_ended(node, &error);
                self.withdraw_vote_of_predecessor(node);
            }
            Connection::Open { node, .. } => {
                let outlives = Speaker { group: self, node }.outlives(&error);
                let has_broken = matches!(error, LinkError::Ended | LinkError::Broken(_));
                let wait_ns = match (has_broken, self.node() > node) {
                    (true, true) => 0,
                    // The other calls at once, unless it has ended.
                    (true, false) => BROKEN_CALL_NS,
                    (false, _) => CALL_INTERVAL_NS,
                };
                self.withdraw_vote_of_predecessor(node);
                let Some(peer) = self.peers.get_mut(&node) else { return };
                (peer.present, peer.apart_since_ns) = (None, self.now_ns);
                peer.call_at_ns = self.now_ns + wait_ns;
                if outlives && let Some(suppressed) = self.log.permit_at(self.now_ns) {
                    tracing::warn!("the connection to node {node} has broken: {error}{suppressed}");
                }
            }
        }
    }

    /// A call of a member has ended before there was a connection.
    fn call_ended(&mut self, node: usize, error: &LinkError) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.attempt = None;
        if peer.is_gone {
            peer.call_at_ns = self.now_ns + GONE_CALL_INTERVAL_NS;
            return;
        }
        peer.call_at_ns = self.now_ns + CALL_INTERVAL_NS;
        let advice = match error {
            LinkError::Ended | LinkError::TimedOut | LinkError::Broken(_) => return,
            LinkError::Key | LinkError::KeyWanted => format!(
                "its cluster key is not that of node {node}, or it has none: give all nodes the same file"
            ),
            LinkError::NoKeyWanted => format!(
                "it has a cluster key, and node {node} trusts the network: tell all nodes the same"
            ),
            LinkError::Version(_) => format!("{error}; start the same release on all nodes"),
            error => error.to_string(),
        };
        if self.stage == Stage::Gathering && node < self.node() {
            self.refused(node, advice);
        } else if let Some(suppressed) = self.log.permit_at(self.now_ns) {
            tracing::warn!("node {node} could not be called: {error}{suppressed}");
        }
    }

    /// Logs a call that was refused.
    fn log_call(&self, from: &str, reason: &str) {
        if let Some(suppressed) = self.log.permit_at(self.now_ns) {
            tracing::warn!("a call from {from} was refused: {reason}{suppressed}");
        }
    }
}
