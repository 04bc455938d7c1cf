//! Placement: which nodes are to hold which copies, and which copies are to be primaries.
//!
//! ```text
//! copies are missing                     ──▶ learners of them
//! a primary is to give up its copy       ──▶ another copy becomes primary
//! there are more copies than are wanted  ──▶ one of each is dismissed
//! primaries are spread unevenly          ──▶ backups become primaries
//! copies are spread unevenly, or share a zone without need, or a node is drained that others can hold copies for
//!                                        ──▶ learners on other nodes; then there are more copies than are wanted
//! ```
//! *Invariants*: functions of the configuration alone. A missing copy goes where the fewest others are in the same zone; of several nodes, to
//! that with the fewest copies, and then to that with the smallest number. Copies move out of zones that have others while a node of a zone
//! with fewer can have them. Else they move from a node to one that has at least two fewer, if its zone has no more of them: each move
//! makes them more even, and no further one follows. Primaries are spread as evenly as the copies allow: no chain of hand-overs leads from a node to another
//! that is primary of at least two partitions fewer. A drained node gets nothing, and keeps only what no other node can have.
//!
//! *Not here*: when that is done, in `decider`.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::{Change, Configuration, Learner};

/// A partition, the node that has copied it, or has given it back, and the version since which it did.
pub(crate) type CopiedPartition = (u16, u16, u64);

/// Copies by partition, each with a node.
type Copies = Vec<(u16, u16)>;

fn partitions(configuration: &Configuration) -> impl Iterator<Item = u16> + use<> {
    (0..=u16::MAX).take(configuration.partitioning.count())
}

/// Whether all copies and primaries are where they are to be, and nothing is under way.
pub(crate) fn is_reached(configuration: &Configuration) -> bool {
    configuration.settled_placement().is_some() && next_changes(configuration).is_empty()
}

/// The next change of what is under way, if one is possible: learners that have copied all rows become backups, and what is given back is freed.
/// All members go by the configuration.
pub(crate) fn under_way(
    configuration: &Configuration,
    copied: &BTreeSet<CopiedPartition>,
) -> Option<Change> {
    let mut learners = partitions(configuration).flat_map(|partition| {
        configuration.learners(partition).iter().map(move |learner| (partition, learner))
    });
    let mut waits = false;
    let learned = learners.find(|(partition, learner)| {
        waits |= !learner.fills;
        copied.contains(&(*partition, learner.node, learner.since)) && learner.fills
    });
    if let Some((partition, &Learner { node, since, .. })) = learned {
        return Some(Change::Learned { partition, node, since });
    }
    let freed: Vec<_> = configuration
        .dismissed()
        .filter(|(partition, it)| copied.contains(&(*partition, it.node, it.since)))
        .filter(|(_, it)| it.is_returned())
        .map(|(partition, it)| (partition, it.node))
        .collect();
    if !freed.is_empty() {
        return Some(Change::Freed(freed));
    }
    let is_due = waits || configuration.changes_log_groups() || configuration.has_dismissed();
    is_due.then_some(Change::Fill)
}

/// The changes towards the placement that are possible, the next one first: of the others some may follow from it. Nothing is under way:
/// there are neither learners nor dismissed copies.
pub(crate) fn next_changes(configuration: &Configuration) -> Vec<Change> {
    let missing = learners(configuration);
    let is_primary = |(partition, node): &(u16, u16)| configuration.primary(*partition) == *node;
    let has_to_go = surplus(configuration).iter().any(is_primary)
        || kept_needlessly(configuration).iter().any(is_primary);
    let primaries = primaries(configuration);
    let spare: Copies =
        surplus(configuration).into_iter().filter(|copy| !is_primary(copy)).collect();
    let balance = || Change::HandOver(primaries.clone());
    let all = [
        // They take room that others may need.
        (!spare.is_empty() && !missing.is_empty()).then(|| Change::Dismiss(spare.clone())),
        (!missing.is_empty()).then(|| Change::Learn(missing.clone())),
        (has_to_go && !primaries.is_empty()).then(balance),
        (!spare.is_empty()).then(|| Change::Dismiss(spare.clone())),
        (!primaries.is_empty()).then(balance),
    ];
    let mut changes: Vec<_> = all.into_iter().flatten().collect();
    if changes.is_empty() {
        let moves = moves(configuration);
        changes.extend((!moves.is_empty()).then_some(Change::Learn(moves)));
    }
    changes
}

/// How many copies are to move, or are moving.
pub(crate) fn copies_to_move(configuration: &Configuration) -> usize {
    if configuration.settled_placement().is_some() {
        return surplus(configuration).len() + moves(configuration).len();
    }
    // What follows from those that are under way is not known yet.
    let learners = partitions(configuration).map(|it| configuration.learners(it).len());
    learners.sum::<usize>() + configuration.dismissed().count()
}

/// How many partitions each of some nodes has a part of.
fn counts(configuration: &Configuration, nodes: impl Iterator<Item = u16>) -> BTreeMap<u16, usize> {
    nodes.map(|node| (node, configuration.held_by(node).count())).collect()
}

