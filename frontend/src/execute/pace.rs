//! A check that operators yield their thread. An operator calls `Context::pace` for every row that it takes or returns, and
//! returns no more rows at once than may pass without that call.
//!
//! The check counts rows, so its result is the same on every machine. Release builds do not contain it.

use crate::error::Failure;
use crate::execute::operator::Operator;
use crate::execute::{Context, Row};

/// Rows that an operator may process before it calls `Context::pace`: several batches.
const ROWS_IN_HAND_MAX: usize = 10_000;

/// The counts of an operator's inputs since it was asked for rows.
#[derive(Default)]
pub(super) struct Inputs {
    rows: usize,
    paces: usize,
}

/// An operator under this check.
pub(super) struct Paced<'p> {
    operator: Box<dyn Operator + 'p>,
    /// Whether the operator passes batches on unchanged, which takes no time.
    hands_on: bool,
    /// Rows taken from the inputs.
    taken: usize,
    given: usize,
    /// Calls of `Context::pace`.
    paces: usize,
}

impl<'p> Paced<'p> {
    pub(super) fn checked(operator: Box<dyn Operator + 'p>, hands_on: bool) -> Self {
        Self { operator, hands_on, taken: 0, given: 0, paces: 0 }
    }
}

impl Operator for Paced<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let before = context.paces;
        let others = std::mem::take(&mut context.inputs);
        let batch = self.operator.next(context)?;
        let inputs = std::mem::replace(&mut context.inputs, others);
        let paces = context.paces - before;
        let given = batch.as_ref().map_or(0, Vec::len);
        self.taken += inputs.rows;
        self.given += given;
        self.paces += paces - inputs.paces;
        context.inputs.rows += given;
        context.inputs.paces += paces;
        assert!(given <= ROWS_IN_HAND_MAX, "an operator has given {given} rows at once");
        let needed = self.taken.max(self.given);
        assert!(
            self.hands_on || self.paces + ROWS_IN_HAND_MAX >= needed,
            "an operator with {needed} rows has yielded {} times",
            self.paces
        );
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {

    use pollster::block_on;

    use crate::database::Database;
    use crate::value::Value;

    #[test]
    fn much_memory_of_operators_is_freed_on_another_thread() {
        let database = Database::of_one_node(32 << 20);
        let mut session = database.session("tester");
        block_on(session.execute("CREATE TABLE t (i INT PRIMARY KEY)")).unwrap();
        let series = "generate_series(1, 20000)";
        for (statement, code) in [
            (
                format!("SELECT 1 / (i - 19999) FROM (SELECT i FROM {series} i ORDER BY -i) AS q"),
                Some("22012"),
            ),
            (
                format!(
                    "SELECT 1 / (i - 1) FROM (SELECT i, count(*) FROM {series} i GROUP BY i) AS q"
                ),
                Some("22012"),
            ),
            (format!("SELECT count(*) FROM {series} i JOIN {series} j ON i = j"), None),
            (format!("SELECT count(*) FROM (SELECT DISTINCT i FROM {series} i) AS q"), None),
            (format!("SELECT 0 IN (SELECT i FROM {series} i)"), None),
            (
                format!(
                    "INSERT INTO t SELECT 1 FROM {series} i WHERE (SELECT max(i) FROM t) IS NULL"
                ),
                Some("23505"),
            ),
        ] {
            let before = database.memory.disposals();
            let result = block_on(session.execute(&statement));
            assert_eq!(result.map_err(|error| error.code).err(), code, "{statement}");
            assert!(database.memory.disposals() > before, "{statement}");
        }
        let any = block_on(session.prepare("SELECT 0 = ANY($1::INT[])", &[])).unwrap();
        let members: Vec<String> = (1..20_000).map(|i| i.to_string()).collect();
        let array = Value::Text(format!("{{{}}}", members.join(",")));
        let before = database.memory.disposals();
        block_on(session.execute_prepared(&any, vec![array])).unwrap();
        assert!(database.memory.disposals() > before);
        block_on(session.execute("BEGIN")).unwrap();
        let declare = format!("DECLARE c CURSOR FOR SELECT i FROM {series} i");
        block_on(session.execute(&declare)).unwrap();
        let before = database.memory.disposals();
        block_on(session.execute("CLOSE c")).unwrap();
        assert!(database.memory.disposals() > before);
    }
}
