//! The beginning of a connection: TLS, the startup message, the user, the session.
//!
//! ```text
//! SSLRequest? ─ StartupMessage ─ (SASL: SCRAM-SHA-256) ─ AuthenticationOk, ParameterStatus..., BackendKeyData
//! CancelRequest: no reply
//! ```
//!
//! *Source*: PostgreSQL 15, sections 55.2.1, 55.2.8, 55.2.10 and 55.3; RFC 5802.
//!
//! *Invariants*: the number of startups and their duration are bounded. Only a client that has logged in gets a session.
//!
//! *Not here*: the connection afterwards (`connection`), users (`users`), limits (`admission`).

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use pgwire::api::auth::sasl::scram::ScramServerAuth;
use pgwire::error::PgWireError;
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, SecretKey,
};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::connection::Connection;
use super::interruption::Interruption;
use super::message::{self, ClientMessage, Opening, violation};
use super::replies::Severity;
use super::settings::{self, Reported};
use super::stopping::Stopping;
use super::stream::Stream;
use super::{STARTUP_TIMEOUT, ServerState};
use gannet_frontend::{Session, SqlError};

const SCRAM: &str = "SCRAM-SHA-256";
/// SCRAM with a binding to the server's certificate.
const SCRAM_BOUND: &str = "SCRAM-SHA-256-PLUS";

/// Serves a client, from its first byte to the end of its connection.
pub(super) async fn attend(
    socket: TcpStream,
    from: IpAddr,
    shared: Arc<ServerState>,
    mut stopping: watch::Receiver<Stopping>,
) {
    let (evict, evicted) = oneshot::channel::<()>();
    let caller = shared.admission.pending.admit(from, move || drop(evict));
    let opened = tokio::select! {
        opened = tokio::time::timeout(STARTUP_TIMEOUT, open(socket, from, &shared)) => opened,
        _ = stopping.wait_for(|stopping| *stopping != Stopping::No) => return,
        _ = evicted => return,
    };
    drop(caller);
    // A client that has disconnected, was refused or is too slow needs no reply.
    if let Ok(Ok(Some(opened))) = opened {
        Connection::new(opened, shared, stopping).run().await;
    }
}

/// A connection after login.
pub(super) struct Opened {
    pub(super) stream: Stream,
    pub(super) session: Session,
    pub(super) registration: super::cancellation::Registration,
    pub(super) reported: Reported,
    /// Returned when the connection ends.
    pub(super) permit: OwnedSemaphorePermit,
}

async fn open(socket: TcpStream, from: IpAddr, shared: &ServerState) -> io::Result<Option<Opened>> {
    let Some((mut stream, startup)) = negotiate(Stream::new(socket), shared).await? else {
        return Ok(None);
    };
    match begin(&mut stream, &startup, from, shared).await {
        Ok((session, permit)) => {
            let registration = shared.cancellation.register(session.cancel_handle());
            let reported = Reported::default();
            let mut opened = Opened { stream, session, registration, reported, permit };
            welcome(&mut opened);
            Ok(Some(opened))
        }
        Err(Interruption::Fatal(error) | Interruption::Statement(error)) => {
            refuse(&mut stream, &error).await?;
            Ok(None)
        }
        Err(Interruption::Disconnected) => Ok(None),
    }
}

/// Sends the reason for the connection's end.
pub(super) async fn refuse(stream: &mut Stream, error: &SqlError) -> io::Result<()> {
    stream.replies.error(Severity::Fatal, error);
    stream.close().await
}

struct Startup {
    major: u16,
    minor: u16,
    parameters: Vec<(String, String)>,
}

