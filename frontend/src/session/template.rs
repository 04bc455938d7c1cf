//! Simple parameterization: statements that differ in their numbers alone share a plan.
//!
//! ```text
//! UPDATE t SET n = n + 7 WHERE id = 12 ─► template: UPDATE t SET n = n + $1 WHERE id = $2 ─► kept plan ─► run with 7 and 12
//! ```
//! Many clients write values into the text of a statement, so each text is another one, whose plan would be made for a single run. A text has
//! a template only if that can change neither its result nor its errors: it consists of numbers, names, [`KEYWORDS`], and simple
//! operators. The plan of a template is used if it names its rows by their keys.
//!
//! *Invariant*: a text whose template cannot be planned is planned itself, so the places of errors are those in the text.
//!
//! *Not here*: where plans are kept (`database`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::plan::statement::Prepared;
use crate::plan::{Plan, PlanKind};
use crate::session::{Session, TransactionStatus};
use crate::text::numeric_from_text;
use crate::value::{DataType, Value};

/// Bytes of a text that may have a template, and its numbers.
const TEXT_BYTES_MAX: usize = 1 << 10;
const NUMBERS_MAX: usize = 64;
/// Keywords that give no number another meaning than that of a value.
const KEYWORDS: [&str; 24] = [
    "AND",
    "AS",
    "BETWEEN",
    "CURRENT_TIMESTAMP",
    "DEFAULT",
    "DELETE",
    "FALSE",
    "FOR",
    "FROM",
    "IN",
    "INSERT",
    "INTO",
    "IS",
    "LIMIT",
    "NOT",
    "NULL",
    "OFFSET",
    "OR",
    "SELECT",
    "SET",
    "TRUE",
    "UPDATE",
    "VALUES",
    "WHERE",
];
/// The other words that PostgreSQL reserves, which are no names: Appendix C of its documentation.
const RESERVED: &str = "ALL ANALYSE ANALYZE ANY ARRAY ASC ASYMMETRIC AUTHORIZATION BINARY BOTH CASE CAST CHECK COLLATE \
    COLLATION COLUMN CONCURRENTLY CONSTRAINT CREATE CROSS CURRENT_CATALOG CURRENT_DATE CURRENT_ROLE CURRENT_SCHEMA \
    CURRENT_TIME CURRENT_USER DEFERRABLE DESC DISTINCT DO ELSE END EXCEPT FETCH FOREIGN FREEZE FULL GRANT GROUP HAVING \
    ILIKE INITIALLY INNER INTERSECT ISNULL JOIN LATERAL LEADING LEFT LIKE LOCALTIME LOCALTIMESTAMP NATURAL \
    NOTNULL ON ONLY ORDER OUTER OVERLAPS PLACING PRIMARY REFERENCES RETURNING RIGHT SESSION_USER SIMILAR SOME \
    SYMMETRIC TABLE TABLESAMPLE THEN TO TRAILING UNION UNIQUE USER USING VARIADIC VERBOSE WHEN WINDOW WITH";
/// Keywords that begin a statement with a template.
const STATEMENTS: [&str; 4] = ["DELETE", "INSERT", "SELECT", "UPDATE"];

/// What a word is.
static WORDS: LazyLock<BTreeMap<&str, Option<Before>>> = LazyLock::new(|| {
    let keywords = KEYWORDS.into_iter().map(|word| (word, Some(Before::Keyword)));
    keywords.chain(RESERVED.split_ascii_whitespace().map(|word| (word, None))).collect()
});

/// A statement without its numbers.
#[derive(Debug, PartialEq)]
pub(super) struct Template {
    /// The text, with a parameter instead of each number.
    pub(super) sql: String,
    /// Of the parameters.
    pub(super) types: Vec<Option<DataType>>,
    pub(super) values: Vec<Value>,
}

/// What came before a parenthesis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Name,
    Keyword,
    Other,
}

