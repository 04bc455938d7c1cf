//! Which device, port and GID a queue pair uses, and what is missing if there is none.
//!
//! A setting that is not given is chosen: the first device with a port that is active and has a GID as wanted. Over Ethernet a
//! GID that holds an IPv4 address is preferred to one that holds an IPv6 address of more than the link, and RoCE's
//! second version, which crosses routers, to its first.
//!
//! *Invariants*: every reason why there is none is an error that says what to do; if several ports are not fit, the
//! error is that of the first.

use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

use ibverbs_sys as sys;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use super::address::{Address, Link};
use super::device::{Device, Gid, Memory, QueuePair};
use super::error::VerbsError;
use super::{GidChoice, VerbsOptions};

/// The least MTU that is supported: messages of a few rows fit a packet.
const MTU_MIN: usize = 1_024;

/// A port of an open device, fit for use.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) device: Arc<Device>,
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) link: Link,
    pub(super) lid: u16,
    pub(super) gid: Gid,
    pub(super) mtu: usize,
}

impl Chosen {
    /// Finds a port as the options want it.
    pub(super) fn find(options: &VerbsOptions) -> Result<Self, VerbsError> {
        let present = match Device::names() {
            Ok(present) => present,
            // A kernel that knows nothing of RDMA.
            Err(source) if errno(&source) == Errno::ENOSYS => Vec::new(),
            Err(source) => return Err(VerbsError::Unlisted { source }),
        };
        let candidates = match &options.device {
            _ if present.is_empty() => return Err(VerbsError::NoDevice),
            Some(device) if !present.contains(device) => {
                return Err(VerbsError::UnknownDevice { device: device.clone(), present });
            }
            Some(device) => vec![device.clone()],
            None => present,
        };
        let mut first_error = None;
        for name in candidates {
            match Self::on_device(&name, options) {
                Ok(chosen) => return Ok(chosen),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(VerbsError::NoDevice))
    }

    fn on_device(name: &str, options: &VerbsOptions) -> Result<Self, VerbsError> {
        let device = Device::open(name).map_err(|source| match errno(&source) {
            Errno::EACCES | Errno::EPERM => VerbsError::NotPermitted { device: name.to_owned() },
            _ => VerbsError::Refused { device: name.to_owned(), what: "to be opened", source },
        })?;
        let ports = device.attributes.phys_port_cnt;
        let candidates = match options.port {
            Some(port) if port == 0 || port > ports => {
                return Err(VerbsError::UnknownPort { device: name.to_owned(), port, ports });
            }
            Some(port) => port..=port,
            None => 1..=ports,
        };
        let mut first_error = None;
        for port in candidates {
            match Self::on_port(&device, name, port, options) {
                Ok(chosen) => return Ok(chosen),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(VerbsError::NoDevice))
    }

    fn on_port(
        device: &Arc<Device>,
        name: &str,
        number: u8,
        options: &VerbsOptions,
    ) -> Result<Self, VerbsError> {
        let owned = || name.to_owned();
        let refused = |what| move |source| VerbsError::Refused { device: owned(), what, source };
        let port = device.port(number).map_err(refused("to describe its port"))?;
        if port.state != sys::ibv_port_state::IBV_PORT_ACTIVE {
            let state = state_in_words(port.state).to_owned();
            return Err(VerbsError::PortDown { device: owned(), port: number, state });
        }
        let is_infiniband = u32::from(port.link_layer) == sys::IBV_LINK_LAYER_INFINIBAND;
        let link = if is_infiniband { Link::InfiniBand } else { Link::Ethernet };
        let gids = device.gids(number).map_err(refused("to list its GIDs"))?;
        let Some(gid) = best_gid(&gids, options.gid, link) else {
            let wanted = options.gid.map_or_else(|| "GID".to_owned(), |choice| choice.to_string());
            let present: Vec<_> =
                gids.iter().map(|gid| format!("{} (index {})", gid.address, gid.index)).collect();
            let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
            return Err(VerbsError::NoGid { device: owned(), port: number, wanted, present });
        };
        let active = mtu_bytes(port.active_mtu);
        let wanted = options.mtu.unwrap_or(active).max(MTU_MIN);
        if active < wanted {
            return Err(VerbsError::MtuTooSmall { device: owned(), port: number, active, wanted });
        }
        let (device, lid) = (Arc::clone(device), port.lid);
        Ok(Self { device, name: owned(), port: number, link, lid, gid, mtu: wanted })
    }

    /// Memory for the device; if there is none, the limit that is in the way.
    pub(super) fn memory(&self, bytes: usize, is_readable: bool) -> Result<Memory, VerbsError> {
        Memory::new(&self.device, bytes, is_readable).map_err(|source| {
            let device = self.name.clone();
            let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map(|(soft, _)| soft);
            match limit {
                Ok(limit) if errno(&source) == Errno::ENOMEM => {
                    VerbsError::LockedMemory { device, bytes, limit: limit.to_string() }
                }
                Ok(_) | Err(_) => VerbsError::Refused { device, what: "to use memory", source },
            }
        })
    }

    /// The error of a call about this device.
    pub(super) fn refused(&self, what: &'static str) -> impl FnOnce(io::Error) -> VerbsError {
        let device = self.name.clone();
        move |source| VerbsError::Refused { device, what, source }
    }

    /// Where a queue pair of it is.
    pub(super) fn address(&self, pair: &QueuePair) -> Address {
        let Self { link, gid, lid, mtu, .. } = *self;
        Address { link, gid: gid.address, lid, pair: pair.number, mtu }
    }

    /// The way to an address.
    pub(super) fn way_to(&self, gid: Ipv6Addr, lid: u16) -> sys::ibv_ah_attr {
        // Inside of a subnet of InfiniBand the LID is enough, and spares every packet a header.
        let is_global =
            self.link == Link::Ethernet || gid.segments()[..4] != self.gid.address.segments()[..4];
        sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: gid.octets() },
                sgid_index: u8::try_from(self.gid.index).unwrap_or(0),
                hop_limit: 64,
                ..Default::default()
            },
            dlid: lid,
            is_global: u8::from(is_global),
            port_num: self.port,
            ..Default::default()
        }
    }
}

