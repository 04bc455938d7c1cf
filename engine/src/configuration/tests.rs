//! The configuration after each change: copies, primaries and log groups after losses, removals and returns of nodes.
//!
//! A configuration is data, so no test starts a node. A test fails if a node has two copies of a partition, if a removed node
//! has a part of the next epoch, or if a removal is accepted that takes the last log of a member. A revocation that takes the
//! last copy of a partition must be refused. A loss that does so must leave the other partitions as they were.
//!
//! *Source*: `docs/architecture.md`, "Placement". *Not here*: the moves that spread copies (`engine/src/placement/tests.rs`).

use super::*;

#[test]
fn copies_lie_on_different_nodes_and_primaries_spread() {
    let configuration = Configuration::new(7, 5, 3, Partitioning::new(16).unwrap());
    let mut primaries = [0; 5];
    for partition in 0..16 {
        let mut copies = configuration.copies(partition).to_vec();
        assert_eq!(copies[0], configuration.primary(partition));
        assert_eq!(copies[1..], *configuration.backups(partition));
        primaries[usize::from(copies[0])] += 1;
        copies.sort_unstable();
        copies.dedup();
        assert_eq!(copies.len(), 3);
    }
    assert_eq!(primaries, [4, 3, 3, 3, 3]);
    assert_eq!(configuration.log_group(4), [4, 0, 1]);
    for node in 0..5 {
        let partition = configuration.partition_of(node).unwrap();
        assert_eq!(configuration.primary(partition), node);
        let key = configuration.row_key_in(partition, b"copy");
        assert!(key.starts_with(b"copy"));
        let hash = configuration.partitioning.seed().hash(&key);
        assert_eq!(configuration.partitioning.partition(hash), partition);
    }
    let small = Configuration::new(7, 5, 3, Partitioning::new(2).unwrap());
    assert_eq!(small.partition_of(4), None);
}

#[test]
fn the_founder_gives_the_cluster_its_seed() {
    let unformed = Configuration::new(7, 3, 2, Partitioning::new(4).unwrap()).unformed();
    let (members, seed) = (unformed.members.clone(), HashSeed::new(5));
    let formed = unformed.after(&Change::Form { members, seed }).unwrap();
    let (before, after) = (unformed.partitioning, formed.partitioning);
    assert!(after.seed() == seed && before.seed() != seed);
    assert_eq!(before.with_seed(seed), after);
    let key = formed.row_key_in(3, b"copy");
    assert_eq!(formed.primary_of_row(&key), formed.primary(3));
}

#[test]
fn a_revoked_node_has_no_part_in_the_next_epoch() {
    let first = Configuration::new(7, 5, 3, Partitioning::new(16).unwrap());
    let prepared = first.after(&Change::Revoke(1)).unwrap();
    assert_eq!((prepared.epoch, prepared.phase), (2, Phase::Preparing));
    assert_eq!(prepared.last_active_epoch, 1);
    assert_eq!(prepared.copies(0), [0, 2]);
    assert_eq!((prepared.primary(1), prepared.backups(1)), (2, &[3][..]));
    assert_eq!(prepared.log_group(0), [0, 2, 3]);
    assert_eq!(prepared.log_group(1), []);
    assert_eq!(prepared.log_group(4), [4, 0, 2]);
    assert!(prepared.held_by(1).next().is_none() && !prepared.is_member(1));
    let table = TableDefinition {
        name: "t".to_owned(),
        kind: gannet_storage::TableKind::Fixed,
        value_bytes: 8,
        rows: 1,
        is_system: false,
    };
    assert_eq!(prepared.after(&Change::Create(table)), Err(ChangeError::WrongPhase));
    // Another one is lost before the epoch begins.
    let prepared = prepared.after(&Change::Revoke(2)).unwrap();
    assert_eq!((prepared.epoch, prepared.last_active_epoch), (3, 1));
    let refused = ChangeError::LastCopy { node: 3, partition: 1 };
    assert_eq!(prepared.after(&Change::Revoke(3)), Err(refused));
    assert_eq!(prepared.after(&Change::Revoke(2)), Err(ChangeError::NoSuchMember(2)));
    let active = prepared.after(&Change::Activate).unwrap();
    assert_eq!((active.phase, active.last_active_epoch), (Phase::Active, 3));
    assert_eq!(active.version, first.version + 3);
    assert_eq!(active.after(&Change::Activate), Err(ChangeError::WrongPhase));
    assert!(active.member_numbers().eq([0, 3, 4]));
    // Nodes 2 and 3 may be lost one after the other, and not together: nobody would know what became of the transactions of node 2.
    let first = Configuration::new(7, 5, 2, Partitioning::new(1).unwrap());
    let prepared = first.after(&Change::Revoke(2)).unwrap();
    let refused = ChangeError::LastLogReplica { node: 3, coordinator: 2 };
    assert_eq!(prepared.after(&Change::Revoke(3)), Err(refused));
    assert!(prepared.after(&Change::Activate).unwrap().after(&Change::Revoke(3)).is_ok());
}

