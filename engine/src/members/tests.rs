//! Members over simulated streams that break anywhere, in virtual time. A test fails if members adopt different configurations
//! or a stranger becomes a member. *Not here*: sockets (`tests/relayed.rs`), returns (`tests/coming_back.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gannet_rpc::ClusterKey;
use gannet_storage::{HashSeed, Partitioning, TableDefinition, TableKind};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::calls::CALL_INTERVAL_NS;
use super::message::{Call, Message, Opening};
use super::{Action, ClusterTerms, Event, Group, Hello, Input, JoinError, Setup};
use crate::configuration::{Change, Configuration, MemberEntry, Phase};
use crate::lease::LeaseTerms;
use crate::link::{Role, Session, VERSION};
use crate::replica::{Records, Replica};
use crate::simulation::ManagerKind;
use crate::simulation::members::{SimulatedMember, SimulatedMembers};

mod coming_back;
mod relayed;

const SECOND_NS: u64 = 1_000_000_000;

/// A member that remembers what it has adopted, and refuses what has a table of one name or, without a name, everything.
#[derive(Clone, Default)]
struct Fake {
    refuses: Option<&'static str>,
    adopted: Arc<Mutex<Vec<Configuration>>>,
    /// Those of its log slots, and of the last flush.
    records: Records,
    flushed: Arc<Mutex<Records>>,
}

impl Replica for Fake {
    type Prepared = Configuration;

    fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Configuration, String> {
        match self.refuses {
            Some(name) if name.is_empty() || configuration.table_named(name).is_some() => {
                Err("no room".to_owned())
            }
            _ => Ok((**configuration).clone()),
        }
    }

    fn check_room(&self, _: &Configuration) -> Result<(), String> {
        Ok(())
    }

    fn abandon(&mut self) {}

    fn begin_hand_over(&mut self, _: &Configuration) {}

    fn has_no_lock_holders(&self) -> bool {
        true
    }

    fn undo_hand_over(&mut self) {}

    fn count_hand_over(&mut self, _: Duration) {}

    fn adopt(&mut self, prepared: Configuration) {
        self.adopted.lock().unwrap().push(prepared);
    }

    fn has_adopted(&self) -> bool {
        true
    }

    fn stop(&mut self, configuration: &Arc<Configuration>) {
        self.adopted.lock().unwrap().push((**configuration).clone());
    }

    fn records(&self) -> Option<Records> {
        Some(self.records.clone())
    }

    fn flush(&mut self, records: &Records) -> Result<(), String> {
        self.records = records.clone();
        *self.flushed.lock().unwrap() = records.clone();
        Ok(())
    }

    fn begin_epoch(&mut self, configuration: &Arc<Configuration>) {
        self.adopted.lock().unwrap().push((**configuration).clone());
    }
}

fn table(name: String) -> Change {
    Change::Create(TableDefinition {
        name,
        kind: TableKind::Fixed,
        value_bytes: 8,
        rows: 9,
        is_system: false,
    })
}

fn unformed(nodes: usize) -> Configuration {
    let nodes = u16::try_from(nodes).unwrap();
    Configuration::new(7, nodes, usize::from(nodes.min(3)), Partitioning::new(4).unwrap())
        .unformed()
}

fn hello(node: usize, incarnation: u32) -> Hello {
    let ports = format!("of {node}");
    let entry = MemberEntry { incarnation, memory_limit_bytes: 9, ports, ..MemberEntry::absent() };
    let settings = BTreeMap::from([("threads".to_owned(), "1".to_owned())]);
    Hello { node, entry, settings }
}

/// How long a lease lasts.
const LEASE: Duration = Duration::from_secs(1);

fn setup(nodes: usize, hello: Hello) -> Setup {
    let address = |node| Some(([10, 0, 0, 1], 7_000 + u16::try_from(node).unwrap()).into());
    let terms = ClusterTerms {
        addresses: (0..nodes).map(address).collect(),
        first_nodes: nodes,
        lease: LEASE,
        ..ClusterTerms::default()
    };
    Setup {
        hello,
        terms,
        founds: true,
        key: Some(ClusterKey::new([7; 32])),
        hash_seed: HashSeed::new(7),
        join_timeout: Duration::from_secs(60),
        predecessor: None,
    }
}

