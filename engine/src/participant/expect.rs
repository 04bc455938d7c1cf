//! EXPECT: a transaction is about to insert many rows, for which a partition may need more buckets first.
//!
//! *Invariant*: the answer waits for nothing: it says whether buckets are to be split, and the transaction asks again.
//!
//! *Not here*: splits, in `growing`.

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::{Expect, Status};

impl Participant {
    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn expect(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Expect { table, partition, rows, .. } = Self::decoded(payload).0;
        let is_crowded = self.table(table).expect_rows(partition, rows);
        let status = if is_crowded { Status::Crowded } else { Status::Done };
        response.push(status as u16);
    }
}
