//! CREATE, ALTER, DROP and TRUNCATE: definitions, checked as far as possible without data.
//!
//! *Source*: PostgreSQL 15 documentation, reference pages of these statements.
//!
//! *Not here*: changes of the catalog (`execute/define`, `execute/alter`), and CHECK's conditions (`check`).

use std::rc::Rc;

use gannet_syntax::{Next, find, is_subquery};
use sqlparser::ast::{
    self, AlterColumnOperation, AlterTableOperation, ColumnDef, ColumnOption, Expr, GeneratedAs,
    IndexColumn, ObjectType, RenameTableNameKind, Spanned, TableConstraint, TruncateIdentityOption,
};

use crate::catalog::{AsSerial, Check, system};
use crate::error::SqlError;
use crate::expression::Expression;
use crate::plan::bind::{Binder, name_of, names_of};
use crate::plan::scope::Scope;
use crate::plan::{check, types};
use crate::value::{DataType, Value};

/// Columns of a table, as PostgreSQL limits them.
const COLUMNS_MAX: usize = 1_600;
/// Bytes of a name, as PostgreSQL limits them.
const NAME_BYTES_MAX: usize = 63;

/// A change of the catalog.
#[derive(Debug)]
pub(crate) enum Definition {
    CreateTable {
        name: String,
        if_not_exists: bool,
        columns: Vec<NewColumn>,
        constraints: Vec<NewConstraint>,
    },
    CreateIndex(NewIndex),
    Drop {
        kind: Dropped,
        names: Vec<String>,
        if_exists: bool,
    },
    Truncate {
        tables: Vec<String>,
        restart: bool,
    },
    AlterTable {
        name: String,
        if_exists: bool,
        changes: Vec<Change>,
    },
}

/// The kind of object that DROP removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    Table,
    Index,
}

/// CREATE INDEX.
#[derive(Debug)]
pub(crate) struct NewIndex {
    pub(crate) name: Option<String>,
    pub(crate) table: String,
    pub(crate) columns: Vec<String>,
    pub(crate) unique: bool,
    pub(crate) if_not_exists: bool,
}

/// A column of a new table, or a new column.
#[derive(Debug)]
pub(crate) struct NewColumn {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    pub(crate) not_null: bool,
    /// The expression in SQL, and its value if it is a constant.
    pub(crate) default: Option<(String, Option<Value>)>,
    pub(crate) counter: Option<AsSerial>,
    pub(crate) constraints: Vec<NewConstraint>,
}

/// A new constraint.
#[derive(Debug)]
pub(crate) enum NewConstraint {
    PrimaryKey {
        name: Option<String>,
        columns: Vec<String>,
    },
    Unique {
        name: Option<String>,
        columns: Vec<String>,
    },
    /// `columns` are those in the condition; `condition` is on rows of the table.
    Check {
        name: Option<String>,
        sql: String,
        columns: Vec<String>,
        condition: Expression,
    },
}

/// A part of ALTER TABLE.
#[derive(Debug)]
pub(crate) enum Change {
    AddColumn {
        column: NewColumn,
        if_not_exists: bool,
    },
    AddConstraint(NewConstraint),
    DropConstraint {
        name: String,
        if_exists: bool,
    },
    /// With the table's CHECK constraints after the renaming.
    RenameColumn {
        from: String,
        to: String,
        checks: Vec<Check>,
    },
    RenameTable(String),
    SetNotNull(String),
    DropNotNull(String),
    SetDefault {
        column: String,
        default: String,
    },
    DropDefault(String),
    /// OWNER TO, SET LOGGED: no effect.
    Nothing,
}