/// Members in virtual time.
struct Run {
    members: SimulatedMembers<Fake>,
    fakes: Vec<Fake>,
    /// Whether logs outlive their processes.
    is_durable: bool,
    now_ns: u64,
}

impl Run {
    /// No member has started yet.
    fn new(nodes: usize, seed: u64) -> Self {
        let fakes = vec![(); nodes].into_iter().map(|()| Fake::default()).collect();
        let members = SimulatedMembers::new(seed, ManagerKind::Model);
        Self { members, fakes, is_durable: false, now_ns: 0 }
    }

    /// The same, of members whose logs outlive their processes.
    fn durable(nodes: usize, seed: u64) -> Self {
        let members = SimulatedMembers::new(seed, ManagerKind::DurableModel);
        Self { members, is_durable: true, ..Self::new(nodes, seed) }
    }

    fn start(&mut self, node: usize, incarnation: u32) {
        self.start_as(hello(node, incarnation));
    }

    fn start_as(&mut self, hello: Hello) {
        let setup = setup(self.fakes.len(), hello);
        self.start_with(setup);
    }

    /// Starts a process that has the log of another incarnation.
    fn start_from(&mut self, node: usize, incarnation: u32, predecessor: u32) {
        let setup = setup(self.fakes.len(), hello(node, incarnation));
        self.start_with(Setup { predecessor: Some(predecessor), ..setup });
    }

    fn start_with(&mut self, mut setup: Setup) {
        let (nodes, fake) = (self.fakes.len(), self.fakes[setup.hello.node].clone());
        setup.hello.entry.keeps_log |= self.is_durable;
        let unformed = unformed(setup.terms.first_nodes).with_spares(nodes);
        self.members.start(setup, unformed, fake);
    }

    /// Members that have joined.
    fn joined(nodes: usize, seed: u64) -> Self {
        Self::new(nodes, seed).join()
    }

    /// All members join.
    fn join(mut self) -> Self {
        (0..self.fakes.len()).for_each(|node| self.start(node, 1));
        self.until("to join", 10, |run| run.members.all().all(|member| member.has_joined()));
        self
    }

    /// The members other than one.
    fn others(&self, than: usize) -> impl Iterator<Item = &SimulatedMember<Fake>> {
        self.members.all().filter(move |member| member.group.node() != than)
    }

    /// Runs until an epoch is active at all nodes but those that were lost, none of which is a member.
    fn until_epoch(&mut self, epoch: u32, lost: &[usize]) {
        self.until("to begin the epoch", 120, |run| {
            let fakes = run.fakes.iter().enumerate().filter(|(node, _)| !lost.contains(node));
            let mut last = fakes.map(|(_, fake)| fake.adopted.lock().unwrap().last().cloned());
            last.all(|last| {
                last.is_some_and(|last| {
                    let has_lost = |node: &usize| last.is_member(u16::try_from(*node).unwrap());
                    last.phase == Phase::Active && last.epoch >= epoch && !lost.iter().any(has_lost)
                })
            })
        });
        let reasons = self.halted();
        assert!(reasons.iter().filter(|why| why.is_some()).count() <= lost.len(), "{reasons:?}");
    }

    /// Runs for a time.
    fn pass(&mut self, time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        while self.now_ns < end_ns {
            self.now_ns = self.members.next_event_ns().clamp(self.now_ns + 1, end_ns);
            self.members.advance(self.now_ns);
        }
    }

    /// Runs until something is so; panics if that takes too long.
    fn until(&mut self, what: &str, seconds: u64, is_so: impl Fn(&mut Self) -> bool) {
        let end_ns = self.now_ns + seconds * SECOND_NS;
        while !is_so(self) {
            assert!(self.now_ns < end_ns, "{what} in vain: {:?}", self.halted());
            self.pass(SECOND_NS / 1_000);
        }
    }

    /// By member that runs: why it has halted.
    fn halted(&self) -> Vec<Option<String>> {
        self.members.all().map(|member| member.group.halted().map(str::to_owned)).collect()
    }

