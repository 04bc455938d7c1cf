//! TATP on plain hash maps: the same rows and draws, and nothing else.
//!
//! *Invariants*: each thread has maps of its own, with as many subscribers as its share, numbered anew from 1. A
//! transaction makes the draws of its counterpart at the engine, and tells whether the transaction qualifies. A row that
//! is read is copied, as for a client.
//!
//! *Not here*: threads and measurement, which the harness has.

use gannet_benchmarks::{FloorReport, FloorWorkload, Random, Report, Settings, run_floor};
use hashbrown::HashMap;
use rand::RngExt;

use crate::get_new_destination::Probe;
use crate::population::Subscriber;
use crate::rows::{
    ACCESS_INFO_BYTES, BITS_AT, CALL_FORWARDING_BYTES, DATA_A_AT, SPECIAL_FACILITY_BYTES,
    SUBSCRIBER_BYTES, VLR_LOCATION_AT, access_info_key, call_forwarding_key, call_forwarding_row,
    special_facility_key, sub_nbr,
};
use crate::selection::Selection;
use crate::{
    GET_ACCESS_DATA, GET_NEW_DESTINATION, GET_SUBSCRIBER_DATA, INSERT_CALL_FORWARDING,
    UPDATE_LOCATION, UPDATE_SUBSCRIBER_DATA, draw_transaction,
};

/// TATP without a system around it.
pub struct Floor {
    selection: Selection,
    seed: u64,
}

impl Floor {
    pub(crate) fn new(selection: Selection, seed: u64) -> Self {
        Self { selection, seed }
    }

    /// Runs the floor. The loop of its threads is compiled with its transactions.
    #[must_use]
    pub fn run(&self, report: &Report, settings: &Settings) -> FloorReport {
        run_floor(self, report, settings)
    }
}

/// One thread's rows: those of its share of the subscribers, numbered anew from 1.
pub struct Maps {
    selection: Selection,
    subscriber: HashMap<u64, [u8; SUBSCRIBER_BYTES]>,
    secondary: HashMap<u64, u64>,
    access_info: HashMap<u64, [u8; ACCESS_INFO_BYTES]>,
    special_facility: HashMap<u64, [u8; SPECIAL_FACILITY_BYTES]>,
    call_forwarding: HashMap<u64, [u8; CALL_FORWARDING_BYTES]>,
}

impl FloorWorkload for Floor {
    type Maps = Maps;

    fn populate(&self, _share: u64, shares: u64) -> Maps {
        let subscribers = (self.selection.subscribers() / shares).max(1);
        let uniform = self.selection.name() == "uniform";
        let capacity = usize::try_from(subscribers).unwrap_or(0);
        let mut maps = Maps {
            selection: Selection::new(subscribers, uniform),
            subscriber: HashMap::with_capacity(capacity),
            secondary: HashMap::with_capacity(capacity),
            access_info: HashMap::with_capacity(capacity * 5 / 2),
            special_facility: HashMap::with_capacity(capacity * 5 / 2),
            call_forwarding: HashMap::with_capacity(capacity * 15 / 4),
        };
        for s_id in 1..=subscribers {
            let subscriber = Subscriber::generate(self.seed, s_id);
            maps.subscriber.insert(s_id, subscriber.row());
            maps.secondary.insert(sub_nbr(s_id), s_id);
            for (ai_type, row) in subscriber.access_info() {
                maps.access_info.insert(access_info_key(s_id, ai_type), row);
            }
            for (sf_type, row) in subscriber.special_facilities() {
                maps.special_facility.insert(special_facility_key(s_id, sf_type), row);
            }
            for (sf_type, start_time, row) in subscriber.call_forwardings() {
                maps.call_forwarding.insert(call_forwarding_key(s_id, sf_type, start_time), row);
            }
        }
        maps
    }

    #[inline]
    fn run_one(&self, maps: &mut Maps, random: &mut Random) -> bool {
        let transaction = draw_transaction(random);
        let s_id = maps.selection.draw(random);
        match transaction {
            GET_SUBSCRIBER_DATA => {
                // A client would get a copy of the row.
                std::hint::black_box(maps.subscriber.get(&s_id).copied()).is_some()
            }
            GET_ACCESS_DATA => {
                let key = access_info_key(s_id, random.random_range(1..=4));
                std::hint::black_box(maps.access_info.get(&key).copied()).is_some()
            }
            GET_NEW_DESTINATION => maps.probe(s_id, Probe::draw(random)),
            UPDATE_SUBSCRIBER_DATA => {
                let key = special_facility_key(s_id, random.random_range(1..=4));
                let (bit_1, data_a): (bool, u8) = random.random();
                let rows = (maps.subscriber.get_mut(&s_id), maps.special_facility.get_mut(&key));
                let (Some(subscriber), Some(facility)) = rows else { return false };
                subscriber[BITS_AT] = subscriber[BITS_AT] & !1 | u8::from(bit_1);
                facility[DATA_A_AT] = data_a;
                true
            }
            UPDATE_LOCATION => {
                let vlr_location: u32 = random.random();
                let Some(&s_id) = maps.secondary.get(&sub_nbr(s_id)) else { return false };
                let Some(row) = maps.subscriber.get_mut(&s_id) else { return false };
                row[VLR_LOCATION_AT..VLR_LOCATION_AT + 4]
                    .copy_from_slice(&vlr_location.to_le_bytes());
                true
            }
            _ => maps.forward(s_id, transaction == INSERT_CALL_FORWARDING, random),
        }
    }
}

impl Maps {
    fn probe(&self, s_id: u64, probe: Probe) -> bool {
        let key = special_facility_key(s_id, probe.sf_type);
        let active = self.special_facility.get(&key).is_some_and(|row| row[0] == 1);
        active
            && (0..=probe.start_index).any(|index| {
                let key = call_forwarding_key(s_id, probe.sf_type, 8 * index);
                self.call_forwarding.get(&key).is_some_and(|row| probe.end_time < row[0])
            })
    }

    fn forward(&mut self, s_id: u64, insert: bool, random: &mut Random) -> bool {
        let sf_type = random.random_range(1..=4);
        let start_time = 8 * random.random_range(0..3_u8);
        let Some(&s_id) = self.secondary.get(&sub_nbr(s_id)) else { return false };
        let key = call_forwarding_key(s_id, sf_type, start_time);
        if !insert {
            return self.call_forwarding.remove(&key).is_some();
        }
        let end_time = start_time + random.random_range(1..=8_u8);
        let numberx = random.random_range(0..1_000_000_000_000_000);
        let possible = self.special_facility.contains_key(&special_facility_key(s_id, sf_type))
            && !self.call_forwarding.contains_key(&key);
        if possible {
            self.call_forwarding.insert(key, call_forwarding_row(end_time, numberx));
        }
        possible
    }
}
