//! SCAN: rows of a range of one partition, from its primary; and whether a scan's leaves have changed.

use std::ops::ControlFlow;

use gannet_rpc::ResponseWriter;
use gannet_storage::{LeafVersion, Scanned};

use crate::participant::Participant;
use crate::request::{RESPONSE_BYTES_MAX, Status};
use crate::scan_page::decode_shape;

/// Bytes of rows in one answer, unless the first row alone is longer.
const ROWS_BYTES_MAX: usize = 32 << 10;

impl Participant {
    /// Table and partition are here: `prepare` looked. The range is read when its turn has come.
    pub(super) fn scan(&mut self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        if response.bytes() > RESPONSE_BYTES_MAX {
            return response.push(Status::Postponed as u16);
        }
        let (request, bounds) = Self::said(payload);
        let Some((bounds, direction)) = decode_shape(request.key, bounds) else {
            return self.refuse(response);
        };
        let mut page = std::mem::take(&mut self.page);
        page.clear();
        let mut leaves = std::mem::take(&mut page.leaves);
        let table = self.table(request.table);
        let scanned =
            table.scan(request.detail, bounds, direction, request.owner, &mut leaves, |row| {
                page.push(&row);
                let is_full = page.row_bytes() >= ROWS_BYTES_MAX;
                if is_full || page.rows() >= request.bucket {
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
        let (request, _) = Self::said(payload);
        let seen = LeafVersion { leaf: request.bucket, counter: request.key };
        let is_unchanged = self.table(request.table).is_leaf_unchanged(request.detail, seen);
        let status = if is_unchanged { Status::Done } else { Status::Changed };
        response.push(status as u16);
    }
}
