//! Count: the number of keys of an ordered table in a range, from the indexes of all partitions. No row is read or sent.
//!
//! *Invariants*: a count of several pages is valid as of the first page of each partition. A key that another transaction
//! is about to add or remove ends the count with a conflict. A partition whose COUNT does not fit into the message is
//! asked in the next one.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".
//!
//! *Not here*: own changes, which `deferred/scans.rs` adds; the answer of a primary, in `participant/scan.rs`;
//! validation, in `validate.rs`.

use std::ops::Bound;

use gannet_storage::{Direction, TableKind};

use crate::answer::decode_count;
use crate::control::WaitReason;
use crate::key_range::KeyRange;
use crate::outcome::{Abort, Conflict, Misuse};
use crate::request::{self, Scan, Status, TableRequest};
use crate::scan_page::encode_shape;
use crate::table_id::TableId;
use crate::transaction::{RangeObservation, Transaction};

/// What is left of a partition to count: the bound to go on from.
type Rest = Option<Bound<Vec<u8>>>;

impl Transaction<'_> {
    /// The number of keys in a range, and what validates it.
    ///
    /// # Errors
    /// As those of [`Self::scan`]; [`Conflict::Locked`] if another transaction is about to add or remove a key.
    ///
    /// # Panics
    /// Never: there are at most 4096 partitions.
    pub(crate) fn count(
        &mut self,
        table: TableId,
        range: &KeyRange,
    ) -> Result<(u64, RangeObservation), Abort> {
        let found = self.view.kept_table(table.0);
        if found.is_none_or(|table| table.layout().kind != TableKind::Ordered) {
            return Err(Misuse::NoSuchTable { table: table.0 }.into());
        }
        self.check_all_partitions()?;
        let partitions = self.view.configuration().partitioning.count();
        let mut rests: Vec<Rest> = vec![Some(range.from.clone()); partitions];
        let mut numbers = vec![u64::MAX; partitions];
        let mut keys = 0;
        while rests.iter().any(Option::is_some) {
            let asked = self.send_counts(table, &range.to, &rests)?;
            self.round.wait_for(WaitReason::Responses)?;
            for partition in asked {
                let at = usize::from(partition);
                let (number, found, next) = self.take_count(table, partition)?;
                // A count of several pages is valid as of its first.
                numbers[at] = numbers[at].min(number);
                keys += found;
                rests[at] = next.map(Bound::Included);
            }
        }
        Ok((keys, RangeObservation { table: table.0, range: range.clone(), numbers }))
    }

    /// Fills a batch with the COUNTs of partitions that are not counted yet; which.
    fn send_counts(
        &mut self,
        table: TableId,
        to: &Bound<Vec<u8>>,
        rests: &[Rest],
    ) -> Result<Vec<u16>, Abort> {
        let Self { view, round, scratch, owner, .. } = self;
        let (message, mut asked) = (&mut scratch.message, Vec::new());
        round.begin()?;
        let left = (0..).zip(rests).filter_map(|(number, rest)| Some((number, rest.as_ref()?)));
        for (partition, from) in left {
            let mut bounds = Vec::new();
            let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let shape = encode_shape(range, Direction::Ascending, &mut bounds);
            let request = Scan { table: table.0, partition, rows: 0, shape, owner: *owner };
            message.clear();
            message.extend_from_slice(&request.encode());
            message.extend_from_slice(&bounds);
            let primary = view.configuration().primary(partition);
            let mut batch = round.batch();
            if let Err(too_large) = batch.push(primary, request::COUNT, message, 0) {
                // Piggybacked requests go first, alone.
                let fits_alone = !asked.is_empty() || batch.has_piggybacked();
                return if fits_alone { Ok(asked) } else { Err(too_large.into()) };
            }
            asked.push(partition);
        }
        Ok(asked)
    }

    /// The answer of a partition: the number of its index, and how many keys there are before the one to go on from.
    fn take_count(
        &mut self,
        table: TableId,
        partition: u16,
    ) -> Result<(u64, u64, Option<Vec<u8>>), Abort> {
        let primary = self.view.configuration().primary(partition);
        let mut batch = self.round.batch();
        let answer = batch.next_response(primary);
        let no_such_table = || Misuse::NoSuchTable { table: table.0 };
        match Status::from_wire(answer.kind) {
            status @ (Status::Done | Status::More) => {
                let decoded = decode_count(answer.payload).ok_or_else(no_such_table)?;
                let (number, keys, next) = decoded;
                Ok((number, keys, (status == Status::More).then(|| next.to_vec())))
            }
            Status::Locked => Err(Conflict::Locked.into()),
            Status::Moved => Err(Conflict::Reconfigured.into()),
            _ => Err(no_such_table().into()),
        }
    }
}