    /// A member's proposal is answered within some seconds.
    fn propose(&mut self, node: usize, name: String, seconds: u64) {
        let number = self.members.propose(node, table(name)).unwrap();
        self.until("to be answered", seconds, |run| {
            let answer = run.members.take_answer(node, number);
            assert!(!matches!(answer, Some(Err(_))), "{answer:?}");
            answer.is_some()
        });
    }
}

#[test]
fn members_join_in_any_order_and_make_the_same_changes_whatever_breaks() {
    let mut broken = 0;
    for seed in 0..150 {
        let mut random = SmallRng::seed_from_u64(seed);
        let nodes = random.random_range(1..=5);
        let mut run = Run::new(nodes, seed);
        run.members.break_streams(random.random_range(0..60), 0);
        let mut order: Vec<_> = (0..nodes).collect();
        while !order.is_empty() {
            run.start(order.swap_remove(random.random_range(0..order.len())), 1);
            run.pass(random.random_range(0..SECOND_NS));
        }
        run.until("to join", 50, |run| run.members.all().all(|member| member.has_joined()));
        // From now on bytes are changed, too, in the handshakes of new connections and behind them.
        run.members.break_streams(60, random.random_range(0..30));
        for number in 0..10 {
            run.propose(random.random_range(0..nodes), format!("t{number}"), 60);
        }
        run.members.break_streams(0, 0);
        run.until("to adopt", 5, |run| {
            run.fakes.iter().all(|fake| fake.adopted.lock().unwrap().len() == 11)
        });
        let first = run.fakes[0].adopted.lock().unwrap();
        let versions: Vec<_> = first.iter().map(|configuration| configuration.version).collect();
        assert_eq!(versions, (1..=11).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(
            first[0].members,
            (0..nodes).map(|node| hello(node, 1).entry).collect::<Vec<_>>()
        );
        assert!(run.fakes[1..].iter().all(|fake| *fake.adopted.lock().unwrap() == *first));
        assert!(run.halted().iter().all(Option::is_none), "seed {seed}: {:?}", run.halted());
        broken += run.members.broken();
    }
    assert!(broken > 1_000, "only {broken} streams have broken");
}

#[test]
fn a_connection_that_one_member_alone_has_lost_is_made_anew_at_once() {
    for seed in 0..60 {
        let mut run = Run::joined(2, seed);
        for round in 0..4 {
            run.members.break_all(round % 2);
            // Before the next report.
            run.pass(SECOND_NS / 20);
            run.propose(round % 2, format!("t{round}"), 1);
        }
        assert_eq!(run.halted(), [None, None], "seed {seed}");
    }
}

/// Each member has records of its own, and the records of the parts of a long one take several messages.
fn with_records(mut run: Run) -> (Run, Records) {
    let all = run.fakes.iter_mut().zip(0_u8..).map(|(fake, node)| {
        let long = vec![node; 300_000 * usize::from(node)];
        fake.records = Records::from([vec![node, 1], long]);
        fake.records.clone()
    });
    let all = all.collect::<Vec<_>>();
    (run, all.into_iter().flatten().collect())
}

#[test]
fn members_that_end_one_after_the_other_are_all_revoked() {
    for seed in 0..100 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (run, records) = with_records(Run::new(5, seed));
        let mut run = run.join();
        run.members.break_streams(random.random_range(0..20), 0);
        let first = random.random_range(1..5);
        let second = 1 + (first + random.random_range(0..3)) % 4;
        let proposal = run.members.propose(0, table("meanwhile".to_owned())).unwrap();
        run.pass(random.random_range(0..5_000_000));
        run.members.kill(first);
        run.pass(random.random_range(0..5_000_000));
        run.members.kill(second);
        run.until_epoch(3, &[first, second]);
        // What all members have is not lost with those two.
        let left = (0..5).filter(|node| *node != first && *node != second);
        for fake in left.map(|node| &run.fakes[node]) {
            let flushed = fake.flushed.lock().unwrap();
            assert!(flushed.is_subset(&records) && fake.records.is_subset(&flushed));
        }
        run.until("to be answered", 20, |run| {
            run.members.take_answer(0, proposal).is_some_and(|answer| answer.is_ok())
        });
    }
}

