//! Processes that come in the place of members that have ended, and of one that lives.
//!
//! Members run over simulated streams in virtual time, with the simulator's model of the manager's log. A test fails if a
//! process is not let in, if a flush lacks records of the members that are left, if members halt although a majority comes back
//! with its logs, or if a process takes the place of a living member.
//!
//! *Source*: `docs/protocol.md`, "Nodes that come back" and "A majority that comes back". *Not here*: real processes
//! (`tests/server/failures/restarts.rs`, `tests/server/failures/majority.rs`).

use super::*;

#[test]
fn a_member_that_ends_is_revoked_and_comes_back_as_another_process() {
    for seed in 0..100 {
        let mut random = SmallRng::seed_from_u64(seed);
        let nodes = random.random_range(2..=4);
        let (run, records) = with_records(Run::new(nodes, seed));
        let mut run = run.join();
        run.members.break_streams(random.random_range(0..40), 0);
        run.pass(random.random_range(0..SECOND_NS));
        let dead = random.random_range(0..nodes);
        run.members.kill(dead);
        let comes_back = random.random_bool(0.5);
        if comes_back {
            run.pass(random.random_range(0..3 * SECOND_NS));
            run.start(dead, 2);
        }
        // Of two members the first one votes alone.
        if dead == 0 && nodes == 2 {
            run.until("to halt", 20, |run| run.others(dead).all(|it| it.group.halted().is_some()));
            for member in run.others(dead) {
                let reason = member.group.halted().unwrap();
                assert!(reason.contains("node 0 at 10.0.0.1:7000 "), "{reason}");
            }
            continue;
        }
        let mut proposer = nodes - 1 - usize::from(dead == nodes - 1);
        if comes_back {
            run.until("to come back", 20, |run| run.members.member(dead).unwrap().has_joined());
            assert_eq!(run.halted(), vec![None; nodes]);
            let number = u16::try_from(dead).unwrap();
            run.until("to let it in", 20, |run| {
                let last = |fake: &Fake| fake.adopted.lock().unwrap().last().cloned().unwrap();
                let mut all = run.fakes.iter().map(last);
                all.all(|last| last.has_member(number, 2) && last.phase == Phase::Active)
            });
            proposer = dead;
        } else {
            run.until_epoch(2, &[dead]);
        }
        let of_dead = &run.fakes[dead].records;
        let of_others = records.difference(of_dead).cloned().collect::<Records>();
        for fake in (0..nodes).filter(|node| *node != dead).map(|node| &run.fakes[node]) {
            let flushed = fake.flushed.lock().unwrap();
            // The newcomer takes part in a flush when backups become primaries.
            let has_all = of_others.is_subset(&flushed) && flushed.is_subset(&records);
            assert!(
                has_all && (comes_back || *flushed == of_others),
                "the records of all that are left"
            );
        }
        // Tables can be created again, and two proposals of a new process are two.
        run.propose(proposer, "later".to_owned(), 20);
        run.propose(proposer, "still later".to_owned(), 20);
    }
}

/// So many members end at once that those that are left decide nothing, until enough processes with the logs of those are there.
#[test]
fn a_majority_comes_back_with_its_logs() {
    for seed in 0..60 {
        let mut random = SmallRng::seed_from_u64(seed);
        let nodes = random.random_range(2..=5);
        let mut run = Run::durable(nodes, seed).join();
        run.members.break_streams(random.random_range(0..40), 0);
        run.pass(random.random_range(0..SECOND_NS));
        // Log groups have up to three members, and one of each is left.
        let first = random.random_range(0..nodes);
        let after: &[usize] = if nodes == 5 { &[0, 1, 3] } else { &[0, 1][..nodes.min(3) - 1] };
        let dead: Vec<_> = after.iter().map(|after| (first + after) % nodes).collect();
        for node in &dead {
            run.members.kill(*node);
        }
        run.pass(random.random_range(0..5 * SECOND_NS));
        let lives = |run: &Run| run.halted().iter().all(Option::is_none);
        assert!(lives(&run), "{:?}", run.halted());
        for node in &dead {
            run.start_from(*node, 2, 1);
            run.pass(random.random_range(0..SECOND_NS));
        }
        run.until("to come back", 60, |run| {
            let joined = |node: &usize| run.members.member(*node).unwrap().has_joined();
            let last = |fake: &Fake| fake.adopted.lock().unwrap().last().cloned().unwrap();
            let is_whole = |last: Configuration| {
                let has = |node| last.has_member(node, 1) || last.has_member(node, 2);
                last.phase == Phase::Active && (0..u16::try_from(nodes).unwrap()).all(has)
            };
            dead.iter().all(joined) && run.fakes.iter().map(last).all(is_whole)
        });
        assert!(lives(&run), "{:?}", run.halted());
        run.propose(dead[0], "later".to_owned(), 20);
    }
}

