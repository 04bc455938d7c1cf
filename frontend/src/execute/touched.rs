//! The tables that a session's transaction has used, for the error of a conflict.
//!
//! A commit that meets a conflict does not tell where.
//!
//! *Invariants*: at most [`STORAGES_MAX`] tables of the engine are remembered.

use std::cell::Cell;

use gannet_engine::TableId;

use crate::catalog::Catalog;
use crate::error::SqlError;

/// Maximum number of remembered tables of the engine: the first ones.
const STORAGES_MAX: usize = 16;

/// The engine's tables of those that were used, and of their indexes.
#[derive(Default)]
pub(crate) struct Touched {
    /// None behind the last one.
    storages: [Cell<Option<TableId>>; STORAGES_MAX],
    has_more: Cell<bool>,
}

impl Touched {
    /// Remembers a table of the engine.
    pub(crate) fn add(&self, storage: TableId) {
        for slot in &self.storages {
            match slot.get() {
                Some(known) if known == storage => return,
                Some(_) => {}
                None => return slot.set(Some(storage)),
            }
        }
        self.has_more.set(true);
    }

    /// Whether a table of the engine is remembered.
    pub(crate) fn has(&self, storage: TableId) -> bool {
        self.storages.iter().any(|slot| slot.get() == Some(storage))
    }

    /// Forgets the tables when another transaction begins.
    pub(crate) fn clear(&self) {
        for slot in &self.storages {
            if slot.take().is_none() {
                break;
            }
        }
        self.has_more.set(false);
    }

    /// The same error; that of a conflict names the tables.
    pub(crate) fn named(&self, error: SqlError, catalog: &Catalog) -> SqlError {
        let Some(detail) = error.detail.as_deref().filter(|_| error.code == "40001") else {
            return error;
        };
        let used = catalog.tables().filter(|table| table.storages().any(|it| self.has(it)));
        let names: Vec<String> = used.map(|table| format!("\"{}\"", table.name)).collect();
        let place = match names.as_slice() {
            [] => return error,
            [name] if !self.has_more.get() => format!("the conflict is in table {name}"),
            names => {
                let others = if self.has_more.get() { ", ..." } else { "" };
                format!("the conflict is in one of the tables {}{others}", names.join(", "))
            }
        };
        let detail = format!("{}; {place}", detail.trim_end_matches("; retry"));
        error.with_detail(detail)
    }
}