impl Binder {
    /// CREATE TABLE.
    pub(super) fn create_table(
        &mut self,
        create: &ast::CreateTable,
    ) -> Result<Definition, SqlError> {
        let unsupported = [
            (create.query.is_some(), "CREATE TABLE AS"),
            (create.like.is_some(), "CREATE TABLE LIKE"),
            (create.temporary, "CREATE TEMPORARY TABLE"),
            (create.or_replace, "CREATE OR REPLACE TABLE"),
            (create.external, "CREATE EXTERNAL TABLE"),
            (create.partition_by.is_some() || create.partition_of.is_some(), "PARTITION"),
            (create.inherits.is_some(), "INHERITS"),
        ];
        if let Some((_, construct)) = unsupported.iter().find(|(present, _)| *present) {
            return Err(SqlError::unsupported(construct));
        }
        let name = new_name(&names_of(&create.name)?)?;
        if create.columns.len() > COLUMNS_MAX {
            let message = format!("tables can have at most {COLUMNS_MAX} columns");
            return Err(SqlError::new("54011", message));
        }
        let typed: Result<Vec<(String, DataType)>, SqlError> = create
            .columns
            .iter()
            .map(|column| Ok((name_of(&column.name), self.column_type(column)?)))
            .collect();
        let scope = Rc::new(Scope::named(&name, typed?));
        let mut columns: Vec<NewColumn> = Vec::with_capacity(create.columns.len());
        for column in &create.columns {
            let column = self.new_column(column, &scope)?;
            if columns.iter().any(|other| other.name == column.name) {
                let name = &column.name;
                let message = format!("column \"{name}\" specified more than once");
                return Err(SqlError::new("42701", message));
            }
            columns.push(column);
        }
        let mut constraints = Vec::with_capacity(create.constraints.len());
        for constraint in &create.constraints {
            constraints.push(self.constraint(constraint, &scope)?);
        }
        Ok(Definition::CreateTable {
            name,
            if_not_exists: create.if_not_exists,
            columns,
            constraints,
        })
    }

    fn new_column(&mut self, column: &ColumnDef, scope: &Rc<Scope>) -> Result<NewColumn, SqlError> {
        let name = checked_name(name_of(&column.name))?;
        let data_type = self.column_type(column)?;
        let written = column.data_type.to_string().to_lowercase();
        let serial = written.contains("serial");
        let mut new = NewColumn {
            name: name.clone(),
            data_type,
            not_null: serial,
            default: None,
            counter: serial.then_some(AsSerial::Serial),
            constraints: Vec::new(),
        };
        for option in &column.options {
            let constraint_name = option.name.as_ref().map(name_of);
            match &option.option {
                ColumnOption::Null => {}
                ColumnOption::NotNull => new.not_null = true,
                ColumnOption::Default(expr) => {
                    new.default = Some(self.default(expr, &name, data_type)?)
                }
                ColumnOption::PrimaryKey(_) => {
                    let columns = vec![name.clone()];
                    new.constraints
                        .push(NewConstraint::PrimaryKey { name: constraint_name, columns });
                }
                ColumnOption::Unique(_) => {
                    let columns = vec![name.clone()];
                    new.constraints.push(NewConstraint::Unique { name: constraint_name, columns });
                }
                ColumnOption::Check(check) => {
                    let check = self.check(constraint_name, &check.expr, scope)?;
                    new.constraints.push(check);
                }
                ColumnOption::Generated { generated_as, generation_expr: None, .. } => {
                    if !data_type.is_integer() {
                        let message = "identity column type must be smallint, integer, or bigint";
                        return Err(SqlError::new("22023", message));
                    }
                    new.not_null = true;
                    new.counter = Some(match generated_as {
                        GeneratedAs::Always => AsSerial::IdentityAlways,
                        GeneratedAs::ByDefault => AsSerial::IdentityByDefault,
                        GeneratedAs::ExpStored => {
                            return Err(SqlError::unsupported("a generated column"));
                        }
                    });
                }
                ColumnOption::Collation(_) => {}
                ColumnOption::ForeignKey(_) => {
                    return Err(foreign_key().with_position(self.position(option.option.span())));
                }
                other => {
                    return Err(SqlError::unsupported(format_args!("the column option {other}")));
                }
            }
        }
        Ok(new)
    }