#[test]
fn a_member_that_leaves_tells_the_others_though_its_streams_break() {
    for seed in 0..60 {
        let because = (seed % 2 == 0).then(|| "a worker has failed".to_owned());
        let mut run = Run::joined(3, seed);
        let node = usize::try_from(seed % 3).unwrap();
        run.members.break_streams(100, 0);
        run.members.break_all(node);
        run.members.leave(node, because.clone());
        run.until("to tell all", 20, |run| run.members.member(node).unwrap().group.all_are_told());
        run.members.break_streams(0, 0);
        run.until_epoch(2, &[node]);
    }
}

#[test]
fn who_waits_in_vain_names_the_missing_and_may_come_again() {
    let mut run = Run::new(3, 1);
    run.start(0, 1);
    run.start(1, 1);
    run.pass(30 * SECOND_NS);
    // A member that goes before all have come is no loss, and another incarnation may come.
    run.members.kill(1);
    run.pass(SECOND_NS);
    run.start(1, 2);
    run.until("to time out", 40, |run| run.members.member(0).unwrap().failure.is_some());
    let failure = run.members.member(0).unwrap().failure.as_ref().unwrap().to_string();
    assert!(failure.contains("node 2 at") && !failure.contains("node 1 at"), "{failure}");
    assert!(failure.contains("did not come within 60 s"), "{failure}");
    run.members.leave(0, Some("it could not join".to_owned()));
    run.pass(SECOND_NS / 2);
    run.members.kill(0);
    run.start(0, 2);
    run.start(2, 1);
    run.until("to join", 20, |run| run.members.all().all(|member| member.has_joined()));
}

#[test]
fn if_one_member_cannot_start_all_tell_its_reason() {
    for node in 0..3 {
        let mut run = Run::new(3, 1);
        run.fakes[node].refuses = Some("");
        (0..3).for_each(|node| run.start(node, 1));
        run.until("to fail", 10, |run| run.members.all().all(|member| member.failure.is_some()));
        for member in run.members.all() {
            let failure = member.failure.as_ref().unwrap().to_string();
            assert_eq!(failure, format!("node {node} could not: no room"));
            assert!(!member.has_joined());
        }
    }
}

#[test]
fn who_does_not_fit_is_refused_and_the_others_wait_on() {
    let other_threads = || {
        let mut other = hello(1, 1);
        other.settings.insert("threads".to_owned(), "2".to_owned());
        other
    };
    let mut run = Run::new(2, 1);
    run.start(0, 1);
    run.start_as(other_threads());
    run.until("to be refused", 10, |run| run.members.member(1).unwrap().failure.is_some());
    let failure = run.members.member(1).unwrap().failure.as_ref().unwrap().to_string();
    assert!(failure.contains("threads: node 0 has 1 and node 1 has 2"), "{failure}");
    assert!(run.members.member(0).unwrap().failure.is_none());
    run.members.kill(1);
    run.start(1, 2);
    run.until("to join", 10, |run| run.members.all().all(|member| member.has_joined()));
    // Too late, whichever it differs in.
    run.members.kill(1);
    run.start_as(other_threads());
    run.until("to be refused", 10, |run| run.members.member(1).unwrap().failure.is_some());
}

#[test]
fn a_member_that_is_started_again_before_all_have_come_is_called_again() {
    for (seed, node) in (0..40).map(|seed| (seed, usize::from(seed % 2 == 0))) {
        let mut run = Run::new(3, seed);
        run.start(0, 1);
        run.start(1, 1);
        run.pass(SECOND_NS);
        // Immediately: the other has not noticed the end of the stream.
        run.members.kill(node);
        run.start(node, 2);
        run.start(2, 1);
        run.until("to join", 2, |run| run.members.all().all(|member| member.has_joined()));
        assert!(run.halted().iter().all(Option::is_none), "seed {seed}: {:?}", run.halted());
    }
}

#[test]
fn the_member_that_notices_a_loss_tells_the_decider() {
    for seed in 0..20 {
        let mut run = Run::joined(3, seed);
        let began_ns = run.now_ns;
        run.members.kill(1);
        run.until_epoch(2, &[1]);
        // Node 2 calls the dead member at once, and node 0 only after a while.
        // Another one may lead meanwhile, and waits again.
        let until_ns = 3 * LeaseTerms::new(LEASE).over_ns() + CALL_INTERVAL_NS;
        assert!(run.now_ns - began_ns < until_ns, "{} ns", run.now_ns - began_ns);
    }
}

