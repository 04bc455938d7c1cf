//! Changes over links that say messages again, and by deciders that change at any moment while members end.
//!
//! Each test runs all members on its own thread, and sets their time. A seed draws the order of messages,
//! decisions, elections and deaths. A test fails if two members go by different configurations, if a
//! proposal gets no answer, if an epoch begins while the lease of a removed member lasts (rule
//! `LEASES_OVER`, which one test removes), or if a hand-over is undone that some member has adopted.
//!
//! *Source*: `docs/protocol.md`, "Membership change" and "Hand-over of primaries". *Not here*: streams
//! (`engine/src/members/tests.rs`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use gannet_storage::{Partitioning, TableDefinition, TableKind};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::replica::Records;

fn table(name: &str) -> Change {
    let name = name.to_owned();
    Change::Create(TableDefinition {
        name,
        kind: TableKind::Fixed,
        value_bytes: 8,
        rows: 9,
        is_system: false,
    })
}

/// A member that refuses tables of one name, and remembers what it has adopted.
#[derive(Clone, Default)]
struct Fake {
    refuses: Option<&'static str>,
    adopted: Rc<RefCell<Vec<Configuration>>>,
    is_stopped: bool,
    records: Records,
    /// Of the configuration that it goes by.
    version: u64,
    has_lock_holders: Rc<Cell<bool>>,
    /// What it hands over by, and by what it has served partitions again, and has not begun again.
    handing_over: Option<Configuration>,
    undone: Rc<RefCell<Vec<Configuration>>>,
}

impl Fake {
    fn go_by(&mut self, version: u64) {
        assert!(version > self.version, "versions of configurations only rise");
        self.version = version;
    }
}

impl Replica for Fake {
    type Prepared = Configuration;

    fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Configuration, String> {
        let refused = |name: &str| configuration.table_named(name).is_some();
        match self.refuses {
            Some(name) if refused(name) => Err(format!("no room for {name}")),
            _ => Ok((**configuration).clone()),
        }
    }

    fn check_room(&self, _: &Configuration) -> Result<(), String> {
        Ok(())
    }

    fn abandon(&mut self) {}

    fn begin_hand_over(&mut self, configuration: &Configuration) {
        self.undone.borrow_mut().retain(|undone| undone != configuration);
        self.handing_over = Some(configuration.clone());
    }

    fn has_no_lock_holders(&self) -> bool {
        !self.has_lock_holders.get()
    }

    fn undo_hand_over(&mut self) {
        self.undone.borrow_mut().extend(self.handing_over.take());
    }

    fn count_hand_over(&mut self, _: Duration) {}

    fn adopt(&mut self, prepared: Configuration) {
        self.handing_over = None;
        self.go_by(prepared.version);
        self.adopted.borrow_mut().push(prepared);
    }

    fn has_adopted(&self) -> bool {
        true
    }

    fn stop(&mut self, prepared: &Arc<Configuration>) {
        self.go_by(prepared.version);
        self.is_stopped = true;
    }

    fn records(&self) -> Option<Records> {
        Some(self.records.clone())
    }

    fn flush(&mut self, records: &Records) -> Result<(), String> {
        assert!(self.is_stopped, "a member is flushed while nobody works");
        self.records = records.clone();
        Ok(())
    }

    fn begin_epoch(&mut self, configuration: &Arc<Configuration>) {
        self.is_stopped = false;
        self.adopted.borrow_mut().push((**configuration).clone());
    }
}

/// By member: the answers to its proposals, and the configurations that it has adopted.
type Ended = (Vec<BTreeMap<u64, Result<(), ChangeError>>>, Vec<Vec<Configuration>>);

/// By sender and receiver: what was said, and how much of it was heard.
type Links = BTreeMap<(usize, usize), (Vec<ChangeMessage>, usize)>;

fn say(links: &mut Links, from: usize, said: Vec<Addressed>) {
    for (to, message) in said {
        links.entry((from, to)).or_default().0.push(message);
    }
}