    fn column_type(&self, column: &ColumnDef) -> Result<DataType, SqlError> {
        let data_type = match types::from_written(&column.data_type) {
            Ok(DataType::Array(_)) => Err(SqlError::unsupported("a column of an array type")
                .with_hint("keep the elements as rows of another table")),
            data_type => data_type,
        };
        data_type.map_err(|error| {
            let message = match error.code {
                "0A000" => format!("{}: column {}", error.message, column.name),
                _ => error.message,
            };
            SqlError { message, ..error }.with_position(self.position(column.name.span))
        })
    }

    fn default(
        &mut self,
        expr: &Expr,
        column: &str,
        data_type: DataType,
    ) -> Result<(String, Option<Value>), SqlError> {
        self.refuse_subquery(expr, "DEFAULT expression")?;
        let bound = self.default_expression(expr, column, data_type)?;
        super::check_depth(bound.depth())?;
        let value = match bound {
            Expression::Constant(value) => Some(value),
            _ => None,
        };
        Ok((expr.to_string(), value))
    }

    /// Refuses a subquery in an expression whose text the catalog stores. Binding may leave a subquery out, and its tables may be dropped.
    ///
    /// # Errors
    /// SQLSTATE 0A000.
    pub(super) fn refuse_subquery(&self, expr: &Expr, place: &str) -> Result<(), SqlError> {
        let look = |part: &Expr| if is_subquery(part) { Next::Stop } else { Next::Into };
        find(expr, &look).map_or(Ok(()), |span| {
            Err(SqlError::new("0A000", format!("cannot use subquery in {place}"))
                .with_position(self.position(span)))
        })
    }

    fn constraint(
        &mut self,
        constraint: &TableConstraint,
        scope: &Rc<Scope>,
    ) -> Result<NewConstraint, SqlError> {
        match constraint {
            TableConstraint::PrimaryKey(key) => {
                let name = key.name.as_ref().map(name_of);
                let columns = self.index_columns(&key.columns, Some(scope))?;
                Ok(NewConstraint::PrimaryKey { name, columns })
            }
            TableConstraint::Unique(unique) => {
                let name = unique.name.as_ref().map(name_of);
                let columns = self.index_columns(&unique.columns, Some(scope))?;
                Ok(NewConstraint::Unique { name, columns })
            }
            TableConstraint::Check(check) => {
                self.check(check.name.as_ref().map(name_of), &check.expr, scope)
            }
            TableConstraint::ForeignKey(_) => {
                Err(foreign_key().with_position(self.position(constraint.span())))
            }
            other => Err(SqlError::unsupported(format_args!("the constraint {other}"))),
        }
    }

    /// CREATE INDEX.
    pub(super) fn create_index(&self, create: &ast::CreateIndex) -> Result<Definition, SqlError> {
        let unsupported = [
            (create.predicate.is_some(), "a partial index"),
            (!create.include.is_empty(), "INCLUDE"),
            (create.nulls_distinct == Some(false), "NULLS NOT DISTINCT"),
        ];
        if let Some((_, construct)) = unsupported.iter().find(|(present, _)| *present) {
            return Err(SqlError::unsupported(construct));
        }
        let name = match &create.name {
            Some(name) => Some(new_name(&names_of(name)?)?),
            None => None,
        };
        if let Some(method) = &create.using
            && !method.to_string().eq_ignore_ascii_case("btree")
        {
            return Err(SqlError::unsupported(format_args!("the index method {method}")));
        }
        let table = bare_name(&names_of(&create.table_name)?)?;
        let scope = self.catalog.table(&table).map(|found| {
            let columns = found.columns.iter().map(|c| (c.name.clone(), c.data_type));
            Scope::named(&table, columns)
        });
        Ok(Definition::CreateIndex(NewIndex {
            name,
            columns: self.index_columns(&create.columns, scope.as_ref())?,
            table,
            unique: create.unique,
            if_not_exists: create.if_not_exists,
        }))
    }