#[test]
fn a_decider_about_which_all_others_complain_goes_itself() {
    let mut run = Run::joined(3, 1);
    let began_ns = run.now_ns;
    let group = run.members.group_mut(0);
    group.set_voters(1, vec![[0].into()]);
    group.set_decides(true);
    for renewal in 1..=4 {
        assert!(!group.is_outcast());
        let sent_ns = began_ns + renewal * LeaseTerms::new(LEASE).renewal_ns();
        group.advance(sent_ns);
        for node in [1, 2] {
            let complaints = vec![0];
            group.hear(node, Message::Renew { index: 1, sent_ns, complaints }).unwrap();
        }
        group.renew(&[]);
        if group.is_leaving() {
            break;
        }
    }
    assert!(group.is_leaving() && group.is_outcast(), "its process ends");
}

#[test]
fn a_member_that_has_failed_to_join_forms_no_group() {
    for late in 0..2 {
        let mut run = Run::new(2, 1);
        run.start(1 - late, 1);
        run.until("to time out", 61, |run| run.members.member(1 - late).unwrap().failure.is_some());
        run.start(late, 1);
        run.pass(5 * SECOND_NS);
        assert!(run.members.all().all(|member| !member.has_joined()));
    }
}

#[test]
fn a_member_waits_no_longer_than_it_was_told_for_those_that_do_not_start() {
    for has_joined in [false, true] {
        // A group of one is formed at once.
        let mut group = Group::new(setup(1, hello(0, 1)), 0);
        if has_joined {
            group.joined(&unformed(3));
        }
        group.advance(61 * SECOND_NS);
        let (_, events) = drained(&mut group);
        let has_failed =
            |event: &Event| matches!(event, Event::Failed(JoinError::NotStarted { seconds: 60 }));
        assert_eq!(events.iter().any(has_failed), !has_joined, "{events:?}");
    }
}

/// The actions and the events of a group so far.
fn drained(group: &mut Group) -> (Vec<Action>, Vec<Event>) {
    let actions = std::iter::from_fn(|| group.next_action()).collect();
    (actions, std::iter::from_fn(|| group.next_event()).collect())
}

/// Node 1 of two, and its call of node 0.
fn calling() -> (Group, u64) {
    let mut group = Group::new(setup(2, hello(1, 1)), 0);
    group.advance(1);
    let (actions, _) = drained(&mut group);
    let [Action::Call { connection, node: 0, .. }] = actions[..] else { panic!("{actions:?}") };
    group.take(connection, &Input::Connected);
    (group, connection)
}

#[test]
fn a_call_whose_answer_is_lost_is_made_anew_when_the_called_member_calls() {
    for (after_ns, is_made_anew) in [(CALL_INTERVAL_NS, false), (SECOND_NS, true)] {
        let (mut greater, lost) = calling();
        drained(&mut greater);
        // Nothing of that call arrives, and nobody notices.
        greater.advance(after_ns);
        let mut smaller = Group::new(setup(2, hello(0, 1)), after_ns);
        smaller.advance(after_ns);
        let (actions, _) = drained(&mut smaller);
        let [Action::Call { connection: called, node: 1, .. }] = *actions else {
            panic!("{actions:?}")
        };
        let accepted = greater.accepted("node 0".to_owned());
        smaller.take(called, &Input::Connected);
        let mut calls_again = false;
        for _ in 0..4 {
            for action in drained(&mut smaller).0 {
                if let Action::Send { connection, bytes } = action
                    && connection == called
                {
                    greater.take(accepted, &Input::Heard(&bytes));
                }
            }
            greater.advance(after_ns);
            for action in drained(&mut greater).0 {
                match action {
                    Action::Send { connection, bytes } if connection == accepted => {
                        smaller.take(called, &Input::Heard(&bytes));
                    }
                    Action::Call { connection, node: 0, .. } => calls_again |= connection != lost,
                    _ => {}
                }
            }
        }
        assert_eq!(calls_again, is_made_anew, "after {after_ns} ns");
    }
}

