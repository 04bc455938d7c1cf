//! The tables of a cluster: created and dropped by changes of its configuration, in all processes together.
//!
//! *Invariants*: a table that [`Cluster::create_table`] has returned is there for every worker of every node. The memory of a table is
//! given back when the last transaction that may use it has ended.
//!
//! *Not here*: how several processes agree on a change, in `change`.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use gannet_storage::{TableDefinition, TableKind};

use crate::cluster::{Cluster, ClusterError};
use crate::configuration::{Change, ChangeError, check_name};
use crate::coordinator::Coordinator;
use crate::local_members::LocalMembers;
use crate::manager::{Proposed, propose_aside};
use crate::table_id::TableId;

/// First wait of a job for a change; every further wait is twice as long.
const CHANGE_WAIT_MIN: Duration = Duration::from_micros(20);
/// Looks of a job, of [`CHANGE_WAIT_MAX`] each, whether the memory of a table that it has dropped is given back.
const GIVING_BACK_LOOKS: usize = 50;
/// Longest wait of a job for a change.
const CHANGE_WAIT_MAX: Duration = Duration::from_millis(1);

impl Cluster {
    /// Creates a table for about `rows` rows with values of `value_bytes`; 0 if that is not known: the table then begins with a
    /// bucket in each partition. It grows with its rows, until a node's memory limit is reached. Name the rows that a
    /// [loader](Self::loader) adds: it splits no buckets.
    ///
    /// The table is there for all processes of the cluster. Where each process is to have it, whichever process comes first,
    /// use [`Self::open_table`]. Blocks, so it must not be called on a thread that drives workers.
    ///
    /// # Errors
    /// [`ClusterError::Change`] if there is a table of that name, or there are too many, or another process has no room;
    /// [`ClusterError::Storage`] for sizes that are not possible and when the memory does not suffice; [`ClusterError::Join`] if
    /// the cluster halts.
    pub fn create_table(
        &self,
        name: &str,
        value_bytes: usize,
        rows: u64,
    ) -> Result<TableId, ClusterError> {
        self.create(TableDefinition {
            name: name.to_owned(),
            kind: TableKind::Fixed,
            value_bytes,
            rows,
            is_system: false,
        })
    }

    /// Creates a table of byte-string keys, in order, and byte-string values, for about `rows` rows: keys of up to 4 KiB and values of
    /// up to 1 MiB.
    ///
    /// # Errors
    /// As [`Self::create_table`].
    pub fn create_ordered_table(&self, name: &str, rows: u64) -> Result<TableId, ClusterError> {
        self.create(ordered(name, rows))
    }

    /// As [`Self::create_ordered_table`], in a job, between two transactions: the worker's other coroutines go on meanwhile.
    ///
    /// # Errors
    /// As [`Self::create_ordered_table`], and [`ClusterError::Thread`].
    pub fn create_ordered_table_in(
        &self,
        coordinator: &mut Coordinator<'_>,
        name: &str,
        rows: u64,
    ) -> Result<TableId, ClusterError> {
        self.create_by(ordered(name, rows), |change| self.change_in(coordinator, change))
    }

    /// The table with that name; creates it as [`Self::create_table`] does if there is none. For the processes of a cluster, which
    /// all open the same tables.
    ///
    /// # Errors
    /// As [`Self::create_table`], and [`ClusterError::TableDiffers`] if there is a table of that name, and not such a one.
    pub fn open_table(
        &self,
        name: &str,
        value_bytes: usize,
        rows: u64,
    ) -> Result<TableId, ClusterError> {
        self.open_defined(TableDefinition {
            name: name.to_owned(),
            kind: TableKind::Fixed,
            value_bytes,
            rows,
            is_system: false,
        })
    }

    /// As [`Self::open_table`], of the tables that [`Self::create_ordered_table`] creates.
    ///
    /// # Errors
    /// As [`Self::open_table`].
    pub fn open_ordered_table(&self, name: &str, rows: u64) -> Result<TableId, ClusterError> {
        self.open_defined(ordered(name, rows))
    }

    /// As [`Self::open_ordered_table`], for definitions of other tables: its rows may take the memory that rows leave to new tables. So
    /// a table can be created and dropped when memory has ended.
    ///
    /// # Errors
    /// As [`Self::open_table`].
    pub fn open_system_table(&self, name: &str, rows: u64) -> Result<TableId, ClusterError> {
        self.open_defined(TableDefinition { is_system: true, ..ordered(name, rows) })
    }

    /// Drops a table with its rows, in all processes. Transactions that use it may still commit; later ones end with
    /// [`crate::Misuse::NoSuchTable`]. Blocks until they have ended, and must not be called on a thread that drives workers. The memory of a
    /// large table is given back soon afterwards, a little at a time.
    ///
    /// # Errors
    /// [`ClusterError::Change`] if there is no such table; [`ClusterError::Join`] if the cluster halts.
    pub fn drop_table(&self, table: TableId) -> Result<(), ClusterError> {
        self.change(Change::Leave(table.number()))?;
        self.change(Change::Remove(table.number()))
    }