/// Runs proposals of all members to their end, over links that keep the order between two members and say the last four messages
/// again at any time. Each member's answers, and what it has adopted.
fn run(seed: u64, proposals: &[(usize, Change)], refuses: Option<(usize, &'static str)>) -> Ended {
    let first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
    let fakes: Vec<_> = (0..3)
        .map(|node| Fake {
            refuses: refuses.filter(|(who, _)| *who == node).map(|(_, name)| name),
            ..Fake::default()
        })
        .collect();
    let members = fakes.iter().enumerate();
    let mut members: Vec<_> = members
        .map(|(node, fake)| Changes::new(node, Arc::new(first.clone()), fake.clone(), None))
        .collect();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut links = Links::new();
    let said = members[0].leads(1);
    say(&mut links, 0, said);
    let mut numbers = [0; 3];
    let mut proposals: VecDeque<_> = proposals.iter().cloned().collect();
    loop {
        let waiting: Vec<_> =
            links.iter().filter(|(_, (all, at))| *at < all.len()).map(|(way, _)| *way).collect();
        let (from, to, message) = match waiting.get(random.random_range(0..=waiting.len())) {
            Some(&way) => {
                let (all, at) = links.get_mut(&way).unwrap();
                let message = all[*at].clone();
                *at += 1;
                if random.random_range(0..10) == 0 {
                    *at = at.saturating_sub(random.random_range(1..=4));
                }
                (way.0, way.1, message)
            }
            None => match proposals.pop_front() {
                Some((node, change)) => {
                    numbers[node] += 1;
                    let propose = ChangeMessage::Propose { number: numbers[node], change };
                    (node, node, propose)
                }
                None if waiting.is_empty() => break,
                None => continue,
            },
        };
        let said = members[to].receive(from, message);
        say(&mut links, to, said);
        // Each decision is made at once, and all hear of it.
        while let Some(decision) = members[0].take_decisions().pop() {
            for (node, member) in members.iter_mut().enumerate() {
                let said = member.made(1, &decision);
                say(&mut links, node, said);
            }
        }
    }
    let answers = members.iter_mut().map(Changes::take_answers).collect();
    (answers, fakes.iter().map(|fake| fake.adopted.borrow().clone()).collect())
}

#[test]
fn all_members_go_by_the_same_configurations_and_each_proposal_is_answered() {
    let proposals: Vec<_> = ["a", "b", "c", "a", "d"]
        .iter()
        .enumerate()
        .map(|(n, name)| (n % 3, table(name)))
        .collect();
    for seed in 0..200 {
        let (answers, adopted) = run(seed, &proposals, None);
        assert_eq!(answers.iter().map(BTreeMap::len).sum::<usize>(), 5, "seed {seed}");
        let exists = Err(ChangeError::TableExists("a".to_owned()));
        let refused = answers.iter().flat_map(BTreeMap::values).filter(|it| **it == exists);
        assert_eq!(refused.count(), 1, "seed {seed}");
        let versions: Vec<_> = adopted[0].iter().map(|it| it.version).collect();
        assert_eq!(versions, [2, 3, 4, 5]);
        assert!(adopted[1] == adopted[0] && adopted[2] == adopted[0], "seed {seed}");
    }
}

#[test]
fn what_one_member_refuses_no_member_makes() {
    for seed in 0..200 {
        for node in 0..3 {
            let proposals = [(1, table("a")), (2, table("big")), (0, table("b"))];
            let (answers, adopted) = run(seed, &proposals, Some((node, "big")));
            let reason = "no room for big".to_owned();
            assert_eq!(answers[2][&1], Err(ChangeError::Refused { node, reason }));
            assert!(answers[1][&1].is_ok() && answers[0][&1].is_ok(), "seed {seed}");
            for adopted in adopted {
                assert_eq!(adopted.len(), 2, "seed {seed}");
                assert!(adopted.iter().all(|it| it.table_named("big").is_none()));
            }
        }
    }
}

/// Members whose decisions are made by a log, and what is under way between them.
struct Elected {
    members: Vec<Changes<Fake>>,
    fakes: Vec<Fake>,
    lost: BTreeSet<usize>,
    links: BTreeMap<(usize, usize), VecDeque<ChangeMessage>>,
    /// With the term in which each was taken.
    log: Vec<(u64, Decision)>,
    /// By member: how many decisions it has heard of.
    heard: Vec<usize>,
    leader: Option<usize>,
    /// Members that led before, and have not learnt that they do so no more.
    unaware: BTreeSet<usize>,
    term: u64,
    random: SmallRng,
}

/// The process of a node has ended.
fn lost(node: usize) -> ChangeMessage {
    let node = u16::try_from(node).unwrap();
    ChangeMessage::Lost { node, incarnation: 1, how: Loss::Gone }
}

impl Elected {
    fn new(nodes: u16, seed: u64, terms: Option<LeaseTerms>) -> Self {
        let first = Configuration::new(7, nodes, 3, Partitioning::new(4).unwrap());
        let fake = |node| Fake { records: Records::from([vec![node]]), ..Fake::default() };
        let fakes: Vec<_> = (0..).take(usize::from(nodes)).map(fake).collect();
        let new = |(node, fake): (usize, &Fake)| {
            Changes::new(node, Arc::new(first.clone()), fake.clone(), terms)
        };
        let mut members: Vec<_> = fakes.iter().enumerate().map(new).collect();
        members.iter_mut().for_each(|member| drop(member.poll()));
        Self {
            heard: vec![0; members.len()],
            members,
            fakes,
            lost: BTreeSet::new(),
            links: BTreeMap::new(),
            log: Vec::new(),
            leader: None,
            unaware: BTreeSet::new(),
            term: 0,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    fn left(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|node| !self.lost.contains(node)).collect()
    }

    /// What a member has said goes to the others. What it has decided goes to the log, if it leads.
    fn take(&mut self, from: usize, said: Vec<Addressed>) {
        for (to, message) in said.into_iter().filter(|(to, _)| !self.lost.contains(to)) {
            self.links.entry((from, to)).or_default().push_back(message);
        }
        let decisions = self.members[from].take_decisions();
        if self.leader == Some(from) {
            let term = self.term;
            self.log.extend(decisions.into_iter().map(|decision| (term, decision)));
        }
    }

    fn receive(&mut self, node: usize, from: usize, message: ChangeMessage) {
        let said = self.members[node].receive(from, message);
        self.take(node, said);
    }

    fn hear_decision(&mut self, node: usize) {
        if let Some(decision) = self.log.get(self.heard[node]).cloned() {
            self.heard[node] += 1;
            let (term, decision) = decision;
            let said = self.members[node].made(term, &decision);
            self.take(node, said);
        }
    }

    /// Another member leads, or the same one again.
    fn elect(&mut self) {
        self.unaware.extend(self.leader.filter(|leader| !self.lost.contains(leader)));
        let left = self.left();
        let leader = left[self.random.random_range(0..left.len())];
        while self.heard[leader] < self.log.len() {
            self.hear_decision(leader);
        }
        if self.unaware.remove(&leader) {
            self.members[leader].follows();
        }
        (self.leader, self.term) = (Some(leader), self.term + 1);
        let said = self.members[leader].leads(self.term);
        self.take(leader, said);
    }

    fn kill(&mut self, node: usize) {
        self.lost.insert(node);
        self.unaware.remove(&node);
        self.links.retain(|(from, to), _| *from != node && *to != node);
        if self.leader == Some(node) {
            self.leader = None;
        }
        for left in self.left() {
            self.receive(left, left, lost(node));
        }
    }

    /// A step of whatever may happen next; whether anything could.
    fn step(&mut self) -> bool {
        let ways: Vec<_> =
            self.links.iter().filter(|(_, all)| !all.is_empty()).map(|(way, _)| *way).collect();
        let behind: Vec<_> =
            self.left().into_iter().filter(|node| self.heard[*node] < self.log.len()).collect();
        let unaware = usize::from(!self.unaware.is_empty());
        if ways.len() + behind.len() + unaware == 0 {
            return false;
        }
        let choice = self.random.random_range(0..ways.len() + behind.len() + unaware);
        if choice == ways.len() + behind.len() {
            let before = self.unaware.pop_first().unwrap();
            self.members[before].follows();
            return true;
        }
        match ways.get(choice) {
            Some(&(from, to)) => {
                let message = self.links.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                self.receive(to, from, message);
            }
            None => self.hear_decision(behind[choice - ways.len()]),
        }
        true
    }
}

#[test]
fn deciders_may_change_and_members_end_at_any_moment() {
    for seed in 0..3_000 {
        let mut run = Elected::new(5, seed, None);
        run.elect();
        let names = ["a", "b", "c"];
        // In any order: members propose, other ones lead, and two members end.
        let mut events: VecDeque<_> = (0..9).collect();
        let mut proposers = Vec::new();
        loop {
            let is_time = run.random.random_range(0..8) == 0;
            match if is_time { events.pop_front() } else { None } {
                Some(event @ (0 | 3 | 6)) => {
                    // A member proposes one change after the other.
                    let has_none = |node: &usize| proposers.iter().all(|(other, _)| other != node);
                    let left: Vec<_> = run.left().into_iter().filter(has_none).collect();
                    let Some(&node) = left.first() else { continue };
                    let (number, change) = (event + 1, table(names[proposers.len()]));
                    proposers.push((node, number));
                    run.receive(node, node, ChangeMessage::Propose { number, change });
                }
                Some(2 | 7) => {
                    let left = run.left();
                    let node = left[run.random.random_range(0..left.len())];
                    run.kill(node);
                }
                Some(_) => run.elect(),
                None if run.leader.is_none() => run.elect(),
                None => {
                    if !run.step() && events.is_empty() {
                        break;
                    }
                }
            }
        }
        let left = run.left();
        let last = run.members[left[0]].configuration().clone();
        assert_eq!((last.phase, last.epoch), (Phase::Active, 3), "seed {seed}");
        for node in left {
            let member = &mut run.members[node];
            assert_eq!(*member.configuration(), last, "seed {seed}, node {node}");
            assert!(!run.lost.contains(&node) && member.take_end().is_none(), "seed {seed}");
            let answers = member.take_answers();
            for (_, number) in proposers.iter().filter(|(proposer, _)| *proposer == node) {
                assert_eq!(answers.get(number), Some(&Ok(())), "seed {seed}, node {node}");
            }
            let adopted = run.fakes[node].adopted.borrow();
            let epochs = adopted.iter().map(|it| (it.epoch, it.version));
            assert!(epochs.is_sorted(), "seed {seed}, node {node}");
        }
        let is_member = |node: &usize| last.is_member(u16::try_from(*node).unwrap());
        assert!(!run.lost.iter().any(is_member), "seed {seed}");
    }
}

/// It stood still, and hears of the next leader by the others' members before its own replica of the log tells.
#[test]
fn a_proposal_goes_to_the_next_decider_even_by_one_that_has_not_learnt_that_it_decides_no_more() {
    let mut run = Elected::new(3, 7, None);
    run.elect();
    let before = run.leader.unwrap();
    while run.leader == Some(before) {
        while run.step() {}
        run.unaware.clear();
        run.elect();
    }
    run.unaware.clear();
    while run.step() {}
    run.receive(before, before, ChangeMessage::Propose { number: 1, change: table("late") });
    while run.step() {}
    run.members[before].follows();
    while run.step() {}
    assert_eq!(run.members[before].take_answers(), BTreeMap::from([(1, Ok(()))]));
}

#[test]
fn a_new_table_keeps_its_memory_when_a_change_of_the_membership_comes_before_it_is_adopted() {
    let first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
    let with_table = first.after(&table("rows")).unwrap();
    let leaving = with_table.after(&Change::Leave(0)).unwrap();
    // The second change that leaves a table makes a configuration with the same tables.
    let cases = [
        (&first, table("rows"), true),
        (&first, table("rows"), false),
        (&leaving, Change::Leave(0), false),
    ];
    for (first, change, is_decided) in cases {
        let fake = Fake::default();
        let adopted = Rc::clone(&fake.adopted);
        let mut member = Changes::new(1, Arc::new(first.clone()), fake, None);
        let round = 1 << 32 | 1;
        member.receive(0, ChangeMessage::Prepare { round, change: change.clone() });
        let before = if is_decided { first.after(&change).unwrap() } else { first.clone() };
        let configuration = Box::new(before.after(&Change::Revoke(2)).unwrap());
        let step = Step::Prepare { configuration };
        member.receive(0, wrapped((0, MembershipMessage { number: round + 1, step })).1);
        assert_eq!(adopted.borrow().len(), usize::from(is_decided), "{change:?}");
    }
}

/// Else a majority of the voters that consists of such members would be waited for without an end.
#[test]
fn a_member_that_was_removed_counts_as_lost() {
    let first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
    let mut member = Changes::new(1, Arc::new(first.clone()), Fake::default(), None);
    assert!(member.lost().is_empty());
    let configuration = Box::new(first.after(&Change::Revoke(2)).unwrap());
    let (number, step) = (1 << 32 | 1, Step::Prepare { configuration });
    member.receive(0, wrapped((0, MembershipMessage { number, step })).1);
    assert_eq!(member.lost(), BTreeSet::from([2]));
}

/// A new decider tells all members what is decided. Meanwhile another process may have come in the place of one of them.
#[test]
fn a_process_that_is_not_let_in_yet_is_no_member_by_what_its_predecessor_is_told() {
    let first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
    let mut process = Changes::new(1, Arc::new(first.clone().unformed()), Fake::default(), None);
    let sync = |term, configuration: &Configuration| {
        let configuration = Box::new(configuration.clone());
        ChangeMessage::Sync { term, configuration }
    };
    assert_eq!(process.receive(2, sync(1, &first)), []);
    assert!(!process.is_formed());
    let step = Step::Prepare { configuration: Box::new(first.after(&Change::Lose(2)).unwrap()) };
    let number = 1 << 32 | 1;
    assert_eq!(process.receive(2, wrapped((2, MembershipMessage { number, step })).1), []);
    assert!(!process.is_formed());
    // It is let in.
    let removed = first.after(&Change::Lose(1)).unwrap().after(&Change::Activate).unwrap();
    let entry = MemberEntry { incarnation: 2, ..MemberEntry::absent() };
    let change = Change::Join { node: 1, entry };
    let joined = removed.after(&change).unwrap();
    let decided = Box::new(Decided::new(Arc::new(removed)));
    let round = 1 << 32 | 1;
    process.receive(2, ChangeMessage::Admit { round, decided, change });
    assert_eq!(process.receive(2, sync(1, &first)), []);
    assert!(!process.is_formed());
    let synced = (2, ChangeMessage::Synced { term: 1 });
    assert_eq!(process.receive(2, sync(1, &joined)), [synced]);
    assert_eq!(*process.configuration(), joined);
}

#[test]
fn a_member_that_hears_late_that_it_led_does_not_decide() {
    let first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
    let mut member = Changes::new(1, Arc::new(first), Fake::default(), None);
    member.receive(2, ChangeMessage::Leads { term: 3 });
    assert_eq!(member.leads(2), []);
    let is_sync = |(_, message): &Addressed| matches!(message, ChangeMessage::Sync { .. });
    assert!(member.leads(4).iter().any(is_sync));
}

/// Set in the process that runs the next test without the rule.
#[cfg(feature = "mutants")]
const WITHOUT_RULE: &str = "GANNET_TEST_WITHOUT_LEASES_OVER";

#[test]
fn an_epoch_begins_when_the_lease_of_the_removed_member_is_over() {
    #[cfg(feature = "mutants")]
    let _mutant = std::env::var_os(WITHOUT_RULE).map(|_| crate::rules::LEASES_OVER.remove());
    let terms = LeaseTerms::new(Duration::from_millis(100));
    let removed_ns = 1_000_000_000;
    let over_ns = removed_ns + terms.over_ns();
    let is_active = |elected: &Elected| {
        elected.log.iter().any(|(_, decision)| matches!(decision.change, Change::Activate))
    };
    for seed in 0..20 {
        let mut elected = Elected::new(4, seed, Some(terms));
        elected.elect();
        while elected.step() {}
        let leader = elected.leader.unwrap();
        elected.members[leader].set_time(removed_ns);
        elected.kill((leader + 1) % 4);
        for (now_ns, expected) in [(removed_ns, false), (over_ns - 1, false), (over_ns, true)] {
            elected.members[leader].set_time(now_ns);
            let said = elected.members[leader].poll();
            elected.take(leader, said);
            while elected.step() {}
            assert_eq!(is_active(&elected), expected, "seed {seed}, {now_ns}");
        }
    }
}

#[cfg(feature = "mutants")]
#[test]
fn the_test_above_notices_that_leases_are_not_waited_for() {
    let name = "change::tests::an_epoch_begins_when_the_lease_of_the_removed_member_is_over";
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", name]).env(WITHOUT_RULE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("0 passed; 1 failed"), "{said}");
}

/// A first hand-over, and the members that take part.
fn hand_over() -> (Elected, Change) {
    let mut elected = Elected::new(4, 7, None);
    elected.elect();
    while elected.step() {}
    let first = elected.members[0].configuration();
    let change = Change::HandOver(vec![(1, first.backups(1)[0])]);
    (elected, change)
}

#[test]
fn a_hand_over_waits_for_lock_holders_and_is_given_up_if_they_do_not_end() {
    for ends in [true, false] {
        let (mut elected, change) = hand_over();
        let (leader, source) = (elected.leader.unwrap(), 1);
        elected.fakes[source].has_lock_holders.set(true);
        elected.receive(0, 0, ChangeMessage::Propose { number: 1, change: change.clone() });
        while elected.step() {}
        let is_decided = |elected: &Elected| elected.log.iter().any(|(_, it)| it.change == change);
        let poll = |elected: &mut Elected, now_ns| {
            elected.members[source].set_time(now_ns);
            let said = elected.members[source].poll();
            elected.take(source, said);
            while elected.step() {}
        };
        poll(&mut elected, 1);
        assert!(!is_decided(&elected) && elected.members[source].awaits_workers());
        assert!(elected.members[0].take_answers().is_empty(), "{leader} waits");
        elected.fakes[source].has_lock_holders.set(!ends);
        poll(&mut elected, 1_000_000_000);
        assert_eq!(is_decided(&elected), ends);
        let undone = elected.fakes[source].undone.borrow().len();
        assert_eq!(undone, usize::from(!ends), "what is not handed over is served again");
        let answer = elected.members[0].take_answers().remove(&1).unwrap();
        assert!(answer == Ok(()) && ends || matches!(answer, Err(ChangeError::Refused { .. })));
        let is_primary = |member: &Changes<Fake>| member.configuration().primary(1) != 1;
        assert_eq!(
            elected.members.iter().filter(|it| is_primary(it)).count(),
            4 * usize::from(ends)
        );
        assert!(!elected.members[source].awaits_workers());
    }
}

/// Else two nodes would serve one partition.
#[test]
fn a_hand_over_that_may_be_decided_is_not_undone() {
    let mut undone = 0;
    for seed in 0..1_000 {
        let mut run = Elected::new(5, seed, None);
        run.elect();
        let mut events: VecDeque<_> = (0..8).collect();
        loop {
            let is_time = run.random.random_range(0..6) == 0;
            let holder = run.random.random_range(0..5);
            let holds = run.random.random_range(0..2) == 0;
            run.fakes[holder].has_lock_holders.set(holds && !events.is_empty());
            let left = run.left();
            for node in left {
                let said = run.members[node].poll();
                run.take(node, said);
            }
            match if is_time { events.pop_front() } else { None } {
                Some(event @ (0 | 3 | 5)) => {
                    let node = run.left()[0];
                    let present = run.members[node].configuration();
                    let partition = run.random.random_range(0..4);
                    let Some(&backup) = present.backups(partition).first() else { continue };
                    let change = Change::HandOver(vec![(partition, backup)]);
                    let propose = ChangeMessage::Propose { number: event + 1, change };
                    run.receive(node, node, propose);
                }
                Some(4) => {
                    let left = run.left();
                    let node = left[run.random.random_range(0..left.len())];
                    run.kill(node);
                }
                Some(_) => run.elect(),
                None if run.leader.is_none() => run.elect(),
                None => {
                    if !run.step() && events.is_empty() {
                        break;
                    }
                }
            }
        }
        let adopted: Vec<_> =
            run.fakes.iter().flat_map(|fake| fake.adopted.borrow().clone()).collect();
        for fake in &run.fakes {
            undone += fake.undone.borrow().len();
            let was_adopted = |it: &Configuration| adopted.contains(it);
            assert!(!fake.undone.borrow().iter().any(was_adopted), "seed {seed}");
        }
    }
    assert!(undone > 100, "some are undone: {undone}");
}
