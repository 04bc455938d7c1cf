//! A client's socket, plain or under TLS, with buffers for input and replies.
//!
//! *Invariants*: both buffers are bounded. Dropping a read loses no bytes.
//!
//! *Not here*: messages (`message`, `replies`).

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::FutureExt;
use pgwire::tokio::TlsAcceptor;
use pgwire::tokio::tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use pgwire::tokio::tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use pgwire::tokio::tokio_rustls::rustls::{self, ServerConfig};
use pgwire::tokio::tokio_rustls::server::TlsStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use super::replies::Replies;
use super::secret::{self, SecretError};

/// Bytes of one read.
const READ_BYTES: usize = 16 << 10;
/// Bytes of replies that are sent even before the client waits.
const REPLIES_BYTES_MAX: usize = 256 << 10;

enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection's two directions.
pub(super) struct Stream {
    socket: Socket,
    /// Bytes that are not parsed yet.
    pub(super) input: BytesMut,
    /// Messages that are not sent yet.
    pub(super) replies: Replies,
}

impl Stream {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self {
            socket: Socket::Plain(socket),
            input: BytesMut::with_capacity(READ_BYTES),
            replies: Replies::default(),
        }
    }

    /// Continues under TLS.
    pub(super) async fn accept_tls(self, acceptor: &TlsAcceptor) -> io::Result<Self> {
        let Socket::Plain(socket) = self.socket else {
            return Err(io::Error::other("TLS inside TLS"));
        };
        let socket = Socket::Tls(Box::new(acceptor.accept(socket).await?));
        Ok(Self { socket, input: self.input, replies: self.replies })
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self.socket, Socket::Tls(_))
    }

    /// Reads bytes; fails at the end of the stream. Dropping this future loses no bytes.
    pub(super) async fn read(&mut self) -> io::Result<()> {
        self.input.reserve(READ_BYTES);
        let count = match &mut self.socket {
            Socket::Plain(socket) => socket.read_buf(&mut self.input).await?,
            Socket::Tls(socket) => socket.read_buf(&mut self.input).await?,
        };
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Whether the client has closed its end. Reads nothing: unread bytes exert back pressure on the client.
    pub(super) fn is_closed(&self) -> bool {
        let socket = match &self.socket {
            Socket::Plain(socket) => socket,
            Socket::Tls(socket) => socket.get_ref().0,
        };
        let ready = socket.ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }

    /// Sends the replies.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if self.replies.bytes().is_empty() {
            return Ok(());
        }
        self.write(self.replies.bytes().len()).await
    }

    /// Sends the replies if there are many.
    pub(super) async fn flush_if_full(&mut self) -> io::Result<()> {
        let length = self.replies.bytes().len();
        if length >= REPLIES_BYTES_MAX { self.write(length).await } else { Ok(()) }
    }

    async fn write(&mut self, length: usize) -> io::Result<()> {
        let bytes = &self.replies.bytes()[..length];
        match &mut self.socket {
            Socket::Plain(socket) => socket.write_all(bytes).await?,
            Socket::Tls(socket) => {
                socket.write_all(bytes).await?;
                socket.flush().await?;
            }
        }
        self.replies.clear();
        Ok(())
    }

    /// Sends one byte: the answer to a request for encryption.
    pub(super) async fn send_byte(&mut self, byte: u8) -> io::Result<()> {
        match &mut self.socket {
            Socket::Plain(socket) => socket.write_all(&[byte]).await,
            Socket::Tls(socket) => socket.write_all(&[byte]).await,
        }
    }

    /// Sends the remaining replies, and closes this end.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        match &mut self.socket {
            Socket::Plain(socket) => socket.shutdown().await,
            Socket::Tls(socket) => socket.shutdown().await,
        }
    }
}

/// Why TLS is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or not PEM.
    #[error("cannot read {path}: {source}; give a PEM file")]
    Pem {
        /// The file's path.
        path: String,
        /// The error.
        source: pem::Error,
    },
    /// Others may read the key.
    #[error("the key {path} has mode {mode:o}, so others may use it; chmod 600 {path}")]
    Exposed {
        /// The file's path.
        path: String,
        /// The file's permissions.
        mode: u32,
    },
    /// The certificate and the key do not match, or are unusable.
    #[error("cannot use the certificate and its key: {0}")]
    Certificate(#[from] rustls::Error),
}

/// The acceptor of TLS connections for a certificate chain and its key, both in PEM files.
pub(super) fn tls_acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let pem_error =
        |path: &Path, source| TlsError::Pem { path: path.display().to_string(), source };
    let certificates = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| pem_error(certificate, source))?;
    let bytes = secret::read(key).map_err(|error| match error {
        SecretError::Unreadable(source) => pem_error(key, pem::Error::Io(source)),
        SecretError::Exposed(mode) => TlsError::Exposed { path: key.display().to_string(), mode },
    })?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|source| pem_error(key, source))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