impl Startup {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Answers requests for encryption until the startup message arrives; None if the client does not want a session.
async fn negotiate(
    mut stream: Stream,
    shared: &ServerState,
) -> io::Result<Option<(Stream, Startup)>> {
    loop {
        let opening = match message::take_opening(&mut stream.input) {
            Ok(Some(opening)) => opening,
            Ok(None) => {
                stream.read().await?;
                continue;
            }
            Err(error) => {
                refuse(&mut stream, &error).await?;
                return Ok(None);
            }
        };
        match (opening, &shared.tls) {
            (Opening::Tls, Some(tls)) if !stream.is_tls() => {
                if !stream.input.is_empty() {
                    // Bytes before the handshake did not come through TLS.
                    let error = violation("received unencrypted data after SSL request");
                    refuse(&mut stream, &error).await?;
                    return Ok(None);
                }
                stream.send_byte(b'S').await?;
                stream = stream.accept_tls(&tls.acceptor).await?;
            }
            (Opening::Tls | Opening::GssEncryption, _) => stream.send_byte(b'N').await?,
            (Opening::Cancel { process_id, secret_key }, _) => {
                shared.cancellation.cancel(process_id, &secret_key);
                return Ok(None);
            }
            (Opening::Startup { major, minor, parameters }, _) => {
                return Ok(Some((stream, Startup { major, minor, parameters })));
            }
        }
    }
}

/// Authenticates the user, and begins the session.
async fn begin(
    stream: &mut Stream,
    startup: &Startup,
    from: IpAddr,
    shared: &ServerState,
) -> Result<(Session, OwnedSemaphorePermit), Interruption> {
    if startup.major != 3 {
        let message = format!("unsupported frontend protocol {}.{}", startup.major, startup.minor);
        return Err(SqlError::new("0A000", message)
            .with_hint("Use a client with version 3 of the protocol.")
            .into());
    }
    if startup.parameter("replication").is_some_and(|value| !matches!(value, "false" | "off" | "0"))
    {
        return Err(SqlError::new("0A000", "replication connections are not supported").into());
    }
    let user = startup.parameter("user").filter(|user| !user.is_empty()).ok_or_else(|| {
        SqlError::new("28000", "no PostgreSQL user name specified in startup packet")
    })?;
    if shared.options.tls_required == Some(true) && !stream.is_tls() {
        return Err(SqlError::new("28000", "the server takes encrypted connections alone")
            .with_hint("Connect with sslmode=require or stricter.")
            .into());
    }
    negotiate_version(stream, startup)?;
    if !shared.options.users.is_empty() {
        authenticate(stream, user, from, shared).await?;
    }
    // The permit is taken after the login, so strangers hold none.
    let permit = Arc::clone(&shared.sessions).try_acquire_owned().map_err(|_| {
        SqlError::new("53300", "sorry, too many clients already").with_hint(format!(
            "The server takes {} connections; close some, or start it with more --connections-max.",
            shared.options.connections_max
        ))
    })?;
    stream.replies.message(&Message::Authentication(Authentication::Ok))?;
    let mut session = shared.database.session(user);
    settings::apply(&mut session, &startup.parameters, &mut stream.replies).await?;
    Ok((session, permit))
}

/// Tells the supported version to a client that requests a later minor version, or options.
fn negotiate_version(stream: &mut Stream, startup: &Startup) -> Result<(), SqlError> {
    let is_option = |name: &&String| name.starts_with("_pq_.");
    let options: Vec<String> =
        startup.parameters.iter().map(|(name, _)| name).filter(is_option).cloned().collect();
    if startup.minor == 0 && options.is_empty() {
        return Ok(());
    }
    let version = NegotiateProtocolVersion::new(0, options);
    stream.replies.message(&Message::NegotiateProtocolVersion(version))
}

/// SCRAM-SHA-256, bound to the certificate under TLS if the client supports that.
async fn authenticate(
    stream: &mut Stream,
    user: &str,
    from: IpAddr,
    shared: &ServerState,
) -> Result<(), Interruption> {
    let failed = |_: PgWireError| {
        shared.admission.failed(from, user);
        let message = format!("password authentication failed for user \"{user}\"");
        Interruption::Fatal(SqlError::new("28P01", message))
    };
    let mut scram = ScramServerAuth::new();
    let mut mechanisms = vec![SCRAM.to_owned()];
    if let Some(tls) = shared.tls.as_ref().filter(|_| stream.is_tls())
        && scram.configure_certificate(&tls.certificates_pem).is_ok()
    {
        mechanisms.insert(0, SCRAM_BOUND.to_owned());
    }
    stream.replies.message(&Message::Authentication(Authentication::SASL(mechanisms.clone())))?;
    let (mechanism, first) = message::sasl_initial_response(password(stream).await?)?;
    if !mechanisms.contains(&mechanism) {
        return Err(violation("client selected an invalid SASL authentication mechanism").into());
    }
    let (secret, exists) = shared.options.users.secret(user);
    let (challenge, exchange) =
        scram.on_client_first_message_with_secret(&first, secret).map_err(failed)?;
    let challenge = Authentication::SASLContinue(challenge.into());
    stream.replies.message(&Message::Authentication(challenge))?;
    let proof = password(stream).await?;
    shared.admission.attempt(from, user)?;
    let signature = exchange.on_client_final_message(&proof).map_err(failed)?;
    if !exists {
        return Err(failed(PgWireError::InvalidPassword(user.to_owned())));
    }
    shared.admission.succeeded(from);
    let signature = Authentication::SASLFinal(signature.into());
    stream.replies.message(&Message::Authentication(signature))?;
    Ok(())
}

/// Waits for a step of the password exchange.
async fn password(stream: &mut Stream) -> Result<Bytes, Interruption> {
    stream.flush().await?;
    loop {
        match message::take_message(&mut stream.input)? {
            Some(ClientMessage::Password(body)) => return Ok(body),
            Some(ClientMessage::Terminate) => return Err(Interruption::Disconnected),
            Some(_) => return Err(violation("expected a password message").into()),
            None => stream.read().await?,
        }
    }
}

/// Messages that a client needs before its first statement.
fn welcome(opened: &mut Opened) {
    opened.reported.report(&opened.session, &mut opened.stream.replies);
    let key = SecretKey::I32(i32::from_be_bytes(opened.registration.secret_key));
    let key = BackendKeyData::new(opened.registration.process_id, key);
    opened
        .stream
        .replies
        .message(&Message::BackendKeyData(key))
        .expect("its size is fixed, and small");
    opened.stream.replies.ready(opened.session.status());
}
