//! Descriptions: tables, columns and indexes, and the statements that create them again.
//!
//! *Source*: PostgreSQL 15, chapter 53 (system catalogs). The queries read these alone, so they also work through a connection
//! to a server.
//!
//! *Not here*: how rows are written (`render`).

use std::fmt::Write as _;

use super::outcome::{ColumnKind, Failure, Rows};
use super::{Shell, quote_name, quote_text};

/// Rows of each INSERT in a dump.
const INSERT_ROWS: usize = 100;

/// A column in the catalog.
struct ColumnDefinition {
    name: String,
    type_name: String,
    not_null: bool,
    default: Option<String>,
    /// `a` (always) or `d` (by default) for identity columns.
    identity: Option<char>,
}

/// The name and the definition of a constraint or an index.
struct Definition {
    name: String,
    definition: String,
}

impl Shell {
    /// The tables.
    pub(super) fn tables(&mut self) -> Result<Rows, Failure> {
        self.rows(
            "SELECT c.relname AS \"table\" FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind = 'r' AND n.nspname = 'public' ORDER BY c.relname",
        )
    }

    /// The databases: a server has one.
    pub(super) fn databases(&mut self) -> Result<Rows, Failure> {
        self.rows(
            "SELECT d.datname AS \"database\", pg_catalog.pg_get_userbyid(d.datdba) AS \"owner\", \
             pg_catalog.pg_encoding_to_char(d.encoding) AS \"encoding\" \
             FROM pg_catalog.pg_database d ORDER BY d.datname",
        )
    }

    /// The indexes and their tables.
    pub(super) fn indexes(&mut self) -> Result<Rows, Failure> {
        self.rows(
            "SELECT c.relname AS \"index\", t.relname AS \"table\" FROM pg_catalog.pg_index i \
             JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
             JOIN pg_catalog.pg_class t ON t.oid = i.indrelid \
             JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace \
             WHERE n.nspname = 'public' ORDER BY c.relname",
        )
    }

    /// Shows a table's columns, constraints and indexes.
    pub(super) fn describe(&mut self, table: &str) -> Result<(), Failure> {
        let oid = self.table_oid(table)?;
        let columns = self.columns(&oid)?;
        let heading =
            |name: &str| super::outcome::Heading { name: name.to_owned(), kind: ColumnKind::Text };
        let rows = columns
            .iter()
            .map(|column| {
                let nullable = if column.not_null { "not null" } else { "" };
                let default = column.extra().unwrap_or_default();
                [column.name.as_str(), &column.type_name, nullable, &default]
                    .map(|text| Some(text.to_owned()))
                    .to_vec()
            })
            .collect();
        let headings = ["column", "type", "nullable", "default"].map(heading).to_vec();
        self.print_rows(&Rows { headings, rows })?;
        let constraints = self.constraints(&oid)?;
        let indexes = self.free_indexes(&oid, &constraints)?;
        self.print(|out| {
            for constraint in &constraints {
                writeln!(out, "constraint {}: {}", constraint.name, constraint.definition)?;
            }
            indexes.iter().try_for_each(|index| writeln!(out, "index {}", index.definition))
        })
    }

    /// Shows the statements that create a table, or all tables.
    pub(super) fn schema(&mut self, table: Option<&str>) -> Result<(), Failure> {
        let tables = match table {
            Some(table) => vec![table.to_owned()],
            None => self.table_names()?,
        };
        for table in tables {
            let (create, indexes) = self.statements(&table)?;
            self.print(|out| {
                writeln!(out, "{create}")?;
                indexes.iter().try_for_each(|index| writeln!(out, "{index}"))
            })?;
        }
        Ok(())
    }

    /// Writes the statements that create all tables and rows again.
    pub(super) fn dump(&mut self) -> Result<(), Failure> {
        for table in self.table_names()? {
            let (create, indexes) = self.statements(&table)?;
            self.print(|out| writeln!(out, "{create}"))?;
            let name = quote_name(&table);
            let rows = self.rows(&format!("SELECT * FROM {name}"))?;
            let inserts = inserts(&name, &rows);
            self.print(|out| {
                inserts.iter().try_for_each(|insert| writeln!(out, "{insert}"))?;
                indexes.iter().try_for_each(|index| writeln!(out, "{index}"))
            })?;
        }
        Ok(())
    }

