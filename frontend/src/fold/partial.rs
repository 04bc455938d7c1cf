//! The states of groups, as rows: the keys of a group, and of each aggregate how many values it has taken and their total.
//!
//! *Invariant*: the states of one group from several primaries can be merged into one.
//!
//! *Not here*: merging, in `execute/fold`.

use serde::{Deserialize, Serialize};

use crate::encoding::row;
use crate::error::SqlError;
use crate::expression::aggregate::{Aggregate, Kind, State};
use crate::value::Value;

/// What a primary answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer<'b> {
    /// The rows of groups, as bytes.
    #[serde(borrow)]
    Groups(Vec<&'b [u8]>),
    /// The program was given up.
    GivenUp,
}

impl<'b> Answer<'b> {
    /// The rows; `None` if the program was given up.
    ///
    /// # Errors
    /// SQLSTATE XX001 for bytes that are no answer, and rows with other numbers of values.
    pub(crate) fn rows(
        bytes: &'b [u8],
        columns: usize,
    ) -> Result<Option<Vec<Vec<Value>>>, SqlError> {
        let malformed = || SqlError::new("XX001", "a node sent malformed groups");
        let groups = match postcard::from_bytes(bytes).map_err(|_| malformed())? {
            Self::Groups(groups) => groups,
            Self::GivenUp => return Ok(None),
        };
        let row = |bytes: &[u8]| {
            let row = row::decode_whole(bytes)?;
            if row.len() == columns { Ok(row) } else { Err(malformed()) }
        };
        groups.into_iter().map(row).collect::<Result<_, _>>().map(Some)
    }
}

/// Whether the states of parts of a group make the state of the group.
pub(crate) fn has_parts(aggregate: &Aggregate) -> bool {
    let is_one_value = !matches!(aggregate.kind, Kind::Join | Kind::Collect);
    is_one_value && !aggregate.distinct && aggregate.order.is_empty()
}

/// Columns of the row of a group.
pub(crate) fn columns(keys: usize, aggregates: usize) -> usize {
    keys + 2 * aggregates
}

/// The row of a group.
pub(super) fn row_of(keys: &[Value], states: &[State]) -> Vec<u8> {
    let totals = states.iter().flat_map(State::parts);
    row::encode(&keys.iter().cloned().chain(totals).collect::<Vec<_>>())
}
