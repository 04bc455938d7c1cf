//! Placement: which nodes are to hold which copies, and which copies are to be primaries.
//!
//! ```text
//! copies are missing                     ──▶ learners of them
//! a primary is to give up its copy       ──▶ another copy becomes primary
//! there are more copies than are wanted  ──▶ one of each is dismissed
//! primaries are spread unevenly          ──▶ backups become primaries
//! copies are spread unevenly, or a node is drained that others can hold copies for
//!                                        ──▶ learners on other nodes; then there are more copies than are wanted
//! ```
//! *Invariants*: functions of the configuration alone. A missing copy goes to the node with the fewest of those that may have it; of
//! several, to that with the smallest number. Copies move from a node to one that has at least two fewer, so each move makes them more
//! even, and no further one follows. Primaries are spread as evenly as the copies allow: no chain of hand-overs leads from a node to another
//! that is primary of at least two partitions fewer. A drained node gets nothing, and keeps only what no other node can have.
//!
//! *Not here*: when that is done, in `decider`.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::{Change, Configuration};

/// Copies by partition, each with a node.
type Copies = Vec<(u16, u16)>;

fn partitions(configuration: &Configuration) -> impl Iterator<Item = u16> + use<> {
    (0..=u16::MAX).take(configuration.partitioning.count())
}

/// Whether all copies and primaries are where they are to be, and nothing is under way.
pub(crate) fn is_reached(configuration: &Configuration) -> bool {
    configuration.settled_placement().is_some() && next_changes(configuration).is_empty()
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
        let coming =
            configuration.copies(partition).len() + configuration.learners(partition).len();
        for _ in coming..wanted {
            let is_new = |node: u16| {
                let mut holders = configuration.holders_of(partition);
                holders.all(|holder| holder != node) && !learners.contains(&(partition, node))
            };
            let fewest = held.iter().filter(|(node, _)| is_new(**node));
            let Some((&node, _)) = fewest.min_by_key(|(node, count)| (**count, **node)) else {
                break;
            };
            learners.push((partition, node));
            *held.entry(node).or_default() += 1;
        }
    }
    learners
}

/// Of each partition with more copies than are wanted, the copy that goes: that of a drained node, or of the node with the most.
fn surplus(configuration: &Configuration) -> Copies {
    let wanted = configuration.copies_wanted();
    let mut held = counts(configuration, configuration.member_numbers());
    let mut surplus = Vec::new();
    for partition in partitions(configuration) {
        let copies = configuration.copies(partition);
        if copies.len() <= wanted {
            continue;
        }
        let rank = |node: &&u16| (configuration.is_drained(**node), held[*node], **node);
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
        let fewest = held.iter().filter(|(_, has)| !has.contains(&partition));
        let target = fewest.min_by_key(|(node, has)| (has.len(), **node)).map(|(node, _)| *node);
        if let Some(node) = target.filter(|_| !moves.contains_key(&partition)) {
            held.entry(node).or_default().insert(partition);
            moves.insert(partition, node);
        }
    }
    while let Some((partition, source, target)) = evening_move(configuration, &held, &moves) {
        held.entry(source).or_default().remove(&partition);
        held.entry(target).or_default().insert(partition);
        moves.insert(partition, target);
    }
    moves.into_iter().collect()
}

/// A copy that is to move from the node with the most to the one with the fewest, if it has at least two fewer: a backup if there is one.
fn evening_move(
    configuration: &Configuration,
    held: &BTreeMap<u16, BTreeSet<u16>>,
    moves: &BTreeMap<u16, u16>,
) -> Option<(u16, u16, u16)> {
    let (source, most) = held.iter().max_by_key(|(node, has)| (has.len(), **node))?;
    let (target, fewest) = held.iter().min_by_key(|(node, has)| (has.len(), **node))?;
    let is_free = |partition: &&u16| !moves.contains_key(*partition);
    let movable = most.difference(fewest).filter(is_free);
    let partition = movable.min_by_key(|it| configuration.primary(**it) == *source)?;
    (most.len() >= fewest.len() + 2).then_some((*partition, *source, *target))
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
    while let Some(hand_overs) = relief(configuration, &after, &barred) {
        for (partition, node) in hand_overs {
            after[usize::from(partition)] = node;
        }
    }
    let all = partitions(configuration).zip(before.into_iter().zip(after));
    all.filter(|(_, (before, after))| before != after)
        .map(|(partition, (_, after))| (partition, after))
        .collect()
}