/// The founders but one are removed, and that one is started again while the only other member, which came later, calls the process before.
#[test]
fn a_founder_comes_back_to_a_member_that_came_later() {
    for seed in 0..20 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut run = Run::durable(4, seed);
        let of_three = |node, incarnation| {
            let mut setup = setup(4, hello(node, incarnation));
            setup.terms.first_nodes = 3;
            setup
        };
        (0..3).for_each(|node| run.start_with(of_three(node, 1)));
        run.until("to join", 10, |run| run.members.all().all(|member| member.has_joined()));
        run.start_with(of_three(3, 1));
        run.until("to be added", 20, |run| run.members.member(3).unwrap().has_joined());
        for (lost, epoch) in [(1, 2), (2, 3)] {
            // A member that can vote in the place of a lost voter does so.
            run.pass(5 * SECOND_NS);
            run.members.kill(lost);
            run.until_epoch(epoch, &[1, 2][..lost]);
        }
        run.pass(random.random_range(0..SECOND_NS));
        run.members.kill(0);
        // The member sees that nobody listens, or another process.
        let is_away = random.random_bool(0.5);
        run.pass(if is_away { 5 * SECOND_NS } else { 0 });
        run.start_with(Setup { predecessor: Some(1), ..of_three(0, 2) });
        run.until("to come back", 60, |run| run.members.member(0).unwrap().has_joined());
        run.propose(3, "later".to_owned(), 20);
    }
}

/// What a process says on a connection that it has called by, and what the called one answers.
fn converse((caller, called): (&mut Group, u64), other: &mut Group) {
    caller.take(called, &Input::Connected);
    let connection = other.accepted("elsewhere".to_owned());
    let pass = |from: (&mut Group, u64), to: (&mut Group, u64)| {
        for action in drained(from.0).0 {
            if let Action::Send { connection, bytes } = action
                && connection == from.1
            {
                to.0.take(to.1, &Input::Heard(&bytes));
            }
        }
    };
    // The handshake takes some turns.
    for _ in 0..10 {
        pass((&mut *caller, called), (&mut *other, connection));
        pass((&mut *other, connection), (&mut *caller, called));
    }
}

/// A member that was cut off has not heard that it was removed. It takes a process that came later for one that was removed.
#[test]
fn a_member_that_was_removed_ends_nobody() {
    let mut before = unformed(3);
    for (node, member) in before.members.iter_mut().enumerate() {
        *member = hello(node, 1).entry;
    }
    let mut removed = Group::new(setup(3, hello(1, 1)), 0);
    removed.joined(&before);
    let join = Change::Join { node: 0, entry: hello(0, 2).entry };
    let changes = [Change::Lose(0), Change::Lose(1), Change::Activate, join];
    let after = changes.iter().fold(before, |it, change| it.after(change).unwrap());
    let mut later = Group::new(setup(3, hello(0, 2)), 0);
    later.joined(&after);
    later.advance(1);
    let (calls, _) = drained(&mut later);
    let mut calls = calls.iter().filter_map(|action| match action {
        Action::Call { connection, node: 1, .. } => Some(*connection),
        _ => None,
    });
    let called = calls.next().expect("it calls the address of the node that was removed");
    converse((&mut later, called), &mut removed);
    assert!(!later.is_leaving() && later.halted().is_none());
}

/// A member calls an address at which its cluster had a node. A process of another cluster is there, or one that begins anew after a halt.
#[test]
fn a_process_that_founds_a_cluster_is_told_of_its_own_alone() {
    for (is_of_other, has_halted) in [(false, false), (true, false), (false, true)] {
        let mut formed = unformed(3);
        for (node, member) in formed.members.iter_mut().enumerate() {
            *member = hello(node, 1).entry;
        }
        let mut settings = setup(3, hello(2, 1));
        if is_of_other {
            settings.hello.settings.insert("threads".to_owned(), "2".to_owned());
        }
        let mut member = Group::new(settings, 0);
        member.joined(&formed);
        if has_halted {
            member.cannot_go_on("the test ends it");
        }
        member.advance(1);
        let calls = drained(&mut member).0;
        let mut calls = calls.iter().filter_map(|action| match action {
            Action::Call { connection, node: 0, .. } => Some(*connection),
            _ => None,
        });
        let called = calls.next().expect("it calls node 0");
        let mut founder = Group::new(setup(3, hello(0, 2)), 0);
        converse((&mut member, called), &mut founder);
        assert_eq!(founder.comes_back.is_some(), !is_of_other && !has_halted);
    }
}

#[test]
fn a_process_with_the_number_of_a_living_member_is_not_let_in() {
    let mut run = Run::joined(3, 7);
    let mut other = Group::new(setup(3, hello(1, 2)), run.now_ns);
    // What it says first, said to a member as if from the address of the living one.
    other.advance(run.now_ns);
    let (calls, _) = drained(&mut other);
    let mut calls = calls.iter().filter_map(|action| match action {
        Action::Call { connection, node: 0, .. } => Some(*connection),
        _ => None,
    });
    let called = calls.next().unwrap();
    converse((&mut other, called), run.members.group_mut(0));
    let reason = other.comes_back.expect("it has met a member of a cluster");
    assert!(reason.contains("the process before it is a member still"), "{reason}");
    run.pass(5 * SECOND_NS);
    assert_eq!(run.halted(), [None, None, None]);
    run.propose(1, "by the living one".to_owned(), 5);
}
