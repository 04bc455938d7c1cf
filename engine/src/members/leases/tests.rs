//! Leases, silences and complaints, without members.
//!
//! The tests call one or two values of `Leases`, and give them the time; nothing waits. A test fails if a voter grants a lease
//! to a removed member or to another incarnation, if a lease counts from a renewal that no majority has granted, or if the
//! decider suspects a member too early, too late or without a majority. One test removes rule `COMPLAINTS`.
//!
//! *Source*: `docs/protocol.md`, "Leases". *Not here*: clocks that drift apart (`engine/tests/model/lease.rs`).

use std::time::Duration;

use super::*;

const MS: u64 = 1_000_000;

fn leases(node: u16, sets: &[&[u16]]) -> Leases {
    let mut leases = Leases::new(node, LeaseTerms::new(Duration::from_millis(100)));
    let sets = sets.iter().map(|set| set.iter().copied().collect()).collect();
    leases.set_voters(7, sets);
    leases
}

#[test]
fn a_lease_counts_from_the_newest_renewal_that_a_majority_has_granted() {
    let mut holder = leases(3, &[&[0, 1, 2]]);
    assert_eq!(holder.granted(0, (7, 50 * MS)), None);
    assert_eq!(holder.granted(1, (6, 50 * MS)), None, "of other members of the log");
    assert_eq!(holder.granted(1, (7, 20 * MS)), Some(110 * MS));
    assert_eq!(holder.granted(2, (7, 70 * MS)), Some(140 * MS));
    assert_eq!(holder.granted(2, (7, 10 * MS)), Some(140 * MS), "late");
    // While the members of the log change, both sets count.
    let mut holder = leases(3, &[&[0, 1, 2], &[0, 3, 4]]);
    for (voter, until) in [(0, None), (1, None), (3, Some(100 * MS))] {
        assert_eq!(holder.granted(voter, (7, 10 * MS)), until);
    }
}

#[test]
fn a_voter_grants_nothing_to_a_member_whose_removal_its_log_has() {
    let mut voter = leases(1, &[&[0, 1, 2]]);
    assert!(voter.grant((3, 1), (7, &[]), 0));
    assert!(!voter.grant((3, 1), (6, &[]), 0), "it names other members of the log");
    voter.stand(12, 3, Standing::Removed);
    assert!(!voter.grant((3, 1), (7, &[]), 0) && voter.grant((2, 1), (7, &[]), 0));
    // It comes back as another process, and the one before may still want a lease.
    voter.stand(15, 3, Standing::Member(2));
    assert!(voter.grant((3, 2), (7, &[]), 0) && !voter.grant((3, 1), (7, &[]), 0));
    voter.truncate(15);
    assert!(!voter.grant((3, 2), (7, &[]), 0) && !voter.grant((3, 1), (7, &[]), 0));
    voter.truncate(12);
    assert!(voter.grant((3, 1), (7, &[]), 0));
    voter.install(20, vec![(3, Standing::Member(2)), (2, Standing::Removed)]);
    voter.set_voters(21, vec![[0, 1].into()]);
    assert!(voter.grant((3, 2), (21, &[]), 0) && !voter.grant((3, 1), (21, &[]), 0));
    assert!(!voter.grant((2, 1), (21, &[]), 0));
    assert!(!leases(4, &[&[0, 1, 2]]).grant((3, 1), (7, &[]), 0), "it does not vote");
}

#[test]
fn a_decider_counts_only_silence_while_it_runs() {
    let mut decider = leases(0, &[&[0]]);
    let others = BTreeSet::from([1, 2]);
    assert!(decider.suspects(&others, 1_000 * MS).is_empty(), "it does not decide");
    others.iter().for_each(|node| assert!(decider.grant((*node, 1), (7, &[]), 1_000 * MS)));
    decider.set_decides(true, 1_000 * MS);
    for now in (1_020..1_100).step_by(20) {
        assert!(decider.suspects(&others, now * MS).is_empty());
    }
    assert!(decider.grant((2, 1), (7, &[]), 1_090 * MS));
    // It was not there for a second, of which 40 ms count: node 1 is silent for 120, node 2 for 40.
    assert!(decider.suspects(&others, 2_090 * MS).keys().eq([&1]));
    assert!(decider.suspects(&others, 2_110 * MS).is_empty(), "once");
    decider.grant((1, 1), (7, &[]), 2_110 * MS);
    decider.grant((2, 1), (7, &[]), 2_110 * MS);
    assert!(decider.suspects(&others, 2_130 * MS).is_empty());
}

#[test]
fn a_decider_that_hears_no_majority_suspects_nobody() {
    let others = BTreeSet::from([1, 2]);
    let mut decider = leases(0, &[&[0, 1, 2]]);
    others.iter().for_each(|node| assert!(decider.grant((*node, 1), (7, &[]), 0)));
    decider.set_decides(true, 0);
    for now in (20..2_000).step_by(20) {
        assert!(decider.suspects(&others, now * MS).is_empty(), "{now}");
    }
    // One of two is heard again: the other one is suspected after a while.
    let mut suspected = 0;
    for now in (2_000..2_200).step_by(20) {
        decider.grant((1, 1), (7, &[]), now * MS);
        suspected += decider.suspects(&others, now * MS).keys().filter(|node| **node == 2).count();
    }
    assert_eq!(suspected, 1);
}