    /// As [`Self::drop_table`], in a job, between two transactions: the worker's other coroutines go on meanwhile.
    ///
    /// # Errors
    /// As [`Self::drop_table`], and [`ClusterError::Thread`].
    pub fn drop_table_in(
        &self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
    ) -> Result<(), ClusterError> {
        let gives_back = || self.members.iter().any(|member| member.node().gives_back_dropped());
        // Those before have been waited for.
        let looks = if gives_back() { 0 } else { GIVING_BACK_LOOKS };
        self.change_in(coordinator, Change::Leave(table.number()))?;
        self.change_in(coordinator, Change::Remove(table.number()))?;
        for _ in 0..looks {
            if !gives_back() {
                break;
            }
            coordinator.begin();
            coordinator.pause(CHANGE_WAIT_MAX);
        }
        Ok(())
    }

    /// The table with that name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<TableId> {
        let configuration = self.configuration();
        let (number, entry) = configuration.table_named(name)?;
        (!entry.is_leaving).then_some(TableId(number))
    }

    fn create(&self, definition: TableDefinition) -> Result<TableId, ClusterError> {
        self.create_by(definition, |change| self.change(change))
    }

    fn create_by(
        &self,
        definition: TableDefinition,
        make: impl FnOnce(Change) -> Result<(), ClusterError>,
    ) -> Result<TableId, ClusterError> {
        // No process could make another table, nor read its definition.
        check_name(&definition.name)?;
        definition.layout(self.configuration().partitioning)?;
        let name = definition.name.clone();
        make(Change::Create(definition))?;
        let configuration = self.configuration();
        let created = configuration.table_named(&name).map(|(number, _)| TableId(number));
        created.ok_or(ClusterError::TableDropped(name))
    }

    fn open_defined(&self, definition: TableDefinition) -> Result<TableId, ClusterError> {
        let wanted = definition.clone();
        // The decider answers when all workers of all processes go by the changes before, so a table that there is can be used then.
        let created = match self.create(definition) {
            Ok(_) | Err(ClusterError::Change(ChangeError::TableExists(_))) => Ok(()),
            Err(error) => Err(error),
        };
        let configuration = self.configuration();
        match (configuration.table_named(&wanted.name), created) {
            (Some((_, entry)), Ok(())) if entry.is_leaving => {
                Err(ClusterError::TableDropped(wanted.name))
            }
            (Some((number, entry)), _) if entry.definition == wanted => Ok(TableId(number)),
            (_, Err(error)) => Err(error),
            (Some(_), Ok(())) => Err(ClusterError::TableDiffers(wanted.name)),
            (None, Ok(())) => Err(ClusterError::TableDropped(wanted.name)),
        }
    }

    /// Has all members go by a change of the configuration.
    pub(crate) fn change(&self, change: Change) -> Result<(), ClusterError> {
        // Nothing panics while it is held, so the data behind a poisoned lock are whole.
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let proposed = self.manager.propose(change.clone());
        self.explained(&change, proposed)
    }

    /// As [`Self::change`], in a job.
    fn change_in(
        &self,
        coordinator: &mut Coordinator<'_>,
        change: Change,
    ) -> Result<(), ClusterError> {
        let mut asked = match self.manager.begin(coordinator.node(), &change) {
            Some(asked) => asked,
            None => propose_aside(&self.manager, &self.changing, change.clone())
                .map_err(ClusterError::Thread)?,
        };
        let mut wait = CHANGE_WAIT_MIN;
        loop {
            // By the view that the worker has now, because changes wait until no transaction goes by another one.
            coordinator.begin();
            if let Some(proposed) = asked() {
                return self.explained(&change, proposed);
            }
            coordinator.pause(wait);
            wait = (2 * wait).min(CHANGE_WAIT_MAX);
        }
    }

    fn explained(&self, change: &Change, proposed: Proposed) -> Result<(), ClusterError> {
        let proposed = proposed?;
        if let Err(ChangeError::Refused { .. }) = &proposed {
            // If a table is not possible here, its error says more.
            self.local_members().check_memory(&self.configuration().after(change)?)?;
        }
        Ok(proposed?)
    }

    /// What the members of this process do for a change.
    pub(crate) fn local_members(&self) -> LocalMembers {
        LocalMembers { members: self.members.clone(), state: Arc::clone(&self.state) }
    }
}

fn ordered(name: &str, rows: u64) -> TableDefinition {
    TableDefinition {
        name: name.to_owned(),
        kind: TableKind::Ordered,
        value_bytes: 0,
        rows,
        is_system: false,
    }
}
