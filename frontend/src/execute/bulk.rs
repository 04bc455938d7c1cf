//! The bulk load of a storage that no transaction uses: begun before its first rows come, and ended when all are there.
//!
//! Several jobs of a statement share it, and a COPY may have several loads one after the other. A storage that was written to, or that the
//! cluster cannot load just now, gets its rows by transactions.
//!
//! *Invariant*: until the end no transaction uses the storage. *Source*: `docs/protocol.md`, "Bulk loads".

use std::sync::{Arc, OnceLock};

use gannet_engine::{Abort, BulkLoad, Conflict, Coordinator, TableId};

use crate::error::Failure;
use crate::plan::Insert;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Bulk(OnceLock<Option<BulkLoad>>);

impl Bulk {
    /// One that is over: rows are inserted by transactions.
    pub(crate) fn over() -> Self {
        Self(OnceLock::from(None))
    }

    /// Begins the load, unless that was tried before.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn begin(
        &self,
        table: TableId,
        coordinator: &mut Coordinator<'_>,
    ) -> Result<(), Failure> {
        if self.0.get().is_none() {
            let begun = coordinator.begin_bulk_load(table)?;
            // One job of a statement begins it.
            self.0.get_or_init(|| begun);
        }
        Ok(())
    }

    /// The load, while one goes on.
    pub(crate) fn load(&self) -> Option<BulkLoad> {
        self.0.get().copied().flatten()
    }

    /// Ends the load, if there is one: all rows are there.
    ///
    /// # Errors
    /// The engine's. The storage is of no use then.
    pub(crate) fn end(&self, coordinator: &mut Coordinator<'_>) -> Result<(), Failure> {
        match self.load() {
            Some(load) => Ok(coordinator.end_bulk_load(load)?),
            None => Ok(()),
        }
    }
}

/// An INSERT whose rows are loaded, and the bulk load of its table.
pub(crate) type Loaded = (Arc<Insert>, Arc<Bulk>);

/// Whether a worker has sent rows of a share in a bulk load, and has not noted the answer.
#[derive(Clone, Copy, Default)]
pub(super) struct Sending(bool);

impl Sending {
    /// The worker sends rows.
    ///
    /// # Errors
    /// A conflict if the worker that had the share before was interrupted: some of its rows may be there.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        match std::mem::replace(&mut self.0, true) {
            true => Err(Abort::from(Conflict::Reconfigured).into()),
            false => Ok(()),
        }
    }

    /// The worker has noted that they are there.
    pub(super) fn end(&mut self) {
        self.0 = false;
    }
}
