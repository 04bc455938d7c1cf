//! INSERT, UPDATE and DELETE: rows and their index entries, with every constraint checked.
//!
//! All keys that a batch of rows touches are read in one round trip before they are written, as the engine requires; the
//! values read tell duplicates. The given rows of an INSERT that commits by itself are not read: the commit fails if one of
//! their keys exists, and the next attempt reads them and names the duplicate.
//!
//! *Invariants*: every row of a statement sees the keys that earlier rows of the statement have written and freed. A change
//! removes or replaces only entries that lead to its own row: while a unique index is being filled, the entry of a row's
//! value may be another row's.
//!
//! *Not here*: the choice of rows (`scan`), and the expressions of new values (`plan/write`).

use std::collections::BTreeSet;
use std::sync::Arc;

use gannet_engine::{Abort, Conflict, TableKey};
use gannet_rules::rule;

use crate::catalog::{Index, Table};
use crate::encoding::row::{Wanted, decode, encode};
use crate::error::{Failure, SqlError};
use crate::execute::context::row_bytes;
use crate::execute::gather::Gathering;
use crate::execute::load::load;
use crate::execute::operator::{Begun, Enough, Operator, open};
use crate::execute::renew::{FIRST, loading};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::memory::Charge;
use crate::plan::{Delete, IndexChoice, Insert, OnConflict, Reserve, RowRules, Update};
use crate::value::Value;

/// Rows and the keys that they take.
pub(super) struct Entry {
    pub(super) row: Row,
    pub(super) primary: Vec<u8>,
    /// The row's own key and value, then those of its index entries, in the order of the indexes.
    pub(super) keys: Vec<(TableKey, Vec<u8>)>,
}

impl Entry {
    pub(super) fn new(table: &Table, row: Row, primary: Vec<u8>) -> Self {
        let mut keys = Vec::with_capacity(1 + table.indexes.len());
        keys.push((table.row_key(&primary), encode(&row)));
        for index in &table.indexes {
            keys.push(index.entry(&row, &primary));
        }
        Self { row, primary, keys }
    }
}

/// The index with this number in an entry's keys; None is the primary key.
fn index_at(table: &Table, number: usize) -> Option<&Index> {
    number.checked_sub(1).map(|number| &table.indexes[number])
}

/// Runs INSERT, and returns the number of rows. Rows of RETURNING go to `returned`.
pub(super) fn insert(
    insert: &Arc<Insert>,
    returned: &mut Gathering<'_>,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    if insert.repeats {
        let mut kept = Charge::default();
        let source = context.rows(&insert.source, &mut kept)?;
        let inserted = insert_rows(insert, &source, returned, context);
        kept.dispose(source);
        return inserted;
    }
    let mut source = Begun::new(open(&insert.source));
    let are_many = source.read(FIRST, context)?;
    if are_many && let Some((insert, bulk)) = loading(insert, &mut source, context)? {
        let count = load((&insert, &bulk), &mut source, context)?;
        bulk.end(context.coordinator)?;
        return Ok(count);
    }
    if insert.reads_table {
        // It reads no row that it has inserted.
        source.read(Enough::ALL, context)?;
    }
    let (mut count, mut touched) = (0, BTreeSet::new());
    while let Some(rows) = source.next(context)? {
        count += insert_some(insert, &rows, &mut touched, returned, context)?;
        source.read(Enough::rows(BATCH_ROWS), context)?;
    }
    Ok(count)
}

/// Inserts rows that are in memory, as [`insert`] does.
pub(crate) fn insert_rows(
    insert: &Insert,
    source: &[Row],
    returned: &mut Gathering<'_>,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    let is_first = context.commits && context.attempt == 1;
    if is_first && insert.repeats && source.len() <= BATCH_ROWS {
        let entries = entries_of(insert, source, context)?;
        return Ok(insert_unread(entries, context)?.len() as u64);
    }
    insert_some(insert, source, &mut BTreeSet::new(), returned, context)
}

