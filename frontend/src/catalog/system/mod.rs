//! `pg_catalog` and `information_schema`: the catalog as tables that psql and drivers read, and their functions.
//!
//! *Source*: PostgreSQL 15 documentation, chapters 53 (system catalogs) and 37 (information schema).
//!
//! *Invariants*: rows are made from the catalog that the transaction sees, or from the cluster's state; none are stored.
//!
//! *Not here*: which tables and columns exist (`list`), and their rows (`relations`, `cluster`).

mod cluster;
mod describe;
mod list;
mod relations;

use crate::error::{Failure, SqlError};
use crate::expression::function::Facts;
use crate::value::{DataType, Value};

/// The name of the only database.
pub(crate) const DATABASE: &str = "gannet";

/// The schema `pg_catalog`, whose tables need no schema before their names.
const CATALOG_SCHEMA: &str = "pg_catalog";

/// A table that is made from the catalog.
pub(crate) struct Relation {
    pub(crate) schema: &'static str,
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [(&'static str, DataType)],
    /// Puts the relation's rows into the sink, one by one.
    pub(crate) rows: fn(&Facts, Sink<'_>) -> Result<(), Failure>,
}

/// Takes one row of a relation. It may yield the thread, which making all rows would hold for too long. An error ends the
/// rows.
pub(crate) type Sink<'s> = &'s mut dyn FnMut(Vec<Value>) -> Result<(), Failure>;

impl std::fmt::Debug for Relation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl PartialEq for Relation {
    fn eq(&self, other: &Self) -> bool {
        self.schema == other.schema && self.name == other.name
    }
}

/// The relation of this name, if it describes the cluster and needs no transaction.
pub(crate) fn of_cluster(name: &str) -> Option<&'static Relation> {
    relation(None, name).filter(|relation| relation.name.starts_with("gannet_"))
}

/// A function of `pg_catalog`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemFunction {
    /// The name behind an object's number (`::regclass`).
    RelationName,
    /// The number behind a relation's name.
    RelationNumber,
    /// The number behind a type's name; NULL if there is none.
    TypeNumber,
    FormatType,
    /// The text of an expression: the catalog stores expressions as SQL.
    Expression,
    IndexDefinition,
    ConstraintDefinition,
    UserName,
    IsVisible,
    EncodingName,
    SerialSequence,
    /// Always FALSE, for objects that do not exist.
    No,
    /// Always NULL.
    Nothing,
    /// Whether a text is a member of an array's text.
    InArray,
    /// A table's size, which is not counted.
    Size,
    /// The schemas of the search path, as an array's text.
    SearchPath,
    /// Functions that drivers mention and do not call in practice.
    Unsupported,
    /// `set_config`.
    SetConfig,
    Allowed,
}

impl SystemFunction {
    /// Whether the result is NULL for a NULL argument.
    pub(crate) fn is_strict(self) -> bool {
        !matches!(self, Self::FormatType | Self::No | Self::Allowed | Self::Unsupported)
    }
}

/// The relation with a name; without a schema, only those of `pg_catalog`.
pub(crate) fn relation(schema: Option<&str>, name: &str) -> Option<&'static Relation> {
    let schema = schema.unwrap_or(CATALOG_SCHEMA);
    relations::RELATIONS.iter().find(|relation| relation.schema == schema && relation.name == name)
}

/// The function with a name, and the type of its result.
pub(crate) fn function(name: &str, arguments: usize) -> Option<(SystemFunction, DataType)> {
    use DataType::{BigInt, Boolean, Text};
    use SystemFunction as Fn;
    Some(match (name, arguments) {
        ("pg_relation_name", 1) => (Fn::RelationName, Text),
        ("pg_relation_number" | "to_regclass", 1) => (Fn::RelationNumber, BigInt),
        ("to_regtype", 1) => (Fn::TypeNumber, BigInt),
        ("format_type", 2) => (Fn::FormatType, Text),
        ("pg_get_expr", 2 | 3) => (Fn::Expression, Text),
        ("pg_get_indexdef", 1 | 3) => (Fn::IndexDefinition, Text),
        ("pg_get_constraintdef", 1 | 2) => (Fn::ConstraintDefinition, Text),
        ("pg_get_userbyid", 1) => (Fn::UserName, Text),
        (
            "pg_table_is_visible"
            | "pg_type_is_visible"
            | "pg_function_is_visible"
            | "pg_opclass_is_visible"
            | "pg_collation_is_visible",
            1,
        ) => (Fn::IsVisible, Boolean),
        ("pg_encoding_to_char", 1) => (Fn::EncodingName, Text),
        ("pg_get_serial_sequence", 2) => (Fn::SerialSequence, Text),
        ("pg_relation_is_publishable" | "pg_is_in_recovery" | "pg_is_other_temp_schema", _) => {
            (Fn::No, Boolean)
        }
        (
            "array_to_string"
            | "obj_description"
            | "col_description"
            | "shobj_description"
            | "pg_get_statisticsobjdef_columns"
            | "pg_get_partkeydef"
            | "pg_get_viewdef"
            | "pg_tablespace_location"
            | "pg_get_function_result"
            | "pg_get_function_identity_arguments"
            | "pg_my_temp_schema"
            // Advisory locks do not exist.
            | "pg_advisory_unlock_all",
            _,
        ) => (Fn::Nothing, Text),
        ("array_upper", 2) => (Fn::Nothing, DataType::Integer),
        ("pg_partition_ancestors", 1) => (Fn::Nothing, BigInt),
        ("pg_in_array", 2) => (Fn::InArray, Boolean),
        (
            "pg_table_size" | "pg_relation_size" | "pg_total_relation_size" | "pg_database_size",
            1,
        ) => (Fn::Size, BigInt),
        ("pg_size_pretty", 1) => (Fn::Nothing, Text),
        ("current_schemas", 1) => (Fn::SearchPath, Text),
        ("json_build_object", _) => (Fn::Unsupported, Text),
        ("set_config", 3) => (Fn::SetConfig, Text),
        (
            "has_table_privilege"
            | "has_schema_privilege"
            | "has_database_privilege"
            | "has_column_privilege",
            2..=4,
        ) => (Fn::Allowed, Boolean),
        _ => return None,
    })
}

