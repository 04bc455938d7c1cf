//! BACKUP: apply a unit at a backup, by its base version.

use gannet_rpc::ResponseWriter;
use gannet_storage::mutant::{Mutant, active};
use gannet_storage::{Applied, BucketUpdate};

use crate::participant::{Participant, Prepared};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn backup(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let unit = BucketUpdate::parse_checked(payload);
        if active(Mutant::DropBackupUpdate)
            && self.node.configuration().backups(unit.partition).first() == Some(&self.node.id())
        {
            return response.push(Status::Done as u16);
        }
        let status = match self.table(prepared.table).apply_at_backup(prepared.place, &unit) {
            Applied::Applied | Applied::Duplicate => Status::Done,
            Applied::Gap => {
                self.node.count_gap();
                Status::Gap
            }
        };
        response.push(status as u16);
    }
}
