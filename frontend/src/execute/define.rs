//! CREATE, ALTER, DROP and TRUNCATE: changes of the catalog, and of the data that they concern.
//!
//! TRUNCATE gives a table a new storage; the old one is emptied after the commit.
//!
//! *Not here*: the data that is checked and built for a definition, in `build`; how that goes on in batches, in `online`.

use std::sync::Arc;

use crate::catalog::{
    Catalog, Check, Column, Counter, Default, Index, OBJECT_COUNTER, OBJECTS_RESERVED, PrimaryKey,
    Table,
};
use crate::error::{Failure, SqlError};
use crate::execute::build::{check_no_nulls, check_rows, fill_index, is_empty, rebuild};
use crate::execute::{Context, Output, Stored};
use crate::plan::define::{Change, Definition, Dropped, NewColumn, NewConstraint, NewIndex};

/// A catalog that is being changed.
struct Changes {
    catalog: Catalog,
    changed: Vec<u32>,
    notices: Vec<String>,
    /// Whether what is large is built after the commit.
    builds_later: bool,
    build: Option<Build>,
}

/// What is built after a definition was declared.
#[derive(Clone, Debug)]
pub(super) enum Build {
    /// The entries of an index that is not ready.
    Index { table: u32, index: u32 },
    /// The rows of a table that is frozen, in the storage and under the primary key that it is to have.
    PrimaryKey { frozen: Box<Table>, rebuilt: Box<Table> },
}

/// Runs a definition.
///
/// # Errors
/// What ends the statement.
pub(super) fn run(
    definition: &Definition,
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    apply(definition, false, context).map(|(output, _)| output)
}

/// Runs a definition but for what takes a look at every row of a table, which it returns.
///
/// # Errors
/// What ends the statement.
pub(super) fn declare(
    definition: &Definition,
    context: &mut Context<'_, '_>,
) -> Result<(Output, Option<Build>), Failure> {
    apply(definition, true, context)
}

/// Puts what was built to use.
///
/// # Errors
/// SQLSTATE 55006 if the table has been changed meanwhile.
pub(super) fn finish(build: &Build, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let mut changes = Changes::new(false, context)?;
    let mut table = changes.declared(build)?;
    match build {
        Build::Index { index, .. } => {
            let built = table.indexes.iter_mut().filter(|other| other.id == *index);
            built.for_each(|index| index.ready = true);
        }
        Build::PrimaryKey { frozen, rebuilt } => {
            // What another definition has changed is not in what was built.
            if table != **frozen {
                return Err(changed_meanwhile().into());
            }
            context.transaction.drop_storage(table.storage);
            table = Table::clone(rebuilt);
        }
    }
    changes.put(table);
    changes.write(context).map(|_| ())
}

/// Takes back what was declared and could not be built.
///
/// # Errors
/// Those of the engine.
pub(super) fn take_back(build: &Build, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let mut changes = Changes::new(false, context)?;
    if let Build::PrimaryKey { rebuilt, .. } = build {
        context.transaction.drop_storage(rebuilt.storage);
    }
    // Whoever has changed it so that this is not what was declared has taken it back.
    let Ok(mut table) = changes.declared(build) else { return Ok(()) };
    match build {
        Build::Index { index, .. } => {
            let stored = Stored { storage: table.storage, index: Some(*index) };
            context.transaction.dropped.insert(stored);
            table.indexes.retain(|other| other.id != *index);
        }
        Build::PrimaryKey { .. } => table.frozen = false,
    }
    changes.put(table);
    changes.write(context).map(|_| ())
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
    Ok((Output { rows: None, tag: tag.to_owned(), notices }, build))
}

impl Changes {
    fn new(builds_later: bool, context: &mut Context<'_, '_>) -> Result<Self, Failure> {
        context.check_version()?;
        let catalog = Catalog::clone(&context.transaction.catalog);
        let (changed, notices) = (Vec::new(), Vec::new());
        Ok(Self { catalog, changed, notices, builds_later, build: None })
    }

    /// Makes the changes part of the transaction; the notices.
    fn write(self, context: &mut Context<'_, '_>) -> Result<Vec<String>, Failure> {
        let Self { mut catalog, changed, notices, .. } = self;
        if !changed.is_empty() {
            let database = &context.resources.database;
            let place = (database.catalog_table, &database.versions);
            let deferred = &mut context.transaction.deferred;
            catalog.write(context.coordinator, deferred, place, &changed)?;
            context.transaction.catalog = Arc::new(catalog);
        }
        Ok(notices)
    }

    /// The table for which something is built, as it was declared.
    fn declared(&self, build: &Build) -> Result<Table, SqlError> {
        let table = match build {
            Build::Index { table, .. } => self.catalog.table_numbered(*table),
            Build::PrimaryKey { frozen, .. } => self.catalog.table_numbered(frozen.id),
        };
        let is_declared = |table: &&Arc<Table>| match build {
            Build::Index { index, .. } => table.indexes.iter().any(|i| i.id == *index && !i.ready),
            Build::PrimaryKey { .. } => table.frozen,
        };
        table.filter(is_declared).map(|table| Table::clone(table)).ok_or_else(changed_meanwhile)
    }