    fn table_names(&mut self) -> Result<Vec<String>, Failure> {
        let tables = self.tables()?;
        Ok(tables.rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }

    fn table_oid(&mut self, table: &str) -> Result<String, Failure> {
        let found = self.rows(&format!(
            "SELECT c.oid FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relname = {} AND c.relkind = 'r' AND n.nspname IN ('public', 'pg_catalog')",
            quote_text(table)
        ))?;
        let oid = found.rows.into_iter().next().and_then(|row| row.into_iter().next().flatten());
        oid.ok_or_else(|| Failure::new(format!("there is no table {table}; see .tables")))
    }

    /// CREATE TABLE, and CREATE INDEX for other indexes.
    fn statements(&mut self, table: &str) -> Result<(String, Vec<String>), Failure> {
        let oid = self.table_oid(table)?;
        let columns = self.columns(&oid)?;
        let constraints = self.constraints(&oid)?;
        let indexes = self.free_indexes(&oid, &constraints)?;
        let columns = columns.iter().map(ColumnDefinition::statement);
        let constraints = constraints.iter().map(|constraint| {
            format!("CONSTRAINT {} {}", quote_name(&constraint.name), constraint.definition)
        });
        let parts: Vec<String> = columns.chain(constraints).collect();
        let create =
            format!("CREATE TABLE {} (\n    {}\n);", quote_name(table), parts.join(",\n    "));
        let indexes = indexes.into_iter().map(|index| format!("{};", index.definition)).collect();
        Ok((create, indexes))
    }

    fn columns(&mut self, oid: &str) -> Result<Vec<ColumnDefinition>, Failure> {
        let found = self.rows(&format!(
            "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, \
             pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attidentity \
             FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d \
             ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
             WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
        ))?;
        let column = |row: Vec<Option<String>>| {
            let mut values = row.into_iter();
            let mut next = || values.next().flatten();
            Some(ColumnDefinition {
                name: next()?,
                type_name: next()?,
                not_null: next()? == "t",
                default: next(),
                identity: next().and_then(|identity| identity.chars().next()),
            })
        };
        Ok(found.rows.into_iter().filter_map(column).collect())
    }

    fn constraints(&mut self, oid: &str) -> Result<Vec<Definition>, Failure> {
        self.definitions(&format!(
            "SELECT conname, pg_catalog.pg_get_constraintdef(oid, true) \
             FROM pg_catalog.pg_constraint WHERE conrelid = {oid} AND contype IN ('p', 'u', 'c') \
             ORDER BY conname"
        ))
    }

    /// The indexes that belong to no constraint.
    fn free_indexes(
        &mut self,
        oid: &str,
        constraints: &[Definition],
    ) -> Result<Vec<Definition>, Failure> {
        let mut indexes = self.definitions(&format!(
            "SELECT c.relname, pg_catalog.pg_get_indexdef(i.indexrelid, 0, true) \
             FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
             WHERE i.indrelid = {oid} ORDER BY c.relname"
        ))?;
        indexes.retain(|index| !constraints.iter().any(|constraint| constraint.name == index.name));
        Ok(indexes)
    }

    fn definitions(&mut self, query: &str) -> Result<Vec<Definition>, Failure> {
        let definition = |row: Vec<Option<String>>| {
            let mut values = row.into_iter();
            Some(Definition { name: values.next()??, definition: values.next()?? })
        };
        Ok(self.rows(query)?.rows.into_iter().filter_map(definition).collect())
    }
}

impl ColumnDefinition {
    /// The source of the column's automatic values.
    fn extra(&self) -> Option<String> {
        match self.identity {
            Some('a') => Some("generated always as identity".to_owned()),
            Some('d') => Some("generated by default as identity".to_owned()),
            _ => self.default.clone(),
        }
    }

    /// The column's clause in CREATE TABLE.
    fn statement(&self) -> String {
        let serial = match (self.type_name.as_str(), &self.default) {
            ("smallint", Some(default)) if default.starts_with("nextval(") => Some("smallserial"),
            ("integer", Some(default)) if default.starts_with("nextval(") => Some("serial"),
            ("bigint", Some(default)) if default.starts_with("nextval(") => Some("bigserial"),
            _ => None,
        };
        let mut text = format!("{} {}", quote_name(&self.name), serial.unwrap_or(&self.type_name));
        match (self.identity, &self.default) {
            // A dump inserts values of identity columns, which ALWAYS would refuse.
            (Some(_), _) => text.push_str(" GENERATED BY DEFAULT AS IDENTITY"),
            (None, Some(default)) if serial.is_none() => {
                write!(text, " DEFAULT {default}").expect("a String takes everything");
            }
            _ => {}
        }
        if self.not_null {
            text.push_str(" NOT NULL");
        }
        text
    }
}

/// The INSERT statements of a table's rows.
fn inserts(table: &str, rows: &Rows) -> Vec<String> {
    let names: Vec<_> = rows.headings.iter().map(|heading| quote_name(&heading.name)).collect();
    let names = names.join(", ");
    let literal = |(value, kind): (&Option<String>, ColumnKind)| match (value, kind) {
        (None, _) => "NULL".to_owned(),
        (Some(value), ColumnKind::Number) if is_decimal(value) => value.clone(),
        // A text literal takes the type of its column.
        (Some(value), _) => quote_text(value),
    };
    let row = |row: &Vec<Option<String>>| {
        let kinds = rows.headings.iter().map(|heading| heading.kind);
        let values: Vec<_> = row.iter().zip(kinds).map(literal).collect();
        format!("({})", values.join(", "))
    };
    let insert = |chunk: &[Vec<Option<String>>]| {
        let values: Vec<_> = chunk.iter().map(row).collect();
        format!("INSERT INTO {table} ({names}) VALUES\n{};", values.join(",\n"))
    };
    rows.rows.chunks(INSERT_ROWS).map(insert).collect()
}

/// Whether a number is a plain decimal: no exponent, NaN or infinity.
fn is_decimal(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte))
}
