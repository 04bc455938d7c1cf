//! What changes make of a configuration's members, copies and log groups.
//!
//! *Invariants*: those of a configuration. Each function changes the configuration of the next version, which no node
//! goes by yet; an error drops that configuration. The first copy of a partition is its primary. Updates go to the
//! copies, then to learners, then to dismissed copies that are still updated. A log group begins with its own member, and
//! has two members at least, if there are two. A member that comes has no copy, and one that goes leaves none.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again", "Copies that move" and "Nodes that come back".
//!
//! *Not here*: where copies and primaries are to be, in `placement` and `spreading`; when changes are made, in `decider`.

use std::collections::{BTreeMap, BTreeSet};

use gannet_rules::rule;

use crate::configuration::{
    ChangeError, Configuration, Dismissal, Dismissed, Learner, MemberEntry, NOBODY, Phase,
};

/// Fewest members that keep a coordinator's records, if there are so many.
const LOG_REPLICAS_MIN: usize = 2;

/// How many of so many members keep a coordinator's records: as many as there are copies, and two where there is one. So the loss of a node
/// takes the rows of its partitions with it, and no outcome of a transaction.
pub(super) fn log_replicas(copies: usize, members: usize) -> usize {
    copies.max(LOG_REPLICAS_MIN).min(members)
}

impl Configuration {
    /// Roles and log groups at the start: as if all copies had moved and all primaries had changed that are to.
    pub(super) fn place_first(&mut self) {
        self.copies = self.first_copies();
        self.form_primaries();
        let held = |node| (node, self.copied_by(node));
        let mut held: BTreeMap<u16, BTreeSet<u16>> = self.member_numbers().map(held).collect();
        while let Some((partition, source, target)) = self.next_move(&held, &BTreeMap::new()) {
            held.entry(source).or_default().remove(&partition);
            held.entry(target).or_default().insert(partition);
            let copies = self.copies[usize::from(partition)].iter_mut();
            copies.filter(|node| **node == source).for_each(|node| *node = target);
            self.form_primaries();
        }
        while let Some(hand_overs) = self.relief(&self.primaries, &BTreeSet::new()) {
            for (partition, node) in hand_overs {
                let copies = &mut self.copies[usize::from(partition)];
                copies.sort_by_key(|copy| *copy != node);
            }
            self.form_primaries();
        }
        self.form_updated();
        self.form_log_groups();
        self.last_log_groups.clone_from(&self.log_groups);
    }

    /// The partitions that a node has a copy of.
    fn copied_by(&self, node: u16) -> BTreeSet<u16> {
        let partitions = (0..=u16::MAX).zip(&self.copies);
        partitions.filter(|(_, copies)| copies.contains(&node)).map(|(it, _)| it).collect()
    }

    fn form_primaries(&mut self) {
        let primary = |copies: &Vec<u16>| copies.first().copied().unwrap_or(NOBODY);
        self.primaries = self.copies.iter().map(primary).collect();
    }

    /// The copies of each partition at the start: the primaries are the members in their order, and the backups of each those that follow,
    /// of several that hold the fewest. Where there are zones, the backups are in as many as possible.
    fn first_copies(&self) -> Vec<Vec<u16>> {
        let members: Vec<u16> = self.member_numbers().collect();
        let partitions = self.partitioning.count();
        let primaries: Vec<u16> = members.iter().copied().cycle().take(partitions).collect();
        let mut held = vec![0; self.nodes()];
        primaries.iter().for_each(|node| held[usize::from(*node)] += 1);
        // In each whole round all hold equally many by themselves.
        let whole_rounds = if self.has_zones() { 0 } else { partitions / members.len() };
        let copies = primaries.into_iter().enumerate().map(|(partition, primary)| {
            let mut copies = vec![primary];
            let mut others = self.following(primary);
            if partition >= whole_rounds * members.len() {
                others.sort_by_key(|node| held[usize::from(*node)]);
            }
            self.extend_over_zones(&mut copies, others, self.replicas);
            copies[1..].iter().for_each(|node| held[usize::from(*node)] += 1);
            copies
        });
        copies.collect()
    }

    /// The other members, those that follow `node` first.
    fn following(&self, node: u16) -> Vec<u16> {
        let (before, after): (Vec<u16>, Vec<u16>) = self
            .member_numbers()
            .filter(|member| *member != node)
            .partition(|member| *member < node);
        [after, before].concat()
    }

    /// Adds the first of some nodes until there are `count`, at each step of those with the fewest in their zone.
    fn extend_over_zones(&self, chosen: &mut Vec<u16>, mut others: Vec<u16>, count: usize) {
        while chosen.len() < count {
            let places = 0..others.len();
            let next = places.min_by_key(|place| self.zone_mates(others[*place], &*chosen));
            let Some(place) = next else { break };
            chosen.push(others.remove(place));
        }
    }

