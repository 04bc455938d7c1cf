//! Properties of placement, of configurations that change at random.
//!
//! proptest draws clusters of up to eight nodes with their zones, losses, returns and drains; no test
//! starts a node. A test fails if copies or primaries stay uneven, if more copies move than the change
//! explains, if a copy or a log shares a zone while a node of a less crowded zone is free, if a drained
//! node keeps a copy that another can hold, or if the placement does not come to rest.
//!
//! *Source*: `docs/architecture.md`, "Placement"; `docs/protocol.md`, "Copies that move" and "Nodes that are drained".

use std::collections::BTreeSet;

use gannet_storage::{HashSeed, Partitioning};
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

/// A node comes or goes, or is drained or not: by `kind`. None if it cannot.
fn stepped(present: &Configuration, (node, kind): (u16, u8), zone: &str) -> Option<Configuration> {
    let entry = MemberEntry {
        incarnation: 9 + u32::try_from(present.version).unwrap(),
        zone: zone.to_owned(),
        ..MemberEntry::absent()
    };
    let change = match kind {
        0 => Change::Lose(node),
        1 => Change::Join { node, entry },
        2 => Change::Drain { node, is_drained: true },
        _ => Change::Drain { node, is_drained: false },
    };
    let mut changed = present.after(&change).ok()?;
    if changed.phase == Phase::Preparing {
        changed = changed.after(&Change::Activate).unwrap();
    }
    if changed.changes_log_groups() {
        changed = changed.after(&Change::Fill).unwrap();
    }
    Some(changed)
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
    assert_eq!(
        (drained.log_group(0), drained.sure_log_group(0)),
        (&[0, 2, 3, 1][..], &[0, 1, 2][..])
    );
    assert_eq!(drained.after(&Change::Part(1)), Err(ChangeError::Needed(1)));
    let filled = drained.after(&Change::Fill).unwrap();
    assert_eq!((filled.log_group(0), filled.sure_log_group(0)), (&[0, 2, 3][..], &[0, 2, 3][..]));
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
    let changes = [Change::Drain { node: 1, is_drained: false }, Change::Lose(0), Change::Activate];
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
        let Some(changed) = stepped(&present, (node % nodes, kind), "") else { continue };
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
fn no_copies_and_no_logs_share_a_zone_while_others_are_free(
    zones in prop::collection::vec(0..5_u8, 1..9),
    replicas in 1..4_usize,
    shift in 0..6_u32,
    steps in prop::collection::vec((0..9_u16, 0..4_u8, 0..5_u8), 0..8),
) {
    let partitioning = Partitioning::new(1 << shift).unwrap();
    let nodes = u16::try_from(zones.len()).unwrap();
    // Number 0: the node names none.
    let name = |zone: u8| if zone == 0 { String::new() } else { format!("rack {zone}") };
    let members = zones.iter().map(|zone| MemberEntry { zone: name(*zone), ..MemberEntry::absent() });
    let first = Configuration::new(7, nodes, replicas.min(zones.len()), partitioning).unformed();
    let mut present = first.after(&Change::Form { members: members.collect(), seed: HashSeed::ZERO }).unwrap();
    prop_assert_eq!(next_changes(&present), [], "at the start");
    for (node, kind, zone) in std::iter::once((0, 3, 0)).chain(steps) {
        let zone = name(zone);
        let Some(changed) = stepped(&present, (node % nodes, kind), &zone) else { continue };
        let (settled, _) = settle(changed);
        prop_assert_eq!(next_changes(&settled).into_iter().next(), None, "it is stable");
        let apart = |group: &[u16]| -> Result<(), TestCaseError> {
            for node in group.iter().filter(|node| !settled.is_drained(**node)) {
                let others = || group.iter().filter(|other| *other != node);
                let mates = settled.zone_mates(*node, others());
                for free in settled.holders().filter(|free| !group.contains(free)) {
                    let instead = settled.zone_mates(free, others());
                    prop_assert!(mates <= instead, "{:?}: {} for {}", group, free, node);
                }
            }
            Ok(())
        };
        for partition in partitions(&settled).filter(|it| !settled.is_lost(*it)) {
            apart(settled.copies(partition))?;
        }
        for member in settled.member_numbers() {
            let group = settled.log_group(member);
            prop_assert_eq!(group[0], member);
            prop_assert_eq!(group, settled.sure_log_group(member));
            // The coordinator's own log is where the coordinator is.
            for node in group[1..].iter().filter(|node| !settled.is_drained(**node)) {
                let others = || group.iter().filter(|other| *other != node);
                let mates = settled.zone_mates(*node, others());
                for free in settled.holders().filter(|free| !group.contains(free)) {
                    prop_assert!(mates <= settled.zone_mates(free, others()), "{:?}", group);
                }
            }
        }
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
