//! Where a queue pair is, as a line of text that its peers read.
//!
//! ```text
//! verbs1 ethernet gid=::ffff:10.1.0.1 lid=0 pair=17 mtu=4096
//! ```
//! *Invariants*: what is printed is parsed back to the same; whatever else is parsed is an error that says why.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The first word: the format's name and version.
const FORMAT: &str = "verbs1";
/// Queue pairs are numbered with 24 bits.
const PAIR_MAX: u32 = (1 << 24) - 1;

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// RoCE, or Soft-RoCE.
    Ethernet,
    InfiniBand,
}

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) link: Link,
    pub(super) gid: Ipv6Addr,
    pub(super) lid: u16,
    pub(super) pair: u32,
    /// Bytes of its largest datagram.
    pub(super) mtu: usize,
}

impl Address {
    /// Whether its GID holds an IPv4 address; queue pairs of different families do not reach each other.
    pub(super) fn is_ipv4(&self) -> bool {
        self.gid.to_ipv4_mapped().is_some()
    }

    /// Its family in words.
    pub(super) fn family(&self) -> &'static str {
        match (self.link, self.is_ipv4()) {
            (Link::InfiniBand, _) => "InfiniBand",
            (Link::Ethernet, true) => "IPv4",
            (Link::Ethernet, false) => "IPv6",
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ethernet => "ethernet",
            Self::InfiniBand => "infiniband",
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, gid, lid, pair, mtu } = self;
        write!(formatter, "{FORMAT} {link} gid={gid} lid={lid} pair={pair} mtu={mtu}")
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(' ');
        match words.next() {
            Some(FORMAT) => {}
            other => return Err(format!("it begins with {other:?} instead of {FORMAT:?}")),
        }
        let link = match words.next() {
            Some("ethernet") => Link::Ethernet,
            Some("infiniband") => Link::InfiniBand,
            other => return Err(format!("no link is called {other:?}")),
        };
        let gid = field(&mut words, "gid")?;
        let lid = field(&mut words, "lid")?;
        let pair = field(&mut words, "pair")?;
        let mtu = field(&mut words, "mtu")?;
        if pair > PAIR_MAX {
            return Err(format!("no queue pair has the number {pair}"));
        }
        match words.next() {
            None => Ok(Self { link, gid, lid, pair, mtu }),
            Some(more) => Err(format!("{more:?} is too much")),
        }
    }
}

/// The value of the next word, which is to be `name=value`.
pub(super) fn field<'t, T: FromStr>(
    words: &mut impl Iterator<Item = &'t str>,
    name: &str,
) -> Result<T, String> {
    let word = words.next().ok_or_else(|| format!("it has no {name}"))?;
    let value = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
    let value = value.ok_or_else(|| format!("{word:?} stands where {name}= should"))?;
    value.parse().map_err(|_| format!("{value:?} is no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_printed_is_parsed(
            is_ethernet: bool,
            gid: u128,
            (lid, pair, mtu) in (any::<u16>(), 0..=PAIR_MAX, any::<usize>()),
        ) {
            let link = if is_ethernet { Link::Ethernet } else { Link::InfiniBand };
            let address = Address { link, gid: gid.into(), lid, pair, mtu };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "(verbs1 )?(ethernet )?[a-z0-9=: ]{0,40}") {
            prop_assert!(text.parse::<Address>().is_err());
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let right = "verbs1 ethernet gid=::ffff:10.1.0.1 lid=0 pair=17 mtu=4096";
        assert_eq!(right.parse::<Address>().map(|address| address.is_ipv4()), Ok(true));
        for (from, to, reason) in [
            ("verbs1", "verbs2", "\"verbs2\""),
            ("ethernet", "token-ring", "token-ring"),
            ("gid=::ffff:10.1.0.1", "gid=10.1.0.1", "is no gid"),
            ("lid=0", "lid=70000", "is no lid"),
            ("pair=17", "pair=16777216", "16777216"),
            (" mtu=4096", "", "no mtu"),
            ("mtu=4096", "mtu=4096 more", "\"more\""),
            ("lid=0", "lad=0", "\"lad=0\""),
        ] {
            let error = right.replace(from, to).parse::<Address>().expect_err("it is wrong");
            assert!(error.contains(reason), "{error}");
        }
    }
}
