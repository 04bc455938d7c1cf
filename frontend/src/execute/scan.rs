//! Scans of tables: points, ranges of an index, or all rows.
//!
//! ```text
//! Points   keys ─ batch ─► rows           one round trip per batch
//! Range    page ─► page ─► ...            one round trip per page; entries of an index need another one for their rows
//!              └─► rows that pass ─► ...  if the first page of a whole table, or of a large part of it, has few of them, or if there are
//!                                         several pages of a whole table, and nobody sees their order (`filtered`)
//! ```
//!
//! *Not here*: the choice of the access (`plan/access`).

use std::collections::VecDeque;
use std::ops::Bound;

use gannet_engine::{Direction, KeyRange, KeyValue, Rows, TableId, TableKey};

use crate::catalog::Index;
use crate::encoding::key;
use crate::encoding::row::decode;
use crate::error::Failure;
use crate::execute::context::KEY_OVERHEAD_BYTES;
use crate::execute::filtered::{Filtered, Further};
use crate::execute::operator::Operator;
use crate::execute::read_ahead::ReadAhead;
use crate::execute::transaction::OVERTAKEN_MAX;
use crate::execute::{Context, Row};
use crate::expression::Expression;
use crate::key_map::KeyMap;
use crate::memory::Charge;
use crate::plan::{Access, IndexChoice, IndexRange, Reserve, Scan};
use crate::value::Value;

/// Rows of a scan's first page, which often suffices.
const FIRST_PAGE_ROWS: usize = 128;
/// Rows of further pages. Long pages waste fewer rows of other partitions' shares.
const NEXT_PAGE_ROWS: usize = 4_000;

/// Rows of a wide range, at least, and the part of the table's rows that they are.
const WIDE_ROWS_MIN: u64 = 10_000;
const WIDE_PART: u64 = 8;
/// Rows that are read by their keys in one round trip.
const POINT_ROWS: usize = 1_000;

/// A primary key.
pub(super) type PrimaryBytes = Vec<u8>;

/// The rows of a scan whose access does not depend on other rows.
pub(super) struct ScanRows<'p> {
    scan: &'p Scan,
    state: State<'p>,
    /// Rows that were read before they were asked for.
    first: Vec<Row>,
    /// Whether at most half of the last page's rows have passed.
    has_few: bool,
    /// Whether the rows may come from the primaries in no order, when several pages were read.
    in_any_order: bool,
    /// Of a range of several pages.
    read_ahead: Option<ReadAhead>,
    /// The charge of keys that are not read yet.
    charge: Charge,
}

enum State<'p> {
    New,
    /// Keys that are not read yet.
    Points(std::vec::IntoIter<TableKey>),
    /// The remaining range.
    Range(KeyRange),
    /// The rows of the remaining range that pass the filter.
    Filtered(Box<Filtered<'p>>),
    /// Entries of an index whose rows are reserved one by one, and the range behind them.
    Entries(std::vec::IntoIter<KeyValue>, Option<KeyRange>),
    Done,
}

impl<'p> ScanRows<'p> {
    pub(super) fn new(scan: &'p Scan) -> Self {
        Self {
            scan,
            state: State::New,
            first: Vec::new(),
            has_few: false,
            in_any_order: scan.in_any_order,
            read_ahead: None,
            charge: Charge::default(),
        }
    }