fn integer(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::Integer(number)) => *number,
        Some(Value::Text(text)) => text.parse().unwrap_or(0),
        _ => 0,
    }
}

fn text(value: Option<&Value>) -> &str {
    match value {
        Some(Value::Text(text)) => text,
        _ => "",
    }
}

/// The result of a function.
///
/// # Errors
/// SQLSTATE 42P01 for a name that no relation has.
pub(crate) fn call(
    function: SystemFunction,
    arguments: &[Value],
    facts: &Facts,
) -> Result<Value, SqlError> {
    let catalog = &facts.catalog;
    let number = integer(arguments.first());
    let owned = |found: Option<String>| found.map_or(Value::Null, Value::Text);
    Ok(match function {
        SystemFunction::RelationName => {
            let name = relations::relation_name(catalog, number);
            Value::Text(name.unwrap_or_else(|| number.to_string()))
        }
        SystemFunction::RelationNumber => {
            let written = text(arguments.first());
            let bare = written.rsplit('.').next().unwrap_or(written).trim_matches('"');
            let found = written.parse().ok().or_else(|| relations::relation_number(catalog, bare));
            Value::Integer(found.ok_or_else(|| {
                SqlError::new("42P01", format!("relation \"{written}\" does not exist"))
            })?)
        }
        SystemFunction::TypeNumber => {
            let name = text(arguments.first());
            let mut named = DataType::every().map(|data_type| data_type.postgres());
            let found = named.find(|found| found.name() == name);
            found.map_or(Value::Null, |found| Value::Integer(found.oid().into()))
        }
        SystemFunction::FormatType => match arguments.first() {
            Some(Value::Null) | None => Value::Null,
            Some(_) => Value::Text(describe::format_type(number, integer(arguments.get(1)))),
        },
        SystemFunction::Expression => arguments[0].clone(),
        SystemFunction::IndexDefinition => {
            owned(describe::index_definition(catalog, number, integer(arguments.get(1))))
        }
        SystemFunction::ConstraintDefinition => {
            owned(describe::constraint_definition(catalog, number))
        }
        SystemFunction::UserName => Value::Text(facts.user.to_string()),
        SystemFunction::IsVisible => Value::Boolean(true),
        SystemFunction::EncodingName => Value::Text("UTF8".to_owned()),
        SystemFunction::SerialSequence => {
            let table = text(arguments.first()).trim_start_matches("public.");
            let column = text(arguments.get(1));
            let table = catalog.require(table.trim_matches('"'))?;
            let counter = table.columns[table.require_column(column)?].counter.as_ref();
            owned(counter.map(|counter| format!("public.{}", counter.name)))
        }
        SystemFunction::No => Value::Boolean(false),
        SystemFunction::Allowed => Value::Boolean(true),
        SystemFunction::Nothing => Value::Null,
        SystemFunction::InArray => {
            let array = text(arguments.get(1)).trim_start_matches('{').trim_end_matches('}');
            let member = text(arguments.first());
            Value::Boolean(array.split(',').any(|other| other.trim_matches('"') == member))
        }
        SystemFunction::SearchPath => {
            let implicit = arguments[0] == Value::Boolean(true);
            Value::Text(if implicit { "{pg_catalog,public}" } else { "{public}" }.to_owned())
        }
        SystemFunction::Unsupported => return Err(SqlError::unsupported("JSON")),
        SystemFunction::Size => Value::Integer(0),
        SystemFunction::SetConfig => arguments[1].clone(),
    })
}
