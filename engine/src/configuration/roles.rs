//! What changes make of a configuration's members, copies and log groups.
//!
//! *Invariants*: those of a configuration. A member that comes has no copy, and one that goes leaves none.

use crate::configuration::{ChangeError, Configuration, Learner, MemberEntry, NOBODY, Phase};

impl Configuration {
    /// Makes a member a learner of a partition that is not lost and that it has no part of.
    pub(super) fn learn(&mut self, partition: u16, node: u16) -> Result<(), ChangeError> {
        let has_part = |updated: &Vec<u16>| updated.is_empty() || updated.contains(&node);
        let is_possible = self.updated.get(usize::from(partition)).is_some_and(|it| !has_part(it));
        if !is_possible || !self.is_member(node) {
            return Err(ChangeError::NoLearner { partition, node });
        }
        let learner = Learner { node, since: self.version, fills: false };
        self.learners[usize::from(partition)].push(learner);
        self.place();
        Ok(())
    }

    /// All transactions go by this configuration.
    pub(super) fn fill(&mut self) {
        self.last_log_groups.clone_from(&self.log_groups);
        self.learners.iter_mut().flatten().for_each(|learner| learner.fills = true);
    }

    /// Copies or learners have changed.
    pub(super) fn place(&mut self) {
        let all = self.copies.iter().zip(&self.learners);
        let updated = all.map(|(copies, learners)| {
            copies.iter().copied().chain(learners.iter().map(|learner| learner.node)).collect()
        });
        (self.updated, self.placed) = (updated.collect(), self.version);
    }

    /// Makes a node a member again. Log groups only grow by it: until all transactions go by the new ones, records are where the old ones
    /// have them.
    pub(super) fn join(&mut self, node: u16, entry: &MemberEntry) -> Result<(), ChangeError> {
        let index = usize::from(node);
        match self.revoked.get_mut(index) {
            None => return Err(ChangeError::NoSuchMember(node)),
            Some(is_revoked) => {
                if !std::mem::replace(is_revoked, false) {
                    return Err(ChangeError::AlreadyMember(node));
                }
            }
        }
        self.members[index] = entry.clone();
        let before = self.log_groups.clone();
        self.form_log_groups();
        for (group, before) in self.log_groups.iter_mut().zip(before) {
            if !before.iter().all(|replica| group.contains(replica)) {
                *group = before;
            }
        }
        self.last_log_groups[index].clone_from(&self.log_groups[index]);
        Ok(())
    }

    /// The log group of each member is the member and those that follow.
    fn form_log_groups(&mut self) {
        let members: Vec<u16> = self.member_numbers().collect();
        let replicas = self.replicas.min(members.len());
        let group = |node: u16| {
            let from = members.iter().position(|member| *member == node)?;
            Some(members.iter().cycle().skip(from).take(replicas).copied().collect())
        };
        self.log_groups =
            (0..).take(self.nodes()).map(|node| group(node).unwrap_or_default()).collect();
    }

    /// Takes a member out of everything, and begins to prepare the next epoch. Whether partitions may lose their last copy by it.
    pub(super) fn remove(&mut self, node: u16, may_lose: bool) -> Result<(), ChangeError> {
        if !self.is_member(node) {
            return Err(ChangeError::NoSuchMember(node));
        }
        for (partition, copies) in (0..).zip(&mut self.copies) {
            let had_copies = !copies.is_empty();
            copies.retain(|copy| *copy != node);
            if had_copies && copies.is_empty() && !may_lose {
                return Err(ChangeError::LastCopy { node, partition });
            }
        }
        for (coordinator, group) in (0..).zip(&mut self.last_log_groups) {
            let had_members = !group.is_empty();
            group.retain(|replica| *replica != node);
            if had_members && group.is_empty() {
                return Err(ChangeError::LastLogReplica { node, coordinator });
            }
        }
        self.revoked[usize::from(node)] = true;
        for (learners, copies) in self.learners.iter_mut().zip(&self.copies) {
            learners.retain(|learner| learner.node != node && !copies.is_empty());
        }
        self.prepare_epoch();
        Ok(())
    }

    /// Makes backups the primaries of their partitions, and begins to prepare the next epoch.
    pub(super) fn rebalance(&mut self, primaries: &[(u16, u16)]) -> Result<(), ChangeError> {
        for &(partition, node) in primaries {
            let no_backup = ChangeError::NoBackup { partition, node };
            let copies = self.copies.get_mut(usize::from(partition)).ok_or(no_backup.clone())?;
            let place = copies.iter().position(|copy| *copy == node).filter(|place| *place > 0);
            copies[..=place.ok_or(no_backup)?].rotate_right(1);
        }
        self.prepare_epoch();
        Ok(())
    }

    /// Copies have changed: roles and log groups follow, in the next epoch.
    fn prepare_epoch(&mut self) {
        let primary = |copies: &Vec<u16>| copies.first().copied().unwrap_or(NOBODY);
        self.primaries = self.copies.iter().map(primary).collect();
        self.place();
        self.form_log_groups();
        (self.epoch, self.phase) = (self.epoch + 1, Phase::Preparing);
    }
}
