//! Scan: the next rows of an ordered table in a range, from all partitions, merged.
//!
//! Keys are spread over partitions by their hash, so every partition has some of the range. Each primary answers
//! a page. The rows before the end of the page that ends first are complete.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use gannet_storage::{Direction, TableKind};

use crate::control::WaitReason;
use crate::key_range::KeyRange;
use crate::outcome::{Abort, Conflict, Failure, Misuse};
use crate::request::{self, Scan, Status, TableRequest};
use crate::rows::{RowSpan, Rows};
use crate::scan_page::{PageReader, ROW_HEADER_BYTES, encode_shape};
use crate::table_id::TableId;
use crate::transaction::{Observation, SpanObservation, Transaction};

/// A range that was scanned: it is unchanged as long as no key has come or gone since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeObservation {
    pub(crate) table: u32,
    pub(crate) range: KeyRange,
    /// By partition, the number of its index when the scan began there.
    pub(crate) numbers: Vec<u64>,
}

impl RangeObservation {
    /// Takes the next part of a scan in this direction; the part, if it is none or the index has changed meanwhile.
    pub(crate) fn append(&mut self, next: Self, direction: Direction) -> Option<Self> {
        let (end, start) = match direction {
            Direction::Ascending => (&self.range.to, &next.range.from),
            Direction::Descending => (&self.range.from, &next.range.to),
        };
        let adjoins = match (end, start) {
            (Bound::Included(end), Bound::Excluded(start)) => end == start,
            _ => false,
        };
        if !adjoins || (self.table, &self.numbers) != (next.table, &next.numbers) {
            return Some(next);
        }
        match direction {
            Direction::Ascending => self.range.to = next.range.to,
            Direction::Descending => self.range.from = next.range.from,
        }
        None
    }

    /// Bytes that it takes beside its own.
    fn bytes_apart(&self) -> usize {
        let bytes_of = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        8 * self.numbers.len() + bytes_of(&self.range.from) + bytes_of(&self.range.to)
    }
}

/// What a transaction has scanned or folded, and depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScanObservation {
    Range(RangeObservation),
    Span(SpanObservation),
}

impl ScanObservation {
    pub(crate) fn table(&self) -> u32 {
        match self {
            Self::Range(range) => range.table,
            Self::Span(span) => span.table,
        }
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let apart = match self {
            Self::Range(range) => range.bytes_apart(),
            Self::Span(_) => 0,
        };
        size_of::<Self>() + apart
    }
}

/// What a scan has found so far, and everything that it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPage {
    /// Keys and values, in the order of the scan.
    pub(crate) rows: Rows,
    /// The last key up to which the rows are complete; `None` at the end of the range.
    pub(crate) complete_to: Option<Vec<u8>>,
    pub(crate) observations: Vec<Observation>,
    /// By partition, the number of its index when the scan began there.
    pub(crate) numbers: Vec<u64>,
}

/// A row that a partition gave: its bytes are in the page already.
struct Found {
    span: RowSpan,
    observation: Observation,
    has_gone: bool,
}

/// The order of two keys in a scan.
fn order(direction: Direction, a: &[u8], b: &[u8]) -> Ordering {
    match direction {
        Direction::Ascending => a.cmp(b),
        Direction::Descending => b.cmp(a),
    }
}

/// Rows to request from each partition: a little more than its share, so that about `rows_max` rows are complete. Shares vary as
/// random draws do, by the root of their size.
fn share(rows_max: usize, partitions: usize) -> usize {
    let share = rows_max.div_ceil(partitions);
    rows_max.min(share + 2 * share.isqrt() + 2)
}

/// What a partition has answered.
enum Answer {
    /// It has no further rows in the range.
    Complete,
    /// It may have rows behind this one.
    UpTo(Vec<u8>),
    /// The response was full; the request is sent again.
    Postponed,
}

