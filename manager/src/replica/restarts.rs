//! Replicas that go on from what is on a disk, that come late, and whose disk fails.
//!
//! One or two replicas run on threads of their own, in real time; the disks are in memory, but for one test. A test fails if a
//! restart loses or changes a decision, if a term is used again, if a replica decides after its disk has failed, if two
//! replicas use one directory, or if the last voter cannot hand its vote over.
//!
//! *Source*: `docs/protocol.md`, "A majority that comes back" and "A majority that is given up".
//! *Not here*: the storage without a replica (`store/tests.rs`).

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use super::*;
use crate::fakes::{All, FakeDisk};
use crate::journal::{Journal, Owner};

/// Longest wait for what must come.
const COMES: Duration = Duration::from_secs(60);
/// Enough for a snapshot, and for a purge soon after it.
const DECISIONS: u64 = SNAPSHOT_ENTRIES + KEPT_ENTRIES;
/// Decisions until the purge has come.
const DECISIONS_MAX: u64 = 10 * DECISIONS;

fn id(node: u16) -> ReplicaId {
    ReplicaId { node, incarnation: 7 }
}

/// The first node votes.
fn options(node: u16) -> Options {
    Options {
        cluster: "gannet".to_owned(),
        id: id(node),
        founders: if node == 0 { [id(0)].into() } else { BTreeSet::new() },
        heartbeat: Duration::from_millis(50),
        directory: None,
    }
}

/// A replica that is alone, and its events.
fn alone(disk: &FakeDisk) -> (Replica, Receiver<Event>) {
    let (said, events) = channel();
    // A test that has seen enough hears no more.
    let on_event: OnEvent = Arc::new(move |event| drop(said.send(event)));
    let state = Box::new(All::default());
    (Replica::start_on(disk.boxed(), options(0), None, (state, on_event)).unwrap(), events)
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(COMES).expect("something happens")
}

fn until(events: &Receiver<Event>, mut is_it: impl FnMut(&Event) -> bool) {
    while !is_it(&next(events)) {}
}