impl Template {
    /// The template of a statement; None if it has none.
    pub(super) fn of(text: &str) -> Option<Self> {
        let text = text.trim_end_matches([';', ' ', '\n']);
        let verb = text.trim_start().split(|next: char| !next.is_ascii_alphabetic()).next()?;
        let is_known = STATEMENTS.iter().any(|known| known.eq_ignore_ascii_case(verb));
        if text.len() > TEXT_BYTES_MAX || !text.is_ascii() || !is_known {
            return None;
        }
        let mut template = Self {
            sql: String::with_capacity(text.len() + 16),
            types: Vec::new(),
            values: Vec::new(),
        };
        // A name in front of a parenthesis is a function, but for the table of INSERT INTO.
        let (mut before, mut names_table) = (Before::Other, false);
        let mut rest = text;
        while let Some(first) = rest.bytes().next() {
            let is_part = |byte: u8| match first {
                b'0'..=b'9' => byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => byte.is_ascii_alphanumeric() || byte == b'_',
                _ => false,
            };
            let end = rest.bytes().skip(1).position(|byte| !is_part(byte));
            let (token, behind) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
            rest = behind;
            match first {
                b'0'..=b'9' => {
                    template.add_number(token)?;
                    before = Before::Other;
                    continue;
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                    before = kind_of(token)?;
                    names_table = match before {
                        Before::Keyword => token.eq_ignore_ascii_case("INTO"),
                        _ => names_table,
                    };
                }
                b'(' if before == Before::Name && !names_table => return None,
                // No comments, and no number that begins with its point.
                b'-' if behind.starts_with('-') => return None,
                b'/' if behind.starts_with('*') => return None,
                b'.' if behind.starts_with(|next: char| next.is_ascii_digit()) => return None,
                b'(' | b')' | b',' | b'.' | b'=' | b'<' | b'>' | b'!' | b'+' | b'-' | b'*'
                | b'/' | b'%' => {
                    before = Before::Other;
                    names_table = names_table && first == b'.';
                }
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => return None,
            }
            template.sql.push_str(token);
        }
        (!template.values.is_empty()).then_some(template)
    }

    /// Adds a parameter of the type that the number has as a constant.
    fn add_number(&mut self, digits: &str) -> Option<()> {
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !is_plain || self.values.len() == NUMBERS_MAX {
            return None;
        }
        let (value, data_type) = match digits.parse::<i64>() {
            // With a sign in front, its absolute value is one of INTEGER.
            Ok(number) if number == -i64::from(i32::MIN) => return None,
            Ok(number) if number <= i64::from(i32::MAX) => {
                (Value::Integer(number), DataType::Integer)
            }
            Ok(number) => (Value::Integer(number), DataType::BigInt),
            Err(_) if digits.contains('.') => {
                (Value::Numeric(numeric_from_text(digits)?), DataType::Numeric(None))
            }
            Err(_) => return None,
        };
        self.values.push(value);
        self.types.push(Some(data_type));
        self.sql.push_str(&format!("${}", self.values.len()));
        Some(())
    }
}

/// Whether a word is a name, or one of [`KEYWORDS`]; None for other words that are reserved.
fn kind_of(word: &str) -> Option<Before> {
    *WORDS.get(&*word.to_ascii_uppercase()).unwrap_or(&Some(Before::Name))
}

/// Whether a plan names its rows by their keys, or has them.
fn is_for_keys(plan: &Plan) -> bool {
    plan.home.is_some() || matches!(&plan.kind, PlanKind::Insert(insert) if insert.repeats)
}

