//! The configuration: the members of a cluster, which node holds which partition, and the tables. It is data that every node has
//! a copy of.
//!
//! ```text
//! at the start            partition p:  primary = member p mod N, backups = the next f members, of equally many copies
//! when a node is revoked  it is no copy any more; the first backup that is left is the primary
//! when a node is lost     the same; a partition without a copy is lost, and its primary is nobody
//! when a copy is missing  a member becomes learner of the partition, is filled, and is then one more backup
//! when a node comes back  it is a member in another incarnation, and has no copy
//! when copies are there   backups become primaries until members are primaries of equally many partitions
//! when a copy moves       its new place is filled first; then the old one is dismissed, gets no more updates, and is given back
//! when a node is drained  its copies move where others have room, and it is primary of no partition that others have
//! log group of node n     n and the next f members
//! ```
//! Where members name zones, the backups of a partition, and a log group, are in as many zones as possible.
//!
//! A revocation, or other primaries, begin the next epoch in the phase `Preparing`, in which nobody works; another change makes the epoch
//! `Active`. A node that comes back holds nothing: it begins no epoch.
//!
//! *Source*: `docs/architecture.md`, "Placement"; FaSST section 5, step 3, for the log replicas.
//!
//! *Invariants*: a configuration never changes; a change makes another one, of the next version. A number of a table is never used
//! again. A partition that is lost stays so.
//!
//! *Not here*: how changes are decided, in `change`, and what a change of the membership takes, in `membership_change`.

mod holding;
mod keys;
mod membership;
mod roles;
mod spreading;
mod tables;
mod zones;

use std::net::SocketAddr;

use gannet_storage::{HashSeed, Partitioning, TableDefinition};
use serde::{Deserialize, Serialize};

pub(crate) use holding::{Dismissal, Dismissed};
use tables::{TABLE_BYTES, Tables};

/// Bytes of a table's name.
const NAME_BYTES_MAX: usize = 255;
/// The primary of a partition that is lost. No node has this number: members are counted in 16 bits.
pub(crate) const NOBODY: u16 = u16::MAX;

/// A member of a configuration: what its process tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEntry {
    /// A random number of this start of the process.
    pub incarnation: u32,
    /// Bytes of table memory that it may use.
    pub memory_limit_bytes: u64,
    /// Where its workers are found, if the node's address does not tell: the name of the memory that it shares, or the addresses of its
    /// queue pairs, a line for each worker.
    pub ports: String,
    /// Whether its log of the membership outlives the process, so that a majority of those that decide may come back.
    pub keeps_log: bool,
    /// Where it is found. None where its clients need no address, as in one process.
    pub address: Option<SocketAddr>,
    /// The failure domain that it is in, such as a rack. Without a name, it is in one of its own.
    pub zone: String,
}

impl MemberEntry {
    /// In place of a node that has not come yet.
    pub(crate) fn absent() -> Self {
        Self {
            incarnation: 0,
            memory_limit_bytes: 0,
            ports: String::new(),
            keeps_log: false,
            address: None,
            zone: String::new(),
        }
    }
}

/// A node that is being filled with a partition. It gets all updates, is no copy yet, and answers nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learner {
    /// The node.
    pub node: u16,
    /// The version of the configuration since which it is one.
    pub since: u64,
    /// Whether all transactions have ended that do not send it their updates: it copies the rows of the others.
    pub fills: bool,
}

/// A table of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    /// What it is.
    pub definition: TableDefinition,
    /// Whether new transactions find it no more: it is removed when those before have ended.
    pub is_leaving: bool,
}

/// Whether an epoch has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The transactions of the last active epoch are finished or undone. Nobody works.
    Preparing,
    /// Members work.
    Active,
}