#[test]
fn a_voter_that_is_no_member_any_more_is_not_heard() {
    let mut decider = leases(0, &[&[0, 1, 2]]);
    [1, 2].iter().for_each(|node| assert!(decider.grant((*node, 1), (7, &[]), 0)));
    decider.set_decides(true, 0);
    // Node 1 has ended a moment after it was heard, and now node 2 is silent.
    for now in (20..2_000).step_by(20) {
        assert!(decider.suspects(&BTreeSet::from([2]), now * MS).is_empty(), "{now}");
    }
}

#[test]
fn a_member_that_was_never_heard_is_given_longer() {
    let mut decider = leases(0, &[&[0]]);
    decider.set_decides(true, 0);
    let first = (0..10_000)
        .step_by(20)
        .find(|now| !decider.suspects(&BTreeSet::from([1]), now * MS).is_empty());
    assert_eq!(first, Some(5_100));
}

#[test]
fn of_members_that_do_not_get_on_one_has_to_go() {
    #[cfg(feature = "mutants")]
    let _mutant = std::env::var_os(WITHOUT_RULE).map(|_| crate::rules::COMPLAINTS.remove());
    let others = BTreeSet::from([1, 2, 3]);
    let accused = |complaints: &[(u16, u16)]| {
        let mut decider = leases(0, &[&[0]]);
        others.iter().for_each(|node| assert!(decider.grant((*node, 1), (7, &[]), 0)));
        decider.set_decides(true, 0);
        let mut accused = BTreeMap::new();
        for now in [0, 20, 40] {
            assert!(accused.is_empty(), "others may complain as well");
            for node in 0..4 {
                let about = complaints.iter().filter(|(from, _)| *from == node);
                let about: Vec<_> = about.map(|(_, about)| *about).collect();
                decider.grant((node, 1), (7, &about), now * MS);
            }
            accused = decider.suspects(&others, now * MS);
        }
        accused.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(accused(&[]), []);
    assert_eq!(accused(&[(2, 1)]), [2], "of two the greater number");
    assert_eq!(accused(&[(2, 1), (3, 1)]), [1], "most complain about it");
    assert_eq!(accused(&[(3, 0)]), [3], "of two the decider stays");
    assert_eq!(accused(&[(3, 0), (0, 2)]), [0], "the decider is at fault");
}
/// Set in the process that runs the test above without the rule.
#[cfg(feature = "mutants")]
const WITHOUT_RULE: &str = "GANNET_TEST_WITHOUT_COMPLAINTS";

#[cfg(feature = "mutants")]
#[test]
fn the_test_above_notices_that_complaints_do_not_count() {
    let name = "members::leases::tests::of_members_that_do_not_get_on_one_has_to_go";
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", name]).env(WITHOUT_RULE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("0 passed; 1 failed"), "{said}");
}

#[test]
fn a_member_without_a_log_hears_from_others_who_votes() {
    let set = |nodes: &[u16]| nodes.iter().copied().collect::<BTreeSet<_>>();
    let mut voter = leases(1, &[&[0, 1, 2]]);
    voter.set_voters(9, vec![set(&[1, 3, 4])]);
    assert_eq!(voter.other_voters(9), None);
    let (index, sets) = voter.other_voters(7).unwrap();
    let mut holder = leases(0, &[&[0, 1, 2]]);
    holder.hear_voters(index, sets.clone());
    assert_eq!(
        holder.renew(&set(&[1, 3, 4]), 0),
        Some((7, set(&[0, 1, 2]))),
        "its own log tells it"
    );
    holder.vote_no_more();
    holder.hear_voters(index, sets);
    assert_eq!(holder.renew(&set(&[1, 3, 4]), 0), Some((9, set(&[1, 3, 4]))));
    assert_eq!(holder.other_voters(7), None, "it knows no more than it is told");
    assert!(voter.grant((0, 1), (9, &[]), 0));
    assert_eq!(holder.granted(1, (9, 50 * MS)), None);
    assert_eq!(holder.granted(4, (9, 50 * MS)), Some(140 * MS));
}

#[test]
fn a_member_whose_log_fails_before_it_says_who_votes_asks_all_others() {
    let set = |nodes: &[u16]| nodes.iter().copied().collect::<BTreeSet<_>>();
    let mut voter = leases(1, &[&[0, 1, 2]]);
    let mut newcomer = Leases::new(3, voter.terms);
    let others = set(&[0, 1, 2]);
    assert_eq!(newcomer.renew(&others, 0), None, "its own log will tell it");
    newcomer.vote_no_more();
    assert!(newcomer.renews());
    let (index, asked) = newcomer.renew(&others, 0).unwrap();
    assert_eq!(asked, others);
    assert!(!voter.grant((3, 1), (index, &[]), 0));
    let (index, sets) = voter.other_voters(index).unwrap();
    newcomer.hear_voters(index, sets);
    assert_eq!(newcomer.renew(&others, 0), Some((index, set(&[0, 1, 2]))));
    assert!(voter.grant((3, 1), (index, &[]), 0));
    // None of those answers for a lease: others may vote by now.
    for _ in 1..RENEWALS_PER_LEASE {
        assert_eq!(newcomer.renew(&others, 0), Some((index, set(&[0, 1, 2]))));
    }
    assert_eq!(newcomer.renew(&others, 0), Some((NOWHERE, others)));
}
