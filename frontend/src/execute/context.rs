//! What a running statement has at hand: its transaction, parameters, limits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gannet_engine::{
    Coordinator, Deferred, Direction, HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, KeyRange, Page,
};

use crate::catalog::{Catalog, SeenVersions};
use crate::database::Database;
use crate::encoding::key;
use crate::error::{Failure, SqlError};
use crate::execute::operator::open;
use crate::execute::{Row, Transaction};
use crate::expression::evaluate::{Environment, evaluate};
use crate::expression::function::Facts;
use crate::expression::{Comparison, Expression, SubqueryKind, SubqueryUse, compare};
use crate::plan::{Node, Subquery};
use crate::value::Value;

/// Bytes that the rows of a statement may take in memory.
const STATEMENT_BYTES_MAX: usize = 1 << 30;
/// Bytes that a transaction may write.
const WRITTEN_BYTES_MAX: usize = 64 << 20;
/// Results of subqueries that are kept for the next row.
const MEMO_MAX: usize = 64;

/// What a statement has from its session, and gives back.
pub(crate) struct Resources {
    pub(crate) database: Arc<Database>,
    pub(crate) facts: Facts,
    pub(crate) seen_versions: SeenVersions,
    /// Of the statement: `$1` is the first.
    pub(crate) parameters: Vec<Value>,
    pub(crate) cancel: Arc<AtomicBool>,
}

/// A running statement.
pub(crate) struct Context<'c, 's> {
    pub(crate) coordinator: &'c mut Coordinator<'s>,
    pub(crate) transaction: &'c mut Transaction,
    pub(crate) resources: &'c Resources,
    /// The run of the statement, counted from 1.
    pub(crate) attempt: u32,
    /// Whether the statement commits by itself, and is run again if that fails.
    pub(crate) commits: bool,
    pub(crate) round_trips: u64,
    memory_bytes: usize,
    outer: Row,
    memo: BTreeMap<usize, Memo>,
}

/// The result of a subquery for some arguments.
struct Memo {
    arguments: Row,
    rows: Arc<Rows>,
}