impl Session {
    /// The plan of a template; None if the text is to be planned.
    pub(super) async fn plan_of_template(&mut self, template: &Template) -> Option<Prepared> {
        if self.status == TransactionStatus::Failed || self.catalog().private {
            return None;
        }
        let planned = self.plan_once(&template.sql, &template.types).await;
        let Ok(Some(Prepared::Plan(plan))) = planned else { return None };
        let is_alike = plan.parameters.iter().copied().map(Some).eq(template.types.iter().copied());
        (is_alike && is_for_keys(&plan)).then_some(Prepared::Plan(plan))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pollster::block_on;

    use super::*;
    use crate::database::Database;

    fn template(text: &str) -> Option<(String, Vec<Value>, Vec<DataType>)> {
        let Template { sql, types, values } = Template::of(text)?;
        Some((sql, values, types.into_iter().flatten().collect()))
    }

    #[test]
    fn numbers_become_parameters() {
        let update = "UPDATE accounts SET n = n + -7, m = 2.50 WHERE id = 3000000000;\n";
        let numbers = vec![
            Value::Integer(7),
            Value::Numeric("2.50".parse().unwrap()),
            Value::Integer(3_000_000_000),
        ];
        let types = vec![DataType::Integer, DataType::Numeric(None), DataType::BigInt];
        let sql = "UPDATE accounts SET n = n + -$1, m = $2 WHERE id = $3".to_owned();
        assert_eq!(template(update), Some((sql, numbers, types)));
        let texts = [
            ("INSERT INTO s.t1 (a, b2) VALUES (1, 2)", "INSERT INTO s.t1 (a, b2) VALUES ($1, $2)"),
            ("select a from t where (id=1)", "select a from t where (id=$1)"),
            (
                "DELETE FROM t WHERE id = 1 AND (a > 2 OR b <> 3)",
                "DELETE FROM t WHERE id = $1 AND (a > $2 OR b <> $3)",
            ),
        ];
        for (text, expected) in texts {
            assert_eq!(template(text).map(|it| it.0).as_deref(), Some(expected));
        }
    }

    #[test]
    fn texts_that_may_mean_another_thing_have_no_template() {
        for text in [
            "SELECT a FROM t",
            "SELECT a FROM t WHERE id = '1'",
            "SELECT a FROM t WHERE id = 1 AND \"b\" = 2",
            "SELECT a FROM t WHERE id = $1 AND b = 2",
            "SELECT a FROM t WHERE id = 1 ORDER BY 1",
            "SELECT a FROM t WHERE id = 1 GROUP BY a + 1",
            "SELECT a::char(3) FROM t WHERE id = 1",
            "SELECT CAST(a AS char(3)) FROM t WHERE id = 1",
            "SELECT round(a, 2) FROM t WHERE id = 1",
            "SELECT a -- b = 1\nFROM t WHERE id = 1",
            "SELECT a /* 2 */ FROM t WHERE id = 1",
            "SELECT a FROM t WHERE id = 1; SELECT 2",
            "SELECT a FROM t WHERE id = 1e3",
            "SELECT a FROM t WHERE id = 0x10",
            "SELECT a FROM t WHERE id = 1_000",
            "SELECT a FROM t WHERE id = .5",
            "SELECT a FROM t WHERE id = -2147483648",
            "SELECT a FROM t WHERE id = 99999999999999999999",
            "SELECT a[1] FROM t WHERE id = 1",
            "SELECT a FROM t WHERE id = 1 \u{e9}",
            "EXPLAIN SELECT a FROM t WHERE id = 1",
            "ALTER TABLE t ADD COLUMN b varchar(10) DEFAULT 1",
            "FETCH 5 FROM c",
        ] {
            assert_eq!(template(text), None, "{text}");
        }
        let many = |count| format!("INSERT INTO t VALUES (1{})", ", 1".repeat(count - 1));
        assert!(
            template(&many(NUMBERS_MAX)).is_some() && template(&many(NUMBERS_MAX + 1)).is_none()
        );
    }

    #[test]
    fn statements_for_keys_share_their_plans() {
        let database = Database::of_one_node(64 << 20);
        let mut session = database.session("tester");
        block_on(session.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")).unwrap();
        let mut plan = |text: &str| {
            let template = Template::of(text).unwrap();
            match block_on(session.plan_of_template(&template))? {
                Prepared::Plan(plan) => Some(plan),
                Prepared::Command(command) => panic!("{command:?}"),
            }
        };
        let [one, other] = ["UPDATE t SET n = 1 WHERE id = 2", "UPDATE t SET n = 3 WHERE id = 4"];
        assert!(Arc::ptr_eq(&plan(one).unwrap(), &plan(other).unwrap()));
        assert!(plan("INSERT INTO t VALUES (1, 2)").is_some());
        // Those of many rows have plans of their own, and so do those with errors.
        for text in [
            "SELECT n FROM t WHERE n = 1",
            "SELECT n FROM t WHERE id > 1",
            "SELECT m FROM t WHERE id = 1",
        ] {
            assert!(plan(text).is_none(), "{text}");
        }
    }
}
