//! A view: what a worker knows of its cluster. A configuration, and this node's part of each table in it.
//!
//! ```text
//! Node::publish(view) ─► each worker, between two of its steps: Worker::adopt ─► participant, endpoint, idle coroutines
//!                                                              each further coroutine, with its next transaction
//! ```
//! The view of an epoch that is prepared stops the workers, and that of the epoch when it is active has them go on: `node`.
//!
//! Routes, roles, log groups and the epoch of new transactions follow from the view of the worker, and from nothing else.
//!
//! *Invariants*: a view never changes; a change of the configuration is another view. A worker adopts a view between two steps, while no
//! handler and no coroutine runs. A transaction keeps the view that it began with to its last PRIMARY. The holder of a view
//! may use its tables: the memory of a table that was dropped is given back with the last view that has it.
//!
//! *Source*: `docs/protocol.md`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_rpc::Identity;
use gannet_storage::{Arena, Loading, Table, TableKind};

use crate::by_number::ByNumber;
use crate::configuration::Configuration;
use crate::learning::Learning;
use crate::row_reservations::RowReservations;

/// What a node counts for as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct NodeCounts {
    /// Updates that a copy on this node could not apply because an earlier one is missing.
    pub(crate) gaps: AtomicU64,
    /// Requests that named a table, partition or bucket that this node does not have, or were malformed.
    pub(crate) refused: AtomicU64,
}

/// A configuration as one node has it.
pub struct View {
    /// Number of the node.
    id: u16,
    configuration: Arc<Configuration>,
    arena: Arc<Arena>,
    tables: ByNumber<Arc<Table>>,
    /// A partition whose primary the node is, or one that another node serves.
    home: Option<u16>,
    counts: Arc<NodeCounts>,
    learning: Arc<Learning>,
    reservations: Arc<RowReservations>,
}

impl View {
    /// The view of node `id`, with its part of each table by number.
    pub(crate) fn new(
        id: u16,
        configuration: Arc<Configuration>,
        arena: Arc<Arena>,
        tables: ByNumber<Arc<Table>>,
        (counts, learning, reservations): (Arc<NodeCounts>, Arc<Learning>, Arc<RowReservations>),
    ) -> Self {
        let served =
            || (0..).take(configuration.partitioning.count()).find(|p| !configuration.is_lost(*p));
        let home = configuration.partition_of(id).or_else(served);
        Self { id, configuration, arena, tables, home, counts, learning, reservations }
    }

    /// The node's number.
    #[inline(always)]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Membership, placement and definitions of tables.
    #[inline(always)]
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The same, to be kept.
    #[must_use]
    pub fn shared_configuration(&self) -> Arc<Configuration> {
        Arc::clone(&self.configuration)
    }

    /// The node's part of the table with this number.
    #[inline(always)]
    #[must_use]
    pub fn table(&self, table: u32) -> Option<&Table> {
        self.tables.get(table).map(|table| &**table)
    }

    /// A table that is not about to be removed. What was read of another has changed: nobody can be asked, as the primary may
    /// have removed it when all transactions knew that it would be.
    pub(crate) fn kept_table(&self, table: u32) -> Option<&Table> {
        self.table(table).filter(|_| self.configuration.has_table(table))
    }

    /// The rows that are reserved at this node.
    pub(crate) fn reservations(&self) -> &RowReservations {
        &self.reservations
    }

    /// Whether rows of a table have stamps, so that each is valid whatever becomes of others in its bucket.
    pub(crate) fn has_stamps(&self, table: u32) -> bool {
        self.table(table).is_some_and(|table| table.layout().kind != TableKind::Fixed)
    }

    /// All tables, with their numbers.
    pub fn tables(&self) -> impl Iterator<Item = (u32, &Table)> {
        self.tables.iter().map(|(number, table)| (number, &**table))
    }

    /// The same by number, to be kept.
    pub(crate) fn shared_tables(&self) -> &ByNumber<Arc<Table>> {
        &self.tables
    }

    /// A partition whose primary the node is: its rows are read without a message. If there is none, the first that is not lost.
    #[inline]
    #[must_use]
    pub fn home_partition(&self) -> Option<u16> {
        self.home
    }

    /// How packets of a worker are known in this view's epoch.
    pub(crate) fn identity(&self, worker: u16, coroutines: u16) -> Identity {
        let Configuration { cluster_id, epoch, .. } = *self.configuration;
        let incarnations = self.configuration.incarnations();
        Identity { cluster_id, epoch, node: self.id, worker, coroutines, incarnations }
    }

    /// Whether a table of the node may have too few buckets.
    #[inline(always)]
    pub(crate) fn has_crowded(&self) -> bool {
        self.arena.has_crowded()
    }

    /// This thread, which is no worker, looks at buckets until the value is dropped.
    pub(crate) fn begin_loading(&self) -> Loading<'_> {
        self.arena.begin_loading()
    }

    /// As [`Self::has_crowded`], since the last call.
    pub(crate) fn take_crowded(&self) -> bool {
        self.arena.take_crowded()
    }

    /// Where the tables lie.
    #[inline(always)]
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether the node is no copy of a partition, and may be a learner.
    pub(crate) fn is_no_copy(&self, partition: u16) -> bool {
        !self.configuration.copies(partition).contains(&self.id)
    }

    /// Whether the node gives up its copy of a partition: it may miss updates.
    pub(crate) fn is_dismissed(&self, partition: u16) -> bool {
        self.configuration.is_dismissed(partition, self.id)
    }

    /// What the node does as a learner.
    pub(crate) fn learning(&self) -> &Learning {
        &self.learning
    }

    // Relaxed: both are statistics, ordered by nothing.
    pub(crate) fn count_gap(&self) {
        self.counts.gaps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The view that a worker has adopted, for its coroutines.
pub(crate) struct AdoptedView {
    view: RefCell<Arc<View>>,
    /// How many of the coroutines wait for rows that others have reserved, and how many may.
    waiting: Cell<u16>,
    waiting_max: u16,
}

impl AdoptedView {
    /// Of a worker with so many coroutines.
    pub(crate) fn new(view: Arc<View>, coroutines: u16) -> Self {
        // One is for the growth of tables. Of the others more than half run what those wait for.
        let waiting_max = coroutines.saturating_sub(1) / 2;
        Self { view: RefCell::new(view), waiting: Cell::new(0), waiting_max }
    }

    /// Whether one more of the coroutines may wait for a row; then it does.
    pub(crate) fn begin_waiting(&self) -> bool {
        let may_wait = self.waiting.get() < self.waiting_max;
        self.waiting.set(self.waiting.get() + u16::from(may_wait));
        may_wait
    }

    /// One of them does not wait any more.
    pub(crate) fn end_waiting(&self) {
        self.waiting.set(self.waiting.get() - 1);
    }

    /// Replaces the view.
    pub(crate) fn adopt(&self, view: &Arc<View>) {
        self.view.replace(Arc::clone(view));
    }

    /// The view.
    pub(crate) fn get(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Whether it is another view than this one.
    #[inline(always)]
    pub(crate) fn differs_from(&self, view: &Arc<View>) -> bool {
        !Arc::ptr_eq(&self.view.borrow(), view)
    }
}
