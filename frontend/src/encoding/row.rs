//! Rows as bytes. Each value has its kind, so a row is read without its table's columns.
//!
//! ```text
//! columns  varint                        values that follow; columns added later are missing
//! value    00                            NULL
//!          01 | 02                       FALSE | TRUE
//!          03 zigzag varint              SMALLINT, INTEGER, BIGINT
//!          04 8 bytes, little-endian     REAL, DOUBLE PRECISION
//!          05 16 bytes                   NUMERIC: rust_decimal's form
//!          06 varint length, UTF-8       TEXT, VARCHAR, CHAR
//!          07 varint length, bytes       BYTEA
//!          08 zigzag varint              DATE: days since 0000-12-31
//!          09 zigzag varint              TIMESTAMP, TIMESTAMPTZ: microseconds since 1970
//!          0A 16 bytes                   UUID
//! ```
//!
//! A varint has 7 bits per byte, the lowest first, and the top bit set on all bytes but the last.
//!
//! *Not here*: keys (`key`), whose bytes have an order.

use chrono::{DateTime, Datelike, NaiveDate};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::error::SqlError;
use crate::value::Value;

/// The bytes of a row.
pub(crate) fn encode(row: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + 8 * row.len());
    push_varint(&mut bytes, row.len() as u64);
    for value in row {
        push_value(&mut bytes, value);
    }
    bytes
}

fn push_value(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(0),
        Value::Boolean(boolean) => bytes.push(1 + u8::from(*boolean)),
        Value::Integer(number) => {
            bytes.push(3);
            push_zigzag(bytes, *number);
        }
        Value::Float(number) => {
            bytes.push(4);
            bytes.extend_from_slice(&number.to_bits().to_le_bytes());
        }
        Value::Numeric(number) => {
            bytes.push(5);
            bytes.extend_from_slice(&number.serialize());
        }
        Value::Text(text) => push_slice(bytes, 6, text.as_bytes()),
        Value::Bytea(slice) => push_slice(bytes, 7, slice),
        Value::Date(date) => {
            bytes.push(8);
            push_zigzag(bytes, i64::from(date.num_days_from_ce()));
        }
        Value::Timestamp(timestamp) => {
            bytes.push(9);
            push_zigzag(bytes, timestamp.and_utc().timestamp_micros());
        }
        Value::Uuid(uuid) => {
            bytes.push(10);
            bytes.extend_from_slice(uuid.as_bytes());
        }
    }
}

fn push_slice(bytes: &mut Vec<u8>, kind: u8, slice: &[u8]) {
    bytes.push(kind);
    push_varint(bytes, slice.len() as u64);
    bytes.extend_from_slice(slice);
}

fn push_zigzag(bytes: &mut Vec<u8>, number: i64) {
    push_varint(bytes, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// The columns of a row to decode; the others become NULL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Every one.
    All,
    /// Those whose entry is set.
    Some(Vec<bool>),
}

impl Wanted {
    fn has(&self, column: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(columns) => columns.get(column).copied().unwrap_or(false),
        }
    }
}

/// The values of a row, at most `missing.len()` of them; `missing` supplies those that the row lacks.
///
/// # Errors
/// SQLSTATE XX001 if the bytes are not a row.
pub(crate) fn decode(
    bytes: &[u8],
    wanted: &Wanted,
    missing: &[Value],
) -> Result<Vec<Value>, SqlError> {
    let mut row = Vec::new();
    decode_into(bytes, wanted, missing, &mut row)?;
    Ok(row)
}

/// As [`decode`], in the place of another row of the table, of which the same columns were wanted, or of none.
///
/// # Errors
/// As [`decode`].
pub(crate) fn decode_into(
    bytes: &[u8],
    wanted: &Wanted,
    missing: &[Value],
    row: &mut Vec<Value>,
) -> Result<(), SqlError> {
    if row.len() != missing.len() {
        row.clear();
        row.resize(missing.len(), Value::Null);
    }
    decode_inner(bytes, wanted, missing, row)
        .ok_or_else(|| SqlError::new("XX001", "a stored row is malformed"))
}

fn decode_inner(bytes: &[u8], wanted: &Wanted, missing: &[Value], row: &mut [Value]) -> Option<()> {
    let mut reader = Reader { rest: bytes };
    let count = usize::try_from(reader.varint()?).ok()?;
    let (there, lacking) = row.split_at_mut_checked(count)?;
    for (column, value) in there.iter_mut().enumerate() {
        if wanted.has(column) {
            *value = reader.value()?;
        } else {
            reader.skip()?;
        }
    }
    lacking.clone_from_slice(&missing[count..]);
    reader.rest.is_empty().then_some(())
}

