//! BACKUP: apply a unit at a backup, by its base version.

use gannet_rpc::ResponseWriter;
use gannet_storage::Applied;
use gannet_storage::mutant::{Mutant, active};

use crate::participant::Participant;
use crate::request::Status;

impl Participant {
    pub(super) fn backup(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((table, unit)) = self.unit(payload) else {
            return self.refuse(response);
        };
        let first_backup = self.node.configuration().backups(unit.partition).first();
        if active(Mutant::DropBackupUpdate) && first_backup == Some(&self.node.id()) {
            return response.push(Status::Done as u16);
        }
        let status = match table.apply_at_backup(&unit) {
            Applied::Applied | Applied::Duplicate => Status::Done,
            Applied::Gap => {
                self.node.count_gap();
                Status::Gap
            }
        };
        response.push(status as u16);
    }
}
