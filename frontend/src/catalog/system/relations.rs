//! The rows of the system's tables, made from the catalog.
//!
//! *Invariants*: rows are made one by one; an error of the sink ends them at once. A table, an index and a check have
//! their numbers of the catalog, a primary key has that of the hidden counter that its table does not use. The system's
//! own relations have PostgreSQL's numbers where these are fixed, and others from 12,000 on, below those of tables.
//!
//! *Source*: PostgreSQL 15 documentation, chapters 53, 54 and 37.
//!
//! *Not here*: their columns (`list`); the rows that describe the cluster (`cluster`); definitions as SQL (`describe`).

use std::sync::Arc;

use crate::catalog::system::{DATABASE, Sink, describe, list};
use crate::catalog::{AsSerial, Catalog, Column, Index, Table};
use crate::error::Failure;
use crate::expression::function::Facts;
use crate::value::{DataType, Value};

/// The tables of the system.
pub(super) use list::RELATIONS;

const CATALOG_NAMESPACE: i64 = 11;
const PUBLIC_NAMESPACE: i64 = 2_200;
const STANDARD_NAMESPACE: i64 = 13_000;
const OWNER: i64 = 10;
const HEAP: i64 = 2;
const BTREE: i64 = 403;
/// The first number of the system's own relations, below the numbers of tables.
const SYSTEM_RELATIONS: i64 = 12_000;

/// Ok once all rows of a relation were put.
pub(super) type Put = Result<(), Failure>;

pub(super) fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into())
}

fn number(number: impl Into<i64>) -> Value {
    Value::Integer(number.into())
}

fn count(count: usize) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

fn yes(yes: bool) -> Value {
    Value::Boolean(yes)
}

fn type_category(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Boolean => "B",
        DataType::Bytea | DataType::Uuid => "U",
        DataType::Array(_) => "A",
        other if other.is_text() => "S",
        other if other.is_time() => "D",
        _ => "N",
    }
}

/// An index of a table. None is the primary key, which has the number of the hidden numbers' counter, as the two exclude each
/// other.
struct IndexRow<'c> {
    number: u32,
    name: &'c str,
    columns: &'c [usize],
    table: &'c Arc<Table>,
    index: Option<&'c Index>,
}

fn all_indexes(catalog: &Catalog) -> impl Iterator<Item = IndexRow<'_>> {
    catalog.tables().flat_map(|table| {
        let of_key = table.primary_key.iter().map(move |key| {
            let (name, columns) = (key.name.as_str(), key.columns.as_slice());
            IndexRow { number: table.hidden_counter, name, columns, table, index: None }
        });
        of_key.chain(table.indexes.iter().map(move |index| {
            let (name, columns) = (index.name.as_str(), index.columns.as_slice());
            IndexRow { number: index.id, name, columns, table, index: Some(index) }
        }))
    })
}

/// The table of an index, and the index; None is the primary key.
pub(super) fn index_owner(catalog: &Catalog, number: i64) -> Option<(&Arc<Table>, Option<&Index>)> {
    all_indexes(catalog)
        .find(|row| i64::from(row.number) == number)
        .map(|row| (row.table, row.index))
}

/// The table and index of a number that is a constraint's.
pub(super) fn constraint_owner(
    catalog: &Catalog,
    number: i64,
) -> Option<(&Arc<Table>, Option<&Index>)> {
    index_owner(catalog, number).filter(|(_, index)| index.is_none_or(|index| index.constraint))
}

/// The relation with a number.
pub(super) fn relation_name(catalog: &Catalog, number: i64) -> Option<String> {
    let table = catalog.tables().find(|table| i64::from(table.id) == number);
    let index = || all_indexes(catalog).find(|row| i64::from(row.number) == number);
    let of_system =
        || RELATIONS.iter().find(|relation| system_number(relation.name) == Some(number));
    table
        .map(|table| table.name.clone())
        .or_else(|| index().map(|row| row.name.to_owned()))
        .or_else(|| of_system().map(|relation| relation.name.to_owned()))
}

/// The number of a relation of `pg_catalog`: PostgreSQL's own where it is fixed.
fn system_number(name: &str) -> Option<i64> {
    match name {
        "pg_type" => Some(1247),
        "pg_attribute" => Some(1249),
        "pg_proc" => Some(1255),
        "pg_class" => Some(1259),
        name => {
            let place = RELATIONS.iter().position(|relation| {
                relation.schema == super::CATALOG_SCHEMA && relation.name == name
            })?;
            Some(SYSTEM_RELATIONS + i64::try_from(place).unwrap_or(0))
        }
    }
}