/// Inserts some of a statement's rows. `touched` are the primary keys of rows that the statement has inserted or updated; ON CONFLICT
/// must not update those again.
fn insert_some(
    insert: &Insert,
    source: &[Row],
    touched: &mut BTreeSet<Vec<u8>>,
    returned: &mut Gathering<'_>,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    let mut count = 0;
    for chunk in source.chunks(BATCH_ROWS) {
        context.check_cancel()?;
        let entries = entries_of(insert, chunk, context)?;
        let written = insert_batch(insert, entries, touched, context)?;
        count += written.len() as u64;
        for row in written {
            give_back(insert.returning.as_deref(), &row, returned, context)?;
        }
    }
    Ok(count)
}

/// Adds the RETURNING row, if there is RETURNING.
fn give_back(
    returning: Option<&[Expression]>,
    row: &Row,
    returned: &mut Gathering<'_>,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let Some(expressions) = returning else { return Ok(()) };
    context.pace()?;
    let row = context.values(expressions, row)?;
    returned.put(vec![row], context)
}

/// New rows of a source's rows, with their keys; the keys may exist.
fn entries_of(
    insert: &Insert,
    source: &[Row],
    context: &mut Context<'_, '_>,
) -> Result<Vec<Entry>, Failure> {
    let table = &*insert.rules.table;
    let mut entries = Vec::with_capacity(source.len());
    for row in source {
        let (row, primary) = new_row(insert, row, context)?;
        entries.push(Entry::new(table, row, primary));
    }
    Ok(entries)
}

/// The new row of a source's row, and its primary key, which may exist.
pub(super) fn new_row(
    insert: &Insert,
    row: &Row,
    context: &mut Context<'_, '_>,
) -> Result<(Row, Vec<u8>), Failure> {
    context.pace()?;
    let table = &*insert.rules.table;
    let row = context.values(&insert.values, row)?;
    check_row(&insert.rules, &row, context)?;
    let hidden = match table.primary_key {
        Some(_) => None,
        None => {
            let database = Arc::clone(&context.resources.database);
            Some(database.next_value(context.coordinator, table.hidden_counter)?)
        }
    };
    let primary = table.primary_bytes(&row, hidden);
    Ok((row, primary))
}

