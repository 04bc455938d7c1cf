//! ALTER TABLE.
//!
//! *Source*: PostgreSQL 15 documentation, ALTER TABLE.
//!
//! *Not here*: CREATE INDEX and the other definitions (`define`); builds (`build`, `online`).

use crate::catalog::{Default, Index, Table};
use crate::error::{Failure, SqlError};
use crate::execute::Context;
use crate::execute::build::{check_no_nulls, check_rows, fill_index, is_empty, rebuild};
use crate::execute::changes::{Build, Changes, changed_meanwhile};
use crate::execute::define::{add_constraint, built_column};
use crate::execute::storages::renew_storages;
use crate::plan::define::{Change, NewColumn, NewConstraint};

pub(super) fn alter_table(
    changes: &mut Changes,
    name: &str,
    if_exists: bool,
    list: &[Change],
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let Some(mut table) = changes.table(name, if_exists)? else { return Ok(()) };
    for change in list {
        alter(changes, &mut table, change, context)?;
    }
    changes.put(table);
    Ok(())
}

fn alter(
    changes: &mut Changes,
    table: &mut Table,
    change: &Change,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    match change {
        Change::AddColumn { column, if_not_exists } => {
            add_column(changes, table, column, *if_not_exists, context)
        }
        Change::AddConstraint(constraint) => {
            add_checked_constraint(changes, table, constraint, context)
        }
        Change::DropConstraint { name, if_exists } => {
            drop_constraint(changes, table, name, *if_exists, context)
        }
        Change::RenameColumn { from, to, checks } => {
            let column = table.require_column(from)?;
            if table.column(to).is_some() {
                let message =
                    format!("column \"{to}\" of relation \"{}\" already exists", table.name);
                return Err(SqlError::new("42701", message).into());
            }
            table.columns[column].name.clone_from(to);
            table.checks.clone_from(checks);
            Ok(())
        }
        Change::RenameTable(name) => {
            changes.is_new(name, false)?;
            table.name.clone_from(name);
            Ok(())
        }
        Change::SetNotNull(name) => {
            let column = table.require_column(name)?;
            check_no_nulls(table, &[column], context)?;
            table.columns[column].not_null = true;
            Ok(())
        }
        Change::DropNotNull(name) => {
            let column = table.require_column(name)?;
            if table.primary_columns().contains(&column) {
                let message = format!("column \"{name}\" is in a primary key");
                return Err(SqlError::new("42P16", message).into());
            }
            table.columns[column].not_null = false;
            Ok(())
        }
        Change::SetDefault { column, default } => {
            let column = table.require_column(column)?;
            table.columns[column].default = Some(Default(default.clone()));
            Ok(())
        }
        Change::DropDefault(name) => {
            let column = table.require_column(name)?;
            table.columns[column].default = None;
            Ok(())
        }
        Change::Nothing => Ok(()),
    }
}

fn add_column(
    changes: &mut Changes,
    table: &mut Table,
    column: &NewColumn,
    if_not_exists: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    if table.column(&column.name).is_some() {
        let message =
            format!("column \"{}\" of relation \"{}\" already exists", column.name, table.name);
        if if_not_exists {
            changes.notices.push(format!("{message}, skipping"));
            return Ok(());
        }
        return Err(SqlError::new("42701", message).into());
    }
    let value = match &column.default {
        None => None,
        Some((_, Some(value))) => (!value.is_null()).then(|| value.to_text(column.data_type)),
        Some((_, None)) => {
            return Err(SqlError::unsupported("ADD COLUMN with a DEFAULT that is no constant")
                .with_hint("add the column, update it, then set its default")
                .into());
        }
    };
    let has_rows = !is_empty(table, context)?;
    if has_rows && (column.counter.is_some() || (column.not_null && value.is_none())) {
        let message = format!(
            "column \"{}\" of relation \"{}\" contains null values",
            column.name, table.name
        );
        return Err(SqlError::new("23502", message)
            .of_column(&table.name, &column.name)
            .with_hint("give it a DEFAULT")
            .into());
    }
    let mut built = built_column(changes, &table.name, column, context)?;
    built.missing = value;
    table.columns.push(built);
    for constraint in &column.constraints {
        add_checked_constraint(changes, table, constraint, context)?;
    }
    Ok(())
}

/// Adds a constraint that the rows of the table must already satisfy.
fn add_checked_constraint(
    changes: &mut Changes,
    table: &mut Table,
    constraint: &NewConstraint,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let before = table.clone();
    add_constraint(changes, table, constraint, context)?;
    match constraint {
        NewConstraint::PrimaryKey { .. } => {
            renew_storages(table, context)?;
            if before.frozen {
                return Err(changed_meanwhile().into());
            }
            if changes.builds_later {
                let rebuilt = std::mem::replace(table, Table { frozen: true, ..before });
                let (frozen, rebuilt) = (Box::new(table.clone()), Box::new(rebuilt));
                changes.build = Some(Build::PrimaryKey { frozen, rebuilt });
                return Ok(());
            }
            context.transaction.dropped.extend(before.storages());
            rebuild(&before, table, context)
        }
        NewConstraint::Unique { .. } => {
            let index = table.indexes.last_mut().expect("the index was added above");
            if changes.builds_later {
                index.ready = false;
                let (index, storage) = (index.id, index.storage);
                changes.build = Some(Build::Index { table: table.id, index, storage });
                return Ok(());
            }
            fill_index(&before, index, context)
        }
        NewConstraint::Check { condition, .. } => {
            let check = table.checks.last().expect("the constraint was added above");
            check_rows(table, &check.name, condition, context)
        }
    }
}

fn drop_constraint(
    changes: &mut Changes,
    table: &mut Table,
    name: &str,
    if_exists: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    if table.primary_key.as_ref().is_some_and(|key| key.name == name) {
        return Err(SqlError::unsupported("dropping a primary key").into());
    }
    let is_constraint = |index: &Index| index.name == name && index.constraint;
    if let Some(number) = table.indexes.iter().position(is_constraint) {
        let index = table.indexes.remove(number);
        context.transaction.dropped.insert(index.entries());
        return Ok(());
    }
    let checks = table.checks.len();
    table.checks.retain(|check| check.name != name);
    if table.checks.len() < checks {
        return Ok(());
    }
    let relation = &table.name;
    let message = format!("constraint \"{name}\" of relation \"{relation}\" does not exist");
    if if_exists {
        changes.notices.push(format!("{message}, skipping"));
        return Ok(());
    }
    Err(SqlError::new("42704", message).into())
}
