//! CREATE, DROP and TRUNCATE: changes of the catalog, and of the data concerned.
//!
//! TRUNCATE gives a table and its indexes new storages; the old ones are dropped after the commit. INSERT of very many rows does so, too.
//!
//! *Source*: PostgreSQL 15 documentation, reference pages of these statements.
//!
//! *Not here*: ALTER TABLE (`alter`); checks and builds of data (`build`), in batches (`online`).

use std::sync::Arc;

use crate::catalog::{Check, Column, Counter, Default, Index, PrimaryKey, Table};
use crate::error::{Failure, SqlError};
use crate::execute::alter::alter_table;
use crate::execute::build::fill_index;
use crate::execute::changes::{Build, Changes, new_object};
use crate::execute::storages::{new_storage, renew_storages};
use crate::execute::{Context, Output};
use crate::plan::define::{Definition, Dropped, NewColumn, NewConstraint, NewIndex};

/// Runs a definition.
///
/// # Errors
/// The statement's error.
pub(super) fn run(
    definition: &Definition,
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    apply(definition, false, context).map(|(output, _)| output)
}

/// Runs a definition except for its build, which reads every row of a table: the build is returned.
///
/// # Errors
/// The statement's error.
pub(super) fn declare(
    definition: &Definition,
    context: &mut Context<'_, '_>,
) -> Result<(Output, Option<Build>), Failure> {
    apply(definition, true, context)
}

fn apply(
    definition: &Definition,
    builds_later: bool,
    context: &mut Context<'_, '_>,
) -> Result<(Output, Option<Build>), Failure> {
    let mut changes = Changes::new(builds_later, context)?;
    let tag = match definition {
        Definition::CreateTable { name, if_not_exists, columns, constraints } => {
            if changes.is_new(name, *if_not_exists)? {
                create_table(&mut changes, name, columns, constraints, context)?;
            }
            "CREATE TABLE"
        }
        Definition::CreateIndex(index) => {
            create_index(&mut changes, index, context)?;
            "CREATE INDEX"
        }
        Definition::Drop { kind: Dropped::Table, names, if_exists } => {
            for name in names {
                drop_table(&mut changes, name, *if_exists, context)?;
            }
            "DROP TABLE"
        }
        Definition::Drop { kind: Dropped::Index, names, if_exists } => {
            for name in names {
                drop_index(&mut changes, name, *if_exists, context)?;
            }
            "DROP INDEX"
        }
        Definition::Truncate { tables, restart } => {
            for name in tables {
                truncate(&mut changes, name, *restart, context)?;
            }
            "TRUNCATE TABLE"
        }
        Definition::AlterTable { name, if_exists, changes: list } => {
            alter_table(&mut changes, name, *if_exists, list, context)?;
            "ALTER TABLE"
        }
    };
    let build = changes.build.take();
    let notices = changes.write(context)?;
    Ok((Output { rows: None, tag: tag.to_owned(), notices, ..Output::default() }, build))
}

fn create_table(
    changes: &mut Changes,
    name: &str,
    columns: &[NewColumn],
    constraints: &[NewConstraint],
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let mut table = Table {
        id: new_object(context)?,
        storage: new_storage(context)?,
        name: name.to_owned(),
        columns: Vec::with_capacity(columns.len()),
        primary_key: None,
        hidden_counter: new_object(context)?,
        indexes: Vec::new(),
        checks: Vec::new(),
        frozen: false,
    };
    for column in columns {
        let column = built_column(changes, &table.name, column, context)?;
        table.columns.push(column);
    }
    let of_columns = columns.iter().flat_map(|column| &column.constraints);
    for constraint in of_columns.chain(constraints) {
        add_constraint(changes, &mut table, constraint, context)?;
    }
    changes.put(table);
    Ok(())
}

pub(super) fn built_column(
    changes: &Changes,
    table: &str,
    column: &NewColumn,
    context: &mut Context<'_, '_>,
) -> Result<Column, Failure> {
    let counter = match column.counter {
        None => None,
        Some(kind) => {
            let name = changes.catalog.free_name(&format!("{table}_{}_seq", column.name), &[]);
            Some(Counter { id: new_object(context)?, name, kind })
        }
    };
    Ok(Column {
        name: column.name.clone(),
        data_type: column.data_type,
        not_null: column.not_null,
        default: column.default.as_ref().map(|(sql, _)| Default(sql.clone())),
        counter,
        missing: None,
    })
}

