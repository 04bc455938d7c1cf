//! The context of a running statement: its transaction, parameters and limits.
//!
//! *Invariants*: keys are read before they are written, as the engine requires. All that a statement keeps is charged to the
//! session's budget. A statement that runs long yields its thread and sees cancellations.
//!
//! *Not here*: what expressions get from the context (`environment`), folds (`folds`), subqueries (`subqueries`), operators, and
//! when a transaction commits (`transaction`).

mod adopted;
mod environment;
mod folds;
mod subqueries;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gannet_engine::{
    Abort, BulkLoad, Conflict, Coordinator, Deferred, Direction, HEAP_VALUE_BYTES_MAX,
    KEY_BYTES_MAX, KeyRange, NewRows, Page, TableId, TableKey,
};

use crate::aside::Pending;
use crate::catalog::{Catalog, SeenVersions};
use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::context::subqueries::Memo;
use crate::execute::operator::open;
use crate::execute::pace::Inputs;
use crate::execute::reserved::cancelled;
use crate::execute::storages::Created;
use crate::execute::{Row, Touched, Transaction};
use crate::expression::Expression;
use crate::expression::evaluate::{evaluate, hold};
use crate::expression::function::Facts;
use crate::expression::pattern::{Compiled, Syntax};
use crate::expression::set::{SetKey, ValueSet};
use crate::memory::{Budget, Charge};
use crate::plan::Node;
use crate::spill::Spill;
use crate::value::Value;

/// Bytes that a transaction may write.
const WRITTEN_BYTES_MAX: usize = 64 << 20;
/// Growth of the rows read and written before they are charged again.
const CHARGE_STEP_BYTES: usize = 4 << 10;
/// Bytes in memory of a key in a set or map, beside the key's own.
pub(super) const KEY_OVERHEAD_BYTES: usize = 48;
/// Rows between two checks of the clock.
const ROWS_BETWEEN_CHECKS: usize = 8;
/// First wait for another thread's result; every further wait is twice as long.
const ASIDE_WAIT_MIN: Duration = Duration::from_micros(10);
/// Longest wait for another thread's result.
const ASIDE_WAIT_MAX: Duration = Duration::from_millis(1);

/// What the session lends to a statement.
pub(crate) struct Resources {
    pub(crate) database: Arc<Database>,
    pub(crate) facts: Facts,
    pub(crate) seen_versions: SeenVersions,
    /// The tables that the transaction has used.
    pub(crate) touched: Touched,
    /// The engine's tables that earlier runs of the statement have created.
    pub(crate) spares: RefCell<Created>,
    /// The statement's parameters: `$1` is the first.
    pub(crate) parameters: Vec<Value>,
    pub(crate) cancel: Arc<AtomicBool>,
}

impl Resources {
    /// What another coroutine uses that does a part of the statement's work.
    pub(super) fn lent(&self) -> Self {
        Self {
            database: Arc::clone(&self.database),
            facts: self.facts.clone(),
            seen_versions: SeenVersions::default(),
            touched: Touched::default(),
            spares: RefCell::default(),
            parameters: self.parameters.clone(),
            cancel: Arc::clone(&self.cancel),
        }
    }
}

/// A running statement.
pub(crate) struct Context<'c, 's> {
    pub(crate) coordinator: &'c mut Coordinator<'s>,
    pub(crate) transaction: &'c mut Transaction,
    pub(crate) resources: &'c Resources,
    /// The number of this run of the statement, from 1.
    pub(crate) attempt: u32,
    /// Whether the statement commits by itself, and is retried after conflicts.
    pub(crate) commits: bool,
    pub(crate) round_trips: u64,
    outer: Row,
    /// There once something is kept. Most statements keep nothing.
    kept: Option<Box<Kept>>,
    /// Number of calls of [`Self::pace`].
    pub(super) paces: usize,
    /// The counts of the operator that runs.
    pub(super) inputs: Inputs,
}

