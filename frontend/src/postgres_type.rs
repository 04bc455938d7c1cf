//! The types as PostgreSQL numbers, names and measures them.
//!
//! *Source*: PostgreSQL's `pg_type.dat`, by way of the crate `postgres-types`; `pg_attribute.atttypmod`.
//!
//! *Not here*: values as text (`text`) or in PostgreSQL's binary form (`gannet_server`).

use postgres_types::Type;

use crate::array::Element;
use crate::value::DataType;

impl DataType {
    /// Every type that a column can have, once, without length, precision and scale.
    pub(crate) const ALL: [Self; 15] = [
        Self::Boolean,
        Self::SmallInt,
        Self::Integer,
        Self::BigInt,
        Self::Real,
        Self::Double,
        Self::Numeric(None),
        Self::Text,
        Self::Varchar(None),
        Self::Char(Some(1)),
        Self::Bytea,
        Self::Date,
        Self::Timestamp,
        Self::TimestampTz,
        Self::Uuid,
    ];

    /// All of those, then their arrays.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Element::ALL.map(Self::Array))
    }

    /// The type of arrays of this type; None if arrays of this type have another element type.
    pub(crate) fn array(self) -> Option<Self> {
        let element = Element::of(self)?;
        (element.data_type().postgres() == self.postgres()).then_some(Self::Array(element))
    }

    /// PostgreSQL's type, with its number and internal name.
    pub fn postgres(self) -> Type {
        match self {
            Self::Boolean => Type::BOOL,
            Self::SmallInt => Type::INT2,
            Self::Integer => Type::INT4,
            Self::BigInt => Type::INT8,
            Self::Real => Type::FLOAT4,
            Self::Double => Type::FLOAT8,
            Self::Numeric(_) => Type::NUMERIC,
            Self::Text => Type::TEXT,
            Self::Varchar(_) => Type::VARCHAR,
            Self::Char(_) | Self::Padded => Type::BPCHAR,
            Self::Bytea => Type::BYTEA,
            Self::Date => Type::DATE,
            Self::Timestamp => Type::TIMESTAMP,
            Self::TimestampTz => Type::TIMESTAMPTZ,
            Self::Uuid => Type::UUID,
            Self::Array(element) => match element {
                Element::Boolean => Type::BOOL_ARRAY,
                Element::SmallInt => Type::INT2_ARRAY,
                Element::Integer => Type::INT4_ARRAY,
                Element::BigInt => Type::INT8_ARRAY,
                Element::Real => Type::FLOAT4_ARRAY,
                Element::Double => Type::FLOAT8_ARRAY,
                Element::Numeric => Type::NUMERIC_ARRAY,
                Element::Text => Type::TEXT_ARRAY,
                Element::Char => Type::BPCHAR_ARRAY,
                Element::Bytea => Type::BYTEA_ARRAY,
                Element::Date => Type::DATE_ARRAY,
                Element::Timestamp => Type::TIMESTAMP_ARRAY,
                Element::TimestampTz => Type::TIMESTAMPTZ_ARRAY,
                Element::Uuid => Type::UUID_ARRAY,
            },
        }
    }

    /// PostgreSQL's type modifier: length, or precision and scale; -1 if there is none.
    pub fn modifier(self) -> i32 {
        match self {
            Self::Varchar(Some(length)) | Self::Char(Some(length)) => {
                i32::try_from(length).map_or(-1, |length| length.saturating_add(4))
            }
            Self::Numeric(Some((precision, scale))) => {
                (i32::from(precision) << 16 | i32::from(scale)) + 4
            }
            _ => -1,
        }
    }

    /// Bytes of a value in PostgreSQL; -1 if the length varies.
    pub fn bytes(self) -> i16 {
        match self {
            Self::Boolean => 1,
            Self::SmallInt => 2,
            Self::Integer | Self::Real | Self::Date => 4,
            Self::BigInt | Self::Double | Self::Timestamp | Self::TimestampTz => 8,
            Self::Uuid => 16,
            Self::Numeric(_)
            | Self::Text
            | Self::Varchar(_)
            | Self::Char(_)
            | Self::Padded
            | Self::Bytea
            | Self::Array(_) => -1,
        }
    }
}
