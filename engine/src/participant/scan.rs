//! SCAN: rows of a range of one partition, from its primary. VALIDATE_LEAF: whether a leaf that a scan has read is unchanged.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".

use std::ops::ControlFlow;

use gannet_rpc::ResponseWriter;
use gannet_storage::{LeafVersion, Scanned};

use crate::participant::Participant;
use crate::request::{RESPONSE_BYTES_MAX, Scan, Status, ValidateLeaf};
use crate::scan_page::decode_shape;

/// Bytes of rows in one answer, unless the first row alone is longer.
const ROWS_BYTES_MAX: usize = 32 << 10;

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
        let mut leaves = std::mem::take(&mut page.leaves);
        let table = self.table(request.table);
        let scanned =
            table.scan(request.partition, bounds, direction, request.owner, &mut leaves, |row| {
                page.push(&row);
                let is_full = page.row_bytes() >= ROWS_BYTES_MAX;
                if is_full || page.rows() >= request.rows {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        page.leaves = leaves;
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

    pub(super) fn validate_leaf(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let ValidateLeaf { table, partition, leaf, counter, .. } = Self::decoded(payload).0;
        let seen = LeafVersion { leaf, counter };
        let is_unchanged = self.table(table).is_leaf_unchanged(partition, seen);
        let status = if is_unchanged { Status::Done } else { Status::Changed };
        response.push(status as u16);
    }
}