/// The learners that partitions need which lack copies.
pub(crate) fn learners(configuration: &Configuration) -> Copies {
    let wanted = configuration.copies_wanted();
    let mut held = counts(configuration, configuration.holders());
    let mut learners = Vec::new();
    for partition in partitions(configuration).filter(|it| !configuration.is_lost(*it)) {
        let mut coming = configuration.copies(partition).to_vec();
        coming.extend(configuration.learners(partition).iter().map(|learner| learner.node));
        while coming.len() < wanted {
            let is_new = |node: u16| {
                let mut holders = configuration.holders_of(partition);
                holders.all(|holder| holder != node) && !coming.contains(&node)
            };
            let rank = |(node, count): &(&u16, &usize)| {
                (configuration.zone_mates(**node, &coming), **count, **node)
            };
            let fewest = held.iter().filter(|(node, _)| is_new(**node)).min_by_key(rank);
            let Some((&node, _)) = fewest else { break };
            coming.push(node);
            learners.push((partition, node));
            *held.entry(node).or_default() += 1;
        }
    }
    learners
}

/// Of each partition with more copies than are wanted, the copy that goes: that of a drained node, or of the zone with the most of them, or
/// of the node with the most copies.
fn surplus(configuration: &Configuration) -> Copies {
    let wanted = configuration.copies_wanted();
    let mut held = counts(configuration, configuration.member_numbers());
    let mut surplus = Vec::new();
    for partition in partitions(configuration) {
        let copies = configuration.copies(partition);
        if copies.len() <= wanted {
            continue;
        }
        let rank = |node: &&u16| {
            let mates = configuration.zone_mates(**node, copies);
            (configuration.is_drained(**node), mates, held[*node], **node)
        };
        if let Some(&node) = copies.iter().max_by_key(rank) {
            *held.entry(node).or_default() -= 1;
            surplus.push((partition, node));
        }
    }
    surplus
}

/// The copies of drained nodes of partitions that others have copies of, too.
fn kept_needlessly(configuration: &Configuration) -> Copies {
    let drained = |node: &&u16| configuration.is_drained(**node);
    let all = partitions(configuration).flat_map(|partition| {
        let copies = configuration.copies(partition);
        let has_other = !copies.iter().all(|node| drained(&node));
        let kept = copies.iter().filter(drained).filter(move |_| has_other);
        kept.map(move |node| (partition, *node))
    });
    all.collect()
}

/// Where copies are to move: at most one of each partition at a time.
fn moves(configuration: &Configuration) -> Copies {
    let mut held: BTreeMap<u16, BTreeSet<u16>> = configuration
        .member_numbers()
        .map(|node| (node, configuration.held_by(node).collect()))
        .collect();
    let drained: Vec<_> =
        held.keys().copied().filter(|node| configuration.is_drained(*node)).collect();
    let drained: Vec<_> = drained.into_iter().filter_map(|it| held.remove(&it)).collect();
    let mut moves = BTreeMap::new();
    for partition in drained.into_iter().flatten() {
        let stay = || {
            let copies = configuration.copies(partition).iter();
            copies.filter(|node| !configuration.is_drained(**node))
        };
        let rank = |(node, has): &(&u16, &BTreeSet<u16>)| {
            (configuration.zone_mates(**node, stay()), has.len(), **node)
        };
        let fewest = held.iter().filter(|(_, has)| !has.contains(&partition));
        let target = fewest.min_by_key(rank).map(|(node, _)| *node);
        if let Some(node) = target.filter(|_| !moves.contains_key(&partition)) {
            held.entry(node).or_default().insert(partition);
            moves.insert(partition, node);
        }
    }
    while let Some((partition, source, target)) = configuration.next_move(&held, &moves) {
        held.entry(source).or_default().remove(&partition);
        held.entry(target).or_default().insert(partition);
        moves.insert(partition, target);
    }
    moves.into_iter().collect()
}

/// The backups that are to become primaries.
pub(crate) fn primaries(configuration: &Configuration) -> Copies {
    let before: Vec<_> =
        partitions(configuration).map(|partition| configuration.primary(partition)).collect();
    let mut after = before.clone();
    let barred: BTreeSet<_> =
        surplus(configuration).into_iter().chain(kept_needlessly(configuration)).collect();
    for (partition, primary) in partitions(configuration).zip(&before) {
        if barred.contains(&(partition, *primary)) {
            let load = |node: u16| after.iter().filter(|primary| **primary == node).count();
            let others = configuration.copies(partition).iter();
            let others = others.filter(|node| !barred.contains(&(partition, **node)));
            if let Some(node) = others.min_by_key(|node| load(**node)) {
                after[usize::from(partition)] = *node;
            }
        }
    }
    while let Some(hand_overs) = configuration.relief(&after, &barred) {
        for (partition, node) in hand_overs {
            after[usize::from(partition)] = node;
        }
    }
    let all = partitions(configuration).zip(before.into_iter().zip(after));
    all.filter(|(_, (before, after))| before != after)
        .map(|(partition, (_, after))| (partition, after))
        .collect()
}

#[cfg(test)]
mod tests;
