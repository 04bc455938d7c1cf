//! The environment of expressions where the rows are: there is no session, and nothing takes long.
//!
//! *Invariant*: an expression that needs more, such as a subquery, gives the program up. Then the session computes it.
//!
//! *Not here*: the environment of a session, in `execute/context/environment.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Failure, SqlError};
use crate::expression::SubqueryUse;
use crate::expression::evaluate::{AsideJob, Environment};
use crate::expression::function::Facts;
use crate::expression::pattern::{self, Compiled, Syntax};
use crate::expression::set::{KeptId, SetKey, ValueSet};
use crate::value::Value;

/// Bytes of a pattern that is compiled at once.
const PATTERN_BYTES_MAX: usize = 256;

/// What the evaluation of a program has prepared.
#[derive(Default)]
pub(super) struct Rows {
    sets: BTreeMap<SetKey, Arc<ValueSet>>,
}

/// The error with which a program is given up. Nobody sees it.
fn given_up() -> Failure {
    SqlError::unsupported("where the rows are, this").into()
}

impl Environment for Rows {
    fn parameter(&self, _: usize) -> Result<Value, SqlError> {
        Err(SqlError::unsupported("a parameter where the rows are"))
    }
    fn outer(&self, _: usize) -> Value {
        Value::Null
    }
    fn subquery(&mut self, _: &SubqueryUse, _: &[Value]) -> Result<Value, Failure> {
        Err(given_up())
    }
    fn next_value(&mut self, _: u32) -> Result<i64, Failure> {
        Err(given_up())
    }
    fn token_outcome(&mut self, _: &str) -> Result<&'static str, Failure> {
        Err(given_up())
    }
    fn facts(&self) -> Option<&Facts> {
        None
    }
    fn check(&mut self) -> Result<(), Failure> {
        // Rows are short.
        Ok(())
    }
    fn compiled(
        &mut self,
        pattern: &str,
        syntax: Syntax,
        ignore_case: bool,
    ) -> Result<Arc<Compiled>, Failure> {
        if pattern.len() > PATTERN_BYTES_MAX || syntax == Syntax::Regular {
            return Err(given_up());
        }
        Ok(Arc::new(pattern::compile(pattern, syntax, ignore_case)?))
    }
    fn set(&mut self, key: SetKey) -> Option<Arc<ValueSet>> {
        self.sets.get(&key).cloned()
    }
    fn keep_set(&mut self, key: SetKey, set: Arc<ValueSet>) {
        self.sets.insert(key, set);
    }
    fn kept_once(&mut self, _: KeptId) -> Option<Value> {
        None
    }
    fn keep_once(&mut self, _: KeptId, _: &Value) -> Result<(), Failure> {
        Err(given_up())
    }
    fn aside(&mut self, _: AsideJob) -> Result<Value, Failure> {
        Err(given_up())
    }
}