    /// The columns of a key; `scope` has those of a new table.
    fn index_columns(
        &self,
        columns: &[IndexColumn],
        scope: Option<&Scope>,
    ) -> Result<Vec<String>, SqlError> {
        let known = scope.map_or(&[][..], |scope| &scope.columns);
        let column = |column: &IndexColumn| {
            let expr = &column.column.expr;
            let error = match (expr, &column.operator_class) {
                (Expr::Identifier(ident), None) => {
                    let name = name_of(ident);
                    if known.is_empty() || known.iter().any(|column| column.name == name) {
                        return Ok(name);
                    }
                    let message = format!("column \"{name}\" named in key does not exist");
                    let known = known.iter().map(|column| column.name.as_str());
                    SqlError::new("42703", message).did_you_mean(&name, known)
                }
                (Expr::Identifier(ident), Some(class)) => {
                    let of = format_args!("operator class {class} of column {ident} in an index");
                    SqlError::unsupported(of)
                        .with_hint("leave it out: text is in the order of its bytes")
                }
                (Expr::Collate { expr, collation }, _) => SqlError::unsupported(format_args!(
                    "collation {collation} of column {expr} in an index"
                ))
                .with_hint("leave it out: text is in the order of its bytes"),
                (other, _) => {
                    SqlError::unsupported(format_args!("an index on the expression {other}"))
                        .with_hint("keep its value in a column of its own, and index that")
                }
            };
            Err(error.with_position(self.position(expr.span())))
        };
        columns.iter().map(column).collect()
    }

    /// DROP TABLE and DROP INDEX.
    pub(super) fn drop(
        object_type: ObjectType,
        names: &[ast::ObjectName],
        if_exists: bool,
    ) -> Result<Definition, SqlError> {
        let kind = match object_type {
            ObjectType::Table => Dropped::Table,
            ObjectType::Index => Dropped::Index,
            other => return Err(SqlError::unsupported(format_args!("DROP {other}"))),
        };
        let names: Result<Vec<String>, SqlError> =
            names.iter().map(|name| bare_name(&names_of(name)?)).collect();
        Ok(Definition::Drop { kind, names: names?, if_exists })
    }

    /// TRUNCATE.
    pub(super) fn truncate(truncate: &ast::Truncate) -> Result<Definition, SqlError> {
        let tables: Result<Vec<String>, SqlError> =
            truncate.table_names.iter().map(|target| bare_name(&names_of(&target.name)?)).collect();
        let restart = matches!(truncate.identity, Some(TruncateIdentityOption::Restart));
        Ok(Definition::Truncate { tables: tables?, restart })
    }

    /// ALTER TABLE.
    pub(super) fn alter_table(&mut self, alter: &ast::AlterTable) -> Result<Definition, SqlError> {
        let name = bare_name(&names_of(&alter.name)?)?;
        let is_rename = |operation: &AlterTableOperation| {
            matches!(
                operation,
                AlterTableOperation::RenameColumn { .. } | AlterTableOperation::RenameTable { .. }
            )
        };
        if alter.operations.len() > 1 && alter.operations.iter().any(is_rename) {
            return Err(SqlError::unsupported("RENAME together with other changes")
                .with_hint("rename in an ALTER TABLE of its own"));
        }
        let mut scope = match self.catalog.table(&name) {
            Some(table) => {
                let columns = table.columns.iter().map(|c| (c.name.clone(), c.data_type));
                Rc::new(Scope::named(&name, columns))
            }
            None if alter.if_exists => Rc::new(Scope::default()),
            None => return Err(self.catalog.require(&name).err().unwrap_or_else(foreign_key)),
        };
        let mut changes = Vec::with_capacity(alter.operations.len());
        for operation in &alter.operations {
            let change = self.change(operation, &scope)?;
            if let Change::AddColumn { column, .. } = &change
                && scope.columns.iter().all(|other| other.name != column.name)
            {
                let added = [(column.name.clone(), column.data_type)];
                Rc::make_mut(&mut scope).append(Scope::named(&name, added));
            }
            changes.push(change);
        }
        Ok(Definition::AlterTable { name, if_exists: alter.if_exists, changes })
    }

