//! A program: what a plan wants of the rows of a table, as bytes.
//!
//! *Invariant*: a program has all that its primaries need, but for the environment, and a bounded size.
//!
//! *Not here*: running it, in `participant`; when a plan has one, in `execute/fold`.

use serde::{Deserialize, Serialize};

use crate::encoding::row::{self, Wanted};
use crate::expression::Expression;
use crate::expression::aggregate::{Aggregate, Kind};
use crate::fold::expressions::{Step, expression_of, steps_of};
use crate::fold::filter::{Filtering, SentFilter};
use crate::value::{DataType, Value};

/// Longest program. It goes to every partition for each part of it.
const BYTES_MAX: usize = 8 << 10;

/// What a plan wants of the rows of a table.
pub(crate) enum Program {
    Groups(Groups),
    Filter(Filtering),
}

/// The groups and aggregates of the rows that pass a filter.
pub(crate) struct Groups {
    pub(super) wanted: Wanted,
    /// Values of columns that rows lack.
    pub(super) missing: Vec<Value>,
    pub(super) filter: Option<Expression>,
    pub(super) keys: Vec<Expression>,
    pub(super) aggregates: Vec<Aggregate>,
}

/// A program, as it is sent.
#[derive(Serialize, Deserialize)]
enum Sent {
    Groups(SentGroups),
    Filter(SentFilter),
}

#[derive(Serialize, Deserialize)]
struct SentGroups {
    wanted: Option<Vec<bool>>,
    missing: Vec<u8>,
    filter: Option<Vec<Step>>,
    keys: Vec<Vec<Step>>,
    aggregates: Vec<SentAggregate>,
}

#[derive(Serialize, Deserialize)]
struct SentAggregate {
    kind: Kind,
    data_type: DataType,
    argument: Option<Vec<Step>>,
    filter: Option<Vec<Step>>,
}

impl Program {
    /// The bytes of a program for groups, with `value` for expressions that are the same on every row; `None` if one of those has no value,
    /// or if the program is too long.
    pub(crate) fn groups(
        (wanted, missing, filter): (&Wanted, &[Value], Option<&Expression>),
        keys: &[Expression],
        aggregates: &[Aggregate],
        value: &mut impl FnMut(&Expression) -> Option<Value>,
    ) -> Option<Vec<u8>> {
        let mut optional = |expression: Option<&Expression>| match expression {
            Some(expression) => steps_of(expression, value).map(Some),
            None => Some(None),
        };
        let filter = optional(filter)?;
        let of_aggregate = |aggregate: &Aggregate| {
            Some(SentAggregate {
                kind: aggregate.kind,
                data_type: aggregate.data_type,
                argument: optional(aggregate.argument.as_ref())?,
                filter: optional(aggregate.filter.as_ref())?,
            })
        };
        let aggregates = aggregates.iter().map(of_aggregate).collect::<Option<_>>()?;
        let wanted = match wanted {
            Wanted::All => None,
            Wanted::Some(columns) => Some(columns.clone()),
        };
        let missing = row::encode(missing);
        let keys = keys.iter().map(|key| steps_of(key, value)).collect::<Option<_>>()?;
        Sent::Groups(SentGroups { wanted, missing, filter, keys, aggregates }).bytes()
    }

    /// The bytes of a program for the rows that have greater keys than `after` and pass a filter, if there is one; `None` as of [`Self::groups`].
    pub(crate) fn filter(
        filter: Option<&Expression>,
        missing: &[Value],
        after: &[u8],
        value: &mut impl FnMut(&Expression) -> Option<Value>,
    ) -> Option<Vec<u8>> {
        Sent::Filter(SentFilter::new(filter, missing, after, value)?).bytes()
    }

    /// The program in these bytes, if they are one.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        Some(match postcard::from_bytes(bytes).ok()? {
            Sent::Groups(sent) => Self::Groups(sent.read()?),
            Sent::Filter(sent) => Self::Filter(sent.read()?),
        })
    }
}

impl Sent {
    fn bytes(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok().filter(|bytes| bytes.len() <= BYTES_MAX)
    }
}

impl SentGroups {
    fn read(self) -> Option<Groups> {
        let missing = row::decode_whole(&self.missing).ok()?;
        let columns = missing.len();
        let optional = |steps: Option<Vec<Step>>| match steps {
            Some(steps) => expression_of(steps, columns).map(Some),
            None => Some(None),
        };
        let of_aggregate = |sent: SentAggregate| {
            Some(Aggregate {
                kind: sent.kind,
                argument: optional(sent.argument)?,
                separator: None,
                order: Vec::new(),
                distinct: false,
                filter: optional(sent.filter)?,
                data_type: sent.data_type,
            })
        };
        Some(Groups {
            wanted: self.wanted.map_or(Wanted::All, Wanted::Some),
            filter: optional(self.filter)?,
            keys: self
                .keys
                .into_iter()
                .map(|key| expression_of(key, columns))
                .collect::<Option<_>>()?,
            aggregates: self.aggregates.into_iter().map(of_aggregate).collect::<Option<_>>()?,
            missing,
        })
    }
}