    fn put(&mut self, table: Table) {
        self.changed.push(table.id);
        self.catalog.put(table);
    }

    /// Whether a relation with that name is to be created.
    fn is_new(&mut self, name: &str, if_not_exists: bool) -> Result<bool, SqlError> {
        if !self.catalog.has_relation(name) {
            return Ok(true);
        }
        let message = format!("relation \"{name}\" already exists");
        if !if_not_exists {
            return Err(SqlError::new("42P07", message));
        }
        self.notices.push(format!("{message}, skipping"));
        Ok(false)
    }

    /// A table to change; None if it need not exist.
    fn table(&mut self, name: &str, if_exists: bool) -> Result<Option<Table>, SqlError> {
        match self.catalog.require(name) {
            Ok(table) => Ok(Some(Table::clone(table))),
            Err(_) if if_exists => {
                self.notices.push(format!("relation \"{name}\" does not exist, skipping"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The number of something new.
fn new_object(context: &mut Context<'_, '_>) -> Result<u32, Failure> {
    let database = Arc::clone(&context.resources.database);
    let number = database.next_value(context.coordinator, OBJECT_COUNTER)?;
    u32::try_from(number)
        .ok()
        .and_then(|number| number.checked_add(OBJECTS_RESERVED))
        .ok_or_else(|| SqlError::new("54000", "all object numbers are taken").into())
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
        storage: new_object(context)?,
        name: name.to_owned(),
        columns: Vec::with_capacity(columns.len()),
        primary_key: None,
        hidden_counter: new_object(context)?,
        indexes: Vec::new(),
        checks: Vec::new(),
        frozen: false,
    };
    context.transaction.created.insert(table.storage);
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

fn built_column(
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

/// Adds a constraint to a table that has no rows yet, or whose rows the caller checks.
fn add_constraint(
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
            let id = new_object(context)?;
            let index = Index { id, name, columns, unique: true, constraint: true, ready: true };
            table.indexes.push(index);
        }
        NewConstraint::Check { name, sql, columns, condition: _ } => {
            let middle = if let [column] = columns.as_slice() {
                format!("_{column}")
            } else {
                String::new()
            };
            let name = named(name, format!("{}{middle}_check", table.name))?;
            table.checks.push(Check { name, sql: sql.clone() });
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

/// The error for a table that is not what it was when a build began.
pub(super) fn changed_meanwhile() -> SqlError {
    SqlError::new("55006", "the table was changed by another definition while this one was built")
        .with_hint("run the statement again")
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
    let id = new_object(context)?;
    let ready = !changes.builds_later;
    let index = Index { id, name, columns, unique: new.unique, constraint: false, ready };
    if ready {
        fill_index(&table, &index, context)?;
    } else {
        changes.build = Some(Build::Index { table: table.id, index: id });
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
    changes.catalog.remove(table.id);
    changes.changed.push(table.id);
    context.transaction.drop_storage(table.storage);
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
    let stored = Stored { storage: table.storage, index: Some(index.id) };
    context.transaction.dropped.insert(stored);
    changes.put(table);
    Ok(())
}

fn truncate(
    changes: &mut Changes,
    name: &str,
    restart: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let mut table = Table::clone(changes.catalog.require(name)?);
    context.transaction.drop_storage(table.storage);
    table.storage = new_object(context)?;
    context.transaction.created.insert(table.storage);
    if restart {
        for counter in table.columns.iter_mut().filter_map(|column| column.counter.as_mut()) {
            counter.id = new_object(context)?;
        }
    }
    changes.put(table);
    Ok(())
}

fn alter_table(
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
        return Err(SqlError::new("23502", message).with_hint("give it a DEFAULT").into());
    }
    let mut built = built_column(changes, &table.name, column, context)?;
    built.missing = value;
    table.columns.push(built);
    for constraint in &column.constraints {
        add_checked_constraint(changes, table, constraint, context)?;
    }
    Ok(())
}

/// Adds a constraint that the rows of the table must satisfy already.
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
            table.storage = new_object(context)?;
            if before.frozen {
                return Err(changed_meanwhile().into());
            }
            if changes.builds_later {
                let rebuilt = std::mem::replace(table, Table { frozen: true, ..before });
                let (frozen, rebuilt) = (Box::new(table.clone()), Box::new(rebuilt));
                changes.build = Some(Build::PrimaryKey { frozen, rebuilt });
                return Ok(());
            }
            context.transaction.drop_storage(before.storage);
            context.transaction.created.insert(table.storage);
            rebuild(&before, table, context)
        }
        NewConstraint::Unique { .. } => {
            let index = table.indexes.last_mut().expect("the index was added above");
            if changes.builds_later {
                index.ready = false;
                changes.build = Some(Build::Index { table: table.id, index: index.id });
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
        let stored = Stored { storage: table.storage, index: Some(index.id) };
        context.transaction.dropped.insert(stored);
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
