//! The address of a server, and the protection of connections to it.
//!
//! | sslmode | TLS | the server's certificate |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer` | if the server offers it | anything |
//! | `require` | yes | anything, or as `verify-ca` if there is a root certificate |
//! | `verify-ca` | yes | signed by the root certificate |
//! | `verify-full` | yes | signed by it, and of the host that was named |
//!
//! *Source*: PostgreSQL 15, section 34.19, and 34.1.2 for the parameters of a URL.
//!
//! *Not here*: client certificates, revocation, the system's root certificates.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

/// PostgreSQL's port, where an address has none.
const DEFAULT_PORT: u16 = 5432;

/// How a connection is protected: libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Not at all.
    Disable,
    /// Encrypted if the server can.
    Prefer,
    /// Encrypted.
    Require,
    /// Encrypted, and the server's certificate is signed by one of the client's root certificates.
    VerifyCa,
    /// As `VerifyCa`, and the certificate names the host.
    VerifyFull,
}

impl SslMode {
    /// All modes.
    pub const ALL: [Self; 5] =
        [Self::Disable, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull];

    /// The mode's name in URLs and options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

impl FromStr for SslMode {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| AddressError::Mode(text.to_owned()))
    }
}

/// Why an address is of no use.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The text is no address.
    #[error("{0}; write it as postgres://user:password@host:port/database")]
    Text(#[source] tokio_postgres::Error),
    /// The address names no host.
    #[error("name a host, such as postgres://user@127.0.0.1:5433/database")]
    NoHost,
    /// No such mode exists.
    #[error("there is no sslmode {0:?}; use disable, prefer, require, verify-ca or verify-full")]
    Mode(String),
    /// No root certificate is given to verify the server's certificate with.
    #[error("sslmode {} needs the certificate that the server's is signed by; give --ssl-root-cert, or sslrootcert in the URL", .0.name())]
    NoRoot(SslMode),
    /// The root certificate's file is missing or not PEM.
    #[error("cannot read {path}: {source}; give a PEM file with certificates")]
    Root {
        /// The file's path.
        path: String,
        /// The error.
        source: rustls::pki_types::pem::Error,
    },
    /// TLS is unavailable.
    #[error("cannot use TLS: {0}")]
    Tls(rustls::Error),
    /// The file contains an unusable certificate.
    #[error("cannot use the root certificate: {0}")]
    Certificate(String),
}

/// The address of a server.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// Host, port, user, password, database.
    pub config: Config,
    /// How connections are protected; None is `prefer`.
    pub ssl_mode: Option<SslMode>,
    /// A PEM file with the root certificates for the server's certificate.
    pub ssl_root_certificate: Option<PathBuf>,
}

