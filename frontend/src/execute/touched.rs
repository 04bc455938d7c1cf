//! The tables that a session's transaction has used, for the error of a conflict.
//!
//! A conflict is detected in a bucket, which does not tell the tables of its rows.
//!
//! *Invariants*: at most [`TABLES_MAX`] tables are remembered.

use std::cell::Cell;

use crate::catalog::{Catalog, storage_of};
use crate::error::SqlError;

/// Maximum number of remembered tables: the first ones.
const TABLES_MAX: usize = 8;

/// The storage numbers of the tables, none of which is ever used twice.
#[derive(Default)]
pub(crate) struct Touched {
    storages: Cell<[Option<u32>; TABLES_MAX]>,
    has_more: Cell<bool>,
}

impl Touched {
    /// Remembers the table of a key.
    pub(crate) fn add(&self, key: &[u8]) {
        let Some(storage) = storage_of(key) else { return };
        let mut storages = self.storages.get();
        for slot in &mut storages {
            match *slot {
                Some(known) if known == storage => return,
                Some(_) => {}
                None => {
                    *slot = Some(storage);
                    return self.storages.set(storages);
                }
            }
        }
        self.has_more.set(true);
    }

    /// Forgets the tables when another transaction begins.
    pub(crate) fn clear(&self) {
        self.storages.set([None; TABLES_MAX]);
        self.has_more.set(false);
    }

    /// The same error; that of a conflict names the tables.
    pub(crate) fn named(&self, error: SqlError, catalog: &Catalog) -> SqlError {
        let Some(detail) = error.detail.as_deref().filter(|_| error.code == "40001") else {
            return error;
        };
        let storages = self.storages.get();
        let is_used = |storage| storages.contains(&Some(storage));
        let used = catalog.tables().filter(|table| is_used(table.storage));
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