#[test]
fn a_partition_is_lost_with_its_last_copy_and_the_others_go_on() {
    // Partition p lies at node p mod 5 and the next one.
    let first = Configuration::new(7, 5, 2, Partitioning::new(8).unwrap());
    let second = first.after(&Change::Revoke(2)).unwrap().after(&Change::Activate).unwrap();
    let refused = ChangeError::LastCopy { node: 3, partition: 2 };
    assert_eq!(second.after(&Change::Revoke(3)), Err(refused));
    assert_eq!(second.lost_partitions().count(), 0);
    let third = second.after(&Change::Lose(3)).unwrap();
    assert_eq!((third.epoch, third.phase), (3, Phase::Preparing));
    let third = third.after(&Change::Activate).unwrap();
    assert!(third.is_lost(2) && third.lost_partitions().eq([2, 7]));
    assert_eq!(third.primary(2), NOBODY);
    assert!(third.copies(2).is_empty() && third.backups(2).is_empty());
    let others = [0, 1, 3, 4].map(|partition| third.copies(partition).to_vec());
    assert_eq!(others, [vec![0, 1], vec![1], vec![4], vec![4, 0]]);
    assert!(third.member_numbers().all(|node| third.partition_of(node) != Some(2)));
    assert!(third.member_numbers().all(|node| third.held_by(node).all(|p| p != 2 && p != 7)));
    // What is lost already keeps no other node: here partition 4 goes on at node 0.
    let fourth = third.after(&Change::Lose(4)).unwrap();
    assert!(fourth.lost_partitions().eq([2, 3, 7]) && fourth.copies(4) == [0]);
}

#[test]
fn the_last_log_of_a_member_is_not_lost() {
    let first = Configuration::new(7, 5, 2, Partitioning::new(8).unwrap());
    let prepared = first.after(&Change::Lose(2)).unwrap();
    let refused = ChangeError::LastLogReplica { node: 3, coordinator: 2 };
    assert_eq!(prepared.after(&Change::Lose(3)), Err(refused));
}

#[test]
fn a_node_comes_back_with_nothing_and_log_groups_grow_first() {
    let entry = |incarnation| MemberEntry {
        incarnation,
        ports: "of 1".to_owned(),
        ..MemberEntry::absent()
    };
    let join = |incarnation| Change::Join { node: 1, entry: entry(incarnation) };
    for (replicas, of_others) in
        [(2, [[0, 1, 2].to_vec(), [2, 0].to_vec()]), (3, [[0, 1, 2].to_vec(), [2, 0, 1].to_vec()])]
    {
        let first = Configuration::new(7, 3, replicas, Partitioning::new(4).unwrap());
        assert_eq!(first.after(&join(2)), Err(ChangeError::AlreadyMember(1)));
        let prepared = first.after(&Change::Revoke(1)).unwrap();
        assert_eq!(prepared.after(&join(2)), Err(ChangeError::WrongPhase));
        let before = prepared.after(&Change::Activate).unwrap();
        let joined = before.after(&join(2)).unwrap();
        assert_eq!((joined.epoch, joined.version), (before.epoch, before.version + 1));
        assert!(joined.has_member(1, 2) && !joined.has_member(1, 1) && joined.is_complete());
        assert_eq!(joined.held_by(1).count(), 0);
        assert_eq!([joined.log_group(0), joined.log_group(2)].map(<[u16]>::to_vec), of_others);
        assert_eq!(joined.log_group(1)[..2], [1, 2]);
        // A record of an earlier transaction is with both others: each of them may be lost at once, and the newcomer.
        for node in 0..3 {
            assert!(joined.after(&Change::Lose(node)).is_ok(), "node {node} of {replicas}");
        }
        assert!(joined.changes_log_groups());
        let filled = joined.after(&Change::Fill).unwrap();
        assert!(!filled.changes_log_groups() && filled.log_group(0)[..2] == [0, 1]);
        assert_eq!(filled.log_group(0).len(), replicas, "those that are too many get no records");
    }
}
