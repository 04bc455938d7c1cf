//! Placement: which nodes are to be filled with partitions that lack copies.
//!
//! *Invariants*: a function of the configuration alone. No copy moves that is there. A node gets a copy if no other that could have the
//! copy has fewer; of several that have equally few, the one with the smallest number.
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

#[cfg(test)]
mod tests {
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
            }
        }
    }
}
