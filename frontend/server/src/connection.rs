//! A client's connection after its startup: messages in, replies out, until one side ends it.
//!
//! *Source*: PostgreSQL 15, section 55.2.
//!
//! *Invariants*: after an error in the extended protocol all messages up to Sync are skipped. One ReadyForQuery answers each
//! Query and each Sync.
//!
//! *Not here*: single messages (`query`, `extended`, `copy`).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::ServerState;
use super::cancellation::Registration;
use super::extended::{Batch, Portal, Statement};
use super::interruption::Interruption;
use super::message::{self, ClientMessage, violation};
use super::replies::Severity;
use super::settings::Reported;
use super::startup::{Opened, refuse};
use super::stopping::Stopping;
use super::stream::Stream;
use super::waits::WaitLimit;
use gannet_frontend::wire::parse_duration;
use gannet_frontend::{CancelHandle, Session, SqlError, TransactionStatus};

/// Time limit for the last message to a client.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a cancelled statement to end: one that waits for a silent node cannot.
const CANCEL_PATIENCE: Duration = Duration::from_millis(250);

/// A client's connection.
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) session: Session,
    pub(super) reported: Reported,
    /// Prepared statements by name; the unnamed one has the empty name.
    pub(super) statements: BTreeMap<String, Statement>,
    /// Portals by name; the unnamed one has the empty name.
    pub(super) portals: BTreeMap<String, Portal>,
    pub(super) batch: Batch,
    pub(super) limits: Limits,
    shared: Arc<ServerState>,
    stopping: watch::Receiver<Stopping>,
    _registration: Registration,
    _permit: OwnedSemaphorePermit,
}

/// The limits of a statement: its timeout, cancel requests, the presence of its client, and its wait for the cluster.
pub(super) struct Limits {
    /// The server's timeout.
    server_timeout: Option<Duration>,
    /// The shorter of the server's timeout and the session's.
    statement_timeout: Option<Duration>,
    /// When the present statement, or the sending of its rows, must end.
    deadline: Option<Instant>,
    cancel: CancelHandle,
    /// How long the statement waits for a lease and for silent nodes.
    wait: WaitLimit,
}

impl Limits {
    fn new(server_timeout: Option<Duration>, wait: WaitLimit, session: &Session) -> Self {
        let cancel = session.cancel_handle();
        let statement_timeout = server_timeout;
        let mut limits = Self { server_timeout, statement_timeout, deadline: None, cancel, wait };
        limits.follow(session);
        limits
    }

    /// Adopts the session's `statement_timeout`, which may have changed; 0 means none.
    pub(super) fn follow(&mut self, session: &Session) {
        let own = session.setting("statement_timeout");
        let own = own.and_then(|value| parse_duration(&value)).filter(|time| !time.is_zero());
        self.statement_timeout = own.into_iter().chain(self.server_timeout).min();
    }

    /// Waits for a statement, until its timeout, the disconnection of its client, or an obstacle that has lasted too long.
    pub(super) async fn run<T>(
        &mut self,
        stream: &Stream,
        statement: impl Future<Output = Result<T, SqlError>>,
    ) -> Result<T, Interruption> {
        self.begin();
        let interval = self.wait.look_interval();
        let gone = async {
            let mut ran = Duration::ZERO;
            // The first check comes after a sleep. Most statements end before, and a client that has announced no further
            // messages may still wait for the answer.
            loop {
                tokio::time::sleep(interval).await;
                if stream.is_closed() {
                    return Interruption::Disconnected;
                }
                ran += interval;
                if let Some(error) = self.wait.refusal(ran, &self.cancel) {
                    return error.into();
                }
            }
        };
        tokio::pin!(statement);
        let interruption = tokio::select! {
            biased;
            result = &mut statement => return Ok(result?),
            () = self.timeout() => {
                SqlError::new("57014", "canceling statement due to statement timeout").into()
            }
            interruption = gone => interruption,
            () = self.cancel.requested() => {
                SqlError::new("57014", "canceling statement due to user request").into()
            }
        };
        self.cancel.cancel();
        let ended = tokio::time::timeout(CANCEL_PATIENCE, &mut statement).await;
        let result = match ended {
            Ok(result) => result,
            Err(_) => {
                self.cancel.give_up();
                statement.await
            }
        };
        match result {
            Err(error) if error.code == "57014" => Err(interruption),
            Err(error) if error.code == "08007" => Err(explained(error, interruption).into()),
            result => Ok(result?),
        }
    }
}