/// Follows what is decided until the last decision is this one.
fn follow(events: &Receiver<Event>, all: &mut All, last: u64) {
    let last = last.to_le_bytes();
    while all.0.last().is_none_or(|(_, decision)| decision[..] != last) {
        match next(events) {
            Event::Installed { snapshot, .. } => all.install(&snapshot).unwrap(),
            Event::Made { term, decision } => all.apply(term, &decision),
            Event::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

fn leads(event: &Event) -> bool {
    matches!(event, Event::Leads { .. })
}

/// Decides until the first entries are in a snapshot alone; all decisions, which are numbered.
fn decide_until_purged(disk: &FakeDisk, replica: &Replica, events: &Receiver<Event>) -> All {
    let owner = Owner { cluster: "gannet".to_owned(), replica: id(0) };
    let mut all = All::default();
    until(events, leads);
    (0..DECISIONS).for_each(|number| replica.decide(number.to_le_bytes().into()));
    for number in DECISIONS..DECISIONS_MAX {
        replica.decide(number.to_le_bytes().into());
        follow(events, &mut all, number);
        let seen = Journal::open(disk.boxed().expect("a disk"), &owner, Vec::new());
        if seen.unwrap().log.purged.is_some() {
            return all;
        }
    }
    panic!("nothing is purged")
}

#[test]
fn a_replica_goes_on_from_its_disk() {
    let disk = FakeDisk::default();
    let (replica, events) = alone(&disk);
    let before = decide_until_purged(&disk, &replica, &events);
    let count = before.0.len() as u64;
    drop(replica);
    let (replica, events) = alone(&disk);
    let Event::Installed { snapshot, .. } = next(&events) else {
        panic!("the snapshot comes first")
    };
    let mut after = All::default();
    after.install(&snapshot).unwrap();
    assert!(!after.0.is_empty(), "a snapshot was made on the way");
    assert_eq!(before.0[..after.0.len()], after.0);
    follow(&events, &mut after, count - 1);
    assert_eq!(before.0, after.0);
    until(&events, leads);
    replica.decide(count.to_le_bytes().into());
    follow(&events, &mut after, count);
    let terms: Vec<_> = after.0.iter().rev().take(2).map(|(term, _)| *term).collect();
    assert!(terms[0] > terms[1], "a term is not used again: {terms:?}");
}

#[test]
fn a_replica_ends_with_its_disk() {
    let disk = FakeDisk::default();
    let (replica, events) = alone(&disk);
    until(&events, leads);
    disk.files().failure = Some(io::ErrorKind::StorageFull);
    replica.decide(vec![1]);
    until(&events, |event| matches!(event, Event::Failed { .. }));
    let writes = disk.files().writes;
    disk.files().failure = None;
    replica.decide(vec![2]);
    // Its thread ends, and all that could say something with it.
    let end = loop {
        match events.recv_timeout(COMES) {
            Ok(event) => {
                let is_too_much = matches!(event, Event::Failed { .. } | Event::Made { .. });
                assert!(!is_too_much, "{event:?}");
            }
            Err(end) => break end,
        }
    };
    assert_eq!(end, RecvTimeoutError::Disconnected);
    assert_eq!(disk.files().writes, writes, "the disk is not asked again");
}

#[test]
fn a_directory_is_used_once_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let options = |node| Options { directory: Some(place.path().join("manager")), ..options(node) };
    let first = Replica::start(options(0), All::default(), |_| {}).unwrap();
    let second = Replica::start(options(0), All::default(), |_| {}).err().expect("it is in use");
    assert!(matches!(second, StartError::Directory(DirectoryError::InUse(_))), "{second}");
    drop(first);
    let other = Replica::start(options(1), All::default(), |_| {}).err().expect("it is node 0's");
    assert!(matches!(other, StartError::Directory(DirectoryError::Foreign { .. })), "{other}");
    Replica::start(options(0), All::default(), |_| {}).unwrap();
}

/// Two replicas in this process, which hear each other.
type Two = Arc<Mutex<[Option<Arc<Replica>>; 2]>>;

/// Starts one of two; what it says, but for bytes, which are carried.
fn start_of(two: &Two, node: u16, disk: Option<Box<dyn Disk>>) -> Receiver<Event> {
    let (said, events) = channel();
    let others = Arc::downgrade(two);
    let on_event: OnEvent = Arc::new(move |event| match event {
        Event::Send { to, bytes } => {
            let others = others.upgrade();
            let other = others.and_then(|others| others.lock().unwrap()[usize::from(to)].clone());
            other.into_iter().for_each(|other| other.hear(node, bytes.clone()));
        }
        event => drop(said.send(event)),
    });
    let state = Box::new(All::default());
    let replica = Replica::start_on(disk, options(node), None, (state, on_event));
    two.lock().unwrap()[usize::from(node)] = Some(Arc::new(replica.unwrap()));
    events
}

fn of(two: &Two, node: usize) -> Arc<Replica> {
    two.lock().unwrap()[node].clone().expect("it runs")
}

/// The last voter has ended. From its disk it goes on for as long as it takes to have another one vote in its place.
#[test]
fn the_last_voter_hands_over() {
    let (disk, two) = (FakeDisk::default(), Two::default());
    let (first_events, second_events) = (start_of(&two, 0, disk.boxed()), start_of(&two, 1, None));
    until(&first_events, leads);
    let members = LogMembers { all: [id(0), id(1)].into(), voters: [id(0)].into() };
    of(&two, 0).set_members(members);
    of(&two, 0).decide(vec![7]);
    let made = |decision: u8| move |event: &Event| matches!(event, Event::Made { decision: made, .. } if *made == [decision]);
    until(&second_events, made(7));
    let ended = two.lock().unwrap()[0].take();
    drop(ended);
    let first_events = start_of(&two, 0, disk.boxed());
    until(&first_events, leads);
    // To one that its log names, and to none of another run.
    let other = ReplicaId { incarnation: 8, ..id(1) };
    of(&two, 0).hand_over([other].into());
    of(&two, 0).decide(vec![9]);
    until(&second_events, made(9));
    of(&two, 0).hand_over([other, id(1)].into());
    until(&second_events, leads);
    of(&two, 1).decide(vec![8]);
    until(&second_events, made(8));
}

#[test]
fn a_node_that_comes_late_gets_a_snapshot() {
    let (disk, two) = (FakeDisk::default(), Two::default());
    let (replica, events) = alone(&disk);
    let mut first = decide_until_purged(&disk, &replica, &events);
    let count = first.0.len() as u64;
    drop(replica);
    let (first_events, second_events) = (start_of(&two, 0, disk.boxed()), start_of(&two, 1, None));
    until(&first_events, leads);
    let members = LogMembers { all: [id(0), id(1)].into(), voters: [id(0)].into() };
    of(&two, 0).set_members(members);
    of(&two, 0).decide(count.to_le_bytes().into());
    follow(&first_events, &mut first, count);
    let mut second = All::default();
    until(&second_events, |event| match event {
        Event::Installed { snapshot, .. } => second.install(snapshot).is_ok(),
        Event::Made { .. } => panic!("the first decisions are in a snapshot alone"),
        _ => false,
    });
    follow(&second_events, &mut second, count);
    assert_eq!(first.0, second.0);
}

/// One of two voters has ended for ever. The other goes on alone, with all that was decided.
#[test]
fn a_replica_takes_over_from_a_majority_that_is_given_up() {
    let (disk, two) = (FakeDisk::default(), Two::default());
    let first_events = start_of(&two, 0, None);
    let second_events = start_of(&two, 1, disk.boxed());
    until(&first_events, leads);
    let both = BTreeSet::from([id(0), id(1)]);
    of(&two, 0).set_members(LogMembers { all: both.clone(), voters: both });
    let both_vote = |event: &Event| *event == Event::Voters(vec![[0, 1].into()]);
    until(&second_events, both_vote);
    of(&two, 0).decide(vec![7]);
    let made = |decision: u8| move |event: &Event| matches!(event, Event::Made { decision: made, .. } if *made == [decision]);
    until(&second_events, made(7));
    let ended = two.lock().unwrap().each_mut().map(Option::take);
    let before = ended[1].as_ref().expect("it ran").log_end();
    drop(ended);
    let (said, events) = channel();
    let all = BTreeSet::from([id(1)]);
    let take_over = || {
        let said = said.clone();
        let on_event: OnEvent = Arc::new(move |event| drop(said.send(event)));
        let boxed = (Box::new(All::default()) as Box<dyn StateMachine>, on_event);
        Replica::start_on(disk.boxed(), options(1), Some(&all), boxed)
    };
    disk.files().failure = Some(io::ErrorKind::StorageFull);
    let error = take_over().err().expect("the disk is full");
    assert!(matches!(error, StartError::TakeOver(_)), "{error}");
    disk.files().failure = None;
    let replica = take_over().unwrap();
    assert!(replica.log_end() > before, "{:?} after {before:?}", replica.log_end());
    let term = loop {
        if let Event::Leads { term } = next(&events) {
            break term;
        }
    };
    assert!(term > before.term, "term {term} after {before:?}");
    replica.decide(vec![8]);
    let mut decisions = Vec::new();
    until(&events, |event| match event {
        Event::Made { decision, .. } => {
            decisions.push(decision.clone());
            *decision == [8]
        }
        _ => false,
    });
    drop(replica);
    // It votes alone after another restart, too, and knows all.
    let events = start_of(&two, 1, disk.boxed());
    let mut all = All::default();
    until(&events, |event| {
        match event {
            Event::Installed { snapshot, .. } => all.install(snapshot).unwrap(),
            Event::Made { term, decision } => all.apply(*term, decision),
            _ => {}
        }
        leads(event)
    });
    assert_eq!(all.0.iter().map(|(_, it)| it[0]).collect::<Vec<_>>(), [7, 8]);
}
