//! Placement: which nodes are to be filled with partitions that lack copies, and which backups are to become primaries.
//!
//! *Invariants*: functions of the configuration alone. No copy moves that is there. A node gets a copy if no other that could have the
//! copy has fewer; of several that have equally few, the one with the smallest number. Primaries are spread as evenly as the copies allow:
//! no chain of hand-overs leads from a node to another that is primary of at least two partitions fewer.
//!
//! *Not here*: when that is done, in `decider`.

use std::collections::BTreeMap;

use crate::configuration::Configuration;

/// The learners that partitions need which lack copies: partitions and nodes.
pub(crate) fn learners(configuration: &Configuration) -> Vec<(u16, u16)> {
    let wanted = configuration.copies_wanted();
    let members = configuration.member_numbers();
    let mut held: BTreeMap<u16, usize> =
        members.map(|node| (node, configuration.held_by(node).count())).collect();
    let mut learners = Vec::new();
    for partition in (0..=u16::MAX).take(configuration.partitioning.count()) {
        let updated = configuration.updated(partition);
        if updated.is_empty() {
            continue;
        }
        for _ in updated.len()..wanted {
            let is_new =
                |node: u16| !updated.contains(&node) && !learners.contains(&(partition, node));
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

/// The backups that are to become primaries: partitions and nodes.
pub(crate) fn primaries(configuration: &Configuration) -> Vec<(u16, u16)> {
    let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
    let before: Vec<_> = partitions.map(|partition| configuration.primary(partition)).collect();
    let mut after = before.clone();
    while let Some(hand_overs) = relief(configuration, &after) {
        for (partition, node) in hand_overs {
            after[usize::from(partition)] = node;
        }
    }
    let all = (0..).zip(before.into_iter().zip(after));
    all.filter(|(_, (before, after))| before != after)
        .map(|(partition, (_, after))| (partition, after))
        .collect()
}

/// A chain of hand-overs from a node that is primary of many partitions to the one that is primary of the fewest, if those are at least two
/// fewer. In between, each node hands one partition over, and gets one.
fn relief(configuration: &Configuration, primaries: &[u16]) -> Option<Vec<(u16, u16)>> {
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
                    if !reached.contains(&copy) {
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
    use crate::configuration::Change;

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
                let spread = |configuration: &Configuration| {
                    let held = configuration.member_numbers().map(|it| configuration.held_by(it).count());
                    let held: Vec<_> = held.collect();
                    held.iter().max().unwrap() - held.iter().min().unwrap()
                };
                prop_assert!(spread(&learning) <= spread(&before).max(2), "evenly");
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
                let balanced = present.after(&Change::Rebalance(moved.clone())).unwrap();
                prop_assert_eq!(primaries(&balanced), [], "once");
                let squares = |loads: Vec<usize>| loads.iter().map(|load| load * load).sum::<usize>();
                prop_assert!(squares(load(&balanced)) < squares(load(&present)), "more evenly");
                for partition in (0..=u16::MAX).take(balanced.partitioning.count()) {
                    let copies = |configuration: &Configuration| {
                        configuration.copies(partition).iter().copied().collect::<BTreeSet<_>>()
                    };
                    prop_assert_eq!(copies(&balanced), copies(&present), "no copy moves");
                }
                present = balanced.after(&Change::Activate).unwrap();
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
                let rebalance = Change::Rebalance(vec![(partition, node)]);
                let Ok(prepared) = present.after(&rebalance) else { continue };
                present = prepared.after(&Change::Activate).unwrap();
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
                false => present.after(&Change::Rebalance(moved)).unwrap(),
            };
            let loads: Vec<_> = (0..nodes).map(|node| count(&balanced, node)).collect();
            prop_assert!(loads.iter().all(|load| (even..=even + rest.min(1)).contains(load)), "{:?}", loads);
        }
    }
}