/// A change of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// The first change: these are the members.
    Form {
        /// By node.
        members: Vec<MemberEntry>,
        /// What goes into the hashes of keys from now on.
        seed: HashSeed,
    },
    /// There is another table. Its number is one that no table has had.
    Create(TableDefinition),
    /// New transactions do not find the table any more.
    Leave(u32),
    /// The table is gone. No transaction uses it: all have begun after it was left.
    Remove(u32),
    /// The node is no member any more. The next epoch is prepared. It is refused if the node has the only copy of a partition.
    Revoke(u16),
    /// The epoch that was prepared begins.
    Activate,
    /// The node has ended for certain, and is no member any more. The partitions of which it had the only copy are lost.
    Lose(u16),
    /// Nodes become learners of partitions, each named first.
    Learn(Vec<(u16, u16)>),
    /// All transactions have begun in the present configuration. They send their updates to the learners, which copy the rows from now
    /// on, and their records to the present log groups. Dismissed copies get no updates from now on, or are given back if they got none.
    Fill,
    /// Nodes have given back the memory of copies that they had given up, of partitions, each named first.
    Freed(Vec<(u16, u16)>),
    /// Nodes give up copies of partitions, each named first, of which there are more than are wanted.
    Dismiss(Vec<(u16, u16)>),
    /// The node is to hold nothing that others can hold, or is to hold its share again.
    Drain { node: u16, is_drained: bool },
    /// An operator has given up these nodes, and with them a majority of those that decided on the membership.
    GiveUp(Vec<u16>),
    /// The node, which is drained and holds nothing, is no member any more. It has ended all its transactions.
    Part(u16),
    /// The node, which is no member, comes back as another process. It holds nothing.
    Join { node: u16, entry: MemberEntry },
    /// A learner of a partition since some version has all its rows, and is a backup from now on.
    Learned { partition: u16, node: u16, since: u64 },
    /// Backups become primaries of partitions, each named first, and the primaries backups. These have no lock holders left.
    HandOver(Vec<(u16, u16)>),
}

/// Why a change is not possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ChangeError {
    /// There are members already.
    #[error("the cluster has its members already; start all nodes again to change them")]
    Formed,
    /// There is a table of that name.
    #[error("there is a table named {0} already; use another name")]
    TableExists(String),
    /// The name is too long.
    #[error("a table's name has {bytes} bytes; use at most {max}")]
    NameTooLong {
        /// What it has.
        bytes: usize,
        /// What it may have.
        max: usize,
    },
    /// The configuration has no room for another table with such a name.
    #[error(
        "the tables of a cluster take at most {0} bytes of its configuration, each its name and {TABLE_BYTES} more; drop one, or use \
         shorter names"
    )]
    TooManyTables(usize),
    /// All numbers of tables have been used.
    #[error("a cluster creates at most 4,294,967,296 tables in its life; start it again")]
    NoMoreTables,
    /// There is no such table.
    #[error("there is no table with number {0}; it may have been dropped")]
    NoSuchTable(u32),
    /// There is no such member.
    #[error("node {0} is no member; it may have been revoked before")]
    NoSuchMember(u16),
    /// The node is a member.
    #[error("node {0} is a member already; wait until it was removed")]
    AlreadyMember(u16),
    /// No copy of some rows would be left.
    #[error("node {node} has the only copy of partition {partition}; its rows would be lost")]
    LastCopy {
        /// The node.
        node: u16,
        /// A partition of which it has the only copy.
        partition: u16,
    },
    /// No log replica of some transactions would be left.
    #[error(
        "node {node} has the only log of the transactions of node {coordinator}; whether they have committed would be unknown"
    )]
    LastLogReplica {
        /// The node.
        node: u16,
        /// A node of which it has the only log.
        coordinator: u16,
    },
    /// The node cannot become a learner of the partition, or is none.
    #[error(
        "node {node} cannot be filled with partition {partition}; its copies have changed since"
    )]
    NoLearner {
        /// The partition.
        partition: u16,
        /// The node.
        node: u16,
    },
    /// The node cannot become the primary of the partition.
    #[error(
        "node {node} cannot become the primary of partition {partition}; it is no backup of it"
    )]
    NoBackup {
        /// The partition.
        partition: u16,
        /// The node.
        node: u16,
    },
    /// The node cannot give up its copy of the partition.
    #[error(
        "node {node} cannot give up its copy of partition {partition}; there are no more copies than are wanted"
    )]
    NotSpare {
        /// The partition.
        partition: u16,
        /// The node.
        node: u16,
    },
    /// The node is a member that is heard.
    #[error("node {0} is not silent; drain it and stop its process instead")]
    NotSilent(u16),
    /// All other nodes are drained.
    #[error("node {0} is the last one that is not drained; let another one hold its share first")]
    LastToHold(u16),
    /// The node has a part in the cluster that it would take with it.
    #[error("node {0} holds rows or logs of others; drain it, and wait until it is")]
    Needed(u16),
    /// Transactions hold locks of rows whose primary was to change.
    #[error("transactions hold locks of its rows for too long; try again")]
    RowsLocked,
    /// The membership is changed, or is not.
    #[error("the change does not fit the phase of the epoch; propose it again")]
    WrongPhase,
    /// A member could not.
    #[error("node {node} could not: {reason}")]
    Refused {
        /// Which one.
        node: usize,
        /// Why.
        reason: String,
    },
}

