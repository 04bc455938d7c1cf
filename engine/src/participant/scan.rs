//! SCAN: rows of a range of one partition, from its primary. COUNT: how many keys there are. VALIDATE_RANGE: whether keys have
//! come to a range, or gone, since its scan.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".

use std::ops::ControlFlow;

use gannet_rpc::ResponseWriter;
use gannet_storage::{Counted, Scanned};

use crate::answer::COUNT_BYTES;
use crate::participant::Participant;
use crate::participant::validate::status_of;
use crate::request::{RESPONSE_BYTES_MAX, Scan, Status, ValidateRange};
use crate::scan_page::decode_shape;

/// Bytes of rows in one answer, unless the first row alone is longer.
const ROWS_BYTES_MAX: usize = 32 << 10;
/// Leaves that one COUNT looks at: less than a millisecond's work.
const LEAVES_MAX: usize = 4_096;

impl Participant {
    /// `prepare` has checked that this node has the table and is the partition's primary. The range is read when its turn has come.
    pub(super) fn scan(&mut self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        if response.bytes() > RESPONSE_BYTES_MAX {
            return response.push(Status::Postponed as u16);
        }
        let (request, bounds) = Self::decoded::<Scan>(payload);
        let Some((bounds, direction)) = decode_shape(request.shape, bounds) else {
            return self.refuse(response);
        };
        let mut page = std::mem::take(&mut self.page);
        page.clear();
        let table = self.table(request.table);
        let (number, scanned) =
            table.scan(request.partition, bounds, direction, request.owner, |row| {
                page.push(&row);
                let is_full = page.row_bytes() >= ROWS_BYTES_MAX;
                if is_full || page.rows() >= request.rows {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        page.number = number;
        let status = match scanned {
            Scanned::Complete => Status::Done,
            Scanned::Stopped => Status::More,
            Scanned::Locked => Status::Locked,
        };
        if status == Status::Locked {
            response.push(status as u16);
        } else {
            let bytes = page.bytes();
            response.push_with(bytes, |out| {
                page.write(out);
                (status as u16, bytes)
            });
        }
        self.page = page;
    }

    /// As [`Self::scan`].
    pub(super) fn count(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, bounds) = Self::decoded::<Scan>(payload);
        let Some((bounds, _)) = decode_shape(request.shape, bounds) else {
            return self.refuse(response);
        };
        let Scan { partition, owner, .. } = request;
        let counted = self.table(request.table).count(partition, bounds, owner, LEAVES_MAX);
        let Some(Counted { number, keys, next }) = counted else {
            return response.push(Status::Locked as u16);
        };
        let status = if next.is_some() { Status::More } else { Status::Done };
        let next = next.unwrap_or_default();
        response.push_with(COUNT_BYTES + next.len(), |out| {
            let (counts, key) = out.split_at_mut(COUNT_BYTES);
            counts[..8].copy_from_slice(&number.to_le_bytes());
            counts[8..].copy_from_slice(&keys.to_le_bytes());
            key.copy_from_slice(&next);
            (status as u16, COUNT_BYTES + next.len())
        });
    }

    pub(super) fn validate_range(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, rest) = Self::decoded::<ValidateRange>(payload);
        let bounds = rest.split_first_chunk().and_then(|(number, bounds)| {
            Some((u64::from_le_bytes(*number), decode_shape(request.shape, bounds)?.0))
        });
        let Some((number, bounds)) = bounds else { return self.refuse(response) };
        let table = self.table(request.table);
        let found = table.validate_range(request.partition, bounds, number, request.owner);
        response.push(status_of(found) as u16);
    }
}
