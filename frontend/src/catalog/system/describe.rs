//! Types, indexes and constraints as SQL, for `format_type`, `pg_get_indexdef` and `pg_get_constraintdef`.
//!
//! *Source*: PostgreSQL 15, section 9.26 (system information functions).
//!
//! *Not here*: `pg_get_expr`, because the catalog stores expressions as SQL.

use std::sync::Arc;

use crate::catalog::system::relations::{constraint_owner, index_owner};
use crate::catalog::{Catalog, Index, Table};
use crate::expression::function::quote_identifier;
use crate::value::DataType;

/// A type's name with its modifier.
pub(super) fn format_type(number: i64, modifier: i64) -> String {
    let Some(data_type) =
        DataType::every().find(|data_type| i64::from(data_type.postgres().oid()) == number)
    else {
        return if number == 0 { "-".to_owned() } else { "???".to_owned() };
    };
    let length = modifier - 4;
    match data_type {
        DataType::Varchar(_) | DataType::Char(_) if length >= 0 => {
            format!("{}({length})", data_type.base_name())
        }
        DataType::Numeric(_) if length >= 0 => {
            format!("numeric({},{})", length >> 16, length & 0xffff)
        }
        other => other.base_name().to_owned(),
    }
}

fn columns(table: &Table, columns: &[usize]) -> String {
    let names: Vec<String> =
        columns.iter().map(|c| quote_identifier(&table.columns[*c].name)).collect();
    names.join(", ")
}

/// The CREATE INDEX statement of an index, or the name of one of its columns.
pub(super) fn index_definition(catalog: &Catalog, number: i64, column: i64) -> Option<String> {
    let (table, index) = index_owner(catalog, number)?;
    let (name, key): (&str, &[usize]) = match index {
        None => {
            let key = table.primary_key.as_ref()?;
            (&key.name, &key.columns)
        }
        Some(index) => (&index.name, &index.columns),
    };
    if let Some(column) = usize::try_from(column).ok().and_then(|column| column.checked_sub(1)) {
        return key.get(column).map(|column| quote_identifier(&table.columns[*column].name));
    }
    Some(create_index(table, index, name, key))
}

/// The CREATE INDEX statement of an index; without an index, that of the primary key.
pub(super) fn create_index(
    table: &Table,
    index: Option<&Index>,
    name: &str,
    key: &[usize],
) -> String {
    let unique = if index.is_none_or(|index| index.unique) { "UNIQUE " } else { "" };
    let (name, relation) = (quote_identifier(name), quote_identifier(&table.name));
    let columns = columns(table, key);
    format!("CREATE {unique}INDEX {name} ON public.{relation} USING btree ({columns})")
}

/// The constraint with a number.
pub(super) fn constraint_definition(catalog: &Catalog, number: i64) -> Option<String> {
    if let Some((table, index)) = constraint_owner(catalog, number) {
        return Some(match index {
            None => format!("PRIMARY KEY ({})", columns(table, table.primary_columns())),
            Some(index) => format!("UNIQUE ({})", columns(table, &index.columns)),
        });
    }
    let checks = |table: &Arc<Table>| {
        let found = table.checks.iter().find(|check| i64::from(check.id) == number)?;
        Some(format!("CHECK ({})", found.sql))
    };
    catalog.tables().find_map(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_of_format_type() {
        let types = [
            DataType::Varchar(Some(10)),
            DataType::Char(Some(3)),
            DataType::Numeric(Some((8, 2))),
            DataType::Numeric(None),
            DataType::Timestamp,
            DataType::TimestampTz,
        ];
        for data_type in types {
            let (number, modifier) = (data_type.postgres().oid(), data_type.modifier());
            assert_eq!(format_type(number.into(), modifier.into()), data_type.name());
        }
    }
}