/// A cluster's membership, placement and tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Number of the cluster; packets of others are dropped.
    pub cluster_id: u32,
    /// Membership epoch; from 1. Each revocation begins another one.
    pub epoch: u32,
    /// Whether it has begun.
    pub phase: Phase,
    /// The last epoch that has begun: the present one, or the one whose transactions are being settled.
    pub last_active_epoch: u32,
    /// Rises with every change; from 1. Before the first change, which names the members, it is 0.
    pub version: u64,
    /// By node, those included that were revoked.
    pub members: Vec<MemberEntry>,
    /// By node: whether it was revoked.
    revoked: Vec<bool>,
    /// Copies of each partition, f + 1, as long as there are enough members.
    pub replicas: usize,
    /// How keys divide over partitions.
    pub partitioning: Partitioning,
    tables: Tables,
    /// By partition.
    primaries: Vec<u16>,
    /// By partition: the version in which a primary has handed it over last.
    handed_over: Vec<u64>,
    /// By partition: the primary, then the backups.
    copies: Vec<Vec<u16>>,
    /// By partition.
    learners: Vec<Vec<Learner>>,
    /// By partition: those that give up their copies.
    dismissed: Vec<Vec<Dismissed>>,
    /// By partition: the primary, the backups, the learners, and those that are dismissed and not spared yet.
    updated: Vec<Vec<u16>>,
    /// By node: whether it is to hold nothing that others can hold.
    drained: Vec<bool>,
    /// The nodes that an operator has given up with a majority that decided on the membership, each time with the epoch.
    pub(crate) given_up: Vec<(u32, Vec<u16>)>,
    /// The version in which copies or learners have changed last.
    placed: u64,
    /// By node: itself, then the others of its log group.
    log_groups: Vec<Vec<u16>>,
    /// By node: the log replicas that have the records of all its transactions of the last active epoch, without those that were revoked
    /// since.
    last_log_groups: Vec<Vec<u16>>,
}

impl Configuration {
    /// The static configuration of `nodes` nodes with `replicas` copies of each partition.
    ///
    /// # Panics
    /// If `replicas` is 0 or exceeds `nodes`: the caller checked the user's options.
    #[must_use]
    pub fn new(cluster_id: u32, nodes: u16, replicas: usize, partitioning: Partitioning) -> Self {
        assert!((1..=usize::from(nodes)).contains(&replicas), "a copy per node at most");
        let member = MemberEntry { incarnation: 1, ..MemberEntry::absent() };
        let partitions = partitioning.count();
        let mut first = Self {
            cluster_id,
            epoch: 1,
            phase: Phase::Active,
            last_active_epoch: 1,
            version: 1,
            members: vec![member; usize::from(nodes)],
            revoked: vec![false; usize::from(nodes)],
            replicas,
            partitioning,
            tables: Tables::default(),
            primaries: Vec::new(),
            handed_over: vec![0; partitions],
            learners: vec![Vec::new(); partitions],
            dismissed: vec![Vec::new(); partitions],
            drained: vec![false; usize::from(nodes)],
            updated: Vec::new(),
            given_up: Vec::new(),
            placed: 1,
            copies: Vec::new(),
            last_log_groups: Vec::new(),
            log_groups: Vec::new(),
        };
        first.place_first();
        first
    }

    /// The same, with further nodes up to this number, which may come later. Nobody waits for them.
    #[must_use]
    pub(crate) fn with_spares(mut self, nodes: usize) -> Self {
        self.members.resize(nodes, MemberEntry::absent());
        self.revoked.resize(nodes, true);
        self.drained.resize(nodes, true);
        self.log_groups.resize(nodes, Vec::new());
        self.last_log_groups.resize(nodes, Vec::new());
        self
    }