/// Inserts rows without reading their keys. If a key exists, this or the commit fails with a conflict.
pub(super) fn insert_unread(
    entries: Vec<Entry>,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Row>, Failure> {
    context.check_version()?;
    let mut written = Vec::with_capacity(entries.len());
    for entry in entries {
        for (key, value) in entry.keys {
            context.pace()?;
            if !context.insert(key, value)? {
                return Err(Abort::from(Conflict::Changed).into());
            }
        }
        written.push(entry.row);
    }
    Ok(written)
}

pub(super) fn insert_batch(
    insert: &Insert,
    entries: Vec<Entry>,
    touched: &mut BTreeSet<Vec<u8>>,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Row>, Failure> {
    let table = &*insert.rules.table;
    if context.commits && insert.conflict.as_ref().is_some_and(|it| it.update.is_some()) {
        let rows: Vec<TableKey> = entries.iter().map(|entry| entry.keys[0].0.clone()).collect();
        context.reserve_rows(table, Reserve::Change, &rows)?;
    }
    let keys = entries.iter().flat_map(|entry| entry.keys.iter().map(|(key, _)| key.clone()));
    let there = context.get_many(&keys.collect::<Vec<_>>())?;
    let mut written = Vec::with_capacity(entries.len());
    for (entry, there) in entries.into_iter().zip(there.chunks(1 + table.indexes.len())) {
        context.pace()?;
        // Earlier rows may have taken keys since, and freed others.
        let is_taken = |number: &usize| match context.written(&entry.keys[*number].0) {
            Some(now) => now.is_some(),
            None => there[*number].is_some(),
        };
        let mut targets = match insert.conflict.as_ref().map(|conflict| conflict.target) {
            None => 0..0,
            Some(None) => 0..entry.keys.len(),
            Some(Some(IndexChoice::Primary)) => 0..1,
            Some(Some(IndexChoice::Secondary(index))) => index + 1..index + 2,
        };
        // A row with NULL in a unique index cannot conflict in that index, whose entry contains the primary key.
        let has_key = |number: &usize| {
            let mut columns =
                index_at(table, *number).map_or(&[][..], |index| &index.columns).iter();
            columns.all(|column| !entry.row[*column].is_null())
        };
        // The conflict target decides, even if another key exists as well.
        let conflict = targets.find(|number| is_taken(number) && has_key(number));
        if let (Some(number), Some(conflict)) = (conflict, &insert.conflict) {
            written.extend(update_conflicting(insert, conflict, &entry, number, touched, context)?);
            continue;
        }
        if let Some(number) = (0..entry.keys.len()).find(is_taken) {
            return Err(duplicate(table, number, &entry.row).into());
        }
        written.push(entry.row);
        if insert.conflict.is_some() {
            touched.insert(entry.primary);
        }
        for (key, value) in entry.keys {
            context.put(key, value)?;
        }
    }
    Ok(written)
}

/// ON CONFLICT DO UPDATE: the updated row, if any.
fn update_conflicting(
    insert: &Insert,
    conflict: &OnConflict,
    entry: &Entry,
    number: usize,
    touched: &mut BTreeSet<Vec<u8>>,
    context: &mut Context<'_, '_>,
) -> Result<Option<Row>, Failure> {
    let Some(update) = &conflict.update else { return Ok(None) };
    let table = &*insert.rules.table;
    // Read again, because another row of the statement may have written it.
    let primary = if number == 0 {
        entry.primary.clone()
    } else {
        let found = context.get_many(std::slice::from_ref(&entry.keys[number].0))?;
        found.into_iter().next().flatten().ok_or_else(vanished)?
    };
    if touched.contains(&primary) {
        let message = "ON CONFLICT DO UPDATE command cannot affect row a second time";
        return Err(SqlError::new("21000", message)
            .with_hint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")
            .into());
    }
    let found = context.get_many(&[table.row_key(&primary)])?;
    let bytes = found.into_iter().next().flatten().ok_or_else(vanished)?;
    let old = decode(&bytes, &Wanted::All, &table.missing_values()?)?;
    let both = [old.as_slice(), &entry.row].concat();
    if !context.holds(update.condition.as_ref(), &both)? {
        return Ok(None);
    }
    let new = assigned(&old, &both, &update.assignments, context)?;
    check_row(&insert.rules, &new, context)?;
    touched.insert(match table.primary_key {
        Some(_) => table.primary_bytes(&new, None),
        None => primary.clone(),
    });
    replace_rows(table, vec![(old, primary, new.clone())], Charge::default(), context)?;
    Ok(Some(new))
}

fn vanished() -> SqlError {
    SqlError::new("XX001", "an index entry leads to no row")
}

fn assigned(
    old: &Row,
    on: &[Value],
    assignments: &[(usize, Expression)],
    context: &mut Context<'_, '_>,
) -> Result<Row, Failure> {
    let mut new = old.clone();
    for (column, expression) in assignments {
        new[*column] = context.value(expression, on)?;
    }
    Ok(new)
}

/// Runs UPDATE, and returns the number of rows. Rows of RETURNING go to `returned`.
pub(super) fn update(
    update: &Update,
    returned: &mut Gathering<'_>,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    let table = &*update.rules.table;
    let mut changes = Vec::new();
    let mut kept = Charge::default();
    for old in context.rows(&update.source, &mut kept)? {
        context.pace()?;
        let (old, primary) = without_key(old)?;
        let new = assigned(&old, &old, &update.assignments, context)?;
        check_row(&update.rules, &new, context)?;
        context.keep(&mut kept, std::slice::from_ref(&new))?;
        changes.push((old, primary, new));
    }
    let count = changes.len() as u64;
    for (_, _, new) in &changes {
        give_back(update.returning.as_deref(), new, returned, context)?;
    }
    replace_rows(table, changes, kept, context)?;
    Ok(count)
}

/// Splits a row that ends in its primary key.
fn without_key(mut row: Row) -> Result<(Row, Vec<u8>), SqlError> {
    match row.pop() {
        Some(Value::Bytea(primary)) => Ok((row, primary)),
        _ => Err(SqlError::new("XX000", "a row to change has no key")),
    }
}

/// Replaces old rows by new ones, which are charged. Keys that rows exchange are no duplicates.
fn replace_rows(
    table: &Table,
    changes: Vec<(Row, Vec<u8>, Row)>,
    mut charge: Charge,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let mut puts: Vec<Put> = Vec::new();
    let mut kept = Charge::default();
    let mut changes = changes.into_iter();
    while changes.len() > 0 {
        context.check_cancel()?;
        let mut entries = Vec::new();
        for (old, primary, new) in changes.by_ref().take(BATCH_ROWS) {
            context.pace()?;
            charge.release(row_bytes(&old) + row_bytes(&new));
            let new_primary = match table.primary_key {
                Some(_) => table.primary_bytes(&new, None),
                None => primary.clone(),
            };
            let old = Entry::new(table, old, primary);
            let new = Entry::new(table, new, new_primary);
            for (number, (old, (key, value))) in old.keys.into_iter().zip(new.keys).enumerate() {
                let same_key = old.0 == key;
                if same_key && old.1 == value {
                    continue;
                }
                // The row's own key was read with the row.
                let is_known = number == 0 && same_key;
                let put = (key, value, number, (!is_known).then(|| new.row.clone()));
                kept.add(context.budget(), put_bytes(&put))?;
                if number > 0 {
                    entries.push((old, put));
                    continue;
                }
                if !same_key {
                    context.delete(old.0)?;
                }
                puts.push(put);
            }
        }
        let keys: Vec<TableKey> = entries.iter().map(|((key, _), _)| key.clone()).collect();
        let there = if keys.is_empty() { Vec::new() } else { context.get_many(&keys)? };
        for (((old_key, old_value), mut put), there) in entries.into_iter().zip(there) {
            context.pace()?;
            if there.as_ref() == Some(&old_value) || !rule!(OWN_ENTRIES) {
                if old_key == put.0 {
                    // The replaced entry is this row's, so there is no duplicate.
                    put.3 = None;
                } else {
                    context.delete(old_key)?;
                }
            }
            puts.push(put);
        }
    }
    put_checked(table, puts, kept, context)
}

/// A key, its value, its number in an entry, and the row if the key must not exist yet.
type Put = (TableKey, Vec<u8>, usize, Option<Row>);

/// Approximate bytes of a put.
fn put_bytes((key, value, _, row): &Put) -> usize {
    key.key.len() + value.len() + size_of::<Put>() + row.as_ref().map_or(0, row_bytes)
}

/// Whether another row may have the key of an entry. It is not read if not: the absence of a key is read with its bucket's deletions.
fn may_be_taken(table: &Table, number: usize) -> bool {
    index_at(table, number).is_none_or(|index| index.unique || !index.ready)
}

/// Puts entries, which are charged. Those with a row must not exist yet.
fn put_checked(
    table: &Table,
    puts: Vec<Put>,
    mut charge: Charge,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let mut put = BTreeSet::new();
    let mut puts = puts.into_iter();
    while puts.len() > 0 {
        let chunk: Vec<Put> = puts.by_ref().take(BATCH_ROWS).collect();
        charge.release(chunk.iter().map(put_bytes).sum());
        let is_fresh = |put: &&Put| put.3.is_some() && may_be_taken(table, put.2);
        let fresh: Vec<TableKey> = chunk.iter().filter(is_fresh).map(|put| put.0.clone()).collect();
        let there = if fresh.is_empty() { Vec::new() } else { context.get_many(&fresh)? };
        let mut there = there.into_iter();
        for (key, value, number, row) in chunk {
            context.pace()?;
            if row.is_some() && !may_be_taken(table, number) {
                if !context.insert(key.clone(), value.clone())? {
                    context.put(key, value)?;
                }
                continue;
            }
            if let Some(row) = row {
                let taken = there.next().flatten().is_some();
                if taken || !put.insert(key.clone()) {
                    return Err(duplicate(table, number, &row).into());
                }
            }
            context.put(key, value)?;
        }
    }
    Ok(())
}

/// Runs DELETE, and returns the number of rows. Rows of RETURNING go to `returned`.
pub(super) fn delete(
    delete: &Delete,
    returned: &mut Gathering<'_>,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    let mut kept = Charge::default();
    let rows = context.rows(&delete.source, &mut kept)?;
    let count = rows.len() as u64;
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let mut entries = Vec::new();
        for row in rows.by_ref().take(BATCH_ROWS) {
            context.pace()?;
            let (row, primary) = without_key(row)?;
            give_back(delete.returning.as_deref(), &row, returned, context)?;
            entries.push(Entry::new(&delete.table, row, primary));
        }
        // The scan has read the rows themselves.
        let keys = entries.iter().flat_map(|entry| entry.keys[1..].iter().map(|k| k.0.clone()));
        let keys: Vec<TableKey> = keys.collect();
        let there = if keys.is_empty() { Vec::new() } else { context.get_many(&keys)? };
        let mut there = there.into_iter();
        for entry in entries {
            context.pace()?;
            for (number, (key, value)) in entry.keys.into_iter().enumerate() {
                let is_own = number == 0 || there.next().flatten() == Some(value);
                if is_own || !rule!(OWN_ENTRIES) {
                    context.delete(key)?;
                }
            }
        }
    }
    Ok(count)
}

/// Checks NOT NULL and CHECK.
pub(super) fn check_row(
    rules: &RowRules,
    row: &Row,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let table = &rules.table;
    let key_columns = table.primary_columns();
    for (number, (column, value)) in table.columns.iter().zip(row).enumerate() {
        if value.is_null() && (column.not_null || key_columns.contains(&number)) {
            let (name, relation) = (&column.name, &table.name);
            let message = format!(
                "null value in column \"{name}\" of relation \"{relation}\" violates not-null \
                 constraint"
            );
            return Err(SqlError::new("23502", message)
                .of_column(relation, name)
                .with_detail(failing_row(table, row))
                .into());
        }
    }
    for (name, condition) in &rules.checks {
        // NULL satisfies a CHECK.
        if context.value(condition, row)? == Value::Boolean(false) {
            let relation = &table.name;
            let message =
                format!("new row for relation \"{relation}\" violates check constraint \"{name}\"");
            return Err(SqlError::new("23514", message)
                .of_constraint(relation, name)
                .with_detail(failing_row(table, row))
                .into());
        }
    }
    Ok(())
}

fn failing_row(table: &Table, row: &Row) -> String {
    let shown = |(value, number): (&Value, usize)| match value {
        Value::Null => "null".to_owned(),
        value => value.to_text(table.columns[number].data_type),
    };
    let values: Vec<String> = row.iter().zip(0..).map(shown).collect();
    format!("Failing row contains ({}).", values.join(", "))
}

/// The error for a key that exists already.
pub(super) fn duplicate(table: &Table, number: usize, row: &Row) -> SqlError {
    let (name, columns) = match index_at(table, number) {
        Some(index) => (index.name.as_str(), index.columns.as_slice()),
        None => (IndexChoice::Primary.name(table), table.primary_columns()),
    };
    duplicate_key(table, name, columns, row)
}

/// The error for a key of an index that exists already.
pub(super) fn duplicate_key(table: &Table, name: &str, columns: &[usize], row: &Row) -> SqlError {
    let values: Vec<String> =
        columns.iter().map(|c| row[*c].to_text(table.columns[*c].data_type)).collect();
    let message = format!("duplicate key value violates unique constraint \"{name}\"");
    let (columns, values) = (table.column_list(columns), values.join(", "));
    SqlError::new("23505", message)
        .of_constraint(&table.name, name)
        .with_detail(format!("Key ({columns})=({values}) already exists."))
}
