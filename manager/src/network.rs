//! The requests of raft between replicas, as bytes that the owner of the replicas carries.
//!
//! ```text
//! Wire: replica that it comes from | replica that it is for | number of the request | request, or the answer to one
//! ```
//! *Invariants*: bytes may be lost. A request without an answer ends by raft's own time-out, and raft repeats it. What is for another
//! incarnation of a node is passed over: that one has promised and stored what this one knows nothing of.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_rules::rule;
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, Raft};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{ReplicaId, Types};

/// Between two attempts to reach a node that does not answer.
const AGAIN: Duration = Duration::from_millis(20);

/// A request or an answer.
#[derive(Serialize, Deserialize)]
enum Body {
    Append(AppendEntriesRequest<Types>),
    Appended(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(VoteRequest<u64>),
    Voted(Result<VoteResponse<u64>, RaftError<u64>>),
    Snapshot(InstallSnapshotRequest<Types>),
    Installed(Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>),
}

#[derive(Serialize, Deserialize)]
struct Wire {
    from: u64,
    to: u64,
    number: u64,
    body: Body,
}

/// Carries bytes to another node, or loses them.
pub(crate) type Carrier = Arc<dyn Fn(u16, Vec<u8>) + Send + Sync>;

#[derive(Default)]
struct Waiting {
    last: u64,
    /// With the replica whose answer it is.
    by_number: BTreeMap<u64, (u64, oneshot::Sender<Body>)>,
}

/// The network as one replica sees it.
#[derive(Clone)]
pub(crate) struct Network {
    own: ReplicaId,
    carrier: Carrier,
    waiting: Arc<Mutex<Waiting>>,
}

impl Network {
    pub(crate) fn new(own: ReplicaId, carrier: Carrier) -> Self {
        Self { own, carrier, waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, to: u64, number: u64, body: Body) {
        let wire = Wire { from: self.own.number(), to, number, body };
        match postcard::to_stdvec(&wire) {
            Ok(bytes) => (self.carrier)(ReplicaId::of(to).node, bytes),
            Err(error) => tracing::error!("a message of the manager cannot be encoded: {error}"),
        }
    }

    /// Sends a request, and waits for its answer for as long as raft waits.
    async fn ask(&self, to: u64, body: Body, option: &RPCOption) -> io::Result<Body> {
        let (answered, answer) = oneshot::channel();
        let number = {
            let mut waiting = self.lock();
            waiting.last += 1;
            let number = waiting.last;
            waiting.by_number.insert(number, (to, answered));
            number
        };
        self.send(to, number, body);
        let answer = tokio::time::timeout(option.hard_ttl(), answer).await;
        self.lock().by_number.remove(&number);
        match answer {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(_)) | Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Takes bytes that have come from another node. What is no message is passed over: the owner has authenticated its sender.
    pub(crate) async fn hear(&self, raft: &Raft<Types>, from: u16, bytes: &[u8]) {
        let Ok(Wire { from: replica, to, number, body }) = postcard::from_bytes(bytes) else {
            tracing::warn!("node {from} has said something to the manager that is no message");
            return;
        };
        if to != self.own.number() && rule!(ONE_INCARNATION) {
            return;
        }
        let body = match body {
            Body::Append(request) => Body::Appended(raft.append_entries(request).await),
            Body::Vote(request) => Body::Voted(raft.vote(request).await),
            Body::Snapshot(request) => Body::Installed(raft.install_snapshot(request).await),
            answer @ (Body::Appended(_) | Body::Voted(_) | Body::Installed(_)) => {
                let mut waiting = self.lock();
                let is_its = |(asked, _): &mut (u64, _)| *asked == replica;
                if let Entry::Occupied(mut waits) = waiting.by_number.entry(number)
                    && is_its(waits.get_mut())
                {
                    // Raft may have stopped waiting.
                    let _ = waits.remove().1.send(answer);
                }
                return;
            }
        };
        self.send(replica, number, body);
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _: &EmptyNode) -> Peer {
        Peer { network: self.clone(), target }
    }
}

/// Another replica.
pub(crate) struct Peer {
    network: Network,
    target: u64,
}

type Answer<T, E> = Result<T, RPCError<u64, EmptyNode, E>>;

impl Peer {
    async fn ask<E: std::error::Error>(&self, body: Body, option: &RPCOption) -> Answer<Body, E> {
        let answer = self.network.ask(self.target, body, option).await;
        answer.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))
    }

    #[expect(
        clippy::result_large_err,
        reason = "the errors of the traits of openraft are as large"
    )]
    fn remote<T, E: std::error::Error>(&self, answer: Result<T, E>) -> Answer<T, E> {
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

fn other<E: std::error::Error>() -> RPCError<u64, EmptyNode, E> {
    let error = io::Error::other("the answer is that to another request");
    RPCError::Network(NetworkError::new(&error))
}

impl RaftNetwork<Types> for Peer {
    /// Another attempt at a node that has not answered soon follows the one before: the node may just have started.
    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN))
    }

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>, RaftError<u64>> {
        match self.ask(Body::Append(request), &option).await? {
            Body::Appended(answer) => self.remote(answer),
            _ => Err(other()),
        }
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        match self.ask(Body::Snapshot(request), &option).await? {
            Body::Installed(answer) => self.remote(answer),
            _ => Err(other()),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Answer<VoteResponse<u64>, RaftError<u64>> {
        match self.ask(Body::Vote(request), &option).await? {
            Body::Voted(answer) => self.remote(answer),
            _ => Err(other()),
        }
    }
}
