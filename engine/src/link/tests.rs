//! Links over simulated streams that cut, delay and split bytes, and bytes of strangers.
//!
//! Two sessions exchange bytes in memory; no test opens a socket. Three tests fuzz, for `GANNET_FUZZ_SECONDS` or for three
//! seconds. A test fails if a kept message is lost, comes twice or comes out of order, if damaged, repeated or foreign bytes
//! become a message, or if two ends with different keys, roles or versions get past the handshake.
//!
//! *Not here*: sockets that are reset (`engine/src/members/tests/relayed.rs`).

use std::time::Duration;

use gannet_rpc::ClusterKey;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Delivery, LinkError, Role, Session, VERSION, decoded, encoded};

/// Fuzzes for as many seconds as `GANNET_FUZZ_SECONDS` says, or 3.
macro_rules! fuzz {
    ($input:ty, $check:expr) => {{
        let seconds = std::env::var("GANNET_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
        bolero::check!()
            .with_type::<$input>()
            .with_test_time(Duration::from_secs(seconds.unwrap_or(3)))
            .with_iterations(usize::MAX)
            .for_each($check);
    }};
}

fn key(byte: u8) -> Option<ClusterKey> {
    Some(ClusterKey::new([byte; 32]))
}

fn caller(key: Option<&ClusterKey>) -> Session {
    Session::call(Role::Client, key, &"opening").unwrap()
}

/// Passes on what both say until neither says anything; the first error of each.
fn exchange(sessions: &mut [Session; 2]) -> [Option<LinkError>; 2] {
    let mut errors = [None, None];
    loop {
        let mut is_quiet = true;
        for from in [0, 1] {
            let said = sessions[from].take_said();
            if !said.is_empty() && errors[1 - from].is_none() {
                is_quiet = false;
                errors[1 - from] = sessions[1 - from].hear(&said).err();
            }
        }
        if is_quiet {
            return errors;
        }
    }
}

/// Two sessions behind their handshake, and the bytes that the caller has said.
fn connected(key: Option<ClusterKey>) -> ([Session; 2], Vec<u8>) {
    let (mut caller, mut called) =
        (caller(key.as_ref()), Session::answer(Role::Client, key.as_ref()));
    let mut said = caller.take_said();
    called.hear(&said).unwrap();
    caller.hear(&called.take_said()).unwrap();
    let opening = caller.take_said();
    called.hear(&opening).unwrap();
    said.extend(opening);
    ([caller, called], said)
}

#[test]
fn messages_arrive_as_they_were_said() {
    for key in [None, key(3)] {
        let ([mut caller, mut called], _) = connected(key);
        let opening = called.next().unwrap().unwrap();
        assert_eq!(decoded::<String>(&opening).unwrap(), "opening");
        called.trust();
        let messages = [Vec::new(), vec![1], vec![2; 65_518], vec![3; 65_519], vec![4; 3 << 20]];
        for message in &messages {
            caller.say(message).unwrap();
        }
        // Byte by byte at first, so that every length comes in parts.
        let said = caller.take_said();
        let (first, rest) = said.split_at(1_000);
        first.iter().for_each(|byte| called.hear(&[*byte]).unwrap());
        called.hear(rest).unwrap();
        for message in messages {
            assert_eq!(called.next().unwrap().unwrap(), message);
        }
        assert!(called.next().unwrap().is_none());
        called.say(b"answer").unwrap();
        caller.hear(&called.take_said()).unwrap();
        assert_eq!(caller.next().unwrap().unwrap(), b"answer");
    }
}

#[test]
fn ends_with_other_keys_or_roles_refuse_each_other() {
    let errors = |caller_role, caller_key: Option<ClusterKey>, called_key: Option<ClusterKey>| {
        let caller = Session::call(caller_role, caller_key.as_ref(), &"opening").unwrap();
        let called = Session::answer(Role::Client, called_key.as_ref());
        exchange(&mut [caller, called]).map(|error| error.unwrap())
    };
    use LinkError::{Key, KeyWanted, NoKeyWanted, Role as OtherRole};
    assert!(matches!(errors(Role::Client, key(3), key(4)), [Key, Key]));
    assert!(matches!(errors(Role::Client, None, key(4)), [KeyWanted, NoKeyWanted]));
    assert!(matches!(errors(Role::Client, key(4), None), [NoKeyWanted, KeyWanted]));
    assert!(matches!(errors(Role::Member, key(3), key(3)), [OtherRole, OtherRole]));
}

#[test]
fn the_key_of_clients_opens_nothing_of_members() {
    // Even if the role in the preface is changed on the way.
    let key = key(3);
    for has_key in [false, true] {
        let key = key.as_ref().filter(|_| has_key);
        let mut caller = Session::call(Role::Client, key, &"opening").unwrap();
        let mut member = Session::answer(Role::Member, key);
        let mut said = caller.take_said();
        said[7] = Role::Member as u8;
        let heard = member.hear(&said);
        assert_eq!(heard.is_err(), has_key);
        // Without a key the caller notices that it was changed.
        assert!(matches!(caller.hear(&member.take_said()), Err(LinkError::Key)));
    }
}

#[test]
fn a_client_of_the_version_before_reads_this_version() {
    let mut called = Session::answer(Role::Client, None);
    // What a client of version 1 said first: magic, version, whether it has a key, and a nonce.
    let hello = b"gannet\x01\x00\xee\x4b\x27\x00\x90\x5d\x6f\x11\x3a\xc8\x02\x7e\x91\x55\xd0\x04";
    let error = called.hear(hello).unwrap_err().to_string();
    assert!(error.contains("version 1") && error.contains(&VERSION.to_string()), "{error}");
    // Such a client expects 24 bytes, with the version at the same place.
    let answer = called.take_said();
    assert_eq!((&answer[..6], answer[6], answer.len()), (&b"gannet"[..], VERSION, 24));
}

#[test]
fn what_is_damaged_said_again_or_sent_back_is_not_heard() {
    let ([_, mut first], said) = connected(key(3));
    assert!(first.next().unwrap().is_some());
    // Another connection has other keys, although the caller says the same.
    let mut second = Session::answer(Role::Client, key(3).as_ref());
    second.hear(&said).unwrap();
    assert!(matches!(second.next(), Err(LinkError::Damaged)));
    let mut echoed = caller(key(3).as_ref());
    let own = echoed.take_said();
    assert!(echoed.hear(&own).is_err());

    let ([mut caller, mut called], _) = connected(key(3));
    assert!(called.next().unwrap().is_some());
    caller.say(b"once").unwrap();
    let once = caller.take_said();
    called.hear(&once).unwrap();
    assert_eq!(called.next().unwrap().unwrap(), b"once");
    called.hear(&once).unwrap();
    assert!(matches!(called.next(), Err(LinkError::Damaged)));
    assert!(matches!(called.hear(&[0]), Err(LinkError::Ended)));
}

#[test]
fn a_stranger_cannot_say_anything_long() {
    let ([mut caller, mut called], _) = connected(None);
    assert!(called.next().unwrap().is_some());
    caller.say(&vec![0; 65 << 10]).unwrap();
    called.hear(&caller.take_said()).unwrap();
    assert!(matches!(called.next(), Err(LinkError::TooLong)));
    assert!(matches!(caller.say(&vec![0; (8 << 20) + 1]), Err(LinkError::TooLong)));
}

/// One end of a link in the simulation: what was said and heard, over all connections.
#[derive(Default)]
struct End {
    delivery: Delivery,
    said: u64,
    heard: Vec<u64>,
    /// The other has told what it has heard on the present connection.
    is_open: bool,
}

impl End {
    fn say(&mut self, session: &mut Session) {
        self.said += 1;
        let message = self.delivery.keep(&self.said).unwrap();
        if self.is_open {
            session.say(message).unwrap();
        }
    }

    fn hear(&mut self, session: &mut Session, is_called: bool) -> Result<(), LinkError> {
        while let Some(message) = session.next()? {
            if self.is_open {
                self.heard.extend(self.delivery.hear::<u64>(&message)?);
                continue;
            }
            let heard: u64 = decoded(&message)?;
            if is_called {
                session.say(&encoded(&self.delivery.heard())?)?;
            }
            for message in self.delivery.again(heard)? {
                session.say(message)?;
            }
            self.is_open = true;
        }
        Ok(())
    }
}

/// Two ends that say `count` messages each, over connections that are cut, whose bytes come late, in parts, and damaged.
fn over_bad_streams(seed: u64, count: u64) -> (u32, [Vec<u64>; 2]) {
    let mut random = SmallRng::seed_from_u64(seed);
    let key = key(3).filter(|_| seed.is_multiple_of(2));
    let mut ends = [End::default(), End::default()];
    let mut connections = 0;
    while ends.iter().any(|end| (end.heard.len() as u64) < count) {
        connections += 1;
        assert!(connections < 10_000, "seed {seed}");
        let opening = ends[0].delivery.heard();
        let mut sessions = [
            Session::call(Role::Member, key.as_ref(), &opening).unwrap(),
            Session::answer(Role::Member, key.as_ref()),
        ];
        ends.iter_mut().for_each(|end| end.is_open = false);
        // Bytes on their way to each end.
        let mut under_way = [Vec::new(), Vec::new()];
        'connection: for _ in 0..random.random_range(1..250) {
            let at = random.random_range(0..2);
            if ends[at].said < count && random.random_ratio(1, 4) {
                ends[at].say(&mut sessions[at]);
            }
            under_way[1 - at].extend(sessions[at].take_said());
            let part = random.random_range(0..=under_way[at].len().min(90));
            let mut bytes: Vec<u8> = under_way[at].drain(..part).collect();
            if part > 0 && random.random_ratio(1, 200) {
                bytes[random.random_range(0..part)] ^= 1 << random.random_range(0..8);
            }
            let heard = sessions[at].hear(&bytes);
            if heard.and_then(|()| ends[at].hear(&mut sessions[at], at == 1)).is_err() {
                break 'connection;
            }
        }
    }
    (connections, ends.map(|end| end.heard))
}