    /// The configuration that a change makes of this one.
    ///
    /// # Errors
    /// Why the change is not possible.
    pub(crate) fn after(&self, change: &Change) -> Result<Self, ChangeError> {
        let mut next = self.clone();
        next.version += 1;
        let fits_phase = match change {
            Change::Activate => self.phase == Phase::Preparing,
            Change::Revoke(_) | Change::Lose(_) => true,
            _ => self.phase == Phase::Active,
        };
        if !fits_phase {
            return Err(ChangeError::WrongPhase);
        }
        match change {
            Change::Form { members, seed } => {
                if self.is_formed() || members.len() != self.nodes() {
                    return Err(ChangeError::Formed);
                }
                next.members.clone_from(members);
                next.partitioning = next.partitioning.with_seed(*seed);
                next.place_first();
            }
            Change::Create(definition) => {
                check_name(&definition.name)?;
                if self.table_named(&definition.name).is_some() {
                    return Err(ChangeError::TableExists(definition.name.clone()));
                }
                let definition = definition.clone();
                next.tables.create(TableEntry { definition, is_leaving: false })?;
            }
            Change::Leave(number) => next.tables.leave(*number)?,
            Change::Remove(number) => next.tables.remove(*number)?,
            Change::Revoke(node) => next.remove(*node, false)?,
            Change::Lose(node) => next.remove(*node, true)?,
            Change::Activate => next.activate(),
            Change::Join { node, entry } => next.join(*node, entry)?,
            Change::Part(node) => next.part(*node)?,
            Change::Learn(learners) => learners.iter().try_for_each(|it| next.learn(*it))?,
            Change::Fill => next.fill(),
            Change::HandOver(primaries) => next.hand_over(primaries)?,
            Change::Dismiss(copies) => copies.iter().try_for_each(|it| next.dismiss(*it))?,
            Change::Freed(copies) => copies.iter().try_for_each(|it| next.freed(*it))?,
            Change::Drain { node, is_drained } => next.drain(*node, *is_drained)?,
            Change::GiveUp(nodes) => next.given_up.push((next.epoch, nodes.clone())),
            Change::Learned { partition, node, since } => {
                next.learned((*partition, *node), *since)?;
            }
        }
        Ok(next)
    }

    /// Whether transactions may be under way that go by other log groups.
    pub(crate) fn changes_log_groups(&self) -> bool {
        self.log_groups != self.last_log_groups
    }

    /// The tables, by number.
    pub fn tables(&self) -> impl Iterator<Item = (u32, &TableEntry)> {
        self.tables.iter()
    }

