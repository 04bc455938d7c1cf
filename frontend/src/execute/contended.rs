//! The tables in which transactions of several statements have lately met conflicts. Further ones share what they read there.
//!
//! Where transactions seldom meet, to share what is read costs a round trip for nothing. Where a row that one reads is changed by another before
//! the first commits, one of them would fail.
//!
//! *Invariants*: a table is remembered for [`REMEMBERED_NS`] after the last conflict. Some tables have one slot, so that one may be taken for
//! another: then ranges are shared where few transactions meet. Each process has its own memory.
//!
//! *Not here*: the reservations (`reserved`), and the tables that a transaction has used (`touched`).

use std::sync::atomic::{AtomicU64, Ordering};

use gannet_engine::TableId;

/// How long a conflict is remembered.
const REMEMBERED_NS: u64 = 10_000_000_000;
/// Slots for tables, by their numbers.
const SLOTS: usize = 256;

/// Until when each slot's tables are taken for contended.
pub(crate) struct Contended {
    until_ns: [AtomicU64; SLOTS],
}

impl Default for Contended {
    fn default() -> Self {
        Self { until_ns: [const { AtomicU64::new(0) }; SLOTS] }
    }
}

impl Contended {
    fn slot(&self, table: TableId) -> &AtomicU64 {
        &self.until_ns[table.number() as usize % SLOTS]
    }

    /// Remembers a conflict.
    pub(crate) fn note(&self, table: TableId, now_ns: u64) {
        // Relaxed: a hint.
        self.slot(table).fetch_max(now_ns.saturating_add(REMEMBERED_NS), Ordering::Relaxed);
    }

    /// Whether transactions may have met a conflict in a table lately.
    pub(crate) fn has(&self, table: TableId, now_ns: u64) -> bool {
        // Relaxed: a hint.
        now_ns < self.slot(table).load(Ordering::Relaxed)
    }
}