/// The number of a relation.
pub(super) fn relation_number(catalog: &Catalog, name: &str) -> Option<i64> {
    let table = catalog.table(name).map(|table| i64::from(table.id));
    let index = || all_indexes(catalog).find(|row| row.name == name);
    let counter = || catalog.counter(name).map(i64::from);
    let counter = || counter().or_else(|| system_number(name));
    table.or_else(|| index().map(|row| i64::from(row.number))).or_else(counter)
}

pub(super) fn nothing(_: &Facts, _: Sink<'_>) -> Put {
    Ok(())
}

pub(super) fn namespaces(_: &Facts, put: Sink<'_>) -> Put {
    let row = |oid: i64, name: &str| vec![number(oid), text(name), number(OWNER), Value::Null];
    put(row(CATALOG_NAMESPACE, "pg_catalog"))?;
    put(row(PUBLIC_NAMESPACE, "public"))?;
    put(row(STANDARD_NAMESPACE, "information_schema"))
}

/// A row of `pg_class`.
fn class(oid: u32, name: &str, kind: &str, columns: usize, table: Option<&Table>) -> Vec<Value> {
    let no = || yes(false);
    let indexed = table.is_some_and(|t| t.primary_key.is_some() || !t.indexes.is_empty());
    let method = match kind {
        "r" => HEAP,
        "i" => BTREE,
        _ => 0,
    };
    vec![
        number(oid),
        text(name),
        number(PUBLIC_NAMESPACE),
        number(0),
        number(0),
        number(OWNER),
        number(method),
        number(oid),
        number(0),
        number(0),
        Value::Float(-1.0),
        number(0),
        yes(indexed),
        no(),
        text("p"),
        text(kind),
        count(columns),
        count(table.map_or(0, |table| table.checks.len())),
        no(),
        no(),
        no(),
        no(),
        no(),
        yes(true),
        text(if kind == "r" { "d" } else { "n" }),
        no(),
        Value::Null,
        Value::Null,
        Value::Null,
    ]
}

pub(super) fn classes(facts: &Facts, put: Sink<'_>) -> Put {
    for table in facts.catalog.tables() {
        put(class(table.id, &table.name, "r", table.columns.len(), Some(table)))?;
        for counter in table.columns.iter().filter_map(|column| column.counter.as_ref()) {
            put(class(counter.id, &counter.name, "S", 3, None))?;
        }
    }
    for row in all_indexes(&facts.catalog) {
        put(class(row.number, row.name, "i", row.columns.len(), None))?;
    }
    Ok(())
}

fn attribute(relation: u32, position: usize, column: &Column, has_default: bool) -> Vec<Value> {
    let identity = match column.counter.as_ref().map(|counter| counter.kind) {
        Some(AsSerial::IdentityAlways) => "a",
        Some(AsSerial::IdentityByDefault) => "d",
        Some(AsSerial::Serial) | None => "",
    };
    vec![
        number(relation),
        text(&column.name),
        number(column.data_type.postgres().oid()),
        number(column.data_type.bytes()),
        count(position + 1),
        number(column.data_type.modifier()),
        yes(column.not_null),
        yes(has_default),
        text(identity),
        text(""),
        yes(false),
        number(0),
        number(-1),
        text("p"),
        text(""),
        Value::Null,
        Value::Null,
    ]
}

/// The default of a column in `pg_attrdef`.
fn shown_default(column: &Column) -> Option<String> {
    match &column.counter {
        Some(counter) if counter.kind == AsSerial::Serial => {
            Some(format!("nextval('{}'::regclass)", counter.name))
        }
        _ => column.default.as_ref().map(|default| default.0.clone()),
    }
}

pub(super) fn attributes(facts: &Facts, put: Sink<'_>) -> Put {
    for table in facts.catalog.tables() {
        for (position, column) in table.columns.iter().enumerate() {
            put(attribute(table.id, position, column, shown_default(column).is_some()))?;
        }
    }
    for index in all_indexes(&facts.catalog) {
        for (position, column) in index.columns.iter().enumerate() {
            let column = Column { counter: None, ..index.table.columns[*column].clone() };
            put(attribute(index.number, position, &column, false))?;
        }
    }
    Ok(())
}

pub(super) fn defaults(facts: &Facts, put: Sink<'_>) -> Put {
    for table in facts.catalog.tables() {
        for (position, column) in table.columns.iter().enumerate() {
            if let Some(default) = shown_default(column) {
                let position = count(position + 1);
                put(vec![number(table.id), number(table.id), position, text(default)])?;
            }
        }
    }
    Ok(())
}

fn positions(columns: &[usize]) -> Vec<String> {
    columns.iter().map(|column| (column + 1).to_string()).collect()
}

