//! Addresses of servers and credentials, as commands take them.
//!
//! *Invariant*: several hosts of one URL become several addresses, which share everything else.
//!
//! *Source*: PostgreSQL 15, sections 34.1 and 34.15, for URLs and environment variables.

use std::path::PathBuf;

use clap::{Args, builder::PossibleValuesParser};
use gannet_shell::{AddressError, ServerAddress, SslMode};

/// The default port of `gannet serve`.
const PORT: u16 = 5433;

/// The user, and the protection of the connection.
#[derive(Args)]
pub(crate) struct Credentials {
    /// User to connect as [default: $PGUSER or $USER].
    #[arg(long)]
    user: Option<String>,
    /// Protection of the connection, as in libpq [default: $PGSSLMODE or prefer].
    #[arg(long, value_name = "MODE",
        value_parser = PossibleValuesParser::new(SslMode::ALL.map(SslMode::name)))]
    sslmode: Option<String>,
    /// PEM file with the root certificates for the server's certificate [default: $PGSSLROOTCERT].
    #[arg(long, value_name = "FILE")]
    ssl_root_cert: Option<PathBuf>,
}

impl Credentials {
    /// The option that was given, if any.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let options = [
            (self.user.is_some(), "--user"),
            (self.sslmode.is_some(), "--sslmode"),
            (self.ssl_root_cert.is_some(), "--ssl-root-cert"),
        ];
        options.into_iter().find_map(|(given, name)| given.then_some(name))
    }

    /// Completes addresses: options first, then the environment, as in libpq.
    pub(crate) fn complete(
        &self,
        addresses: Addresses,
    ) -> Result<Vec<ServerAddress>, AddressError> {
        let Addresses(mut addresses) = addresses;
        addresses.iter_mut().try_for_each(|address| self.complete_one(address))?;
        Ok(addresses)
    }

    fn complete_one(&self, address: &mut ServerAddress) -> Result<(), AddressError> {
        let Self { user, sslmode, ssl_root_cert } = self;
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let ServerAddress { config, .. } = address;
        if let Some(user) = user {
            config.user(user.as_str());
        } else if config.get_user().is_none() {
            let user = variable("PGUSER").or_else(|| variable("USER"));
            config.user(user.unwrap_or_else(|| "gannet".to_owned()));
        }
        if let Some(password) = variable("PGPASSWORD").filter(|_| config.get_password().is_none()) {
            config.password(password);
        }
        let in_environment = variable("PGSSLMODE").map(|mode| mode.parse()).transpose();
        let given: Option<SslMode> = sslmode.as_ref().map(|mode| mode.parse()).transpose()?;
        address.ssl_mode = match given.or(address.ssl_mode) {
            Some(mode) => Some(mode),
            None => in_environment?,
        };
        address.ssl_root_certificate = ssl_root_cert
            .clone()
            .or_else(|| address.ssl_root_certificate.take())
            .or_else(|| variable("PGSSLROOTCERT").map(PathBuf::from));
        Ok(())
    }
}

/// The addresses of one server or of several, any of which will do.
#[derive(Clone, Debug)]
pub(crate) struct Addresses(Vec<ServerAddress>);

/// Addresses separated by commas, each `HOST`, `HOST:PORT`, `[HOST]:PORT`, or a URL, which may have several hosts.
pub(crate) fn parse_addresses(text: &str) -> Result<Addresses, String> {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        match parts.last_mut() {
            // A comma in a URL separates its hosts, or belongs to a parameter.
            Some(url) if url.contains("://") && !part.contains("://") => {
                url.push(',');
                url.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    let parts = parts.iter().flat_map(|part| each_host(part));
    parts.map(|part| parse_address(&part)).collect::<Result<_, _>>().map(Addresses)
}

/// A URL for each host of a URL. Any other address is left as it is.
fn each_host(address: &str) -> Vec<String> {
    let Some((scheme, rest)) = address.split_once("://") else { return vec![address.to_owned()] };
    let (credentials, rest) = rest.split_at(rest.find('@').map_or(0, |at| at + 1));
    let (hosts, place) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    hosts.split(',').map(|host| format!("{scheme}://{credentials}{host}{place}")).collect()
}

/// `HOST`, `HOST:PORT`, `[HOST]:PORT`, or a URL.
fn parse_address(text: &str) -> Result<ServerAddress, String> {
    if text.contains("://") {
        return ServerAddress::parse(text).map_err(|error| error.to_string());
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
        }
        _ => (text, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err("name a host".to_owned());
    }
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port);
    Ok(ServerAddress { config, ssl_mode: None, ssl_root_certificate: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        use tokio_postgres::config::Host;
        let address =
            |host: &str, port| Ok::<_, String>((vec![Host::Tcp(host.to_owned())], vec![port]));
        let parse_address = |text: &str| {
            let address = parse_address(text)?;
            Ok((address.config.get_hosts().to_vec(), address.config.get_ports().to_vec()))
        };
        assert_eq!(parse_address("a:1"), address("a", 1));
        assert_eq!(parse_address("a"), address("a", PORT));
        assert_eq!(parse_address("[::1]:7"), address("::1", 7));
        assert_eq!(parse_address("::1"), address("::1", PORT));
        assert_eq!(parse_address("postgres://b@a:5/d"), address("a", 5));
        for refused in ["a:70000", ":1", "postgres:///d"] {
            assert!(super::parse_address(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn several_addresses_are_separated_by_commas() {
        let named = |text: &str| {
            let Addresses(addresses) = parse_addresses(text)?;
            Ok::<_, String>(addresses.iter().map(ServerAddress::name).collect::<Vec<_>>())
        };
        let names = |names: &[&str]| {
            Ok::<Vec<String>, String>(names.iter().map(ToString::to_string).collect())
        };
        assert_eq!(named("a"), names(&["a:5433"]));
        assert_eq!(named("a:1,b,[::1]:7"), names(&["a:1", "b:5433", "::1:7"]));
        let url = "postgres://ada:sesame@a:1,b:2,c/d?options=x%20y,z";
        assert_eq!(named(url), names(&["a:1", "b:2", "c:5432"]));
        assert_eq!(named(&format!("e:3,{url}")), names(&["e:3", "a:1", "b:2", "c:5432"]));
        assert_eq!(named("postgres://a/d,postgresql://b/e"), names(&["a:5432", "b:5432"]));
        let Addresses(addresses) = parse_addresses(url).expect("it is a URL");
        for address in &addresses {
            assert_eq!(address.config.get_user(), Some("ada"));
            assert_eq!(address.config.get_dbname(), Some("d"));
            assert_eq!(address.config.get_options(), Some("x y,z"));
        }
        for refused in ["a,,b", "a,", "a:1,b:70000", "postgres://a,b:x/d"] {
            assert!(named(refused).is_err(), "{refused}");
        }
    }
}