#[test]
fn kept_messages_come_in_order_none_twice_and_none_lost() {
    let count = 40;
    let expected: Vec<u64> = (1..=count).collect();
    let mut connections = 0;
    for seed in 0..300 {
        let (made, heard) = over_bad_streams(seed, count);
        connections += made;
        assert_eq!(heard, [expected.clone(), expected.clone()], "seed {seed}");
    }
    assert!(connections > 1_000, "only {connections} connections, and so few renewals");
}

#[test]
fn messages_that_are_not_heard_are_bounded() {
    let mut delivery = Delivery::default();
    let silent = (0..10_000_u64).find_map(|number| delivery.keep(&number).err());
    assert!(matches!(silent, Some(LinkError::Silent)));
    // A number that was never said, and one that was left out.
    assert!(delivery.again(1 << 40).is_err());
    let message = |number: u64| encoded(&(Some(number), 0_u64, number)).unwrap();
    let mut hearing = Delivery::default();
    assert_eq!(hearing.hear::<u64>(&message(1)).unwrap(), Some(1));
    assert_eq!(hearing.hear::<u64>(&message(1)).unwrap(), None);
    assert!(hearing.hear::<u64>(&message(3)).is_err());
}

/// Bytes of a stranger make no message and no panic.
#[test]
fn bytes_of_strangers_are_no_message() {
    fuzz!((bool, bool, Vec<Vec<u8>>), |(has_key, has_preface, parts)| {
        let key = key(3).filter(|_| *has_key);
        let mut called = Session::answer(Role::Client, key.as_ref());
        if *has_preface {
            let said = caller(key.as_ref()).take_said();
            called.hear(&said[..24]).unwrap();
        }
        for part in parts {
            if called.hear(part).is_err() {
                break;
            }
            assert!(!matches!(called.next(), Ok(Some(_))));
        }
        // At most a refusal, or the answer of a handshake.
        assert!(called.take_said().len() <= 24 + 2 + 48);
    });
}