    fn page(
        &mut self,
        range: &KeyRange,
        page_rows: usize,
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<Row>, Failure> {
        let (index, descending) = match &self.scan.access {
            Access::Range(range) => (range.index, range.descending),
            Access::Full | Access::Points { .. } => (IndexChoice::Primary, false),
        };
        let direction = if descending { Direction::Descending } else { Direction::Ascending };
        let storage = index.storage(&self.scan.table);
        if let Some(how @ (Reserve::Wait | Reserve::NoWait | Reserve::Skip)) = self.scan.reserves {
            let page = if how == Reserve::Skip {
                context.scan_unobserved(storage, range, direction, FIRST_PAGE_ROWS)?
            } else {
                context.scan(storage, range, direction, FIRST_PAGE_ROWS)?
            };
            let entries: Vec<KeyValue> = page.rows.into_iter().collect();
            self.state = State::Entries(entries.into_iter(), page.rest);
            return Ok(Vec::new());
        }
        if self.shares() {
            context.share(storage, range)?;
        }
        let read = self
            .read_ahead
            .as_ref()
            .map(|read_ahead| read_ahead.take((storage, direction), context));
        let page = match read.transpose()?.flatten() {
            Some(page) => page,
            None => context.scan(storage, range, direction, page_rows)?,
        };
        if let Some(rest) = page.rest.clone().filter(|_| page_rows == NEXT_PAGE_ROWS) {
            if std::mem::take(&mut self.in_any_order)
                && let Some(filtered) = Filtered::new(self.scan, &rest, context)
            {
                self.state = State::Filtered(Box::new(filtered));
                return rows_of_entries(self.scan, index, &page.rows, context);
            }
            let read_ahead = self.read_ahead.get_or_insert_default();
            read_ahead.ask((storage, rest, direction), page_rows, context);
        }
        let rows = rows_of_entries(self.scan, index, &page.rows, context)?;
        self.has_few = self.scan.filter.is_some() && 2 * rows.len() <= page.rows.len();
        self.state = match page.rest {
            // Where most rows pass, the next page comes in the order of the key, too.
            Some(rest) if page_rows == FIRST_PAGE_ROWS && self.has_few => {
                match Filtered::new(self.scan, &rest, context) {
                    Some(filtered) => State::Filtered(Box::new(filtered)),
                    None => State::Range(rest),
                }
            }
            Some(rest) => State::Range(rest),
            None => State::Done,
        };
        Ok(rows)
    }

    /// Whether the scan reads a range of the primary key that has two ends, and changes none of the rows.
    fn shares(&self) -> bool {
        let Access::Range(range) = &self.scan.access else { return false };
        let has_ends = !range.prefix.is_empty() || (range.lower.is_some() && range.upper.is_some());
        has_ends && range.index == IndexChoice::Primary && self.scan.reserves.is_none()
    }

    /// Further rows that pass the filter, where the primaries evaluate it.
    fn filtered(
        &mut self,
        mut filtered: Box<Filtered<'p>>,
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<Row>, Failure> {
        match filtered.next(context)? {
            Further::Rows(rows) => {
                self.state = State::Filtered(filtered);
                return Ok(rows);
            }
            Further::Unknown(rest) => self.state = State::Range(rest),
            Further::End => {}
        }
        Ok(Vec::new())
    }
}

impl<'p> ScanRows<'p> {
    /// Reads the first page of a range. Tells whether the range is wide.
    pub(super) fn begin_range(&mut self, context: &mut Context<'_, '_>) -> Result<bool, Failure> {
        let Access::Range(range) = &self.scan.access else { return Ok(false) };
        let Some(range) = key_range(range, &[], context)? else { return Ok(false) };
        self.first = self.page(&range, FIRST_PAGE_ROWS, context)?;
        match &self.state {
            State::Range(rest) => is_wide(self.scan, rest, context),
            _ => Ok(false),
        }
    }

    /// The first rows of a range. If few of them pass, and the range is wide, the primaries evaluate the filter.
    fn first_of_range(
        &mut self,
        range: KeyRange,
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<Row>, Failure> {
        let rows = self.page(&range, FIRST_PAGE_ROWS, context)?;
        if let (State::Range(rest), Some(whole)) = (&self.state, &self.scan.whole)
            && self.has_few
            && is_wide(self.scan, rest, context)?
            && let Some(filtered) = Filtered::behind(whole, &[], range, context)
        {
            // These rows come again.
            self.state = State::Filtered(Box::new(filtered));
            return Ok(Vec::new());
        }
        Ok(rows)
    }

    /// The rows with the next keys.
    fn points(
        &mut self,
        mut keys: std::vec::IntoIter<TableKey>,
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<Row>, Failure> {
        let Access::Points { index, .. } = &self.scan.access else { return Ok(Vec::new()) };
        let some: Vec<TableKey> = keys.by_ref().take(POINT_ROWS).collect();
        if keys.len() > 0 {
            self.state = State::Points(keys);
        }
        let rows = rows_at(self.scan, *index, &some, context)?;
        let bytes = some.iter().map(|key| key.key.len() + KEY_OVERHEAD_BYTES).sum();
        self.charge.release(bytes);
        Ok(rows.into_iter().flatten().collect())
    }

    /// The keys without duplicates.
    fn distinct(
        &mut self,
        (table, points): (TableId, &PointKeys),
        context: &mut Context<'_, '_>,
    ) -> Result<Vec<TableKey>, Failure> {
        let own = |key: &[u8]| TableKey { table, key: key.to_vec() };
        if points.ends.len() <= 1 {
            return Ok(points.iter().map(own).collect());
        }
        let (mut seen, mut distinct) = (KeyMap::default(), Vec::new());
        let mut held = Charge::default();
        for key in points.iter() {
            context.pace()?;
            if !seen.contains(key) {
                let bytes = key.len() + KEY_OVERHEAD_BYTES;
                held.add(context.budget(), bytes)?;
                self.charge.add(context.budget(), bytes)?;
                seen.insert_new(key, ());
                distinct.push(own(key));
            }
        }
        held.dispose(seen);
        Ok(distinct)
    }
}

impl Operator for ScanRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if !self.first.is_empty() {
            return Ok(Some(std::mem::take(&mut self.first)));
        }
        loop {
            let rows = match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Ok(None),
                State::Range(rest) => self.page(&rest, NEXT_PAGE_ROWS, context)?,
                State::Filtered(filtered) => self.filtered(filtered, context)?,
                State::Points(keys) => self.points(keys, context)?,
                State::Entries(mut entries, rest) => {
                    let Some((key, value)) = entries.next() else {
                        match rest {
                            Some(rest) => self.state = State::Range(rest),
                            None => return Ok(None),
                        }
                        continue;
                    };
                    self.state = State::Entries(entries, rest);
                    reserved_row(self.scan, (&key, &value), context)?.into_iter().collect()
                }
                State::New => match &self.scan.access {
                    Access::Points { index, columns } => {
                        let table = index.storage(&self.scan.table);
                        let mut points = PointKeys::new();
                        points.fill(columns, &[], context)?;
                        let keys = self.distinct((table, &points), context)?;
                        self.points(keys.into_iter(), context)?
                    }
                    Access::Range(range) => match key_range(range, &[], context)? {
                        Some(range) => self.first_of_range(range, context)?,
                        None => return Ok(None),
                    },
                    Access::Full => self.page(&whole(), FIRST_PAGE_ROWS, context)?,
                },
            };
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
    }
}

/// Whether a range of a scan has so large a part of the table's rows that the primaries had better look at all of them. The commit depends on
/// the whole table then, so that transactions of several statements, and statements that are overtaken again and again, read the range.
fn is_wide(scan: &Scan, range: &KeyRange, context: &mut Context<'_, '_>) -> Result<bool, Failure> {
    let is_possible = context.commits
        && (context.attempt <= OVERTAKEN_MAX || context.transaction.has_barriers)
        && !scan.with_key
        && scan.reserves.is_none();
    let Access::Range(IndexRange { index, .. }) = &scan.access else { return Ok(false) };
    if !is_possible {
        return Ok(false);
    }
    let rows = context.count_unobserved(index.storage(&scan.table), range)?;
    Ok(rows >= WIDE_ROWS_MIN
        && rows * WIDE_PART >= context.count_unobserved(scan.table.rows(), &whole())?)
}

/// The row that an entry of a scan's index leads to, if it passes the filter and could be reserved.
fn reserved_row(
    scan: &Scan,
    (key, value): (&[u8], &[u8]),
    context: &mut Context<'_, '_>,
) -> Result<Option<Row>, Failure> {
    let index = match &scan.access {
        Access::Range(range) => range.index,
        Access::Full | Access::Points { .. } => IndexChoice::Primary,
    };
    let primary = match index {
        IndexChoice::Primary => key.to_vec(),
        IndexChoice::Secondary(number) => {
            scan.table.primary_of_entry(&scan.table.indexes[number], key, value)?
        }
    };
    if index == IndexChoice::Primary
        && decoded_row(scan, primary.clone(), value, context)?.is_none()
    {
        return Ok(None);
    }
    if scan.reserves != Some(Reserve::Skip) {
        return Ok(by_primary(scan, vec![Some(primary)], context)?.pop().flatten());
    }
    // The scan is not validated: what has changed since is passed over, and the commit does not depend on that.
    let row = [scan.table.row_key(&primary)];
    let entry = [TableKey { table: index.storage(&scan.table), key: key.to_vec() }];
    let is_granted = context.reserve(scan, &row)?.is_none_or(|granted| granted[0]);
    if !is_granted || !is_same_entry(index, context.peek(&entry)?.pop(), value) {
        return Ok(None);
    }
    let found = context.get_many(&entry)?.pop();
    if !is_same_entry(index, found, value) {
        return Ok(None);
    }
    let found = context.get_many(&row)?.pop().flatten().map(|row| (primary, row));
    Ok(decoded(scan, std::iter::once(found), context)?.pop().flatten())
}

/// Whether an entry that was read again leads to the same row: one of the table is the row, which may have another value.
fn is_same_entry(index: IndexChoice, found: Option<Option<Vec<u8>>>, value: &[u8]) -> bool {
    let found = found.flatten();
    found.is_some_and(|found| index == IndexChoice::Primary || found == value)
}

/// The number of a scan's rows.
pub(super) struct CountRow<'p> {
    /// None after it was counted.
    pub(super) scan: Option<&'p Scan>,
}

impl Operator for CountRow<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let Some(scan) = self.scan.take() else { return Ok(None) };
        let (index, range) = match &scan.access {
            Access::Range(range) => (range.index, key_range(range, &[], context)?),
            Access::Full | Access::Points { .. } => (IndexChoice::Primary, Some(whole())),
        };
        let count = match range {
            Some(range) => context.count(index.storage(&scan.table), &range)?,
            None => 0,
        };
        let count = i64::try_from(count).expect("fewer rows than bytes of memory");
        Ok(Some(vec![vec![Value::Integer(count)]]))
    }
}

