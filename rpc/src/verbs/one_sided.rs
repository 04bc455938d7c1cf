//! Reading the memory of another process without its doing: READs over reliable connections.
//!
//! ```text
//! reader: OneSided ─ pair() ◄─ addresses ─► pair() ─ OneSided :owner
//!            read(remote, at, bytes) ─── READ ───► region() ─ SharedRegion
//!            poll() ◄──────────────── bytes ──────────┘       its thread takes no part
//! ```
//! For copying tables and for reads without locks. It stands beside the datagrams of `verbs.rs`, which transport the RPCs.
//!
//! *Source*: FaSST section 2.2 (one-sided verbs need connected transports); ibv_post_send(3), IBV_WR_RDMA_READ.
//!
//! *Invariants*: a READ is done or fails, and is reported once, in the order of the calls. A pair of which one READ
//! failed reads nothing any more; open another.
//!
//! *Not here*: the exchange of the two addresses. A READ of bytes that are being written may return any mixture of old and new
//! ones; a reader that needs more checks versions, as `storage` does.

use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use ibverbs_sys as sys;
use sys::ibv_qp_attr_mask as mask;
use sys::ibv_qp_state as state;

use super::address::field;
use super::device::{Capacity, Memory, QueuePair, Ring};
use super::error::VerbsError;
use super::preflight::Chosen;
use super::{VerbsOptions, peer_address, stride};

/// The first word of a region's address: the format's name and version.
const FORMAT: &str = "region1";
/// READs that a connection has under way at once, if both devices can.
const READS_AT_ONCE: u8 = 16;
/// Time until a packet is sent again, 4.096 us * 2^14 = 67 ms, and number of repetitions.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

/// A READ could not be made, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nobody is at the other end.
    #[error("the queue pair is not connected: call connect() with the other side's address")]
    NotConnected,
    /// As many as the pair was opened for.
    #[error("{reads} READs are under way, as many as the queue pair was opened for: call poll()")]
    Busy {
        /// How many.
        reads: u64,
    },
    /// Longer than the pair was opened for.
    #[error("{bytes} bytes are more than the {most} that the queue pair was opened for")]
    TooLong {
        /// What was to be read.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// Beyond the end of the region.
    #[error("{bytes} bytes at {at} are not inside of the region's {region}")]
    Outside {
        /// Where it was to be read.
        at: u64,
        /// How much.
        bytes: usize,
        /// The region's size.
        region: u64,
    },
    /// The device reports a failure.
    #[error(
        "a READ failed with status {status} of ibv_poll_cq(3): the other process is gone, or its region is; open another \
         queue pair"
    )]
    Failed {
        /// An `ibv_wc_status`.
        status: u32,
    },
}

/// A device on which regions can be read, and be offered to readers.
#[derive(Debug)]
pub struct OneSided {
    chosen: Chosen,
}

impl OneSided {
    /// Finds a device, after a look whether everything is there that it needs. Nodes and keys do not matter.
    ///
    /// # Errors
    /// [`VerbsError`], which says what to do.
    pub fn open(options: &VerbsOptions) -> Result<Self, VerbsError> {
        Ok(Self { chosen: Chosen::find(options)? })
    }

    /// Zeroed memory. A process that is connected and knows its address may read it.
    ///
    /// # Errors
    /// [`VerbsError::LockedMemory`], or that the device refuses it.
    pub fn region(&self, bytes: usize) -> Result<SharedRegion, VerbsError> {
        Ok(SharedRegion { memory: self.chosen.memory(bytes, true)? })
    }

    /// A queue pair for as many READs at once, each of at most `bytes_max`; the owner of a region needs one as well.
    ///
    /// # Errors
    /// [`VerbsError::LockedMemory`], or that the device refuses it.
    pub fn pair(&self, reads: usize, bytes_max: usize) -> Result<OneSidedPair, VerbsError> {
        let (chosen, reads) = (self.chosen.clone(), reads.max(1));
        let capacity = Capacity { sends: reads, receives: 1, inline_bytes: 0 };
        let pair = QueuePair::new(&chosen.device, false, capacity);
        let pair = Rc::new(pair.map_err(chosen.refused("a queue pair"))?);
        let stride = stride(0, bytes_max.max(1));
        let memory = chosen.memory(reads * stride, false)?;
        let ring = Ring::of_sends(&pair, memory, stride, 1);
        let (is_connected, is_reported, failed) = (false, false, None);
        Ok(OneSidedPair { ring, pair, chosen, bytes_max, is_connected, is_reported, failed })
    }
}

/// Memory that others may read.
#[derive(Debug)]
pub struct SharedRegion {
    memory: Memory,
}

impl SharedRegion {
    /// Where it is, for a reader's [`RemoteRegion`].
    #[must_use]
    pub fn address(&self) -> String {
        let (at, _, key) = self.memory.keys();
        RemoteRegion { at, key, bytes: self.memory.len() as u64 }.to_string()
    }

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

/// Another process's region, as its address says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    at: u64,
    key: u32,
    bytes: u64,
}

impl fmt::Display for RemoteRegion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, key, bytes } = self;
        write!(formatter, "{FORMAT} at={at} key={key} bytes={bytes}")
    }
}

