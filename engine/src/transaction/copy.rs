//! COPY: the next buckets of a partition as they are at its primary, for a learner.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again".

use crate::answer::CopyPlace;
use crate::configuration::NOBODY;
use crate::control::WaitReason;
use crate::outcome::Abort;
use crate::request::{self, CopyBuckets, Status, TableRequest};
use crate::transaction::Transaction;

/// What the primary of a partition has answered to a COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The copies of buckets before this place, as far as they were asked for. The version is that of the first one.
    More(CopyPlace),
    /// The same, and there are no further buckets.
    All(CopyPlace),
    /// A bulk load of the partition has failed: the rows are of no use.
    Failed,
    /// The answer had no room.
    Again,
    /// The primary or this node has no such table, or it leaves, or the partition has no primary.
    Nothing,
}

impl Transaction<'_> {
    /// Gets the copies of the next buckets of a partition, from a byte of the first one's on. They are units, which are appended to `out`;
    /// of a large one a part.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn copy_page(
        &mut self,
        (table, partition): (u32, u16),
        CopyPlace { bucket, offset, .. }: CopyPlace,
        out: &mut Vec<u8>,
    ) -> Result<Copied, Abort> {
        let Self { view, round, owner, .. } = self;
        let primary = view.configuration().primary(partition);
        // The primary may have removed a table that leaves.
        if primary == NOBODY || view.kept_table(table).is_none() {
            return Ok(Copied::Nothing);
        }
        let request = CopyBuckets { table, partition, bucket, offset, owner: *owner };
        round.begin()?;
        round.request_that_fits(primary, request::COPY, &request.encode())?;
        round.wait_for(WaitReason::Responses)?;
        let mut batch = round.batch();
        let answer = batch.next_response(primary);
        let (status, payload) = (Status::from_wire(answer.kind), answer.payload);
        let place = CopyPlace::decode(payload);
        Ok(match (status, place) {
            (Status::Postponed, _) => Copied::Again,
            (Status::Changed, _) => Copied::Failed,
            (Status::More | Status::Done, Some((place, units))) => {
                out.extend_from_slice(units);
                if status == Status::More { Copied::More(place) } else { Copied::All(place) }
            }
            _ => Copied::Nothing,
        })
    }
}