    fn change(
        &mut self,
        operation: &AlterTableOperation,
        scope: &Rc<Scope>,
    ) -> Result<Change, SqlError> {
        Ok(match operation {
            AlterTableOperation::AddColumn { if_not_exists, column_def, .. } => {
                let mut scope = (**scope).clone();
                let table = scope.columns.first().and_then(|column| column.table.clone());
                let data_type = self.column_type(column_def)?;
                let added = (name_of(&column_def.name), data_type);
                scope.append(Scope::named(&table.unwrap_or_default(), [added]));
                let column = self.new_column(column_def, &Rc::new(scope))?;
                Change::AddColumn { column, if_not_exists: *if_not_exists }
            }
            AlterTableOperation::AddConstraint { constraint, not_valid: false } => {
                Change::AddConstraint(self.constraint(constraint, scope)?)
            }
            AlterTableOperation::DropConstraint { if_exists, name, .. } => {
                Change::DropConstraint { name: name_of(name), if_exists: *if_exists }
            }
            AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
                let from = name_of(old_column_name);
                let to = checked_name(name_of(new_column_name))?;
                let table = scope.columns.first().and_then(|column| column.table.as_ref());
                let table = table.and_then(|table| self.catalog.table(table));
                let checks = table.map(|table| check::renamed(table, &from, &to)).transpose()?;
                Change::RenameColumn { from, to, checks: checks.unwrap_or_default() }
            }
            AlterTableOperation::RenameTable { table_name } => {
                let (RenameTableNameKind::As(name) | RenameTableNameKind::To(name)) = table_name;
                Change::RenameTable(new_name(&names_of(name)?)?)
            }
            AlterTableOperation::AlterColumn { column_name, op } => {
                self.column_change(name_of(column_name), op, scope)?
            }
            AlterTableOperation::OwnerTo { .. }
            | AlterTableOperation::SetLogged
            | AlterTableOperation::SetUnlogged => Change::Nothing,
            other => return Err(SqlError::unsupported(format_args!("ALTER TABLE {other}"))),
        })
    }

    fn column_change(
        &mut self,
        column: String,
        operation: &AlterColumnOperation,
        scope: &Rc<Scope>,
    ) -> Result<Change, SqlError> {
        Ok(match operation {
            AlterColumnOperation::SetNotNull => Change::SetNotNull(column),
            AlterColumnOperation::DropNotNull => Change::DropNotNull(column),
            AlterColumnOperation::DropDefault => Change::DropDefault(column),
            AlterColumnOperation::SetDefault { value } => {
                let number = scope.find(None, &column)?;
                let number = number.ok_or_else(|| scope.unknown(None, &column))?;
                let data_type = scope.columns[number].data_type;
                let (default, _) = self.default(value, &column, data_type)?;
                Change::SetDefault { column, default }
            }
            other => return Err(SqlError::unsupported(format_args!("ALTER COLUMN {other}"))),
        })
    }
}

fn foreign_key() -> SqlError {
    SqlError::unsupported("FOREIGN KEY")
        .with_hint("leave the constraint out and keep the rule in the application")
}

/// A name without its schema.
fn bare_name(names: &[String]) -> Result<String, SqlError> {
    match names {
        [name] => Ok(name.clone()),
        [schema, name] if schema == "public" => Ok(name.clone()),
        [schema, name] if system::relation(Some(schema), name).is_some() => Err(SqlError::new(
            "42501",
            format!("permission denied: \"{name}\" is a system catalog"),
        )),
        [schema, _] => Err(SqlError::new("3F000", format!("schema \"{schema}\" does not exist"))),
        _ => Err(SqlError::unsupported("a name of more than two parts")),
    }
}

/// The name of a new object.
fn new_name(names: &[String]) -> Result<String, SqlError> {
    if let [schema, _] = names
        && (schema == "pg_catalog" || schema == "information_schema")
    {
        let message = format!("permission denied to create in schema \"{schema}\"");
        return Err(SqlError::new("42501", message));
    }
    checked_name(bare_name(names)?)
}

fn checked_name(name: String) -> Result<String, SqlError> {
    if name.is_empty() {
        return Err(SqlError::new("42601", "a name must not be empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        let message = format!("the name \"{name}\" is longer than {NAME_BYTES_MAX} bytes");
        return Err(SqlError::new("42622", message).with_hint("use a shorter name"));
    }
    Ok(name)
}