    /// Makes a member a learner of a partition that is not lost and that it has no part of.
    pub(super) fn learn(&mut self, (partition, node): (u16, u16)) -> Result<(), ChangeError> {
        let exists = usize::from(partition) < self.copies.len();
        let has_memory = || self.holders_of(partition).any(|holder| holder == node);
        let is_possible = exists && !self.is_lost(partition) && !has_memory();
        if !is_possible || !self.is_member(node) {
            return Err(ChangeError::NoLearner { partition, node });
        }
        let learner = Learner { node, since: self.version, fills: false };
        self.learners[usize::from(partition)].push(learner);
        self.place();
        Ok(())
    }

    /// Makes a learner since some version a backup.
    pub(super) fn learned(
        &mut self,
        (partition, node): (u16, u16),
        since: u64,
    ) -> Result<(), ChangeError> {
        let no_learner = ChangeError::NoLearner { partition, node };
        let index = usize::from(partition);
        let learners = self.learners.get_mut(index).ok_or(no_learner.clone())?;
        let is_it =
            |learner: &mut Learner| learner.fills && (learner.node, learner.since) == (node, since);
        learners.extract_if(.., is_it).next().ok_or(no_learner)?;
        self.copies[index].push(node);
        self.place();
        Ok(())
    }

    /// Begins the epoch that was prepared. The transactions of the one before have ended.
    pub(super) fn activate(&mut self) {
        (self.phase, self.last_active_epoch) = (Phase::Active, self.epoch);
        let dismissed = self.dismissed.iter_mut().flatten();
        dismissed.for_each(|dismissed| dismissed.stage = Dismissal::Returned);
        if !self.dismissed.iter().all(Vec::is_empty) {
            self.place();
        }
        self.fill();
    }

    /// All transactions go by this configuration.
    pub(super) fn fill(&mut self) {
        let before = std::mem::take(&mut self.log_groups);
        self.form_log_groups();
        let mut groups = self.log_groups.iter().zip(&before);
        // Each change of the members has added those that were to come.
        debug_assert!(
            groups.all(|(group, before)| group.iter().all(|replica| before.contains(replica)))
        );
        self.last_log_groups.clone_from(&self.log_groups);
        self.learners.iter_mut().flatten().for_each(|learner| learner.fills = true);
        if self.has_dismissed() {
            for dismissed in self.dismissed.iter_mut().flatten() {
                dismissed.stage = match dismissed.stage {
                    Dismissal::Updated if rule!(DISMISSED_SPARED) => Dismissal::Spared,
                    _ => Dismissal::Returned,
                };
            }
            self.place();
        }
    }

    /// A node has given back the memory of a copy that it had given up.
    pub(super) fn freed(&mut self, (partition, node): (u16, u16)) -> Result<(), ChangeError> {
        let dismissed = self.dismissed.get_mut(usize::from(partition));
        let is_it = |it: &mut Dismissed| it.node == node && it.stage == Dismissal::Returned;
        let freed = dismissed.and_then(|dismissed| dismissed.extract_if(.., is_it).next());
        freed.ok_or(ChangeError::NotSpare { partition, node })?;
        self.place();
        Ok(())
    }

    /// Has a backup give up its copy, of which there are more than are wanted.
    pub(super) fn dismiss(&mut self, (partition, node): (u16, u16)) -> Result<(), ChangeError> {
        let (index, wanted) = (usize::from(partition), self.copies_wanted());
        let copies = self.copies.get_mut(index).filter(|copies| copies.len() > wanted);
        let is_backup = |copies: &Vec<u16>| copies.iter().skip(1).any(|copy| *copy == node);
        let copies = copies.filter(|copies| is_backup(copies));
        let copies = copies.ok_or(ChangeError::NotSpare { partition, node })?;
        copies.retain(|copy| *copy != node);
        self.dismissed[index].push(Dismissed {
            node,
            since: self.version,
            stage: Dismissal::Updated,
        });
        self.place();
        Ok(())
    }

    /// Has a member hold nothing that others can hold, or its share again.
    pub(super) fn drain(&mut self, node: u16, is_drained: bool) -> Result<(), ChangeError> {
        if !self.is_member(node) {
            return Err(ChangeError::NoSuchMember(node));
        }
        if is_drained && self.holders().all(|holder| holder == node) {
            return Err(ChangeError::LastToHold(node));
        }
        self.drained[usize::from(node)] = is_drained;
        self.change_log_groups();
        Ok(())
    }