impl FromStr for RemoteRegion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(' ');
        match words.next() {
            Some(FORMAT) => {}
            other => return Err(format!("it begins with {other:?} instead of {FORMAT:?}")),
        }
        let (at, key): (u64, _) = (field(&mut words, "at")?, field(&mut words, "key")?);
        let bytes: u64 = field(&mut words, "bytes")?;
        if at.checked_add(bytes).is_none() {
            return Err(format!("no {bytes} bytes are at {at}"));
        }
        match words.next() {
            None => Ok(Self { at, key, bytes }),
            Some(more) => Err(format!("{more:?} is too much")),
        }
    }
}

/// One end of a connection; the end of the reader is used, the owner's only kept.
pub struct OneSidedPair {
    // Before the ring, whose memory goes with the pair.
    pair: Rc<QueuePair>,
    ring: Ring,
    chosen: Chosen,
    bytes_max: usize,
    is_connected: bool,
    /// Whether the oldest READ that is done was reported.
    is_reported: bool,
    /// The first READ that failed, and its status.
    failed: Option<(u64, u32)>,
}

impl OneSidedPair {
    /// Where it is, for the other side's [`Self::connect`].
    #[must_use]
    pub fn address(&self) -> String {
        self.chosen.address(&self.pair).to_string()
    }

    /// Connects to the pair at the other side's address, which has to connect to this one, too. Once.
    ///
    /// # Errors
    /// [`VerbsError`], which says what to do; it calls the other side node 1.
    pub fn connect(&mut self, address: &str) -> Result<(), VerbsError> {
        let peer = peer_address(1, address, &self.chosen.address(&self.pair))?;
        let refused = |what| self.chosen.refused(what);
        let attributes = self.chosen.device.attributes;
        let at_once = |most: i32| u8::try_from(most).unwrap_or(u8::MAX).min(READS_AT_ONCE);
        let to = |qp_state| sys::ibv_qp_attr {
            qp_state,
            port_num: self.chosen.port,
            qp_access_flags: sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
            path_mtu: self.chosen.mtu.ilog2() - 7,
            dest_qp_num: peer.pair,
            // Each side's packets are numbered from its pair's number.
            rq_psn: peer.pair,
            sq_psn: self.pair.number,
            ah_attr: self.chosen.way_to(peer.gid, peer.lid),
            max_dest_rd_atomic: at_once(attributes.max_qp_rd_atom),
            max_rd_atomic: at_once(attributes.max_qp_init_rd_atom),
            min_rnr_timer: 12,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            ..Default::default()
        };
        let first = [mask::IBV_QP_PKEY_INDEX, mask::IBV_QP_PORT, mask::IBV_QP_ACCESS_FLAGS];
        let receive = [
            mask::IBV_QP_AV,
            mask::IBV_QP_PATH_MTU,
            mask::IBV_QP_DEST_QPN,
            mask::IBV_QP_RQ_PSN,
            mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            mask::IBV_QP_MIN_RNR_TIMER,
        ];
        let send = [
            mask::IBV_QP_SQ_PSN,
            mask::IBV_QP_TIMEOUT,
            mask::IBV_QP_RETRY_CNT,
            mask::IBV_QP_RNR_RETRY,
            mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ];
        let pair = &self.pair;
        pair.modify(to(state::IBV_QPS_INIT), &first).map_err(refused("to start a connection"))?;
        pair.modify(to(state::IBV_QPS_RTR), &receive).map_err(refused("to connect"))?;
        pair.modify(to(state::IBV_QPS_RTS), &send).map_err(refused("to open a connection"))?;
        self.is_connected = true;
        Ok(())
    }

    /// Begins to read `bytes` of `region` from `at`; [`Self::poll`] tells of its end.
    ///
    /// # Errors
    /// [`ReadError`]; then nothing was begun.
    pub fn read(&mut self, region: &RemoteRegion, at: u64, bytes: usize) -> Result<(), ReadError> {
        if !self.is_connected {
            return Err(ReadError::NotConnected);
        }
        if let Some((_, status)) = self.failed {
            return Err(ReadError::Failed { status });
        }
        if bytes > self.bytes_max {
            return Err(ReadError::TooLong { bytes, most: self.bytes_max });
        }
        if at.checked_add(bytes as u64).is_none_or(|end| end > region.bytes) {
            return Err(ReadError::Outside { at, bytes, region: region.bytes });
        }
        self.free_reported();
        let busy = ReadError::Busy { reads: self.ring.under_way() };
        if self.ring.room() == 0 {
            return Err(busy);
        }
        self.ring.stage_read(region.at + at, region.key, bytes);
        if self.ring.post() > 0 { Err(busy) } else { Ok(()) }
    }

    /// The oldest READ that has ended and was not reported yet: its bytes, until the next call of this or
    /// of [`Self::read`].
    ///
    /// # Errors
    /// [`ReadError::Failed`], for this READ and all later ones.
    pub fn poll(&mut self) -> Option<Result<&[u8], ReadError>> {
        self.free_reported();
        if self.ring.done().is_empty()
            && let Some(failure) = self.ring.poll()
        {
            // Those behind a READ that fails fail as well.
            let first = self.ring.done().end - failure.requests;
            self.failed = self.failed.or(Some((first, failure.status)));
        }
        let oldest = self.ring.done().next()?;
        self.is_reported = true;
        match self.failed {
            Some((first, status)) if oldest >= first => Some(Err(ReadError::Failed { status })),
            Some(_) | None => Some(Ok(self.ring.contents(oldest))),
        }
    }

    /// Frees the READ that was reported, whose bytes nobody can look at any more.
    fn free_reported(&mut self) {
        if std::mem::take(&mut self.is_reported) {
            self.ring.free(self.ring.done().start + 1);
        }
    }
}