#[test]
fn members_of_other_versions_and_keys_refuse_each_other_and_say_why() {
    // The answer of a called member, by its version, and why it refuses.
    let answer = |version: u8, reason: u8| {
        let mut preface = [0; 24];
        preface[..9].copy_from_slice(&[b'g', b'a', b'n', b'n', b'e', b't', version, 0, reason]);
        let (mut group, connection) = calling();
        group.take(connection, &Input::Heard(&preface));
        let (_, events) = drained(&mut group);
        match &events[..] {
            [Event::Failed(JoinError::Refused { node: 0, reason, .. }), Event::Halted(_)] => {
                reason.clone()
            }
            other => panic!("{other:?}"),
        }
    };
    for version in [VERSION - 1, VERSION + 1] {
        let reason = answer(version, 1);
        assert!(reason.contains(&format!("version {version} of the protocol")), "{reason}");
        assert!(reason.contains(&format!("this is version {VERSION}")), "{reason}");
    }
    assert!(answer(VERSION, 5).contains("its cluster key is not that of node 0"));
    assert!(answer(VERSION, 4).contains("node 0 trusts the network"));
    // A caller of another version is told this one.
    let mut called = Group::new(setup(2, hello(0, 1)), 0);
    let connection = called.accepted("somebody".to_owned());
    let mut preface = [0; 24];
    preface[..9].copy_from_slice(&[b'g', b'a', b'n', b'n', b'e', b't', VERSION - 1, 1, 1]);
    called.take(connection, &Input::Heard(&preface));
    let (actions, events) = drained(&mut called);
    let [Action::Send { bytes, .. }, Action::Close { .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (&bytes[..7], events.len()),
        (&[b'g', b'a', b'n', b'n', b'e', b't', VERSION][..], 0)
    );
}

/// What strangers say, and words of a member that are said again, cut or changed, make no member.
#[test]
fn bytes_of_strangers_make_no_member() {
    let key = ClusterKey::new([7; 32]);
    let is_admitted = |group: &mut Group| {
        let (actions, events) = drained(group);
        let is_admitted = actions.iter().any(|it| matches!(it, Action::Admit { .. }));
        is_admitted || !events.is_empty()
    };
    // What node 1 says to node 0, heard as it is once, and then again on other connections.
    let opening = Opening::Member(Box::new(Call {
        hello: hello(1, 1),
        connection: 1,
        is_formed: false,
        addresses: Vec::new(),
        resumes: None,
        predecessor: None,
    }));
    let mut caller = Session::call(Role::Member, Some(&key), &opening).unwrap();
    let mut first = Group::new(setup(3, hello(0, 1)), 0);
    let connection = first.accepted("node 1".to_owned());
    let mut said = caller.take_said();
    first.take(connection, &Input::Heard(&said));
    let (actions, _) = drained(&mut first);
    let [Action::Send { bytes, .. }] = &actions[..] else { panic!("{actions:?}") };
    caller.hear(bytes).unwrap();
    let sealed = caller.take_said();
    first.take(connection, &Input::Heard(&sealed));
    assert!(is_admitted(&mut first));
    said.extend(sealed);
    let seconds = std::env::var("GANNET_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    bolero::check!()
        .with_type::<(u16, Vec<(u16, u8)>, Vec<u8>)>()
        .with_test_time(Duration::from_secs(seconds.unwrap_or(3)))
        .with_iterations(usize::MAX)
        .for_each(|(cut, changes, rest)| {
            let mut bytes = said.clone();
            for (at, change) in changes {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= change;
            }
            bytes.truncate(usize::from(*cut) % (bytes.len() + 1));
            bytes.extend(rest);
            let mut group = Group::new(setup(3, hello(0, 1)), 0);
            let connection = group.accepted("a stranger".to_owned());
            for part in bytes.chunks(50) {
                group.take(connection, &Input::Heard(part));
            }
            assert!(!is_admitted(&mut group));
            group.advance(10 * SECOND_NS);
            let (actions, _) = drained(&mut group);
            let is_open = |action: &Action| matches!(action, Action::Admit { .. });
            assert!(!actions.iter().any(is_open));
            // What is heard in place of an answer makes none either.
            let (mut group, connection) = calling();
            let before = drained(&mut group);
            assert!(before.1.is_empty());
            group.take(connection, &Input::Heard(&bytes));
            let (actions, _) = drained(&mut group);
            assert!(!actions.iter().any(is_open));
        });
}