/// All keys.
pub(super) fn whole() -> KeyRange {
    KeyRange { from: Bound::Unbounded, to: Bound::Unbounded }
}

/// The smallest key after all continuations of a key.
pub(super) fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(key::AFTER_ALL);
    key
}

/// The rows that keys of an index lead to, if they pass the filter.
pub(super) fn rows_at(
    scan: &Scan,
    index: IndexChoice,
    keys: &[TableKey],
    context: &mut Context<'_, '_>,
) -> Result<Vec<Option<Row>>, Failure> {
    let mut rows = Vec::with_capacity(keys.len());
    for keys in keys.chunks(POINT_ROWS) {
        context.check_cancel()?;
        rows.extend(match index {
            IndexChoice::Primary => {
                let found = reserved(scan, keys, context)?;
                let with_key = |(key, row): (&TableKey, Option<Vec<u8>>)| {
                    row.map(|row| (primary_of_row(scan, &key.key), row))
                };
                decoded(scan, keys.iter().zip(found).map(with_key), context)?
            }
            IndexChoice::Secondary(_) => {
                let found = context.get_many(keys)?;
                by_primary(scan, found, context)?
            }
        });
    }
    Ok(rows)
}

/// The values of the rows with some keys, which are reserved before if the plan wants that; none of those that are passed over.
fn reserved(
    scan: &Scan,
    keys: &[TableKey],
    context: &mut Context<'_, '_>,
) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let Some(granted) = context.reserve(scan, keys)? else { return context.get_many(keys) };
    let free = keys.iter().zip(&granted).filter(|(_, granted)| **granted);
    let free: Vec<TableKey> = free.map(|(key, _)| key.clone()).collect();
    let mut found =
        if free.is_empty() { VecDeque::new() } else { VecDeque::from(context.get_many(&free)?) };
    let value = |granted| if granted { found.pop_front().flatten() } else { None };
    Ok(granted.into_iter().map(value).collect())
}

