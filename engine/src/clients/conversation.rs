//! A session of a client at a node, from the client's side: requests and their answers, on one connection after the other.
//!
//! *Invariants*: a request runs once, however many connections it takes. If the node has forgotten the session, the client
//! cannot know whether its last request was run.
//!
//! *Not here*: the session at the node, in `sessions.rs`; what is requested, in `client.rs`.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::clients::client::ClientOptions;
use crate::clients::gateway::Served;
use crate::clients::message::{
    Answer, Opening, Operation, Request, SessionId, TableEntry, Welcome,
};
use crate::link::{Connection, Delivery, LinkError};

/// Attempts to resume a session whose connection broke, for one request.
const RESUMES_MAX: u32 = 3;
/// Pause before a further attempt.
const RESUME_INTERVAL: Duration = Duration::from_millis(50);

/// Why a node gives no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("it has as many clients as it takes; wait, or raise its limit")]
    Full,
    #[error("the node has forgotten this session")]
    Forgotten,
}

impl From<std::io::Error> for CallError {
    fn from(error: std::io::Error) -> Self {
        Self::Link(error.into())
    }
}

/// A session at a node.
pub(super) struct Conversation {
    address: SocketAddr,
    session: SessionId,
    connection: Connection,
    delivery: Delivery,
}

impl Conversation {
    /// Begins a session at a node, which tells its tables.
    pub(super) fn begin(
        address: SocketAddr,
        options: &ClientOptions,
    ) -> Result<(Self, Vec<TableEntry>), CallError> {
        match call(address, options, &Opening { resumes: None })? {
            (connection, Welcome::Begun { session, tables }) => {
                let delivery = Delivery::default();
                Ok((Self { address, session, connection, delivery }, tables))
            }
            (_, Welcome::Full) => Err(CallError::Full),
            (_, Welcome::Resumed { .. } | Welcome::Forgotten) => Err(LinkError::Malformed.into()),
        }
    }

    /// Where the node takes clients.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether nothing has arrived without a request, such as the end of the connection.
    pub(super) fn is_quiet(&self) -> bool {
        self.connection.is_quiet()
    }

    /// The answer to a request; or why there is none, and whether the node may have run it.
    pub(super) fn request(
        &mut self,
        request: &Request,
        options: &ClientOptions,
    ) -> Result<Answer, (CallError, bool)> {
        let message = self.delivery.keep(request).map_err(|error| (error.into(), false))?;
        // Where a connection that has ended already takes a commit, nobody could tell whether the node has heard it.
        let has_ended = request.operation.commits() && !self.connection.is_quiet();
        let mut sent =
            if has_ended { Err(LinkError::Ended) } else { self.connection.send(message) };
        // A request that was not sent in full is not run.
        let mut may_be_run = sent.is_ok();
        let mut resumes = 0;
        loop {
            let heard = sent.and_then(|()| self.connection.receive());
            match heard.and_then(|message| self.delivery.hear(&message)) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(LinkError::TimedOut) => return Err((LinkError::TimedOut.into(), may_be_run)),
                Err(error) => {
                    let broken = |error| (error, may_be_run);
                    resumes += 1;
                    if resumes > RESUMES_MAX {
                        return Err(broken(error.into()));
                    }
                    match self.resume(options) {
                        Ok(()) => may_be_run = true,
                        Err(CallError::Forgotten) => return Err(broken(error.into())),
                        // The next attempt finds the connection broken as well.
                        Err(_) => std::thread::park_timeout(RESUME_INTERVAL),
                    }
                }
            }
            sent = Ok(());
        }
    }

    /// Goes on with the session on another connection, and says again what was not answered.
    fn resume(&mut self, options: &ClientOptions) -> Result<(), CallError> {
        let opening = Opening { resumes: Some((self.session, self.delivery.heard())) };
        let (connection, welcome) = call(self.address, options, &opening)?;
        let heard = match welcome {
            Welcome::Resumed { heard } => heard,
            Welcome::Forgotten => return Err(CallError::Forgotten),
            Welcome::Full => return Err(CallError::Full),
            Welcome::Begun { .. } => return Err(LinkError::Malformed.into()),
        };
        self.connection = connection;
        for message in self.delivery.again(heard)? {
            self.connection.send(message)?;
        }
        Ok(())
    }

    /// Tells the node that the session is over.
    pub(super) fn leave(mut self) {
        let request = Request { begins: true, writes: Vec::new(), operation: Operation::Leave };
        // A node that does not hear it forgets the session after a while.
        let _ = self.delivery.pass(&request).map(|message| self.connection.send(&message));
    }
}

fn call(
    address: SocketAddr,
    options: &ClientOptions,
    opening: &Opening,
) -> Result<(Connection, Welcome), CallError> {
    let ClientOptions { key, timeout, .. } = options;
    let stream = TcpStream::connect_timeout(&address, *timeout)?;
    let called = Connection::call::<Served<'_>>(stream, key.as_ref(), opening)?;
    let stream = called.0.stream();
    stream.set_read_timeout(Some(*timeout))?;
    stream.set_write_timeout(Some(*timeout))?;
    Ok(called)
}