/// Adds a constraint to a table without rows, or whose rows the caller checks.
pub(super) fn add_constraint(
    changes: &Changes,
    table: &mut Table,
    constraint: &NewConstraint,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let taken: Vec<String> = table
        .indexes
        .iter()
        .map(|index| &index.name)
        .chain(table.primary_key.iter().map(|key| &key.name))
        .chain(table.checks.iter().map(|check| &check.name))
        .cloned()
        .collect();
    let named = |given: &Option<String>, otherwise: String| match given {
        Some(name) if changes.catalog.has_relation(name) || taken.contains(name) => {
            Err(SqlError::new("42P07", format!("relation \"{name}\" already exists")))
        }
        Some(name) => Ok(name.clone()),
        None => Ok(changes.catalog.free_name(&otherwise, &taken)),
    };
    match constraint {
        NewConstraint::PrimaryKey { name, columns } => {
            if table.primary_key.is_some() {
                let message =
                    format!("multiple primary keys for table \"{}\" are not allowed", table.name);
                return Err(SqlError::new("42P16", message).into());
            }
            let columns = key_columns(table, columns)?;
            for column in &columns {
                table.columns[*column].not_null = true;
            }
            let name = named(name, format!("{}_pkey", table.name))?;
            table.primary_key = Some(PrimaryKey { name, columns });
        }
        NewConstraint::Unique { name, columns } => {
            let otherwise = format!("{}_{}_key", table.name, columns.join("_"));
            let name = named(name, otherwise)?;
            let columns = key_columns(table, columns)?;
            table.indexes.push(Index {
                id: new_object(context)?,
                storage: new_storage(context)?,
                name,
                columns,
                unique: true,
                constraint: true,
                ready: true,
            });
        }
        NewConstraint::Check { name, sql, columns, condition: _ } => {
            let middle = if let [column] = columns.as_slice() {
                format!("_{column}")
            } else {
                String::new()
            };
            let name = named(name, format!("{}{middle}_check", table.name))?;
            let id = new_object(context)?;
            table.checks.push(Check { id, name, sql: sql.clone() });
        }
    }
    Ok(())
}

fn key_columns(table: &Table, names: &[String]) -> Result<Vec<usize>, SqlError> {
    let mut columns = Vec::with_capacity(names.len());
    for name in names {
        let column = table.column(name).ok_or_else(|| {
            let message = format!("column \"{name}\" named in key does not exist");
            let known = table.columns.iter().map(|column| column.name.as_str());
            SqlError::new("42703", message).did_you_mean(name, known)
        })?;
        if columns.contains(&column) {
            let message = format!("column \"{name}\" appears twice in a key");
            return Err(SqlError::new("42701", message));
        }
        columns.push(column);
    }
    Ok(columns)
}

fn create_index(
    changes: &mut Changes,
    new: &NewIndex,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let mut table = Table::clone(changes.catalog.require(&new.table)?);
    let name = match &new.name {
        Some(name) => name.clone(),
        None => {
            let name = format!("{}_{}_idx", table.name, new.columns.join("_"));
            changes.catalog.free_name(&name, &[])
        }
    };
    if !changes.is_new(&name, new.if_not_exists)? {
        return Ok(());
    }
    let columns = key_columns(&table, &new.columns)?;
    let (id, storage) = (new_object(context)?, new_storage(context)?);
    let ready = !changes.builds_later;
    let index = Index { id, storage, name, columns, unique: new.unique, constraint: false, ready };
    if ready {
        fill_index(&table, &index, context)?;
    } else {
        changes.build = Some(Build::Index { table: table.id, index: id, storage });
    }
    table.indexes.push(index);
    changes.put(table);
    Ok(())
}

fn drop_table(
    changes: &mut Changes,
    name: &str,
    if_exists: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let table = match changes.catalog.table(name) {
        Some(table) => Arc::clone(table),
        None if if_exists => {
            changes.notices.push(format!("table \"{name}\" does not exist, skipping"));
            return Ok(());
        }
        None => {
            let message = format!("table \"{name}\" does not exist");
            let names = changes.catalog.tables().map(|table| table.name.as_str());
            return Err(SqlError::new("42P01", message).did_you_mean(name, names).into());
        }
    };
    changes.remove(table.id);
    context.transaction.dropped.extend(table.storages());
    Ok(())
}

fn drop_index(
    changes: &mut Changes,
    name: &str,
    if_exists: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let Some((table, number)) = changes.catalog.index_owner(name) else {
        if if_exists {
            changes.notices.push(format!("index \"{name}\" does not exist, skipping"));
            return Ok(());
        }
        return Err(SqlError::new("42704", format!("index \"{name}\" does not exist")).into());
    };
    let mut table = Table::clone(table);
    if table.indexes[number].constraint {
        let message = format!(
            "cannot drop index {name} because constraint {name} on table {} requires it",
            table.name
        );
        return Err(SqlError::new("2BP01", message)
            .with_hint(format!("ALTER TABLE {} DROP CONSTRAINT {name}", table.name))
            .into());
    }
    let index = table.indexes.remove(number);
    context.transaction.dropped.insert(index.entries());
    changes.put(table);
    Ok(())
}

/// A table as it is after TRUNCATE, which is a part of the transaction.
///
/// # Errors
/// Those of TRUNCATE.
pub(super) fn truncated(table: &Table, context: &mut Context<'_, '_>) -> Result<Table, Failure> {
    let mut changes = Changes::new(false, context)?;
    truncate(&mut changes, &table.name, false, context)?;
    let truncated = Table::clone(changes.catalog.require(&table.name)?);
    changes.write(context)?;
    Ok(truncated)
}

fn truncate(
    changes: &mut Changes,
    name: &str,
    restart: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let mut table = Table::clone(changes.catalog.require(name)?);
    context.transaction.dropped.extend(table.storages());
    renew_storages(&mut table, context)?;
    if restart {
        for counter in table.columns.iter_mut().filter_map(|column| column.counter.as_mut()) {
            counter.id = new_object(context)?;
        }
    }
    changes.put(table);
    Ok(())
}