impl Transaction<'_> {
    /// Adds to the read set what was scanned earlier; see [`Self::observe`].
    pub(crate) fn observe_scan(&mut self, scanned: &Arc<ScanObservation>) {
        if self.check_all_partitions().is_err() {
            return;
        }
        if self.view.kept_table(scanned.table()).is_none() {
            return self.doom(Conflict::Changed);
        }
        self.set.scanned.push(Arc::clone(scanned));
    }

    /// The first rows of a range, at most `limit`, or fewer if they are large: one round trip.
    ///
    /// What was found is not in the read set of this transaction yet.
    ///
    /// # Errors
    /// [`Conflict::Locked`] if another transaction holds a row, [`Conflict::Reconfigured`] if another node becomes primary of a
    /// partition, [`Misuse::NoSuchTable`], [`Failure::Lost`] if a partition is lost,
    /// [`Misuse::TooLarge`] for bounds that do not fit a message, that of an interruption.
    ///
    /// # Panics
    /// Never: there are at most 4096 partitions.
    pub(crate) fn scan(
        &mut self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<ScanPage, Abort> {
        let is_ordered = self
            .view
            .kept_table(table.0)
            .is_some_and(|table| table.layout().kind == TableKind::Ordered);
        if !is_ordered {
            return Err(Misuse::NoSuchTable { table: table.0 }.into());
        }
        self.check_all_partitions()?;
        let mut page = ScanPage::default();
        let mut found: Vec<Found> = Vec::new();
        let mut end: Option<Vec<u8>> = None;
        let partitions = self.view.configuration().partitioning.count();
        let limit = limit.max(1);
        let rows_max = share(limit, partitions);
        let mut partition = 0;
        while partition < partitions {
            let sent = self.send_scans(table, range, direction, rows_max, partition)?;
            self.round.wait_for(WaitReason::Responses)?;
            while partition < sent {
                let number = u16::try_from(partition).expect("at most 4096 partitions");
                let answer = self.take_page(table, number, &mut page, &mut found)?;
                match answer {
                    Answer::Complete => {}
                    Answer::UpTo(last) => {
                        let is_sooner =
                            |end: &Vec<u8>| order(direction, &last, end) == Ordering::Less;
                        if end.as_ref().is_none_or(is_sooner) {
                            end = Some(last);
                        }
                    }
                    Answer::Postponed => break,
                }
                partition += 1;
            }
        }
        let is_complete = |key: &[u8], end: &Option<Vec<u8>>| {
            end.as_ref().is_none_or(|end| order(direction, key, end).is_le())
        };
        page.rows.reserve(found.len());
        for row in found.iter().filter(|row| !row.has_gone) {
            if is_complete(page.rows.key(&row.span), &end) {
                page.rows.push(row.span);
            }
        }
        page.rows.sort_by(|a, b| order(direction, a, b));
        if page.rows.len() > limit {
            page.rows.truncate(limit);
            end = page.rows.last_key().map(<[u8]>::to_vec);
        }
        // Observations stay in the order of partitions, so that many are validated by one request.
        found.retain(|row| is_complete(page.rows.key(&row.span), &end));
        page.observations = found.into_iter().map(|row| row.observation).collect();
        page.complete_to = end;
        Ok(page)
    }

    /// Whether every partition has a primary: what asks all of them asks before it begins a round.
    ///
    /// # Errors
    /// [`Failure::Lost`] if one has none. The transaction cannot commit any more.
    pub(super) fn check_all_partitions(&mut self) -> Result<(), Abort> {
        let lost = self.view.configuration().lost_partitions().next();
        let Some(partition) = lost else { return Ok(()) };
        self.doom(Failure::Lost { partition });
        Err(Failure::Lost { partition }.into())
    }

    /// Fills a batch with the SCANs of the partitions from `first` on; the first that did not fit.
    fn send_scans(
        &mut self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        rows_max: usize,
        first: usize,
    ) -> Result<usize, Abort> {
        let Self { view, round, scratch, owner, .. } = self;
        let message = &mut scratch.message;
        let configuration = view.configuration();
        round.begin()?;
        let mut batch = round.batch();
        for partition in first..configuration.partitioning.count() {
            let number = u16::try_from(partition).expect("at most 4096 partitions");
            let mut bounds = Vec::new();
            let shape = encode_shape(range.bounds(), direction, &mut bounds);
            let rows = u32::try_from(rows_max).unwrap_or(u32::MAX);
            let request = Scan { table: table.0, partition: number, rows, shape, owner: *owner };
            message.clear();
            message.extend_from_slice(&request.encode());
            message.extend_from_slice(&bounds);
            if let Err(too_large) =
                batch.push(configuration.primary(number), request::SCAN, message, 0)
            {
                // Piggybacked requests go first, alone.
                let fits_alone = partition > first || batch.has_piggybacked();
                return if fits_alone { Ok(partition) } else { Err(too_large.into()) };
            }
        }
        Ok(configuration.partitioning.count())
    }

    /// Takes the answer of one partition.
    fn take_page(
        &mut self,
        table: TableId,
        partition: u16,
        page: &mut ScanPage,
        found: &mut Vec<Found>,
    ) -> Result<Answer, Abort> {
        let configuration = self.view.configuration();
        let (primary, seed) = (configuration.primary(partition), configuration.partitioning.seed());
        let mut batch = self.round.batch();
        let answer = batch.next_response(primary);
        let status = Status::from_wire(answer.kind);
        match status {
            Status::Done | Status::More => {}
            Status::Postponed => return Ok(Answer::Postponed),
            Status::Locked => return Err(Conflict::Locked.into()),
            Status::Moved => return Err(Conflict::Reconfigured.into()),
            _ => return Err(Misuse::NoSuchTable { table: table.0 }.into()),
        }
        let mut reader =
            PageReader::new(answer.payload).ok_or(Misuse::NoSuchTable { table: table.0 })?;
        let table = table.0;
        page.numbers.push(reader.number());
        let end = page.rows.add_bytes(reader.row_bytes()) + reader.row_bytes().len();
        found.reserve(reader.rows_left().min(reader.row_bytes().len() / ROW_HEADER_BYTES));
        let mut last = None;
        loop {
            let at = end - reader.row_bytes().len() + ROW_HEADER_BYTES;
            let Some(row) = reader.next() else { break };
            let bytes = |part: &[u8]| u32::try_from(part.len()).expect("shorter than a message");
            let (key_bytes, value_bytes) = (bytes(row.key), row.value.map_or(0, bytes));
            found.push(Found {
                span: RowSpan { at, key_bytes, value_bytes },
                observation: Observation {
                    table,
                    partition,
                    bucket: row.bucket,
                    version: row.version,
                    hash: seed.hash(row.key),
                },
                has_gone: row.value.is_none(),
            });
            last = Some(row.key);
        }
        Ok(match (status, last) {
            (Status::More, Some(last)) => Answer::UpTo(last.to_vec()),
            _ => Answer::Complete,
        })
    }
}
