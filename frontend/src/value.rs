//! Values of SQL and their types.
//!
//! *Invariants*: a value does not know its type: integers of all widths are one variant, so are texts of all kinds,
//! arrays as text, and times with and without zone. The type of the column bounds a value before it is stored. Times with
//! zone are UTC. A CHAR has no blanks at its end, except in a type that is padded.
//!
//! *Source*: PostgreSQL 15 documentation, chapter 8 (data types).
//!
//! *Not here*: values as text (`text`), as bytes (`encoding`) and on the wire (`gannet_server`); arrays (`array`).

use chrono::{NaiveDate, NaiveDateTime};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::array::Element;

/// A type of a column or an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DataType {
    /// BOOLEAN.
    Boolean,
    /// SMALLINT.
    SmallInt,
    /// INTEGER.
    Integer,
    /// BIGINT.
    BigInt,
    /// REAL.
    Real,
    /// DOUBLE PRECISION.
    Double,
    /// NUMERIC, with precision and scale if they were given.
    Numeric(Option<(u8, u8)>),
    /// TEXT; also the type of a literal whose type is not known yet.
    Text,
    /// VARCHAR(n) in characters; without a number any length.
    Varchar(Option<u32>),
    /// CHAR(n) in characters, padded with blanks. Without a number the length is arbitrary, as where CHARs of several lengths
    /// are compared.
    Char(Option<u32>),
    /// CHAR of several lengths: each value has the blanks that it came with. CASE, COALESCE and similar expressions give this
    /// type for CHARs of several lengths, and for a CHAR and a constant. No column and no parameter has this type.
    Padded,
    /// BYTEA.
    Bytea,
    /// DATE.
    Date,
    /// TIMESTAMP without time zone.
    Timestamp,
    /// TIMESTAMP WITH TIME ZONE, which is always UTC.
    TimestampTz,
    /// UUID.
    Uuid,
    /// An array of one dimension; no column of a table has this type.
    Array(Element),
}

impl DataType {
    /// The type's name as PostgreSQL's `format_type` writes it.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Numeric(Some((precision, scale))) => format!("numeric({precision},{scale})"),
            Self::Varchar(Some(length)) => format!("character varying({length})"),
            Self::Char(Some(length)) => format!("character({length})"),
            // PostgreSQL's name for any length: `character` alone would mean one character.
            Self::Char(None) | Self::Padded => "bpchar".to_owned(),
            _ => self.base_name().to_owned(),
        }
    }

    /// The type's name without length, precision and scale.
    #[must_use]
    pub fn base_name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::SmallInt => "smallint",
            Self::Integer => "integer",
            Self::BigInt => "bigint",
            Self::Real => "real",
            Self::Double => "double precision",
            Self::Numeric(_) => "numeric",
            Self::Text => "text",
            Self::Varchar(_) => "character varying",
            Self::Char(_) | Self::Padded => "character",
            Self::Bytea => "bytea",
            Self::Date => "date",
            Self::Timestamp => "timestamp without time zone",
            Self::TimestampTz => "timestamp with time zone",
            Self::Uuid => "uuid",
            Self::Array(element) => element.array_name(),
        }
    }

    /// Whether it is SMALLINT, INTEGER or BIGINT.
    #[must_use]
    pub fn is_integer(self) -> bool {
        matches!(self, Self::SmallInt | Self::Integer | Self::BigInt)
    }

    /// Whether arithmetic is defined on it.
    #[must_use]
    pub fn is_number(self) -> bool {
        self.is_integer() || matches!(self, Self::Real | Self::Double | Self::Numeric(_))
    }

    /// Whether its values are days or times.
    #[must_use]
    pub fn is_time(self) -> bool {
        matches!(self, Self::Date | Self::Timestamp | Self::TimestampTz)
    }

    /// Whether its values are texts.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Varchar(_) | Self::Char(_) | Self::Padded)
    }
}

/// A value. Integers of all widths are one variant; the column's type bounds them.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL of any type.
    Null,
    /// BOOLEAN.
    Boolean(bool),
    /// SMALLINT, INTEGER, BIGINT.
    Integer(i64),
    /// REAL and DOUBLE PRECISION.
    Float(f64),
    /// NUMERIC.
    Numeric(Decimal),
    /// TEXT, VARCHAR, CHAR, and arrays as text. Inside the engine a CHAR has no blanks at its end, except in
    /// [`DataType::Padded`]. Results are padded.
    Text(String),
    /// BYTEA.
    Bytea(Vec<u8>),
    /// DATE.
    Date(NaiveDate),
    /// TIMESTAMP, and TIMESTAMPTZ in UTC.
    Timestamp(NaiveDateTime),
    /// UUID.
    Uuid(Uuid),
}

impl Value {
    /// The kind of the value's type, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "unknown",
            Self::Boolean(_) => "boolean",
            Self::Integer(_) => "integer",
            Self::Float(_) => "double precision",
            Self::Numeric(_) => "numeric",
            Self::Text(_) => "text",
            Self::Bytea(_) => "bytea",
            Self::Date(_) => "date",
            Self::Timestamp(_) => "timestamp",
            Self::Uuid(_) => "uuid",
        }
    }

    /// Whether it is NULL.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Approximate bytes in memory.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        let apart = match self {
            Self::Text(text) => text.len(),
            Self::Bytea(bytes) => bytes.len(),
            _ => 0,
        };
        size_of::<Self>() + apart
    }
}