/// What a statement computes once, and uses again.
#[derive(Default)]
struct Kept {
    memo: BTreeMap<usize, Memo>,
    /// The most recent compiled patterns.
    patterns: VecDeque<(PatternKey, Arc<Compiled>)>,
    sets: BTreeMap<SetKey, Arc<ValueSet>>,
    /// Values that are computed once per statement, by number.
    once: BTreeMap<u64, Value>,
    once_charge: Charge,
}

/// A pattern, its syntax, and whether it ignores case.
type PatternKey = (String, Syntax, bool);

impl<'c, 's> Context<'c, 's> {
    pub(crate) fn new(
        coordinator: &'c mut Coordinator<'s>,
        transaction: &'c mut Transaction,
        resources: &'c Resources,
    ) -> Self {
        Self {
            coordinator,
            transaction,
            resources,
            attempt: 1,
            commits: false,
            round_trips: 0,
            outer: Vec::new(),
            kept: None,
            paces: 0,
            inputs: Inputs::default(),
        }
    }

    /// The values of keys of one table and its indexes, in one round trip.
    pub(crate) fn get_many(&mut self, keys: &[TableKey]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let fits = |key: &TableKey| key.key.len() <= KEY_BYTES_MAX;
        if !keys.iter().all(fits) {
            // A key that is too long exists nowhere.
            let fitting: Vec<TableKey> = keys.iter().filter(|key| fits(key)).cloned().collect();
            let mut found = self.get_many(&fitting)?.into_iter();
            let value = |key| if fits(key) { found.next().flatten() } else { None };
            return Ok(keys.iter().map(value).collect());
        }
        self.rely_on_version()?;
        self.round_trips += 1;
        let first = keys.first().map(|key| key.table);
        first.into_iter().for_each(|table| self.resources.touched.add(table));
        // An index that the transaction has created may be one of a table that others know.
        let is_unshared = |key: &TableKey| self.transaction.is_unshared(key.table);
        let unshared = !self.transaction.created.is_empty() && keys.iter().all(is_unshared);
        let Self { coordinator, transaction, .. } = self;
        let mut read = |deferred: &mut Deferred| deferred.get_each(coordinator, keys);
        let deferred = &mut transaction.deferred;
        let read = if unshared { deferred.unshared(read)? } else { read(deferred)? };
        self.charge_transaction()?;
        Ok(read)
    }

    /// As [`Self::get_many`], of rows that the commit does not depend on.
    pub(super) fn peek(&mut self, keys: &[TableKey]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        self.round_trips += 1;
        let Self { coordinator, transaction, .. } = self;
        Ok(transaction.deferred.peek_each(coordinator, keys)?)
    }

    /// Reads the catalog's version unless the transaction depends on it.
    pub(crate) fn check_version(&mut self) -> Result<(), Failure> {
        if self.transaction.depends_on_version {
            return Ok(());
        }
        let Resources { database, seen_versions, .. } = self.resources;
        let (home, version) = (self.coordinator.home_partition(), self.catalog().version);
        let key = database.versions.near(home);
        let deferred = &mut self.transaction.deferred;
        let (found, seen) = deferred.get_seen(self.coordinator, database.catalog_table, key)?;
        if Catalog::version_from_bytes(found.as_deref())? != version {
            return Err(Failure::StaleCatalog);
        }
        if let Some(seen) = seen {
            seen_versions.set(home, version, seen);
        }
        self.transaction.depends_on_version = true;
        Ok(())
    }

    /// As [`Self::check_version`], for a short statement: the first run relies on the version that the session has last seen
    /// near this node. If the version has changed since, that run ends with a conflict, and the next run reads the version.
    fn rely_on_version(&mut self) -> Result<(), Failure> {
        if !self.transaction.depends_on_version && self.commits && self.attempt == 1 {
            let version = self.catalog().version;
            let seen = self.resources.seen_versions.get(self.coordinator, version);
            if let Some(seen) = seen {
                self.transaction.deferred.assume(seen);
                self.transaction.depends_on_version = true;
            }
        }
        self.check_version()
    }

