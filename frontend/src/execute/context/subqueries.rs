//! Subqueries of a running statement. Their rows are kept for the arguments that came last.
//!
//! *Invariants*: the rows of at most 64 subqueries are kept, and charged; then all are forgotten. A subquery is read as
//! far as needed: to 1 row for EXISTS, to 2 for a value, as the second is the error. `= ANY` keeps keys alone, another
//! comparison the rows. Without a match, a NULL on either side makes the result NULL, unless there is no row.
//!
//! *Source*: PostgreSQL 15, section 9.23.
//!
//! *Not here*: the values that expressions get from them (`environment`).

use std::sync::{Arc, OnceLock};

use crate::encoding::key;
use crate::error::Failure;
use crate::execute::Row;
use crate::execute::context::{Context, KEY_OVERHEAD_BYTES};
use crate::execute::operator::{open, row_key};
use crate::expression::{Comparison, Expression, SubqueryKind, SubqueryUse, compare};
use crate::key_map::KeyMap;
use crate::memory::Charge;
use crate::plan::Subquery;
use crate::value::Value;

/// Cached results of subqueries.
const MEMO_MAX: usize = 64;

/// The result of a subquery for some arguments.
pub(super) struct Memo {
    arguments: Row,
    rows: Arc<Rows>,
}

/// The rows of a subquery.
#[derive(Default)]
pub(super) struct Rows {
    /// Empty if only the keys are needed.
    pub(super) rows: Vec<Row>,
    /// The first columns as keys, without NULLs, for comparisons with `=`.
    keys: KeyMap<()>,
    /// The least and the greatest first column, for other comparisons; computed on first use.
    extremes: OnceLock<Option<[Value; 2]>>,
    pub(super) count: usize,
    has_null: bool,
    charge: Charge,
}

impl Drop for Rows {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        self.charge.dispose((keys, std::mem::take(&mut self.rows)));
    }
}

impl Context<'_, '_> {
    /// The rows of a subquery; recent arguments' rows come from the cache.
    pub(super) fn subquery_rows(
        &mut self,
        query: &SubqueryUse,
        row: &[Value],
    ) -> Result<Arc<Rows>, Failure> {
        let arguments = self.values(&query.arguments, row)?;
        let identity = Arc::as_ptr(&query.subquery) as usize;
        if let Some(memo) = self.kept.as_ref().and_then(|kept| kept.memo.get(&identity))
            && memo.arguments == arguments
        {
            return Ok(Arc::clone(&memo.rows));
        }
        let found = self.run_subquery(&query.subquery, &query.kind, arguments.clone())?;
        let rows = Arc::new(found);
        let memo = &mut self.kept.get_or_insert_default().memo;
        if memo.len() >= MEMO_MAX {
            memo.clear();
        }
        memo.insert(identity, Memo { arguments, rows: Arc::clone(&rows) });
        Ok(rows)
    }

    fn run_subquery(
        &mut self,
        subquery: &Subquery,
        kind: &SubqueryKind,
        arguments: Row,
    ) -> Result<Rows, Failure> {
        let outer = std::mem::replace(&mut self.outer, arguments);
        let inputs = std::mem::take(&mut self.inputs);
        let found = self.gather(subquery, kind);
        self.outer = outer;
        self.inputs = inputs;
        found
    }

    /// As many rows of a subquery as needed.
    fn gather(&mut self, subquery: &Subquery, kind: &SubqueryKind) -> Result<Rows, Failure> {
        let enough = match kind {
            SubqueryKind::Exists => 1,
            // A second row is the error.
            SubqueryKind::Scalar => 2,
            SubqueryKind::Any(..) => usize::MAX,
        };
        let mut operator = open(&subquery.node);
        let (mut found, mut key) = (Rows::default(), Vec::new());
        while found.count < enough {
            let Some(mut batch) = operator.next(self)? else { break };
            found.count += batch.len();
            if let SubqueryKind::Any(_, comparison) = kind {
                found.has_null |= batch.iter().any(|row| row[0].is_null());
                if *comparison == Comparison::Equal {
                    for value in batch.iter().map(|row| &row[0]).filter(|value| !value.is_null()) {
                        self.pace()?;
                        key.clear();
                        key::push(&mut key, value);
                        if !found.keys.contains(&key) {
                            found.charge.add(self.budget(), key.len() + KEY_OVERHEAD_BYTES)?;
                            found.keys.insert_new(&key, ());
                        }
                    }
                    continue;
                }
            }
            self.keep(&mut found.charge, &batch)?;
            found.rows.append(&mut batch);
        }
        Ok(found)
    }

    /// `value = ANY (subquery)`, or with another comparison.
    pub(super) fn any(
        &mut self,
        value: &Expression,
        comparison: Comparison,
        query: &SubqueryUse,
        row: &[Value],
    ) -> Result<Value, Failure> {
        let value = self.value(value, row)?;
        let found = self.subquery_rows(query, row)?;
        if found.count == 0 {
            return Ok(Value::Boolean(false));
        }
        if value.is_null() {
            return Ok(Value::Null);
        }
        let holds = if comparison == Comparison::Equal {
            found.keys.contains(&row_key(&[value]))
        } else {
            let extremes = match found.extremes.get() {
                Some(extremes) => extremes,
                None => {
                    let extremes = self.extremes(&found.rows)?;
                    found.extremes.get_or_init(|| extremes)
                }
            };
            // A condition that holds for any value holds for the least or the greatest.
            let mut extremes = extremes.iter().flatten();
            extremes.any(|other| comparison.holds(compare(&value, other)))
        };
        if holds {
            return Ok(Value::Boolean(true));
        }
        Ok(if found.has_null { Value::Null } else { Value::Boolean(false) })
    }

    /// The least and the greatest value of the first column, without NULLs.
    fn extremes(&mut self, rows: &[Row]) -> Result<Option<[Value; 2]>, Failure> {
        let (mut least, mut greatest): (Option<&Value>, Option<&Value>) = (None, None);
        for row in rows {
            self.pace()?;
            let value = &row[0];
            if value.is_null() {
                continue;
            }
            if least.is_none_or(|least| compare(value, least).is_lt()) {
                least = Some(value);
            }
            if greatest.is_none_or(|greatest| compare(value, greatest).is_gt()) {
                greatest = Some(value);
            }
        }
        Ok(least.zip(greatest).map(|(least, greatest)| [least.clone(), greatest.clone()]))
    }
}
