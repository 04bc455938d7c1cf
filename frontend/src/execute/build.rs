//! The data side of definitions: checks of existing rows against a new constraint, and filling of indexes and storages.
//!
//! Inside BEGIN, the transaction builds everything itself: a concurrent change of the rows is a conflict, and the result is
//! visible with its commit.
//!
//! *Not here*: builds in batches (`online`).

use std::collections::BTreeSet;

use gannet_engine::{Direction, KeyRange, TableKey};

use crate::catalog::{Index, Table};
use crate::encoding::row::{Wanted, decode, encode};
use crate::error::{Failure, SqlError};
use crate::execute::scan::whole;
use crate::execute::write::duplicate_key;
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::value::Value;

/// Rows with their primary keys.
pub(super) type KeyedRows = Vec<(Vec<u8>, Row)>;

/// The first rows of a range of a table, at most `rows_max`, and the rest of the range.
pub(super) fn page(
    table: &Table,
    range: &KeyRange,
    rows_max: usize,
    context: &mut Context<'_, '_>,
) -> Result<(KeyedRows, Option<KeyRange>), Failure> {
    let missing = table.missing_values()?;
    let page = context.scan(table.rows(), range, Direction::Ascending, rows_max)?;
    let keyed =
        |(key, bytes): (&[u8], &[u8])| Ok((key.to_vec(), decode(bytes, &Wanted::All, &missing)?));
    let rows: Result<KeyedRows, SqlError> = page.rows.iter().map(keyed).collect();
    Ok((rows?, page.rest))
}

/// Calls `see` with all rows of a table, page by page.
fn each_page(
    table: &Table,
    context: &mut Context<'_, '_>,
    mut see: impl FnMut(KeyedRows, &mut Context<'_, '_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut rest = Some(whole());
    while let Some(range) = rest {
        let (rows, left) = page(table, &range, BATCH_ROWS, context)?;
        see(rows, context)?;
        rest = left;
    }
    Ok(())
}

/// Builds the entries of an index.
pub(super) fn fill_index(
    table: &Table,
    index: &Index,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    each_page(table, context, |rows, context| add_entries(table, index, rows, context))
}

/// Adds the missing entries of rows to an index.
pub(super) fn add_entries(
    table: &Table,
    index: &Index,
    rows: KeyedRows,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let entries = rows.iter().map(|(primary, row)| index.entry(row, primary)).collect();
    // An entry with this row's primary key belongs to this row.
    match put_new(context, entries, true)? {
        None => Ok(()),
        Some(number) => {
            let error = duplicate_key(table, &index.name, &index.columns, &rows[number].1);
            Err(not_built(table, &index.name, error).into())
        }
    }
}

/// The error for rows whose keys are not unique.
fn not_built(table: &Table, name: &str, error: SqlError) -> SqlError {
    let detail = error.detail.map(|detail| detail.replace("already exists", "is duplicated"));
    let message = format!("could not create unique index \"{name}\"");
    SqlError { detail, ..SqlError::new("23505", message).of_constraint(&table.name, name) }
}

pub(super) fn is_empty(table: &Table, context: &mut Context<'_, '_>) -> Result<bool, Failure> {
    Ok(context.scan(table.rows(), &whole(), Direction::Ascending, 1)?.rows.is_empty())
}

pub(super) fn check_no_nulls(
    table: &Table,
    columns: &[usize],
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    each_page(table, context, |rows, _| {
        rows.iter().try_for_each(|(_, row)| no_nulls(table, columns, row)).map_err(Failure::from)
    })
}

fn no_nulls(table: &Table, columns: &[usize], row: &Row) -> Result<(), SqlError> {
    match columns.iter().find(|column| row[**column].is_null()) {
        None => Ok(()),
        Some(column) => {
            let (column, table) = (&table.columns[*column].name, &table.name);
            let message =
                format!("column \"{column}\" of relation \"{table}\" contains null values");
            Err(SqlError::new("23502", message).of_column(table, column))
        }
    }
}

/// Checks that a new CHECK constraint holds on all rows.
pub(super) fn check_rows(
    table: &Table,
    name: &str,
    condition: &Expression,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    each_page(table, context, |rows, context| {
        for (_, row) in &rows {
            // NULL satisfies a CHECK.
            if context.value(condition, row)? == Value::Boolean(false) {
                let relation = &table.name;
                let message = format!(
                    "check constraint \"{name}\" of relation \"{relation}\" is violated by some row"
                );
                return Err(SqlError::new("23514", message).of_constraint(relation, name).into());
            }
        }
        Ok(())
    })
}

/// Writes all rows under another primary key, into another storage.
pub(super) fn rebuild(
    before: &Table,
    table: &Table,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let row = |(_, row)| row;
    each_page(before, context, |rows, context| {
        add_rows(table, rows.into_iter().map(row).collect(), context)
    })
}

/// The primary key of a row of another storage; 23502 if a column of it is NULL.
pub(super) fn new_primary(table: &Table, row: &Row) -> Result<Vec<u8>, SqlError> {
    no_nulls(table, table.primary_columns(), row)?;
    Ok(table.primary_bytes(row, None))
}

/// Writes rows of another storage under the primary key of `table`.
pub(super) fn add_rows(
    table: &Table,
    rows: Vec<Row>,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let keys_per_row = 1 + table.indexes.len();
    let mut puts = Vec::with_capacity(rows.len() * keys_per_row);
    for row in &rows {
        let primary = new_primary(table, row)?;
        puts.push((table.row_key(&primary), encode(row)));
        puts.extend(table.indexes.iter().map(|index| index.entry(row, &primary)));
    }
    match put_new(context, puts, false)? {
        None => Ok(()),
        Some(number) => Err(duplicate_primary(table, &rows[number / keys_per_row]).into()),
    }
}

/// The error for a row whose new primary key another one has.
pub(super) fn duplicate_primary(table: &Table, row: &Row) -> SqlError {
    let name = table.primary_key.as_ref().map_or("", |key| &key.name);
    not_built(table, name, duplicate_key(table, name, table.primary_columns(), row))
}

/// Puts keys. Returns the number of the first key that exists already, or that comes twice. If allowed, a key that exists
/// with the same value is no conflict.
///
/// The first run of a transaction that is run again after conflicts does not look whether the keys exist, as they mostly do not: it ends with
/// a conflict if one does.
fn put_new(
    context: &mut Context<'_, '_>,
    puts: Vec<(TableKey, Vec<u8>)>,
    same_is_left: bool,
) -> Result<Option<usize>, Failure> {
    if context.commits && context.attempt == 1 {
        for (number, (key, value)) in puts.into_iter().enumerate() {
            if !context.insert(key, value)? {
                return Ok(Some(number));
            }
        }
        return Ok(None);
    }
    let keys: Vec<TableKey> = puts.iter().map(|(key, _)| key.clone()).collect();
    let there = context.get_many(&keys)?;
    let mut put = BTreeSet::new();
    for (number, ((key, value), there)) in puts.into_iter().zip(there).enumerate() {
        if same_is_left && there.as_ref() == Some(&value) {
            continue;
        }
        if there.is_some() || !put.insert(key.clone()) {
            return Ok(Some(number));
        }
        context.put(key, value)?;
    }
    Ok(None)
}
