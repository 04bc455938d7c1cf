//! Starting a queue pair for datagrams, and starting it again after it failed.
//!
//! A work request that fails stops its queue pair. What was under way is lost then, as the network may lose anything,
//! and the pair is reset under the same number, so that peers need not be told.
//!
//! *Invariants*: a pair that cannot be reset is tried again, ever more seldom up to a bound, and the log says so.
//!
//! *Source*: ibv_modify_qp(3), the states of a queue pair.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use ibverbs_sys as sys;
use sys::ibv_qp_attr_mask as mask;
use sys::ibv_qp_state as state;

use super::device::{Failure, QueuePair};

/// Looks at a pair that is down between two attempts to start it, at most; a thread that sleeps looks once a second.
const LOOKS_MAX: u32 = 4;

/// Restarts the queue pair of a worker.
#[derive(Debug)]
pub(super) struct Restart {
    pair: Rc<QueuePair>,
    device: String,
    port: u8,
    key: u32,
    /// Times that the pair has failed.
    failures: Cell<u64>,
    /// While it is down: looks until it is tried again, and how many there were the last time.
    down: Cell<Option<(u32, u32)>>,
}

impl Restart {
    pub(super) fn new(pair: Rc<QueuePair>, device: String, port: u8, key: u32) -> Self {
        Self { pair, device, port, key, failures: Cell::new(0), down: Cell::new(None) }
    }

    pub(super) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// A work request has failed.
    #[cold]
    pub(super) fn after(&self, failure: Failure) {
        let failures = self.failures.get() + 1;
        self.failures.set(failures);
        // The 1st, 2nd, 4th ... time: a network that is down makes every packet fail.
        if failures.is_power_of_two() {
            let (device, status, requests) = (&*self.device, failure.status, failure.requests);
            tracing::warn!(
                device,
                failures,
                status,
                requests,
                "a queue pair failed and is started again; packets that were under way are sent again (status: see \
                 ibv_poll_cq(3))"
            );
        }
        self.attempt(1);
    }

    /// Whether the pair is down, after an attempt to start it if it is time.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        match self.down.get() {
            None => false,
            Some((0, before)) => {
                self.attempt((2 * before).min(LOOKS_MAX));
                self.down.get().is_some()
            }
            Some((left, before)) => {
                self.down.set(Some((left - 1, before)));
                true
            }
        }
    }

    fn attempt(&self, looks: u32) {
        match self.pair.reset().and_then(|()| start(&self.pair, self.port, self.key)) {
            Ok(()) => self.down.set(None),
            Err(error) => {
                if self.down.get().is_none() {
                    let device = &*self.device;
                    tracing::error!(
                        device, %error,
                        "a queue pair cannot be started again and is tried again; until then this node exchanges no packets"
                    );
                }
                self.down.set(Some((looks, looks)));
            }
        }
    }
}

/// Makes a pair that is new or was reset ready for datagrams with this Q_Key.
pub(super) fn start(pair: &QueuePair, port_num: u8, qkey: u32) -> io::Result<()> {
    let to = |qp_state| sys::ibv_qp_attr { qp_state, port_num, qkey, ..Default::default() };
    let first = [mask::IBV_QP_PKEY_INDEX, mask::IBV_QP_PORT, mask::IBV_QP_QKEY];
    pair.modify(to(state::IBV_QPS_INIT), &first)?;
    pair.modify(to(state::IBV_QPS_RTR), &[])?;
    pair.modify(to(state::IBV_QPS_RTS), &[mask::IBV_QP_SQ_PSN])
}