impl ServerAddress {
    /// Parses a URL or `key=value` pairs as libpq does.
    ///
    /// # Errors
    /// [`AddressError`] if there is no host, or a parameter has no valid value.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (mut ssl_mode, mut ssl_root_certificate) = (None, None);
        let mut rest = text.to_owned();
        // The client library does not know these parameters.
        if let Some((place, parameters)) = text.split_once('?').filter(|_| is_url(text)) {
            let mut kept = Vec::new();
            for parameter in parameters.split('&') {
                match parameter.split_once('=') {
                    Some(("sslmode", mode)) => ssl_mode = Some(mode.parse()?),
                    Some(("sslrootcert", path)) => {
                        let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
                        ssl_root_certificate = Some(PathBuf::from(path.into_owned()));
                    }
                    _ => kept.push(parameter),
                }
            }
            rest = format!("{place}?{}", kept.join("&"));
        }
        let config: Config = rest.parse().map_err(AddressError::Text)?;
        if config.get_hosts().is_empty() {
            return Err(AddressError::NoHost);
        }
        match config.get_ssl_mode() {
            tokio_postgres::config::SslMode::Disable => ssl_mode = Some(SslMode::Disable),
            tokio_postgres::config::SslMode::Require => ssl_mode = Some(SslMode::Require),
            // The mode stays open, for the caller to choose.
            _ => {}
        }
        Ok(Self { config, ssl_mode, ssl_root_certificate })
    }

    /// Host and port, or several, without the password.
    #[must_use]
    pub fn name(&self) -> String {
        let (hosts, ports) = (self.config.get_hosts(), self.config.get_ports());
        let named = hosts.iter().enumerate().map(|(number, host)| match host {
            Host::Tcp(name) => {
                // One port is that of all hosts.
                let port = ports.get(number).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
                format!("{name}:{port}")
            }
            Host::Unix(path) => path.display().to_string(),
        });
        named.collect::<Vec<_>>().join(",")
    }

    /// The parameters of connections, and the TLS connector.
    ///
    /// # Errors
    /// [`AddressError`] if the root certificate is missing or unusable.
    pub fn connector(&self) -> Result<(Config, MakeRustlsConnect), AddressError> {
        let mode = self.ssl_mode.unwrap_or(SslMode::Prefer);
        let mut config = self.config.clone();
        config.ssl_mode(match mode {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                tokio_postgres::config::SslMode::Require
            }
        });
        let provider = Arc::new(crypto::ring::default_provider());
        let signature_algorithms = provider.signature_verification_algorithms;
        let verifier = match (mode, &self.ssl_root_certificate) {
            (SslMode::VerifyCa | SslMode::VerifyFull, None) => {
                return Err(AddressError::NoRoot(mode));
            }
            (SslMode::VerifyCa | SslMode::VerifyFull | SslMode::Require, Some(path)) => {
                Some(chain_verifier(path, &provider)?)
            }
            (SslMode::Disable | SslMode::Prefer, _) | (SslMode::Require, None) => None,
        };
        let verifier: Arc<dyn ServerCertVerifier> = match verifier {
            Some(chain) if mode == SslMode::VerifyFull => chain,
            chain => Arc::new(AnyHost { chain, signature_algorithms }),
        };
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(AddressError::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok((config, MakeRustlsConnect::new(tls)))
    }
}

fn is_url(text: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme))
}

fn chain_verifier(
    path: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, AddressError> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| AddressError::Root { path: path.display().to_string(), source })?;
    let unusable = |error: &dyn std::error::Error| AddressError::Certificate(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| unusable(&error))?;
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| unusable(&error))
}

/// Accepts certificates of any host: every certificate, or those that the client's root certificates have signed.
#[derive(Debug)]
struct AnyHost {
    chain: Option<Arc<WebPkiServerVerifier>>,
    signature_algorithms: crypto::WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            // The name is verified last, so all else was valid.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.signature_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.signature_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signature_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_url_say_how_connections_are_protected() {
        let address = ServerAddress::parse(
            "postgres://ada@h:7/d?sslmode=verify-full&connect_timeout=3&sslrootcert=/a%20b.pem",
        );
        let address = address.expect("it is a URL");
        assert_eq!(address.ssl_mode, Some(SslMode::VerifyFull));
        assert_eq!(address.ssl_root_certificate, Some(PathBuf::from("/a b.pem")));
        assert_eq!(address.config.get_user(), Some("ada"));
        assert_eq!(address.config.get_dbname(), Some("d"));
        let seconds = address.config.get_connect_timeout().map(std::time::Duration::as_secs);
        assert_eq!(seconds, Some(3));
        assert_eq!(address.name(), "h:7");
        let several = ServerAddress::parse("postgres://ada:secret@h:7,i,j:9/d").expect("a URL");
        assert_eq!(several.name(), "h:7,i:5432,j:9");
        let mode = |text: &str| ServerAddress::parse(text).map(|address| address.ssl_mode);
        assert_eq!(mode("host=h sslmode=require").ok(), Some(Some(SslMode::Require)));
        assert_eq!(mode("postgresql://h").ok(), Some(None));
        assert!(matches!(mode("postgres://h?sslmode=on"), Err(AddressError::Mode(_))));
        assert!(matches!(mode("postgres:///d"), Err(AddressError::NoHost)));
        assert!(matches!(mode("postgres://h?ssl=1"), Err(AddressError::Text(_))));
    }
}