/// The primary key in the key of a row, if the plan wants it.
fn primary_of_row(scan: &Scan, key: &[u8]) -> PrimaryBytes {
    if scan.with_key { key.to_vec() } else { Vec::new() }
}

/// Keys, one after another.
pub(super) struct PointKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl PointKeys {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[*start..*end])
    }

    /// Takes the keys of an access with points in place of others, for one row on the left; none for NULLs.
    pub(super) fn fill(
        &mut self,
        columns: &[Vec<Expression>],
        row: &[Value],
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        self.bytes.clear();
        self.ends.clear();
        self.ends.push(0);
        for list in columns {
            if let ([expression], [_]) = (&list[..], &self.ends[..]) {
                let value = context.value(expression, row)?;
                self.ends.clear();
                if !value.is_null() {
                    key::push(&mut self.bytes, &value);
                    self.ends.push(self.bytes.len());
                }
                continue;
            }
            let values = context.values(list, row)?;
            let mut longer = Self::new();
            for start in self.iter() {
                for value in values.iter().filter(|value| !value.is_null()) {
                    context.pace()?;
                    longer.bytes.extend_from_slice(start);
                    key::push(&mut longer.bytes, value);
                    longer.ends.push(longer.bytes.len());
                }
            }
            *self = longer;
        }
        Ok(())
    }
}