pub(super) fn indexes(facts: &Facts, put: Sink<'_>) -> Put {
    let row = |row: IndexRow<'_>| {
        let columns = count(row.columns.len());
        vec![
            number(row.number),
            number(row.table.id),
            columns.clone(),
            columns,
            yes(row.index.is_none_or(|index| index.unique)),
            yes(false),
            yes(row.index.is_none()),
            yes(false),
            yes(true),
            yes(false),
            yes(row.index.is_none_or(|index| index.ready)),
            yes(true),
            yes(true),
            yes(false),
            text(positions(row.columns).join(" ")),
            text(vec!["0"; row.columns.len()].join(" ")),
            text(vec!["0"; row.columns.len()].join(" ")),
            Value::Null,
            Value::Null,
        ]
    };
    all_indexes(&facts.catalog).map(row).try_for_each(put)
}

fn constraint(
    oid: i64,
    name: &str,
    kind: &str,
    table: &Table,
    index: u32,
    key: &[usize],
) -> Vec<Value> {
    vec![
        number(oid),
        text(name),
        number(PUBLIC_NAMESPACE),
        text(kind),
        yes(false),
        yes(false),
        yes(true),
        number(table.id),
        number(0),
        number(index),
        number(0),
        number(0),
        text(format!("{{{}}}", positions(key).join(","))),
        Value::Null,
        Value::Null,
        text(" "),
        text(" "),
        text(" "),
    ]
}

pub(super) fn constraints(facts: &Facts, put: Sink<'_>) -> Put {
    for row in all_indexes(&facts.catalog) {
        let kind = match row.index {
            None => "p",
            Some(index) if index.constraint => "u",
            Some(_) => continue,
        };
        let oid = i64::from(row.number);
        put(constraint(oid, row.name, kind, row.table, row.number, row.columns))?;
    }
    for table in facts.catalog.tables() {
        for check in &table.checks {
            put(constraint(check.id.into(), &check.name, "c", table, 0, &[]))?;
        }
    }
    Ok(())
}

pub(super) fn types(_: &Facts, put: Sink<'_>) -> Put {
    let oid = |data_type: Option<DataType>| number(data_type.map_or(0, |one| one.postgres().oid()));
    let row = |data_type: DataType| {
        let (element, input) = match data_type {
            DataType::Array(element) => (Some(element.data_type()), "array_in".to_owned()),
            one => (None, format!("{}in", one.postgres().name())),
        };
        vec![
            number(data_type.postgres().oid()),
            text(data_type.postgres().name()),
            number(CATALOG_NAMESPACE),
            number(OWNER),
            number(data_type.bytes()),
            text("b"),
            text(type_category(data_type)),
            text(","),
            number(0),
            oid(element),
            oid(data_type.array()),
            text(input),
            yes(false),
            number(0),
            number(-1),
            number(0),
            Value::Null,
        ]
    };
    DataType::every().map(row).try_for_each(put)
}

pub(super) fn databases(_: &Facts, put: Sink<'_>) -> Put {
    put(vec![
        number(1),
        text(DATABASE),
        number(OWNER),
        number(6),
        text("C"),
        text("C"),
        yes(false),
        yes(true),
        Value::Null,
        text("c"),
        Value::Null,
    ])
}

pub(super) fn settings(facts: &Facts, put: Sink<'_>) -> Put {
    let row = |(name, setting): (&String, &String)| {
        vec![text(name), text(setting), Value::Null, text("Gannet"), text("")]
    };
    facts.settings.iter().map(row).try_for_each(put)
}

pub(super) fn roles(facts: &Facts, put: Sink<'_>) -> Put {
    let mut row = vec![number(OWNER), text(&*facts.user)];
    row.extend([true, true, true, true, true, false].map(yes));
    row.extend([number(-1), Value::Null, yes(true)]);
    put(row)
}

pub(super) fn users(facts: &Facts, put: Sink<'_>) -> Put {
    put(vec![text(&*facts.user), number(OWNER), yes(true), yes(true)])
}

pub(super) fn access_methods(_: &Facts, put: Sink<'_>) -> Put {
    let row =
        |oid: i64, name: &str, kind: &str| vec![number(oid), text(name), text(""), text(kind)];
    put(row(HEAP, "heap", "t"))?;
    put(row(BTREE, "btree", "i"))
}

pub(super) fn tables(facts: &Facts, put: Sink<'_>) -> Put {
    let row = |table: &Arc<Table>| {
        let indexed = table.primary_key.is_some() || !table.indexes.is_empty();
        vec![text("public"), text(&table.name), text(&*facts.user), Value::Null, yes(indexed)]
    };
    facts.catalog.tables().map(row).try_for_each(put)
}