    /// The catalog that the transaction sees.
    pub(crate) fn catalog(&self) -> &Catalog {
        self.transaction.catalog.as_ref().unwrap_or(&self.resources.facts.catalog)
    }

    /// A plan's result. An error may be due to an old catalog, so the version is checked first.
    pub(crate) fn checked<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure::Error(_)) = result {
            self.check_version()?;
        }
        result
    }

    /// Part of a range of a table or an index, in one round trip.
    pub(crate) fn scan(
        &mut self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.begin_range(table)?;
        self.scan_page(table, (range, direction, limit), self.transaction.is_unshared(table))
    }

    /// The number of entries in a range of a table or an index.
    pub(super) fn count(&mut self, table: TableId, range: &KeyRange) -> Result<u64, Failure> {
        self.begin_range(table)?;
        let is_unshared = self.transaction.is_unshared(table);
        let Self { coordinator, transaction, .. } = self;
        let mut count = |deferred: &mut Deferred| deferred.count(coordinator, table, range);
        let deferred = &mut transaction.deferred;
        let count = if is_unshared { deferred.unshared(count)? } else { count(deferred)? };
        self.charge_transaction()?;
        Ok(count)
    }

    /// As [`Self::count`], of entries that the commit does not depend on.
    pub(super) fn count_unobserved(
        &mut self,
        table: TableId,
        range: &KeyRange,
    ) -> Result<u64, Failure> {
        self.begin_range(table)?;
        let Self { coordinator, transaction, .. } = self;
        let count = |deferred: &mut Deferred| deferred.count(coordinator, table, range);
        Ok(transaction.deferred.unshared(count)?)
    }

    /// A round trip to a table, of which a range is read.
    fn begin_range(&mut self, table: TableId) -> Result<(), Failure> {
        self.check_cancel()?;
        self.check_version()?;
        self.round_trips += 1;
        self.resources.touched.add(table);
        Ok(())
    }

    /// As [`Self::scan`], of rows that the commit does not depend on.
    pub(super) fn scan_unobserved(
        &mut self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.begin_range(table)?;
        self.scan_page(table, (range, direction, limit), true)
    }

    fn scan_page(
        &mut self,
        table: TableId,
        (range, direction, limit): (&KeyRange, Direction, usize),
        is_unobserved: bool,
    ) -> Result<Page, Failure> {
        let Self { coordinator, transaction, .. } = self;
        let mut read =
            |deferred: &mut Deferred| deferred.scan(coordinator, table, range, direction, limit);
        let deferred = &mut transaction.deferred;
        let read = if is_unobserved { deferred.unshared(read)? } else { read(deferred)? };
        self.charge_transaction()?;
        Ok(read)
    }

    /// Charges the rows that the transaction has read and written.
    fn charge_transaction(&mut self) -> Result<(), Failure> {
        let bytes = self.transaction.deferred.memory_bytes();
        let budget = self.budget();
        let charge = &mut self.transaction.charge;
        if bytes.abs_diff(charge.bytes()) >= CHARGE_STEP_BYTES {
            charge.set(budget, bytes)?;
        }
        Ok(())
    }

    /// Sets a key that was read before.
    pub(crate) fn put(&mut self, key: TableKey, value: Vec<u8>) -> Result<(), Failure> {
        Self::check_sizes(&key.key, &value)?;
        self.transaction.deferred.put(key.table, key.key, value);
        self.check_written()
    }

    /// The transaction's own change of a key: `Some(None)` is a deletion; None if the transaction has not written the key.
    pub(crate) fn written(&self, key: &TableKey) -> Option<Option<&[u8]>> {
        self.transaction.deferred.written(key.table, &key.key)
    }

    /// Adds a key that was not read, unless the transaction has written it before, and tells whether it was added. Commit
    /// fails if the key exists, and the statement runs again.
    pub(crate) fn insert(&mut self, key: TableKey, value: Vec<u8>) -> Result<bool, Failure> {
        Self::check_sizes(&key.key, &value)?;
        self.resources.touched.add(key.table);
        let is_new = self.transaction.deferred.insert(key.table, key.key, value);
        self.check_written()?;
        Ok(is_new)
    }

    /// Commits the transaction, and adds rows that it has not read or written. A conflict if one exists, or two have one key.
    pub(super) fn commit_and_add(&mut self, new: NewRows<'_>) -> Result<(), Failure> {
        self.check_cancel()?;
        new.rows.iter().try_for_each(|(key, value)| Self::check_sizes(key, value))?;
        if !new.rows.is_sorted_by(|before, next| before.0 < next.0) {
            let mut keys: Vec<&[u8]> = new.rows.iter().map(|(key, _)| *key).collect();
            keys.sort_unstable();
            if !keys.is_sorted_by(|before, next| before < next) {
                return Err(Abort::from(Conflict::Changed).into());
            }
        }
        self.resources.touched.add(new.table);
        Ok(self.transaction.deferred.commit_and_add(self.coordinator, new)?)
    }

    /// Adds rows to a table whose bulk load has begun. The number of the first whose key is there already, if there is one.
    pub(super) fn bulk_load(
        &mut self,
        load: BulkLoad,
        rows: &[(&[u8], &[u8])],
    ) -> Result<Option<usize>, Failure> {
        self.check_cancel()?;
        rows.iter().try_for_each(|(key, value)| Self::check_sizes(key, value))?;
        self.resources.touched.add(load.table());
        Ok(self.coordinator.bulk_load(load, rows)?)
    }

    fn check_sizes(key: &[u8], value: &[u8]) -> Result<(), Failure> {
        for (what, bytes, max) in [
            ("primary key or index entry", key.len(), KEY_BYTES_MAX),
            ("row", value.len(), HEAP_VALUE_BYTES_MAX),
        ] {
            if bytes > max {
                let message = format!("a {what} has {bytes} bytes; the limit is {max}");
                return Err(SqlError::new("54000", message).into());
            }
        }
        Ok(())
    }

    /// Removes a key that was read before.
    pub(crate) fn delete(&mut self, key: TableKey) -> Result<(), Failure> {
        self.transaction.deferred.delete(key.table, key.key);
        self.check_written()
    }

    fn check_written(&mut self) -> Result<(), Failure> {
        if self.transaction.deferred.written_bytes() <= WRITTEN_BYTES_MAX {
            return self.charge_transaction();
        }
        let mebibytes = WRITTEN_BYTES_MAX >> 20;
        let message = format!("the transaction writes more than {mebibytes} MiB");
        let hint = "change fewer rows at a time (a range of the key per statement); COPY outside a transaction commits in batches, \
                    INSERT ... SELECT takes any number of rows into an empty table, and COPY inside a transaction into a table that the \
                    transaction has created or truncated, if it has written no row of that yet";
        Err(SqlError::new("54000", message).with_hint(hint).into())
    }

    /// Ends the statement if its session requests that, and yields the thread if the statement runs long. Callers call this
    /// often.
    pub(crate) fn check_cancel(&mut self) -> Result<(), Failure> {
        if self.coordinator.give_way() {
            // A change of the cluster's tables does not wait for this statement.
            self.coordinator.begin();
        }
        // Relaxed: the flag carries nothing but itself.
        if self.resources.cancel.load(Ordering::Relaxed) || self.coordinator.is_cancelled() {
            return Err(cancelled().into());
        }
        Ok(())
    }

    /// As [`Self::check_cancel`], for every row: the clock is checked every few rows.
    #[inline]
    pub(crate) fn pace(&mut self) -> Result<(), Failure> {
        self.paces = self.paces.wrapping_add(1);
        if self.paces.is_multiple_of(ROWS_BETWEEN_CHECKS) { self.check_cancel() } else { Ok(()) }
    }

    /// The result of another thread's job. Meanwhile the statement can be cancelled, and other coroutines have this thread.
    pub(super) fn computed_aside<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&AtomicBool) -> Result<T, SqlError> + Send + 'static,
    ) -> Result<T, Failure> {
        let pending = self.resources.database.aside.submit(job);
        self.awaited(&pending)
    }

    /// Whether there is a directory for temporary files.
    pub(super) fn may_spill(&self) -> bool {
        self.resources.database.spill.is_some()
    }

    /// The result of a job on temporary files, as [`Self::computed_aside`].
    pub(super) fn on_disk<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Spill) -> Result<T, SqlError> + Send + 'static,
    ) -> Result<T, Failure> {
        let Some(spill) = &self.resources.database.spill else {
            return Err(self.budget().exceeded().into());
        };
        let own = Arc::clone(spill);
        let pending = spill.submit(move || job(&own));
        self.awaited(&pending)
    }

    fn awaited<T>(&mut self, pending: &Pending<T>) -> Result<T, Failure> {
        let mut wait = ASIDE_WAIT_MIN;
        loop {
            if let Some(result) = pending.poll() {
                return Ok(result?);
            }
            self.check_cancel()?;
            self.wait(wait);
            wait = (2 * wait).min(ASIDE_WAIT_MAX);
        }
    }

    /// Lets other coroutines have this thread for a time. A change of the cluster's tables does not wait for this statement.
    pub(super) fn wait(&mut self, time: Duration) {
        self.coordinator.begin();
        self.coordinator.pause(time);
    }

    /// The budget that the session's statements are charged to.
    pub(crate) fn budget(&self) -> &'c Arc<Budget> {
        &self.resources.facts.budget
    }

    /// Charges rows before they are kept.
    pub(crate) fn keep(&self, charge: &mut Charge, rows: &[Row]) -> Result<(), Failure> {
        Ok(charge.add(self.budget(), rows.iter().map(row_bytes).sum())?)
    }

    /// The value of an expression on a row.
    pub(crate) fn value(
        &mut self,
        expression: &Expression,
        row: &[Value],
    ) -> Result<Value, Failure> {
        evaluate(expression, row, self)
    }

    /// The values of expressions on a row.
    pub(crate) fn values(
        &mut self,
        expressions: &[Expression],
        row: &[Value],
    ) -> Result<Row, Failure> {
        let mut values = Vec::with_capacity(expressions.len());
        self.values_into(&mut values, expressions, row)?;
        Ok(values)
    }

    /// As [`Self::values`], in place of other values.
    pub(crate) fn values_into(
        &mut self,
        values: &mut Row,
        expressions: &[Expression],
        row: &[Value],
    ) -> Result<(), Failure> {
        let mut held = Charge::default();
        values.clear();
        for expression in expressions {
            let value = evaluate(expression, row, self)?;
            hold(&mut held, &value, self)?;
            values.push(value);
        }
        Ok(())
    }

    /// Whether a condition, if there is one, holds on a row.
    pub(crate) fn holds(
        &mut self,
        condition: Option<&Expression>,
        row: &[Value],
    ) -> Result<bool, Failure> {
        match condition {
            Some(condition) => Ok(evaluate(condition, row, self)? == Value::Boolean(true)),
            None => Ok(true),
        }
    }

    /// All rows of a node. They are charged.
    pub(crate) fn rows(&mut self, node: &Node, charge: &mut Charge) -> Result<Vec<Row>, Failure> {
        let mut operator = open(node);
        let mut rows = Vec::new();
        while let Some(mut batch) = operator.next(self)? {
            self.keep(charge, &batch)?;
            if rows.is_empty() {
                rows = batch;
            } else {
                rows.append(&mut batch);
            }
        }
        Ok(rows)
    }
}

/// Approximate bytes of a row.
#[inline]
pub fn row_bytes(row: &Row) -> usize {
    size_of::<Row>() + row.iter().map(Value::memory_bytes).sum::<usize>()
}

#[cfg(test)]
mod tests;