    /// Takes a member out that nobody needs.
    pub(super) fn part(&mut self, node: u16) -> Result<(), ChangeError> {
        if !self.is_member(node) {
            return Err(ChangeError::NoSuchMember(node));
        }
        if !self.may_part(node) {
            return Err(ChangeError::Needed(node));
        }
        let index = usize::from(node);
        self.revoked[index] = true;
        self.log_groups[index].clear();
        self.last_log_groups[index].clear();
        // Nobody sends these updates, and their memory goes with the process.
        self.dismissed.iter_mut().for_each(|dismissed| dismissed.retain(|it| it.node != node));
        Ok(())
    }

    /// Forms the log groups anew. Until all transactions go by them, those of the groups before get the records, too: these are sure to have
    /// all.
    fn change_log_groups(&mut self) {
        let before = std::mem::take(&mut self.log_groups);
        self.form_log_groups();
        for (group, before) in self.log_groups.iter_mut().zip(before) {
            let more = before.into_iter().filter(|replica| !group.contains(replica));
            group.extend(more.collect::<Vec<_>>());
        }
    }

    /// Copies or learners have changed.
    pub(super) fn place(&mut self) {
        self.form_updated();
        self.placed = self.version;
    }

    /// Copies or learners have changed, or their roles.
    fn form_updated(&mut self) {
        let all = self.copies.iter().zip(&self.learners).zip(&self.dismissed);
        let updated = all.map(|((copies, learners), dismissed)| {
            let is_updated = |it: &&Dismissed| it.stage == Dismissal::Updated;
            let dismissed = dismissed.iter().filter(is_updated).map(|it| it.node);
            let learners = learners.iter().map(|learner| learner.node);
            copies.iter().copied().chain(learners).chain(dismissed).collect()
        });
        self.updated = updated.collect();
    }

    /// Makes a node a member again.
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
        self.drained[index] = false;
        self.change_log_groups();
        self.last_log_groups[index].clone_from(&self.log_groups[index]);
        Ok(())
    }

    /// The log group of each member is the member and those that follow, of as many zones as possible, drained ones last.
    fn form_log_groups(&mut self) {
        let replicas = log_replicas(self.replicas, self.member_numbers().count());
        let group = |node: u16| {
            if !self.is_member(node) {
                return Vec::new();
            }
            let (drained, others): (Vec<u16>, Vec<u16>) =
                self.following(node).into_iter().partition(|it| self.is_drained(*it));
            let mut group = vec![node];
            self.extend_over_zones(&mut group, others, replicas);
            self.extend_over_zones(&mut group, drained, replicas);
            group
        };
        self.log_groups = (0..).take(self.nodes()).map(group).collect();
    }

    /// Takes a member out of everything, and begins to prepare the next epoch. Whether partitions may lose their last copy by it.
    pub(super) fn remove(&mut self, node: u16, may_lose: bool) -> Result<(), ChangeError> {
        if !self.is_member(node) {
            return Err(ChangeError::NoSuchMember(node));
        }
        for (partition, copies) in (0..).zip(&mut self.copies) {
            let had_copies = !copies.is_empty();
            copies.retain(|copy| *copy != node);
            if had_copies && copies.is_empty() && !rule!(LEARNERS_APART) {
                let learners = self.learners[usize::from(partition)].iter();
                copies.extend(learners.map(|learner| learner.node).find(|it| *it != node));
            }
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
        if self.holders().next().is_none() {
            // What the last one has held the drained ones hold again.
            let members: Vec<_> = self.member_numbers().map(usize::from).collect();
            members.into_iter().for_each(|member| self.drained[member] = false);
        }
        for (learners, copies) in self.learners.iter_mut().zip(&self.copies) {
            learners.retain(|learner| learner.node != node && !copies.is_empty());
        }
        self.dismissed.iter_mut().for_each(|dismissed| dismissed.retain(|it| it.node != node));
        self.prepare_epoch();
        Ok(())
    }

    /// Makes backups the primaries of their partitions.
    pub(super) fn hand_over(&mut self, primaries: &[(u16, u16)]) -> Result<(), ChangeError> {
        for &(partition, node) in primaries {
            let no_backup = ChangeError::NoBackup { partition, node };
            let copies = self.copies.get_mut(usize::from(partition)).ok_or(no_backup.clone())?;
            let place = copies.iter().position(|copy| *copy == node).filter(|place| *place > 0);
            copies[..=place.ok_or(no_backup)?].rotate_right(1);
            self.primaries[usize::from(partition)] = node;
            self.handed_over[usize::from(partition)] = self.version;
        }
        self.form_updated();
        Ok(())
    }

    /// Copies have changed: roles and log groups follow, in the next epoch.
    fn prepare_epoch(&mut self) {
        self.form_primaries();
        self.place();
        self.form_log_groups();
        (self.epoch, self.phase) = (self.epoch + 1, Phase::Preparing);
    }
}
