//! The data that definitions concern: rows that must satisfy a new constraint, and indexes and storages that are filled.
//!
//! All of it is part of the transaction: the rows are read in pages, so that a change of them meanwhile is a conflict, and
//! what is built is seen when it commits.

use std::collections::BTreeSet;
use std::ops::Bound;

use gannet_engine::{Direction, KeyRange};

use crate::catalog::{Index, PRIMARY_INDEX, Table};
use crate::encoding::row::{Wanted, decode, encode};
use crate::error::{Failure, SqlError};
use crate::execute::scan::after;
use crate::execute::write::duplicate_key;
use crate::execute::{BATCH_ROWS, Context, Row};

/// Calls `see` with all rows of a table, page by page: primary keys and rows.
fn each_page(
    table: &Table,
    context: &mut Context<'_, '_>,
    mut see: impl FnMut(Vec<(Vec<u8>, Row)>, &mut Context<'_, '_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let prefix = table.prefix(PRIMARY_INDEX);
    let length = prefix.len();
    let missing = table.missing_values()?;
    let to = Bound::Excluded(after(prefix.clone()));
    let mut rest = Some(KeyRange { from: Bound::Included(prefix), to });
    while let Some(range) = rest {
        let page = context.scan(&range, Direction::Ascending, BATCH_ROWS)?;
        let mut rows = Vec::with_capacity(page.rows.len());
        for (key, bytes) in page.rows {
            rows.push((key[length..].to_vec(), decode(&bytes, &Wanted::All, &missing)?));
        }
        see(rows, context)?;
        rest = page.rest;
    }
    Ok(())
}

/// Builds the entries of an index.
pub(super) fn fill_index(
    table: &Table,
    index: &Index,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    each_page(table, context, |rows, context| {
        let entries: Vec<(Vec<u8>, Vec<u8>)> =
            rows.iter().map(|(primary, row)| table.entry(index, row, primary)).collect();
        let mut keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key.as_slice()).collect();
        keys.sort_unstable();
        let twice = keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_vec());
        let taken = match twice {
            Some(key) => entries.iter().position(|(other, _)| *other == key),
            None => put_new(context, entries)?,
        };
        match taken {
            None => Ok(()),
            Some(number) => {
                let error = duplicate_key(table, &index.name, &index.columns, &rows[number].1);
                Err(not_built(&index.name, error).into())
            }
        }
    })
}

/// The error for rows that are no set of keys.
fn not_built(name: &str, error: SqlError) -> SqlError {
    let detail = error.detail.map(|detail| detail.replace("already exists", "is duplicated"));
    SqlError {
        detail,
        ..SqlError::new("23505", format!("could not create unique index \"{name}\""))
    }
}

pub(super) fn is_empty(table: &Table, context: &mut Context<'_, '_>) -> Result<bool, Failure> {
    let prefix = table.prefix(PRIMARY_INDEX);
    let to = Bound::Excluded(after(prefix.clone()));
    let range = KeyRange { from: Bound::Included(prefix), to };
    Ok(context.scan(&range, Direction::Ascending, 1)?.rows.is_empty())
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
            Err(SqlError::new("23502", message))
        }
    }
}

/// Writes all rows under another primary key, into another storage.
pub(super) fn rebuild(
    before: &Table,
    table: &Table,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let columns = table.primary_columns();
    let name = table.primary_key.as_ref().map_or("", |key| &key.name);
    each_page(before, context, |rows, context| {
        let mut puts = Vec::with_capacity(rows.len() * (1 + table.indexes.len()));
        let mut primary_keys = BTreeSet::new();
        for (_, row) in &rows {
            no_nulls(table, columns, row)?;
            let primary = table.primary_bytes(row, None);
            puts.push((table.row_key(&primary), encode(row)));
            for index in &table.indexes {
                puts.push(table.entry(index, row, &primary));
            }
            if !primary_keys.insert(primary) {
                return Err(not_built(name, duplicate_key(table, name, columns, row)).into());
            }
        }
        match put_new(context, puts)? {
            None => Ok(()),
            Some(number) => {
                let row = &rows[number / (1 + table.indexes.len())].1;
                Err(not_built(name, duplicate_key(table, name, columns, row)).into())
            }
        }
    })
}

/// Puts keys that are new to the transaction. Gives the number of the first one that is there already.
fn put_new(
    context: &mut Context<'_, '_>,
    puts: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<Option<usize>, Failure> {
    let keys = puts.iter().map(|(key, _)| key.clone()).collect();
    let there = context.get_many(keys)?;
    if let Some(taken) = there.iter().position(Option::is_some) {
        return Ok(Some(taken));
    }
    for (key, value) in puts {
        context.put(key, value)?;
    }
    Ok(None)
}