/// What a caller or a called process says, with bytes that are changed: heard as it was said, or not at all.
#[test]
fn what_is_changed_on_the_way_is_not_heard() {
    fuzz!((bool, Vec<(u16, u8)>), |(at_caller, changes)| {
        let mut sessions =
            [caller(key(3).as_ref()), Session::answer(Role::Client, key(3).as_ref())];
        let (mut place, mut has_changed) = (0, false);
        let mut expected = ["welcome", "opening"].map(|text| encoded(&text).unwrap());
        for turn in 0..4 {
            let from = turn % 2;
            let mut said = sessions[from].take_said();
            if *at_caller == (from == 1) {
                for (at, change) in changes {
                    let at = usize::from(*at) % 400;
                    if let Some(byte) = at.checked_sub(place).and_then(|at| said.get_mut(at)) {
                        has_changed |= *change != 0;
                        *byte ^= change;
                    }
                }
                place += said.len();
            }
            let to = &mut sessions[1 - from];
            if to.hear(&said).is_err() {
                return;
            }
            match to.next() {
                Ok(Some(message)) => {
                    assert_eq!(message, std::mem::take(&mut expected[1 - from]));
                    if from == 0 {
                        to.say(&encoded(&"welcome").unwrap()).unwrap();
                    }
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
        assert!(has_changed || expected.iter().all(Vec::is_empty));
    });
}

/// Bodies of messages that a peer makes up.
#[test]
fn made_up_messages_are_refused_or_read() {
    fuzz!(Vec<u8>, |bytes| {
        let mut delivery = Delivery::default();
        let _ = delivery.hear::<Vec<u64>>(bytes);
        assert!(delivery.heard() <= 1);
    });
}