/// The values of a row that lacks none.
///
/// # Errors
/// SQLSTATE XX001 if the bytes are not a row.
pub(crate) fn decode_whole(bytes: &[u8]) -> Result<Vec<Value>, SqlError> {
    let mut reader = Reader { rest: bytes };
    let values = |reader: &mut Reader<'_>| -> Option<Vec<Value>> {
        let count = reader.varint()?;
        let row = (0..count).map(|_| reader.value()).collect::<Option<_>>()?;
        reader.rest.is_empty().then_some(row)
    };
    values(&mut reader).ok_or_else(|| SqlError::new("XX001", "a stored row is malformed"))
}

struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn slice(&mut self, length: u64) -> Option<&'b [u8]> {
        let (slice, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(slice)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn value(&mut self) -> Option<Value> {
        Some(match self.byte()? {
            0 => Value::Null,
            1 => Value::Boolean(false),
            2 => Value::Boolean(true),
            3 => Value::Integer(self.zigzag()?),
            4 => Value::Float(f64::from_bits(u64::from_le_bytes(self.array()?))),
            5 => Value::Numeric(self.numeric()?),
            6 => {
                let length = self.varint()?;
                Value::Text(std::str::from_utf8(self.slice(length)?).ok()?.to_owned())
            }
            7 => {
                let length = self.varint()?;
                Value::Bytea(self.slice(length)?.to_vec())
            }
            8 => {
                let days = i32::try_from(self.zigzag()?).ok()?;
                Value::Date(NaiveDate::from_num_days_from_ce_opt(days)?)
            }
            9 => Value::Timestamp(DateTime::from_timestamp_micros(self.zigzag()?)?.naive_utc()),
            10 => Value::Uuid(Uuid::from_bytes(self.array()?)),
            _ => return None,
        })
    }

    fn numeric(&mut self) -> Option<Decimal> {
        let array: [u8; 16] = self.array()?;
        // Byte 2 is the scale, and bit 7 of byte 3 the sign; deserialize does not check them.
        let flags_are_valid = array[0] == 0 && array[1] == 0 && array[3] & 0x7f == 0;
        (flags_are_valid && array[2] <= 28).then(|| Decimal::deserialize(array))
    }

    fn skip(&mut self) -> Option<()> {
        match self.byte()? {
            0..=2 => {}
            3 | 8 | 9 => {
                self.varint()?;
            }
            4 => {
                self.slice(8)?;
            }
            5 | 10 => {
                self.slice(16)?;
            }
            6 | 7 => {
                let length = self.varint()?;
                self.slice(length)?;
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Boolean),
            any::<i64>().prop_map(Value::Integer),
            (-1e300_f64..1e300).prop_map(Value::Float),
            (any::<i64>(), 0_u32..28)
                .prop_map(|(digits, scale)| Value::Numeric(Decimal::new(digits, scale))),
            ".{0,10}".prop_map(Value::Text),
            proptest::collection::vec(any::<u8>(), 0..10).prop_map(Value::Bytea),
            (-700_000_i32..700_000)
                .prop_map(|days| Value::Date(NaiveDate::from_num_days_from_ce_opt(days).unwrap())),
            (-(1_i64 << 50)..1 << 50).prop_map(|t| Value::Timestamp(
                DateTime::from_timestamp_micros(t).unwrap().naive_utc()
            )),
            any::<u128>().prop_map(|n| Value::Uuid(Uuid::from_u128(n))),
        ]
    }

    proptest! {
        #[test]
        fn rows_decode_to_their_values(row in proptest::collection::vec(value(), 0..8)) {
            let missing = vec![Value::Null; row.len()];
            prop_assert_eq!(decode(&encode(&row), &Wanted::All, &missing).unwrap(), row);
        }

        #[test]
        fn unwanted_columns_are_null(row in proptest::collection::vec(value(), 3)) {
            let missing = vec![Value::Null; 3];
            let wanted = Wanted::Some(vec![false, true]);
            let expected = vec![Value::Null, row[1].clone(), Value::Null];
            prop_assert_eq!(decode(&encode(&row), &wanted, &missing).unwrap(), expected);
        }

        #[test]
        fn malformed_bytes_are_errors(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            // Any result is fine, but no panic.
            let _ = decode(&bytes, &Wanted::All, &vec![Value::Null; 10]);
        }

        #[test]
        fn a_cut_row_is_an_error(row in proptest::collection::vec(value(), 1..6), cut in 1_usize..4) {
            let bytes = encode(&row);
            let kept = bytes.len().saturating_sub(cut);
            let missing = vec![Value::Null; row.len()];
            assert!(decode(&bytes[..kept], &Wanted::All, &missing).is_err());
        }
    }

    #[test]
    fn a_column_added_later_takes_its_default() {
        let bytes = encode(&[Value::Integer(1)]);
        let missing = [Value::Null, Value::Text("new".to_owned())];
        let row = decode(&bytes, &Wanted::All, &missing).unwrap();
        assert_eq!(row, [Value::Integer(1), Value::Text("new".to_owned())]);
    }
}