/// The error of a statement whose outcome is unknown; it names the obstacle that the statement has waited for.
fn explained(error: SqlError, interruption: Interruption) -> SqlError {
    match interruption {
        Interruption::Statement(obstacle) if obstacle.code == "57P03" && error.detail.is_none() => {
            error.with_detail(obstacle.message)
        }
        _ => error,
    }
}

impl Limits {
    /// Starts the statement's timeout, which covers execution and rows.
    fn begin(&mut self) {
        self.deadline =
            self.statement_timeout.map(|timeout| tokio::time::sleep(timeout).deadline());
    }

    /// Sends rows of a statement until its timeout. If the client takes no bytes by then, its connection ends in the middle
    /// of a message.
    pub(super) async fn send<T>(
        &self,
        sending: impl Future<Output = Result<T, Interruption>>,
    ) -> Result<T, Interruption> {
        let mut sending = pin!(sending);
        let reason = tokio::select! {
            biased;
            sent = &mut sending => return sent,
            () = self.timeout() => "canceling statement due to statement timeout",
            () = self.cancel.requested() => "canceling statement due to user request",
        };
        self.cancel.cancel();
        match tokio::time::timeout(CANCEL_PATIENCE, sending).await {
            Ok(Err(Interruption::Statement(error))) if error.code == "57014" => {
                Err(SqlError::new("57014", reason).into())
            }
            Ok(sent) => sent,
            Err(_) => Err(Interruption::Disconnected),
        }
    }

    /// Starts the timeout for further rows of a statement.
    pub(super) fn go_on(&mut self) {
        self.cancel.reset();
        self.begin();
    }

    /// Whether the statement must end.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_requested()
    }

    /// Waits until the timeout.
    async fn timeout(&self) {
        match self.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }
}

impl Connection {
    pub(super) fn new(
        mut opened: Opened,
        shared: Arc<ServerState>,
        stopping: watch::Receiver<Stopping>,
    ) -> Self {
        let timeout = shared.options.wait_timeout.filter(|timeout| !timeout.is_zero());
        let wait = WaitLimit { timeout, cluster: Arc::clone(shared.database.cluster()) };
        opened.session.refuse_without_lease();
        Self {
            limits: Limits::new(shared.options.statement_timeout, wait, &opened.session),
            stream: opened.stream,
            session: opened.session,
            reported: opened.reported,
            statements: BTreeMap::new(),
            portals: BTreeMap::new(),
            batch: Batch::default(),
            shared,
            stopping,
            _registration: opened.registration,
            _permit: opened.permit,
        }
    }