    /// The tables that may differ from those of a configuration before, by number.
    pub(crate) fn tables_since<'s>(
        &'s self,
        before: &'s Self,
    ) -> impl Iterator<Item = (u32, &'s TableEntry)> {
        self.tables.iter_unshared(&before.tables)
    }

    /// Whether both have the same tables.
    pub(crate) fn has_tables_of(&self, other: &Self) -> bool {
        self.tables == other.tables
    }

    /// The table with this number.
    pub(crate) fn table(&self, number: u32) -> Option<&TableEntry> {
        self.tables.get(number)
    }

    /// Whether both are of one active epoch, with the same copies of partitions, primaries and learners.
    pub(crate) fn is_placed_as(&self, other: &Self) -> bool {
        let phases = [self.phase, other.phase];
        (self.epoch, phases) == (other.epoch, [Phase::Active; 2])
            && self.primaries == other.primaries
            && self.copies == other.copies
            && self.learners == other.learners
            && self.dismissed == other.dismissed
    }

    /// Whether it differs from the one before in further tables alone.
    pub(crate) fn only_adds_tables_to(&self, before: &Self) -> bool {
        let has = |(number, entry)| self.table(number) == Some(entry);
        let alike =
            || Self { version: before.version, tables: before.tables.clone(), ..self.clone() };
        self.version == before.version + 1
            && before.tables_since(self).all(has)
            && self.tables.count() > before.tables.count()
            && alike() == *before
    }

    /// Whether there is a table with this number that new transactions find.
    pub(crate) fn has_table(&self, number: u32) -> bool {
        self.table(number).is_some_and(|table| !table.is_leaving)
    }

    /// Whether it is a later configuration that has the table with this number first.
    pub(crate) fn is_to_come(&self, number: u32) -> bool {
        self.tables.is_to_come(number)
    }

    /// The table with that name, leaving ones included, and its number.
    #[must_use]
    pub fn table_named(&self, name: &str) -> Option<(u32, &TableEntry)> {
        let number = self.tables.named(name)?;
        Some((number, self.table(number)?))
    }

    /// Number of nodes, those included that were revoked.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.members.len()
    }

    /// What a node starts with that this configuration is the first of: its members, one version before.
    pub(crate) fn before_tables(&self) -> Self {
        Self { version: self.version - 1, tables: Tables::default(), ..self.clone() }
    }

    /// The same configuration before its members are known.
    pub(crate) fn unformed(self) -> Self {
        Self { version: 0, ..self }
    }

    /// Whether the members are known.
    pub(crate) fn is_formed(&self) -> bool {
        self.version > 0
    }

    /// By node: bytes of table memory that it may use.
    pub(crate) fn memory_limits_bytes(&self) -> Vec<usize> {
        let limit = |member: &MemberEntry| usize::try_from(member.memory_limit_bytes);
        self.members.iter().map(|member| limit(member).unwrap_or(usize::MAX)).collect()
    }

    /// By node.
    pub(crate) fn incarnations(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.incarnation).collect()
    }

    /// Whether all nodes that had a copy of `partition` have ended.
    #[inline]
    #[must_use]
    pub fn is_lost(&self, partition: u16) -> bool {
        self.primary(partition) == NOBODY
    }

    /// The partitions that are lost.
    pub fn lost_partitions(&self) -> impl Iterator<Item = u16> + '_ {
        let primaries = (0..=u16::MAX).zip(&self.primaries);
        primaries.filter_map(|(partition, primary)| (*primary == NOBODY).then_some(partition))
    }

    /// The node that answers reads and grants locks of `partition`. For a partition that is lost, `u16::MAX`, which is no node.
    #[inline]
    #[must_use]
    pub fn primary(&self, partition: u16) -> u16 {
        self.primaries[usize::from(partition)]
    }

    /// The partitions that have other primaries than in another configuration.
    pub(crate) fn moved_since<'c>(&'c self, before: &'c Self) -> impl Iterator<Item = u16> + 'c {
        let both = (0..=u16::MAX).zip(self.primaries.iter().zip(&before.primaries));
        both.filter_map(|(partition, (after, before))| (after != before).then_some(partition))
    }

    /// Whether the same partitions were handed over last as in another configuration.
    pub(crate) fn has_hand_overs_of(&self, other: &Self) -> bool {
        self.handed_over == other.handed_over
    }

    /// Whether a partition was handed over to another primary after some version.
    #[inline]
    pub(crate) fn was_handed_over_since(&self, version: u64, partition: u16) -> bool {
        self.handed_over[usize::from(partition)] > version
    }

    /// The other nodes that hold `partition`.
    #[inline]
    #[must_use]
    pub fn backups(&self, partition: u16) -> &[u16] {
        self.copies(partition).get(1..).unwrap_or_default()
    }

    /// All nodes that hold `partition`, the primary first. None hold one that is lost.
    #[inline]
    #[must_use]
    pub fn copies(&self, partition: u16) -> &[u16] {
        &self.copies[usize::from(partition)]
    }

    /// The nodes that are being filled with `partition`.
    #[must_use]
    pub fn learners(&self, partition: u16) -> &[Learner] {
        &self.learners[usize::from(partition)]
    }

    /// All nodes that get the updates of `partition`: the primary first, then backups, learners, and copies that are about to be given up.
    #[inline]
    #[must_use]
    pub fn updated(&self, partition: u16) -> &[u16] {
        &self.updated[usize::from(partition)]
    }

    /// The version in which a copy has come or gone last, or a learner.
    pub(crate) fn placement(&self) -> u64 {
        self.placed
    }

    /// The same; none while copies come or go.
    pub(crate) fn settled_placement(&self) -> Option<u64> {
        let is_settled =
            self.learners.iter().all(Vec::is_empty) && self.dismissed.iter().all(Vec::is_empty);
        is_settled.then_some(self.placed)
    }

    /// Copies of each partition that is not lost, if there are none too few.
    pub(crate) fn copies_wanted(&self) -> usize {
        self.replicas.min(self.member_numbers().count())
    }

    /// How many copies there are too few, of partitions that are not lost.
    #[must_use]
    pub fn copies_missing(&self) -> usize {
        let wanted = self.copies_wanted();
        let kept = self.copies.iter().map(Vec::len).filter(|copies| *copies > 0);
        kept.map(|copies| wanted.saturating_sub(copies)).sum()
    }

    /// A partition whose primary is `node`, if there is one.
    #[must_use]
    pub fn partition_of(&self, node: u16) -> Option<u16> {
        let partition = self.primaries.iter().position(|primary| *primary == node)?;
        u16::try_from(partition).ok()
    }

    /// By coordinator: the log group of the last active epoch, without the members that were revoked since. A coordinator that was
    /// no member of that epoch has none.
    pub(crate) fn last_log_groups(&self) -> impl Iterator<Item = &[u16]> {
        self.last_log_groups.iter().map(Vec::as_slice)
    }

    /// Of the log replicas of `node`, those that have the records of all its transactions, even while log groups change.
    #[must_use]
    pub fn sure_log_group(&self, node: u16) -> &[u16] {
        &self.last_log_groups[usize::from(node)]
    }

    /// Where the transactions of `node` are logged: itself and f others.
    #[inline]
    #[must_use]
    pub fn log_group(&self, node: u16) -> &[u16] {
        &self.log_groups[usize::from(node)]
    }
}

/// Whether a table can have this name. A name that is longer than any message cannot even be proposed.
pub(crate) fn check_name(name: &str) -> Result<(), ChangeError> {
    let (bytes, max) = (name.len(), NAME_BYTES_MAX);
    if bytes > max { Err(ChangeError::NameTooLong { bytes, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