/// A chain of hand-overs from a node that is primary of many partitions to the one that is primary of the fewest, if those are at least two
/// fewer. In between, each node hands one partition over, and gets one. No copy that is barred becomes primary.
fn relief(
    configuration: &Configuration,
    primaries: &[u16],
    barred: &BTreeSet<(u16, u16)>,
) -> Option<Copies> {
    let count = |node: u16| primaries.iter().filter(|primary| **primary == node).count();
    let counts: BTreeMap<u16, usize> =
        configuration.member_numbers().map(|node| (node, count(node))).collect();
    let mut sources: Vec<_> = counts.keys().copied().collect();
    sources.sort_by_key(|node| std::cmp::Reverse(counts[node]));
    sources.into_iter().find_map(|source| {
        // Those that a chain leads to, the nearest first.
        let mut reached = vec![source];
        // By node: the partition that it would get, and from which node.
        let mut hand_overs = BTreeMap::new();
        let mut next = 0;
        while let Some(&from) = reached.get(next) {
            for (partition, _) in (0..).zip(primaries).filter(|(_, primary)| **primary == from) {
                for &copy in configuration.copies(partition) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gannet_storage::Partitioning;
    use proptest::prelude::*;

    use super::*;
    use crate::configuration::{ChangeError, MemberEntry, Phase};

    /// Makes all changes towards the placement. What follows, and how many copies were filled.
    fn settle(mut present: Configuration) -> (Configuration, usize) {
        let (mut learned, mut changes) = (0, 0);
        while let Some(change) = next_changes(&present).into_iter().next() {
            changes += 1;
            assert!(changes < 20, "{change:?} is one of many");
            let before = present;
            present = before.after(&change).unwrap();
            let mut then = |change| present = present.after(&change).unwrap();
            match change {
                Change::Learn(learners) => {
                    learned += learners.len();
                    then(Change::Fill);
                    let since = before.version + 1;
                    for (partition, node) in learners {
                        then(Change::Learned { partition, node, since });
                    }
                }
                Change::Dismiss(copies) => {
                    for (partition, node) in copies {
                        assert!(present.updated(partition).contains(&node));
                        assert!(present.copies(partition).len() >= present.copies_wanted());
                    }
                    present = present.after(&Change::Fill).unwrap();
                    assert!(present.updated(0).len() == present.copies(0).len());
                    assert!(present.has_dismissed());
                    present = present.after(&Change::Fill).unwrap();
                    assert!(!present.has_dismissed() && present.settled_placement().is_none());
                    let freed = present.dismissed().map(|(partition, it)| (partition, it.node));
                    present = present.after(&Change::Freed(freed.collect())).unwrap();
                }
                Change::HandOver(_) => {}
                change => panic!("{change:?} is none towards the placement"),
            }
        }
        (present, learned)
    }

    /// Goes on with the drain of a node until copies are dismissed.
    fn until_dismissed(mut present: Configuration) -> Configuration {
        while present.dismissed().next().is_none() {
            let change = next_changes(&present).remove(0);
            let since = present.version + 1;
            present = present.after(&change).unwrap();
            if let Change::Learn(learners) = change {
                present = present.after(&Change::Fill).unwrap();
                for (partition, node) in learners {
                    let learned = Change::Learned { partition, node, since };
                    present = present.after(&learned).unwrap();
                }
            }
        }
        present
    }

    #[test]
    fn a_drained_node_parts_when_others_have_its_copies_and_logs() {
        let drain = Change::Drain { node: 1, is_drained: true };
        let first = Configuration::new(7, 5, 3, Partitioning::new(16).unwrap());
        let drained = first.after(&drain).unwrap();
        assert_eq!(drained.log_group(0), [0, 2, 3]);
        let sure: Vec<_> = drained.last_log_groups().map(<[u16]>::to_vec).collect();
        assert_eq!(sure[0], [0, 2], "some records are in the old group, and some in the new one");
        assert_eq!(drained.after(&Change::Part(1)), Err(ChangeError::Needed(1)));
        let (settled, _) = settle(drained.after(&Change::Fill).unwrap());
        let parted = settled.after(&Change::Part(1)).unwrap();
        assert_eq!((parted.epoch, parted.is_member(1), parted.log_group(1)), (1, false, &[][..]));
        assert!(parted.has_left_drained(1) && parted.is_complete());
        assert_eq!(parted.after(&Change::Part(1)), Err(ChangeError::NoSuchMember(1)));
        // What it gives back goes with it; what may still get updates does not.
        let dismissed = until_dismissed(drained.after(&Change::Fill).unwrap());
        let spared = dismissed.after(&Change::Fill).unwrap();
        let returned = spared.after(&Change::Fill).unwrap();
        for early in [&dismissed, &spared] {
            assert_eq!(early.after(&Change::Part(1)), Err(ChangeError::Needed(1)));
        }
        assert!(returned.dismissed().next().is_some());
        assert!(returned.after(&Change::Part(1)).unwrap().dismissed().next().is_none());
        // Three nodes are needed for three copies.
        let three = Configuration::new(7, 3, 3, Partitioning::new(16).unwrap());
        let (three, _) = settle(three.after(&drain).unwrap());
        assert_eq!(three.log_group(0), [0, 2, 1]);
        assert_eq!(three.after(&Change::Part(1)), Err(ChangeError::Needed(1)));
    }

    #[test]
    fn a_node_learns_again_what_it_has_given_back() {
        let first = Configuration::new(7, 4, 3, Partitioning::new(4).unwrap());
        let drained = first.after(&Change::Drain { node: 1, is_drained: true }).unwrap();
        let present = until_dismissed(drained);
        let changes =
            [Change::Drain { node: 1, is_drained: false }, Change::Lose(0), Change::Activate];
        let present = changes.iter().fold(present, |it, change| it.after(change).unwrap());
        // Of some partitions it has old memory still, and nobody else lacks a copy.
        let possible = learners(&present);
        assert!(possible.len() < present.copies_missing());
        assert!(present.after(&Change::Learn(possible)).is_ok());
        let freed = present.dismissed().map(|(partition, it)| (partition, it.node)).collect();
        let freed = present.after(&Change::Freed(freed)).unwrap();
        let missing = learners(&freed);
        assert_eq!(missing.len(), freed.copies_missing());
        assert!(freed.after(&Change::Learn(missing)).is_ok());
    }

    proptest! {
        #[test]
        fn lost_copies_are_made_again_on_the_nodes_with_the_fewest(
            nodes in 2..9_u16,
            replicas in 1..4_usize,
            shift in 0..7_u32,
            lost in prop::collection::vec(0..9_u16, 0..4),
        ) {
            let partitioning = Partitioning::new(1 << shift).unwrap();
            let mut present =
                Configuration::new(7, nodes, replicas.min(usize::from(nodes)), partitioning);
            prop_assert_eq!(learners(&present), []);
            for node in lost {
                let removal = present.after(&Change::Lose(node % nodes));
                let Ok(prepared) = removal else { continue };
                let before = prepared.after(&Change::Activate).unwrap();
                let planned = learners(&before);
                let missing: usize = (0..=u16::MAX)
                    .take(before.partitioning.count())
                    .filter(|partition| !before.is_lost(*partition))
                    .map(|partition| before.copies_wanted() - before.copies(partition).len())
                    .sum();
                prop_assert_eq!(planned.len(), missing, "each missing copy is made, and no other");
                prop_assert_eq!(before.copies_missing(), missing);
                if planned.is_empty() {
                    present = before;
                    continue;
                }
                let learning = before.after(&Change::Learn(planned.clone())).unwrap();
                prop_assert_eq!(learners(&learning), [], "once");
                prop_assert_eq!(learning.settled_placement(), None);
                let mut filled = learning.after(&Change::Fill).unwrap();
                for (partition, node) in planned {
                    let learned = |since| Change::Learned { partition, node, since };
                    prop_assert!(learning.after(&learned(learning.version)).is_err(), "it is not filled");
                    prop_assert!(filled.after(&learned(learning.version - 1)).is_err(), "since another version");
                    filled = filled.after(&learned(learning.version)).unwrap();
                    prop_assert!(filled.copies(partition).contains(&node));
                }
                prop_assert!(filled.copies_missing() == 0 && filled.settled_placement().is_some());
                present = filled;
                let moved = primaries(&present);
                if moved.is_empty() {
                    continue;
                }
                let load = |configuration: &Configuration| {
                    let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
                    let all: Vec<_> = partitions.map(|it| configuration.primary(it)).collect();
                    let count = |node| all.iter().filter(|primary| **primary == node).count();
                    configuration.member_numbers().map(count).collect::<Vec<_>>()
                };
                let balanced = present.after(&Change::HandOver(moved.clone())).unwrap();
                prop_assert_eq!(primaries(&balanced), [], "once");
                let squares = |loads: Vec<usize>| loads.iter().map(|load| load * load).sum::<usize>();
                prop_assert!(squares(load(&balanced)) < squares(load(&present)), "more evenly");
                for partition in (0..=u16::MAX).take(balanced.partitioning.count()) {
                    let copies = |configuration: &Configuration| {
                        configuration.copies(partition).iter().copied().collect::<BTreeSet<_>>()
                    };
                    prop_assert_eq!(copies(&balanced), copies(&present), "no copy moves");
                }
                present = balanced;
            }
        }

        #[test]
        fn copies_spread_evenly_after_every_change_and_drained_nodes_hold_what_no_other_can(
            nodes in 1..9_u16,
            replicas in 1..4_usize,
            shift in 0..7_u32,
            steps in prop::collection::vec((0..9_u16, 0..4_u8), 0..8),
        ) {
            let partitioning = Partitioning::new(1 << shift).unwrap();
            let replicas = replicas.min(usize::from(nodes));
            let mut present = Configuration::new(7, nodes, replicas, partitioning);
            prop_assert_eq!(next_changes(&present).into_iter().next(), None, "at the start");
            for (node, kind) in steps {
                let node = node % nodes;
                let entry = MemberEntry {
                    incarnation: 9 + u32::try_from(present.version).unwrap(),
                    ..MemberEntry::absent()
                };
                let change = match kind {
                    0 => Change::Lose(node),
                    1 => Change::Join { node, entry },
                    2 => Change::Drain { node, is_drained: true },
                    _ => Change::Drain { node, is_drained: false },
                };
                let Ok(mut changed) = present.after(&change) else { continue };
                if changed.phase == Phase::Preparing {
                    changed = changed.after(&Change::Activate).unwrap();
                }
                changed = match changed.changes_log_groups() {
                    true => changed.after(&Change::Fill).unwrap(),
                    false => changed,
                };
                let wanted = changed.copies_wanted();
                let held = |configuration: &Configuration, nodes: Vec<u16>| -> Vec<usize> {
                    nodes.into_iter().map(|node| configuration.held_by(node).count()).collect()
                };
                let holders: Vec<u16> = changed.holders().collect();
                let before = held(&changed, holders.clone());
                let missing = learners(&changed).len();
                let (settled, learned) = settle(changed.clone());
                prop_assert_eq!(next_changes(&settled).into_iter().next(), None, "it is stable");
                let mut left_drained = 0;
                for partition in partitions(&settled).filter(|it| !settled.is_lost(*it)) {
                    let copies: BTreeSet<_> = settled.copies(partition).iter().copied().collect();
                    prop_assert_eq!(copies.len(), settled.copies(partition).len());
                    let has_all = holders.iter().all(|node| copies.contains(node));
                    prop_assert!(copies.len() == wanted || has_all, "{:?}", copies);
                    for &node in copies.iter().filter(|node| settled.is_drained(**node)) {
                        prop_assert!(has_all, "drained node {} keeps {}", node, partition);
                        prop_assert_ne!(settled.primary(partition), node);
                    }
                    let drained = |node: &&u16| changed.is_drained(**node) && !copies.contains(*node);
                    left_drained += changed.copies(partition).iter().filter(drained).count();
                }
                let after = held(&settled, holders);
                let (fewest, most) = (*after.iter().min().unwrap(), *after.iter().max().unwrap());
                prop_assert!(most <= fewest + 1, "{:?}", after);
                let below: usize = before.iter().map(|count| fewest.saturating_sub(*count)).sum();
                let above: usize = before.iter().map(|count| count.saturating_sub(most)).sum();
                let forced = missing + left_drained;
    // The nodes with the fewest may have some of these partitions already.
                let bound = forced.max(below) + above + after.len();
                prop_assert!(learned <= bound, "{} moved: {:?} to {:?}", learned, before, after);
                present = settled;
            }
        }

        #[test]
        fn primaries_that_can_be_anywhere_are_spread_evenly_with_the_fewest_hand_overs(
            nodes in 2..9_u16,
            shift in 0..7_u32,
            hand_overs in prop::collection::vec((0..64_u16, 0..9_u16), 0..64),
        ) {
            let partitioning = Partitioning::new(1 << shift).unwrap();
            let mut present = Configuration::new(7, nodes, usize::from(nodes), partitioning);
            for (partition, node) in hand_overs {
                let hand_over = Change::HandOver(vec![(partition, node)]);
                let Ok(next) = present.after(&hand_over) else { continue };
                prop_assert!(next.was_handed_over_since(present.version, partition));
                present = next;
            }
            let count = |configuration: &Configuration, node| {
                let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
                partitions.filter(|partition| configuration.primary(*partition) == node).count()
            };
            let moved = primaries(&present);
            let loads: Vec<_> = (0..nodes).map(|node| count(&present, node)).collect();
            let (even, rest) = ((1 << shift) / loads.len(), (1 << shift) % loads.len());
            let above = |bound: usize| loads.iter().map(|load| load.saturating_sub(bound)).sum::<usize>();
            let below = |bound: usize| loads.iter().map(|load| bound.saturating_sub(*load)).sum::<usize>();
            // `rest` nodes have one more.
            let fewest = if rest == 0 { above(even) } else { above(even + 1).max(below(even)) };
            prop_assert_eq!(moved.len(), fewest);
            let balanced = match moved.is_empty() {
                true => present,
                false => present.after(&Change::HandOver(moved)).unwrap(),
            };
            let loads: Vec<_> = (0..nodes).map(|node| count(&balanced, node)).collect();
            prop_assert!(loads.iter().all(|load| (even..=even + rest.min(1)).contains(load)), "{:?}", loads);
        }
        }
}
