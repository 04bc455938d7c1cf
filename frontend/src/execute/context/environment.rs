//! What expressions get from a running statement: parameters, subqueries, values that are computed once.
//!
//! *Invariants*: a value that is computed once is kept for one run of the statement, and charged to the session's budget.
//! At most 16 compiled patterns are kept; the oldest goes first. A pattern is compiled aside, as it may hold the thread
//! for too long. A scalar subquery has one row at most (21000).
//!
//! *Source*: PostgreSQL 15, sections 4.2.11 and 9.23.
//!
//! *Not here*: the statement's own state (`context`), and the values of expressions (`expression/evaluate`).

use std::sync::Arc;

use crate::error::{Failure, SqlError};
use crate::execute::context::{Context, KEY_OVERHEAD_BYTES, PatternKey};
use crate::expression::evaluate::{AsideJob, Environment};
use crate::expression::function::Facts;
use crate::expression::pattern::{self, Compiled, Syntax};
use crate::expression::set::{KeptId, SetKey, ValueSet};
use crate::expression::{SubqueryKind, SubqueryUse};
use crate::memory::Budget;
use crate::value::Value;

/// Cached compiled patterns.
const PATTERNS_MAX: usize = 16;

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
            SubqueryKind::Exists => Ok(Value::Boolean(self.subquery_rows(query, row)?.count > 0)),
            SubqueryKind::Any(value, comparison) => self.any(value, *comparison, query, row),
        }
    }

    fn next_value(&mut self, counter: u32) -> Result<i64, Failure> {
        let database = Arc::clone(&self.resources.database);
        database.next_value(self.coordinator, counter)
    }

    fn token_outcome(&mut self, token: &str) -> Result<&'static str, Failure> {
        let database = Arc::clone(&self.resources.database);
        database.token_outcome(self.coordinator, token)
    }

    fn facts(&self) -> Option<&Facts> {
        Some(&self.resources.facts)
    }

    fn budget(&self) -> Option<&Arc<Budget>> {
        Some(&self.resources.facts.budget)
    }

    fn check(&mut self) -> Result<(), Failure> {
        self.check_cancel()
    }

    fn compiled(
        &mut self,
        pattern: &str,
        syntax: Syntax,
        ignore_case: bool,
    ) -> Result<Arc<Compiled>, Failure> {
        let is_it = |((text, of, ignores), _): &&(PatternKey, Arc<Compiled>)| {
            text == pattern && *of == syntax && *ignores == ignore_case
        };
        let known = self.kept.as_ref().and_then(|kept| kept.patterns.iter().find(is_it));
        if let Some((_, compiled)) = known {
            return Ok(Arc::clone(compiled));
        }
        let text = pattern.to_owned();
        let compiled = self
            .computed_aside(move |_| pattern::compile(&text, syntax, ignore_case).map(Arc::new))?;
        let patterns = &mut self.kept.get_or_insert_default().patterns;
        if patterns.len() == PATTERNS_MAX {
            patterns.pop_front();
        }
        patterns.push_back(((pattern.to_owned(), syntax, ignore_case), Arc::clone(&compiled)));
        Ok(compiled)
    }

    fn set(&mut self, key: SetKey) -> Option<Arc<ValueSet>> {
        self.kept.as_ref()?.sets.get(&key).cloned()
    }

    fn keep_set(&mut self, key: SetKey, set: Arc<ValueSet>) {
        self.kept.get_or_insert_default().sets.insert(key, set);
    }

    fn kept_once(&mut self, id: KeptId) -> Option<Value> {
        self.kept.as_ref()?.once.get(&id.number()).cloned()
    }

    fn keep_once(&mut self, id: KeptId, value: &Value) -> Result<(), Failure> {
        let bytes = value.memory_bytes() + KEY_OVERHEAD_BYTES;
        let kept = self.kept.get_or_insert_default();
        kept.once_charge.add(&self.resources.facts.budget, bytes)?;
        kept.once.insert(id.number(), value.clone());
        Ok(())
    }

    fn aside(&mut self, job: AsideJob) -> Result<Value, Failure> {
        self.computed_aside(job)
    }
}