/// The number of a system's error.
fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// The GID of a port that fits best.
fn best_gid(gids: &[Gid], choice: Option<GidChoice>, link: Link) -> Option<Gid> {
    let fits = |gid: &&Gid| {
        let is_ipv4 = gid.address.to_ipv4_mapped().is_some();
        // A way names it by 8 bits.
        let is_named = gid.index <= u32::from(u8::MAX) && !gid.address.is_unspecified();
        is_named
            && match choice {
                None => true,
                Some(GidChoice::Ipv4) => is_ipv4,
                Some(GidChoice::Ipv6) => !is_ipv4,
                Some(GidChoice::Index(index)) => gid.index == u32::from(index),
            }
    };
    let rank = |gid: &&Gid| {
        let is_ipv4 = gid.address.to_ipv4_mapped().is_some();
        let is_wanted = |wanted: bool| link == Link::Ethernet && !wanted;
        let is_local = gid.address.is_unicast_link_local();
        (is_wanted(!gid.is_first_roce), is_wanted(is_ipv4), is_wanted(!is_local), gid.index)
    };
    gids.iter().filter(fits).min_by_key(rank).copied()
}

fn state_in_words(state: sys::ibv_port_state::Type) -> &'static str {
    match state {
        1 => "down",
        2 => "initialising (is a subnet manager running?)",
        3 => "armed, not active",
        _ => "not active",
    }
}

/// Bytes of a port's MTU.
fn mtu_bytes(mtu: sys::ibv_mtu) -> usize {
    128 << mtu.min(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, is_first_roce: bool) -> Gid {
        Gid { index, address: address.parse().expect("it is one"), is_first_roce }
    }

    #[test]
    fn the_best_gid_is_taken_unless_another_is_wanted() {
        let gids = [
            gid(0, "fe80::1", true),
            gid(1, "fe80::1", false),
            gid(2, "::ffff:10.1.0.1", true),
            gid(3, "::ffff:10.1.0.1", false),
            gid(4, "2001:db8::1", false),
        ];
        let index = |choice, link| best_gid(&gids, choice, link).map(|gid| gid.index);
        assert_eq!(index(None, Link::Ethernet), Some(3));
        assert_eq!(index(None, Link::InfiniBand), Some(0));
        assert_eq!(index(Some(GidChoice::Ipv4), Link::Ethernet), Some(3));
        assert_eq!(index(Some(GidChoice::Ipv6), Link::Ethernet), Some(4));
        assert_eq!(index(Some(GidChoice::Index(2)), Link::Ethernet), Some(2));
        assert_eq!(index(Some(GidChoice::Index(9)), Link::Ethernet), None);
        assert!(best_gid(&gids[..2], Some(GidChoice::Ipv4), Link::Ethernet).is_none());
    }

    #[test]
    fn mtus_have_bytes() {
        assert_eq!([1, 3, 5].map(mtu_bytes), [256, 1_024, 4_096]);
    }
}
