//! Tables of a server for programs with the client library.
//!
//! *Invariants*: a name occurs once. Without a number of bytes, keys and values of a table are byte strings; with one,
//! keys are numbers and values have that many bytes. A table is laid out for 100,000 rows unless the setting has another
//! number. The first node that opens a table creates the table.
//!
//! *Source*: `docs/embedding.md`.
//!
//! *Not here*: the options of the gateway that serves them (`settings`), the gateway (`gannet_engine`), tables of SQL.

use std::str::FromStr;

use gannet_engine::{ChangeError, Cluster, ClusterError, TableId};
use serde::Deserialize;

/// Default number of expected rows.
const ROWS: u64 = 100_000;

/// A table on the command line: `NAME`, `NAME:BYTES` or `NAME:BYTES:ROWS`; without bytes, the table has ordered byte strings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct TableName {
    name: String,
    /// Bytes of each value; None for ordered byte strings.
    value_bytes: Option<usize>,
    rows: u64,
}

impl FromStr for TableName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unusable = || {
            format!(
                "{text:?} names no table; use NAME, NAME:BYTES or NAME:BYTES:ROWS, such as stock:8"
            )
        };
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(unusable)?.to_owned();
        let value_bytes = match parts.next() {
            None | Some("") => None,
            Some(bytes) => Some(bytes.parse().map_err(|_| unusable())?),
        };
        let rows = parts.next().map_or(Ok(ROWS), |rows| rows.parse().map_err(|_| unusable()))?;
        if parts.next().is_some() {
            return Err(unusable());
        }
        Ok(Self { name, value_bytes, rows })
    }
}

impl TryFrom<String> for TableName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Opens the tables; the first node to open a table creates it. No name may occur twice.
pub(crate) fn open(cluster: &Cluster, tables: &[TableName]) -> Result<Vec<TableId>, ClusterError> {
    for (index, TableName { name, .. }) in tables.iter().enumerate() {
        if tables[..index].iter().any(|table| table.name == *name) {
            return Err(ChangeError::TableExists(name.clone()).into());
        }
    }
    let open = |TableName { name, value_bytes, rows }: &TableName| match value_bytes {
        Some(bytes) => cluster.open_table(name, *bytes, *rows),
        None => cluster.open_ordered_table(name, *rows),
    };
    tables.iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_named_with_their_sizes() {
        let named = |text: &str| text.parse::<TableName>();
        let table = |name: &str, value_bytes, rows| {
            Ok(TableName { name: name.to_owned(), value_bytes, rows })
        };
        assert_eq!(named("names"), table("names", None, ROWS));
        assert_eq!(named("stock:8"), table("stock", Some(8), ROWS));
        assert_eq!(named("stock:8:500"), table("stock", Some(8), 500));
        assert_eq!(named("names::500"), table("names", None, 500));
        for text in ["", ":8", "a:b", "a:8:b", "a:8:5:5", "a:-1"] {
            assert!(named(text).unwrap_err().contains("such as stock:8"), "{text}");
        }
    }
}
