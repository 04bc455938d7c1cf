//! Spreading: steps that put copies into other zones, and that even copies and primaries out. They are repeated until there is none.
//!
//! *Invariants*: a copy leaves a zone that has others of its partition for a zone that has fewer. Else it moves from a node to one that has at
//! least two copies fewer, whose zone has no more of the partition: each step makes copies more even, and no step leads back.
//!
//! *Not here*: which changes of the configuration make a step, in `placement`.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::Configuration;

/// A partition, and the nodes from which and to which a copy moves.
pub(crate) type Move = (u16, u16, u16);

impl Configuration {
    fn partitions(&self) -> impl Iterator<Item = u16> + use<> {
        (0..=u16::MAX).take(self.partitioning.count())
    }

    /// The next copy that is to move, of partitions that do not move already: `held` has the partitions of nodes that hold their share, the
    /// moves so far included.
    pub(crate) fn next_move(
        &self,
        held: &BTreeMap<u16, BTreeSet<u16>>,
        moves: &BTreeMap<u16, u16>,
    ) -> Option<Move> {
        self.parting_move(held, moves).or_else(|| self.evening_move(held, moves))
    }

    /// A copy that is to move from a zone that has others of its partition to a node of a zone that has fewer: of that zone's nodes, to the one
    /// with the fewest copies.
    fn parting_move(
        &self,
        held: &BTreeMap<u16, BTreeSet<u16>>,
        moves: &BTreeMap<u16, u16>,
    ) -> Option<Move> {
        if !self.has_zones() {
            return None;
        }
        let is_free = |partition: &u16| !moves.contains_key(partition);
        self.partitions().filter(is_free).find_map(|partition| {
            let copies = self.copies(partition);
            let rank = |node: &&u16| {
                let is_backup = self.primary(partition) != **node;
                (self.zone_mates(**node, copies), is_backup, held[*node].len(), **node)
            };
            let source = *copies.iter().filter(|node| held.contains_key(node)).max_by_key(rank)?;
            let gains = |target: u16| {
                let (before, after) = self.mates(partition, source, target);
                after < before
            };
            let others = held.iter().filter(|(_, has)| !has.contains(&partition));
            let target = others.filter(|(node, _)| gains(**node)).min_by_key(|(node, has)| {
                (self.mates(partition, source, **node).1, has.len(), **node)
            })?;
            Some((partition, source, *target.0))
        })
    }

    /// How many other copies of a partition are in a node's zone, and how many would be in that of another node which had the copy instead.
    fn mates(&self, partition: u16, source: u16, target: u16) -> (usize, usize) {
        let others = || self.copies(partition).iter().filter(|node| **node != source);
        (self.zone_mates(source, others()), self.zone_mates(target, others()))
    }

    /// A copy that is to move from a node with many to one with at least two fewer, whose zone has no more of the partition: a backup if there is
    /// one.
    fn evening_move(
        &self,
        held: &BTreeMap<u16, BTreeSet<u16>>,
        moves: &BTreeMap<u16, u16>,
    ) -> Option<Move> {
        let mut nodes: Vec<_> = held.iter().collect();
        nodes.sort_by_key(|(node, has)| (has.len(), **node));
        let sources = nodes.iter().rev();
        let mut pairs = sources.flat_map(|source| nodes.iter().map(move |target| (source, target)));
        pairs.find_map(|((source, most), (target, fewest))| {
            if most.len() < fewest.len() + 2 {
                return None;
            }
            let is_free = |partition: &&u16| {
                let (before, after) = self.mates(**partition, **source, **target);
                !moves.contains_key(*partition) && after <= before
            };
            let movable = most.difference(fewest).filter(is_free);
            let partition = movable.min_by_key(|it| self.primary(**it) == **source)?;
            Some((*partition, **source, **target))
        })
    }

    /// A chain of hand-overs from a node that is primary of many partitions to the one that is primary of the fewest, if those are at least two
    /// fewer. In between, each node hands one partition over, and gets one. No copy that is barred becomes primary.
    pub(crate) fn relief(
        &self,
        primaries: &[u16],
        barred: &BTreeSet<(u16, u16)>,
    ) -> Option<Vec<(u16, u16)>> {
        let count = |node: u16| primaries.iter().filter(|primary| **primary == node).count();
        let counts: BTreeMap<u16, usize> =
            self.member_numbers().map(|node| (node, count(node))).collect();
        let mut sources: Vec<_> = counts.keys().copied().collect();
        sources.sort_by_key(|node| std::cmp::Reverse(counts[node]));
        sources.into_iter().find_map(|source| {
            // Those that a chain leads to, the nearest first.
            let mut reached = vec![source];
            // By node: the partition that it would get, and from which node.
            let mut hand_overs = BTreeMap::new();
            let mut next = 0;
            while let Some(&from) = reached.get(next) {
                for (partition, _) in (0..).zip(primaries).filter(|(_, primary)| **primary == from)
                {
                    for &copy in self.copies(partition) {
                        if !reached.contains(&copy) && !barred.contains(&(partition, copy)) {
                            reached.push(copy);
                            hand_overs.insert(copy, (partition, from));
                        }
                    }
                }
                next += 1;
            }
            let mut target = reached.into_iter().min_by_key(|node| counts[node])?;
            let is_relief = counts[&target] + 2 <= counts[&source];
            is_relief.then(|| {
                let chain = std::iter::from_fn(|| {
                    let &(partition, from) = hand_overs.get(&target)?;
                    Some((partition, std::mem::replace(&mut target, from)))
                });
                chain.collect()
            })
        })
    }
}