/// The keys of a range; None if a NULL makes it empty.
pub(super) fn key_range(
    range: &IndexRange,
    row: &[Value],
    context: &mut Context<'_, '_>,
) -> Result<Option<KeyRange>, Failure> {
    let mut prefix = Vec::new();
    for expression in &range.prefix {
        let value = context.value(expression, row)?;
        if value.is_null() {
            return Ok(None);
        }
        key::push(&mut prefix, &value);
    }
    let mut bound = |bound: &Option<(Expression, bool)>| -> Result<_, Failure> {
        let Some((expression, included)) = bound else { return Ok(None) };
        let value = context.value(expression, row)?;
        let mut key = prefix.clone();
        key::push(&mut key, &value);
        Ok(Some((key, *included, value.is_null())))
    };
    let (lower, upper) = (bound(&range.lower)?, bound(&range.upper)?);
    if lower.as_ref().is_some_and(|l| l.2) || upper.as_ref().is_some_and(|u| u.2) {
        return Ok(None);
    }
    let is_bounded = lower.is_some() || upper.is_some();
    let from = match lower {
        Some((key, true, _)) => key,
        // A continuation of the bound is the bound with further columns.
        Some((key, false, _)) => after(key),
        None => prefix.clone(),
    };
    let to = match upper {
        Some((key, true, _)) => after(key),
        Some((key, false, _)) => key,
        None if is_bounded => {
            // NULLs sort after all values, and are within no bounds.
            let mut nulls = prefix;
            key::push(&mut nulls, &Value::Null);
            nulls
        }
        None => after(prefix),
    };
    if from >= to {
        return Ok(None);
    }
    Ok(Some(KeyRange { from: Bound::Included(from), to: Bound::Excluded(to) }))
}

/// The rows that entries of an index lead to, in the order of the entries, if they pass the filter.
pub(super) fn rows_of_entries(
    scan: &Scan,
    index: IndexChoice,
    entries: &Rows,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Row>, Failure> {
    let IndexChoice::Secondary(number) = index else {
        let (mut rows, mut keys) = (Vec::with_capacity(entries.len()), Vec::new());
        for (key, bytes) in entries.iter() {
            let row = decoded_row(scan, primary_of_row(scan, key), bytes, context)?;
            if row.is_some() && scan.reserves.is_some() {
                keys.push(scan.table.row_key(key));
            }
            rows.extend(row);
        }
        if let Some(granted) = context.reserve(scan, &keys)? {
            let mut granted = granted.into_iter();
            rows.retain(|_| granted.next() == Some(true));
        }
        return Ok(rows);
    };
    let index: &Index = &scan.table.indexes[number];
    let mut primary = Vec::with_capacity(entries.len());
    for (key, value) in entries.iter() {
        primary.push(Some(scan.table.primary_of_entry(index, key, value)?));
    }
    Ok(by_primary(scan, primary, context)?.into_iter().flatten().collect())
}

/// The rows with some primary keys.
fn by_primary(
    scan: &Scan,
    primary: Vec<Option<PrimaryBytes>>,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Option<Row>>, Failure> {
    let keys: Vec<TableKey> =
        primary.iter().flatten().map(|primary| scan.table.row_key(primary)).collect();
    let mut found: VecDeque<Option<Vec<u8>>> =
        if keys.is_empty() { VecDeque::new() } else { reserved(scan, &keys, context)?.into() };
    let with_row = |primary: Option<PrimaryBytes>| {
        let primary = primary?;
        Some((primary, found.pop_front()??))
    };
    decoded(scan, primary.into_iter().map(with_row), context)
}

/// Rows from their bytes; None for rows that do not exist or do not pass the filter.
fn decoded(
    scan: &Scan,
    entries: impl ExactSizeIterator<Item = Option<(PrimaryBytes, Vec<u8>)>>,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Option<Row>>, Failure> {
    let mut rows = Vec::with_capacity(entries.len());
    for entry in entries {
        rows.push(match entry {
            Some((primary, bytes)) => decoded_row(scan, primary, &bytes, context)?,
            None => None,
        });
    }
    Ok(rows)
}

/// A row from its bytes, if it passes the filter.
fn decoded_row(
    scan: &Scan,
    primary: PrimaryBytes,
    bytes: &[u8],
    context: &mut Context<'_, '_>,
) -> Result<Option<Row>, Failure> {
    context.pace()?;
    let mut row = decode(bytes, &scan.wanted, &scan.missing)?;
    let passes = context.holds(scan.filter.as_ref(), &row)?;
    if scan.with_key {
        row.push(Value::Bytea(primary));
    }
    Ok(passes.then_some(row))
}