/// The rows of a subquery.
struct Rows {
    rows: Vec<Row>,
    /// The first columns as keys, NULLs apart; made when they are first compared.
    keys: std::sync::OnceLock<BTreeSet<Vec<u8>>>,
}

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
            memory_bytes: 0,
            outer: Vec::new(),
            memo: BTreeMap::new(),
        }
    }

    /// The values of keys of one table, in one round trip.
    pub(crate) fn get_many(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let fits = |key: &Vec<u8>| key.len() <= KEY_BYTES_MAX;
        if !keys.iter().all(fits) {
            // What cannot be a key is nowhere.
            let fitting: Vec<Vec<u8>> = keys.iter().filter(|key| fits(key)).cloned().collect();
            let mut found = self.get_many(&fitting)?.into_iter();
            let value = |key| if fits(key) { found.next().flatten() } else { None };
            return Ok(keys.iter().map(value).collect());
        }
        self.rely_on_version()?;
        self.round_trips += 1;
        let table = self.resources.database.table;
        let unshared = keys.first().is_some_and(|key| self.transaction.is_unshared(key));
        let Self { coordinator, transaction, .. } = self;
        let mut read = |deferred: &mut Deferred| deferred.get_many(coordinator, table, keys);
        let deferred = &mut transaction.deferred;
        Ok(if unshared { deferred.unshared(read)? } else { read(deferred)? })
    }

    /// Reads the catalog's version unless the transaction depends on it.
    pub(crate) fn check_version(&mut self) -> Result<(), Failure> {
        if self.transaction.depends_on_version {
            return Ok(());
        }
        let Resources { database, seen_versions, .. } = self.resources;
        let (node, version) = (self.coordinator.node(), self.catalog().version);
        let key = database.versions.near(node);
        let deferred = &mut self.transaction.deferred;
        let (found, seen) = deferred.get_seen(self.coordinator, database.catalog_table, key)?;
        if Catalog::version_from_bytes(found.as_deref())? != version {
            return Err(Failure::StaleCatalog);
        }
        if let Some(seen) = seen {
            seen_versions.set(node, version, seen);
        }
        self.transaction.depends_on_version = true;
        Ok(())
    }

    /// As [`Self::check_version`], for a statement that takes little time: its first run relies on the version's being as the
    /// session has last seen it near this node. If it is another one by now, that run ends with a conflict, and the next reads it.
    fn rely_on_version(&mut self) -> Result<(), Failure> {
        if !self.transaction.depends_on_version && self.commits && self.attempt == 1 {
            let version = self.catalog().version;
            let seen = self.resources.seen_versions.get(self.coordinator.node(), version);
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

    /// What a plan gave; its error may be an old catalog's.
    pub(crate) fn checked<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure::Error(_)) = result {
            self.check_version()?;
        }
        result
    }

    /// Part of a range, in one round trip.
    pub(crate) fn scan(
        &mut self,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.check_cancel()?;
        self.check_version()?;
        self.round_trips += 1;
        let table = self.resources.database.table;
        let (Bound::Included(from) | Bound::Excluded(from)) = &range.from else {
            return Err(SqlError::new("XX000", "a range of rows starts nowhere").into());
        };
        let unshared = self.transaction.is_unshared(from);
        let Self { coordinator, transaction, .. } = self;
        let mut read =
            |deferred: &mut Deferred| deferred.scan(coordinator, table, range, direction, limit);
        let deferred = &mut transaction.deferred;
        Ok(if unshared { deferred.unshared(read)? } else { read(deferred)? })
    }

    /// Sets a key that was read.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        Self::check_sizes(&key, &value)?;
        self.transaction.deferred.put(self.resources.database.table, key, value);
        self.check_written()
    }

    /// Adds a key that was not read; whether the transaction has not written it before. Commit finds out whether others
    /// have, and the statement is run again.
    pub(crate) fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<bool, Failure> {
        Self::check_sizes(&key, &value)?;
        let is_new = self.transaction.deferred.insert(self.resources.database.table, key, value);
        self.check_written()?;
        Ok(is_new)
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

    /// Removes a key that was read.
    pub(crate) fn delete(&mut self, key: Vec<u8>) -> Result<(), Failure> {
        self.transaction.deferred.delete(self.resources.database.table, key);
        self.check_written()
    }

    fn check_written(&self) -> Result<(), Failure> {
        if self.transaction.deferred.written_bytes() <= WRITTEN_BYTES_MAX {
            return Ok(());
        }
        let mebibytes = WRITTEN_BYTES_MAX >> 20;
        let message = format!("the transaction writes more than {mebibytes} MiB");
        let hint = "change fewer rows at a time (a range of the key per statement), or use COPY \
                    outside a transaction, which commits in batches";
        Err(SqlError::new("54000", message).with_hint(hint).into())
    }

    /// Ends the statement if its session asks for that, and lets others have the thread for a moment if it runs long. To be
    /// called again and again.
    pub(crate) fn check_cancel(&mut self) -> Result<(), Failure> {
        self.coordinator.give_way();
        // Relaxed: the flag carries nothing but itself.
        if self.resources.cancel.load(Ordering::Relaxed) {
            return Err(SqlError::new("57014", "canceling statement due to user request").into());
        }
        Ok(())
    }

    /// Counts rows that are kept in memory.
    pub(crate) fn charge(&mut self, rows: &[Row]) -> Result<(), Failure> {
        self.memory_bytes += rows.iter().map(row_bytes).sum::<usize>();
        Self::check_memory(self.memory_bytes)
    }

    /// Checks what a statement keeps, or an operator has made and not handed on yet.
    pub(crate) fn check_memory(bytes: usize) -> Result<(), Failure> {
        if bytes <= STATEMENT_BYTES_MAX {
            return Ok(());
        }
        let mebibytes = STATEMENT_BYTES_MAX >> 20;
        let message = format!("the statement keeps more than {mebibytes} MiB of rows in memory");
        Err(SqlError::new("53200", message).with_hint("add a condition or a LIMIT").into())
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
        expressions.iter().map(|expression| evaluate(expression, row, self)).collect()
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

    /// All rows of a node.
    pub(crate) fn rows(&mut self, node: &Node) -> Result<Vec<Row>, Failure> {
        let mut operator = open(node);
        let mut rows = Vec::new();
        while let Some(mut batch) = operator.next(self)? {
            self.charge(&batch)?;
            if rows.is_empty() {
                rows = batch;
            } else {
                rows.append(&mut batch);
            }
        }
        Ok(rows)
    }

    /// The rows of a subquery; those for the same arguments as last time are not computed again.
    fn subquery_rows(&mut self, query: &SubqueryUse, row: &[Value]) -> Result<Arc<Rows>, Failure> {
        let arguments = self.values(&query.arguments, row)?;
        let identity = Arc::as_ptr(&query.subquery) as usize;
        if let Some(memo) = self.memo.get(&identity)
            && memo.arguments == arguments
        {
            return Ok(Arc::clone(&memo.rows));
        }
        let rows = self.run_subquery(&query.subquery, &query.kind, arguments.clone())?;
        let rows = Arc::new(Rows { rows, keys: std::sync::OnceLock::new() });
        if self.memo.len() >= MEMO_MAX {
            self.memo.clear();
        }
        self.memo.insert(identity, Memo { arguments, rows: Arc::clone(&rows) });
        Ok(rows)
    }

    fn run_subquery(
        &mut self,
        subquery: &Subquery,
        kind: &SubqueryKind,
        arguments: Row,
    ) -> Result<Vec<Row>, Failure> {
        let enough = match kind {
            SubqueryKind::Exists => 1,
            // The second row is the error.
            SubqueryKind::Scalar => 2,
            SubqueryKind::Any(..) => usize::MAX,
        };
        let outer = std::mem::replace(&mut self.outer, arguments);
        let mut run = || -> Result<Vec<Row>, Failure> {
            let mut operator = open(&subquery.node);
            let mut rows = Vec::new();
            while rows.len() < enough {
                let Some(mut batch) = operator.next(self)? else { break };
                self.charge(&batch)?;
                rows.append(&mut batch);
            }
            Ok(rows)
        };
        let rows = run();
        self.outer = outer;
        rows
    }

    fn any(
        &mut self,
        value: &Expression,
        comparison: Comparison,
        query: &SubqueryUse,
        row: &[Value],
    ) -> Result<Value, Failure> {
        let value = self.value(value, row)?;
        let found = self.subquery_rows(query, row)?;
        if found.rows.is_empty() {
            return Ok(Value::Boolean(false));
        }
        if value.is_null() {
            return Ok(Value::Null);
        }
        let columns = || found.rows.iter().map(|row| &row[0]);
        let holds = if comparison == Comparison::Equal {
            let keys = found
                .keys
                .get_or_init(|| columns().filter(|value| !value.is_null()).map(key_of).collect());
            keys.contains(&key_of(&value))
        } else {
            columns().any(|other| !other.is_null() && comparison.holds(compare(&value, other)))
        };
        if holds {
            return Ok(Value::Boolean(true));
        }
        Ok(if columns().any(Value::is_null) { Value::Null } else { Value::Boolean(false) })
    }
}

/// About how many bytes a row takes.
pub(crate) fn row_bytes(row: &Row) -> usize {
    size_of::<Row>() + row.iter().map(Value::memory_bytes).sum::<usize>()
}

fn key_of(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::push(&mut bytes, value);
    bytes
}

impl Environment for Context<'_, '_> {
    fn parameter(&self, number: usize) -> Result<Value, SqlError> {
        self.resources
            .parameters
            .get(number)
            .cloned()
            .ok_or_else(|| SqlError::new("42P02", format!("there is no parameter ${}", number + 1)))
    }

    fn outer(&self, number: usize) -> Value {
        self.outer[number].clone()
    }

    fn subquery(&mut self, query: &SubqueryUse, row: &[Value]) -> Result<Value, Failure> {
        match &query.kind {
            SubqueryKind::Scalar => {
                let found = self.subquery_rows(query, row)?;
                match found.rows.as_slice() {
                    [] => Ok(Value::Null),
                    [row] => Ok(row[0].clone()),
                    _ => Err(SqlError::new(
                        "21000",
                        "more than one row returned by a subquery used as an expression",
                    )
                    .into()),
                }
            }
            SubqueryKind::Exists => {
                Ok(Value::Boolean(!self.subquery_rows(query, row)?.rows.is_empty()))
            }
            SubqueryKind::Any(value, comparison) => self.any(value, *comparison, query, row),
        }
    }

    fn next_value(&mut self, counter: u32) -> Result<i64, Failure> {
        let database = Arc::clone(&self.resources.database);
        database.next_value(self.coordinator, counter)
    }

    fn facts(&self) -> &Facts {
        &self.resources.facts
    }
}