    /// Serves the client until the connection ends.
    pub(super) async fn run(mut self) {
        let ending = loop {
            if let Err(ending) = self.step().await {
                break ending;
            }
        };
        let farewell = async {
            match &ending {
                Interruption::Fatal(error) | Interruption::Statement(error) => {
                    refuse(&mut self.stream, error).await
                }
                // The client may wait for replies although it has announced no further messages.
                Interruption::Disconnected => self.stream.close().await,
            }
        };
        // A client that takes no more bytes does not delay the end.
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, farewell).await;
    }

    /// Reads and executes a message. Errors of statements go to the client; other errors end the connection.
    async fn step(&mut self) -> Result<(), Interruption> {
        let kind = self.next_message_type().await?;
        let simple = kind == b'Q';
        let done = match self.next_message().await {
            Ok(ClientMessage::Query(text)) => self.query(&text).await,
            Ok(ClientMessage::Sync) => return self.sync().await,
            Ok(ClientMessage::Terminate) => return Err(Interruption::Disconnected),
            Ok(ClientMessage::Password(_)) => {
                return Err(Interruption::Fatal(violation("unexpected password message")));
            }
            // The rest of a COPY that has failed.
            Ok(
                ClientMessage::CopyData(_) | ClientMessage::CopyDone | ClientMessage::CopyFail(_),
            ) => return Ok(()),
            Ok(_) | Err(Interruption::Statement(_)) if !simple && self.batch.skipping => {
                return Ok(());
            }
            Ok(message) => self.extended(message).await,
            Err(interruption) => Err(interruption),
        };
        match done {
            Ok(()) => {}
            Err(Interruption::Statement(error)) => {
                self.stream.replies.error(Severity::Error, &error);
                if !simple {
                    self.batch.skipping = true;
                    self.fail_transaction().await;
                }
            }
            Err(ending) => return Err(ending),
        }
        if simple {
            self.ready();
        }
        Ok(())
    }

    /// Fails the session's transaction after an error outside of the session, such as a malformed parameter.
    async fn fail_transaction(&mut self) {
        if self.session.status() == TransactionStatus::InTransaction {
            // Abandoning a COPY fails the transaction, whether or not there is a COPY.
            let given_up = self.session.copy_end(Some("an error came before it".to_owned())).await;
            debug_assert!(given_up.is_err(), "a COPY that is given up fails");
        }
    }

    /// Ends the answer to a Query or a Sync.
    pub(super) fn ready(&mut self) {
        let status = self.session.status();
        if status == TransactionStatus::Idle {
            self.portals.clear();
        }
        self.stream.replies.ready(status);
    }

    async fn next_message_type(&mut self) -> Result<u8, Interruption> {
        loop {
            match message::next_type(&self.stream.input) {
                Some(kind) => return Ok(kind),
                None => self.wait_for_input().await?,
            }
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// `Statement` for a text that is not UTF-8 in a message of correct length; `Fatal` for any other malformed message.
    pub(super) async fn next_message(&mut self) -> Result<ClientMessage, Interruption> {
        // Statements may need no wait, and a client may send many: other connections get their turn.
        tokio::task::consume_budget().await;
        loop {
            match message::take_message(&mut self.stream.input) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => self.wait_for_input().await?,
                Err(error) if error.code == "22021" => return Err(Interruption::Statement(error)),
                Err(error) => return Err(Interruption::Fatal(error)),
            }
        }
    }

    /// Sends the replies, and waits for the client.
    async fn wait_for_input(&mut self) -> Result<(), Interruption> {
        self.stream.flush().await?;
        let idle_timeout = self.shared.options.idle_timeout;
        let idle = async {
            match idle_timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let status = self.session.status();
        tokio::select! {
            biased;
            // A statement that the client has sent meanwhile is not run.
            _ = self.stopping.wait_for(|stopping| stopping.ends(status)) => Err(Interruption::Fatal(SqlError::new(
                "57P01",
                "terminating connection due to administrator command",
            ))),
            read = self.stream.read() => Ok(read?),
            () = idle => Err(Interruption::Fatal(match status {
                TransactionStatus::Idle => {
                    SqlError::new("57P05", "terminating connection due to idle-session timeout")
                }
                TransactionStatus::InTransaction | TransactionStatus::Failed => SqlError::new(
                    "25P03",
                    "terminating connection due to idle-in-transaction timeout",
                ),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use gannet_engine::{Cluster, ClusterOptions};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_statement_and_its_rows_have_one_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = Stream::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let timeout = Some(Duration::from_secs(3_600));
        let cancel = CancelHandle::default();
        let cluster = Cluster::open(ClusterOptions {
            nodes: 1,
            replicas: 1,
            threads: 1,
            memory_limit_bytes: Some(64 << 20),
            ..Default::default()
        });
        let mut limits = Limits {
            server_timeout: None,
            statement_timeout: timeout,
            deadline: None,
            cancel,
            wait: WaitLimit { timeout: None, cluster: Arc::new(cluster.unwrap()) },
        };
        limits.run(&stream, async { Ok(()) }).await.unwrap();
        let deadline = limits.deadline.unwrap();
        // The execution uses up the timeout, and the rest is for the rows.
        limits.deadline = Some(tokio::time::sleep(Duration::ZERO).deadline());
        let never = std::future::pending::<Result<(), Interruption>>();
        assert!(matches!(limits.send(never).await, Err(Interruption::Disconnected)));
        // A further part that the client requests later has the full timeout.
        limits.go_on();
        assert!(limits.deadline.unwrap() >= deadline && !limits.is_cancelled());
        limits.send(async { Ok(()) }).await.unwrap();
    }
}