pub(super) fn index_list(facts: &Facts, put: Sink<'_>) -> Put {
    let row = |row: IndexRow<'_>| {
        let definition = text(describe::create_index(row.table, row.index, row.name, row.columns));
        vec![text("public"), text(&row.table.name), text(row.name), Value::Null, definition]
    };
    all_indexes(&facts.catalog).map(row).try_for_each(put)
}

pub(super) fn schemata(facts: &Facts, put: Sink<'_>) -> Put {
    ["pg_catalog", "public", "information_schema"]
        .into_iter()
        .map(|name| vec![text(DATABASE), text(name), text(&*facts.user)])
        .try_for_each(put)
}

pub(super) fn standard_tables(facts: &Facts, put: Sink<'_>) -> Put {
    let row = |schema: &str, name: &str, kind: &str, insertable: &str| {
        vec![text(DATABASE), text(schema), text(name), text(kind), text(insertable)]
    };
    let own = facts.catalog.tables().map(|t| row("public", &t.name, "BASE TABLE", "YES"));
    let system = RELATIONS.iter().map(|r| row(r.schema, r.name, "VIEW", "NO"));
    own.chain(system).try_for_each(put)
}

pub(super) fn standard_columns(facts: &Facts, put: Sink<'_>) -> Put {
    for table in facts.catalog.tables() {
        for (position, column) in table.columns.iter().enumerate() {
            let length = match column.data_type {
                DataType::Varchar(Some(length)) | DataType::Char(Some(length)) => number(length),
                _ => Value::Null,
            };
            let (precision, scale) = match column.data_type {
                DataType::SmallInt => (number(16), number(0)),
                DataType::Integer => (number(32), number(0)),
                DataType::BigInt => (number(64), number(0)),
                DataType::Numeric(Some((precision, scale))) => (number(precision), number(scale)),
                _ => (Value::Null, Value::Null),
            };
            let identity = column.counter.as_ref().is_some_and(|c| c.kind != AsSerial::Serial);
            put(vec![
                text(DATABASE),
                text("public"),
                text(&table.name),
                text(&column.name),
                count(position + 1),
                shown_default(column).map_or(Value::Null, Value::Text),
                text(if column.not_null { "NO" } else { "YES" }),
                text(column.data_type.base_name()),
                length,
                precision,
                scale,
                text(if identity { "YES" } else { "NO" }),
                text(column.data_type.postgres().name()),
            ])?;
        }
    }
    Ok(())
}

pub(super) fn table_constraints(facts: &Facts, put: Sink<'_>) -> Put {
    let row = |name: &str, table: &Table, kind: &str| {
        let (schema, table) = (text("public"), text(&table.name));
        vec![text(DATABASE), schema.clone(), text(name), schema, table, text(kind)]
    };
    for index in all_indexes(&facts.catalog) {
        match index.index {
            None => put(row(index.name, index.table, "PRIMARY KEY"))?,
            Some(other) if other.constraint => put(row(index.name, index.table, "UNIQUE"))?,
            Some(_) => {}
        }
    }
    for table in facts.catalog.tables() {
        table.checks.iter().try_for_each(|check| put(row(&check.name, table, "CHECK")))?;
    }
    Ok(())
}

pub(super) fn key_columns(facts: &Facts, put: Sink<'_>) -> Put {
    for row in
        all_indexes(&facts.catalog).filter(|row| row.index.is_none_or(|index| index.constraint))
    {
        for (position, column) in row.columns.iter().enumerate() {
            put(vec![
                text("public"),
                text(row.name),
                text("public"),
                text(&row.table.name),
                text(&row.table.columns[*column].name),
                count(position + 1),
            ])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::database::Database;

    #[test]
    fn rows_are_put_one_by_one() {
        let database = Database::of_one_node(16 << 20);
        let mut session = database.session("tester");
        for number in 0..3 {
            let definition =
                "id INT PRIMARY KEY, a INT UNIQUE DEFAULT 7, b SERIAL CHECK (b > 0), c INT UNIQUE";
            let create = format!("CREATE TABLE t{number} ({definition})");
            pollster::block_on(session.execute(&create)).unwrap();
        }
        let facts = session.facts();
        for relation in RELATIONS {
            let mut all = 0;
            (relation.rows)(&facts, &mut |row| {
                assert_eq!(row.len(), relation.columns.len(), "{relation:?}");
                all += 1;
                Ok(())
            })
            .unwrap();
            // A statement that is cancelled makes no further row.
            for last in 1..=all {
                let mut count = 0;
                let put = (relation.rows)(&facts, &mut |_| {
                    count += 1;
                    if count == last { Err(Failure::StaleCatalog) } else { Ok(()) }
                });
                assert!(matches!(put, Err(Failure::StaleCatalog)) && count == last, "{relation:?}");
            }
        }
    }
}
