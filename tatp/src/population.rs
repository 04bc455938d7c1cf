//! The population: every row of a subscriber is a function of the seed and the subscriber.
//!
//! Each subscriber has
//!
//! - 1 to 4 access info rows and 1 to 4 special facility rows: each count has 25 %, and types are distinct;
//! - 0 to 3 call forwarding rows per special facility: each count has 25 %, and start times are distinct; the end time is the
//!   start time + 1 to 8.
//!
//! 85 % of the facilities are active.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it.

use gannet_benchmarks::{Random, seeded};
use rand::RngExt;

use crate::rows::{
    ACCESS_INFO_BYTES, BITS_AT, CALL_FORWARDING_BYTES, MSC_LOCATION_AT, SPECIAL_FACILITY_BYTES,
    SUBSCRIBER_BYTES, VLR_LOCATION_AT, call_forwarding_row, sub_nbr,
};

/// A special facility and its call forwardings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facility {
    pub(crate) present: bool,
    pub(crate) active: bool,
    /// The end time for each start time / 8; 0 means no such row.
    pub(crate) end_times: [u8; 3],
}

/// One subscriber's rows.
pub(crate) struct Subscriber {
    s_id: u64,
    /// Existing access info types, from 1.
    pub(crate) access_types: [bool; 4],
    pub(crate) facilities: [Facility; 4],
    random: Random,
}

/// A random set of `count` of N places.
fn choose<const N: usize>(random: &mut Random, count: usize) -> [bool; N] {
    let mut chosen = [false; N];
    let mut left = count;
    for (place, chosen) in chosen.iter_mut().enumerate() {
        // The probability that makes all sets equally likely.
        if random.random_range(0..N - place) < left {
            *chosen = true;
            left -= 1;
        }
    }
    chosen
}

fn letters<const N: usize>(random: &mut Random) -> [u8; N] {
    std::array::from_fn(|_| random.random_range(b'A'..=b'Z'))
}

impl Subscriber {
    pub(crate) fn generate(seed: u64, s_id: u64) -> Self {
        let mut random = seeded(seed ^ 0x7a_7470, s_id);
        let access_count = random.random_range(1..=4);
        let access_types = choose(&mut random, access_count);
        let facility_count = random.random_range(1..=4);
        let types: [bool; 4] = choose(&mut random, facility_count);
        let facilities = types.map(|present| {
            if !present {
                return Facility::default();
            }
            let active = random.random_range(0..100) < 85;
            let forwardings = random.random_range(0..=3);
            let starts: [bool; 3] = choose(&mut random, forwardings);
            let mut end_times = [0; 3];
            for (index, start) in (0_u8..).zip(starts) {
                if start {
                    end_times[usize::from(index)] = 8 * index + random.random_range(1..=8_u8);
                }
            }
            Facility { present, active, end_times }
        });
        Self { s_id, access_types, facilities, random }
    }

    fn values(&self, table: u64) -> Random {
        // Each table has a stream of its own, derived from the end of the structure's stream.
        let mut random = self.random.clone();
        seeded(random.random(), table)
    }

    /// The subscriber row.
    pub(crate) fn row(&self) -> [u8; SUBSCRIBER_BYTES] {
        let mut random = self.values(1);
        let mut row = [0; SUBSCRIBER_BYTES];
        row[..8].copy_from_slice(&sub_nbr(self.s_id).to_le_bytes());
        let bits: u16 = random.random_range(0..1 << 10);
        row[BITS_AT..BITS_AT + 2].copy_from_slice(&bits.to_le_bytes());
        random.fill(&mut row[BITS_AT + 2..BITS_AT + 17]);
        let (msc, vlr): (u32, u32) = random.random();
        row[MSC_LOCATION_AT..MSC_LOCATION_AT + 4].copy_from_slice(&msc.to_le_bytes());
        row[VLR_LOCATION_AT..VLR_LOCATION_AT + 4].copy_from_slice(&vlr.to_le_bytes());
        row
    }

    /// Access info rows by type.
    pub(crate) fn access_info(&self) -> impl Iterator<Item = (u8, [u8; ACCESS_INFO_BYTES])> {
        let mut random = self.values(2);
        (1..).zip(self.access_types).filter(|&(_, present)| present).map(move |(ai_type, _)| {
            let mut row = [0; ACCESS_INFO_BYTES];
            random.fill(&mut row[..2]);
            row[2..5].copy_from_slice(&letters::<3>(&mut random));
            row[5..10].copy_from_slice(&letters::<5>(&mut random));
            (ai_type, row)
        })
    }

    /// Special facility rows by type.
    pub(crate) fn special_facilities(
        &self,
    ) -> impl Iterator<Item = (u8, [u8; SPECIAL_FACILITY_BYTES])> {
        let mut random = self.values(3);
        (1..).zip(self.facilities).filter(|(_, facility)| facility.present).map(
            move |(sf_type, facility)| {
                let mut row = [0; SPECIAL_FACILITY_BYTES];
                row[0] = u8::from(facility.active);
                random.fill(&mut row[1..3]);
                row[3..8].copy_from_slice(&letters::<5>(&mut random));
                (sf_type, row)
            },
        )
    }

    /// Call forwarding rows by type and start time.
    pub(crate) fn call_forwardings(
        &self,
    ) -> impl Iterator<Item = (u8, u8, [u8; CALL_FORWARDING_BYTES])> {
        let mut random = self.values(4);
        (1_u8..)
            .zip(self.facilities)
            .flat_map(|(sf_type, facility)| {
                (0_u8..3)
                    .zip(facility.end_times)
                    .filter(|&(_, end_time)| end_time != 0)
                    .map(move |(index, end_time)| (sf_type, 8 * index, end_time))
            })
            .map(move |(sf_type, start_time, end_time)| {
                let numberx = random.random_range(0..1_000_000_000_000_000);
                (sf_type, start_time, call_forwarding_row(end_time, numberx))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_specification() {
        let (mut access, mut facility, mut forwarding) = ([0; 5], [0; 5], [0; 4]);
        let (mut active, mut facilities) = (0, 0);
        for s_id in 1..=20_000 {
            let subscriber = Subscriber::generate(1, s_id);
            access[subscriber.access_info().count()] += 1;
            facility[subscriber.special_facilities().count()] += 1;
            for one in subscriber.facilities.iter().filter(|one| one.present) {
                facilities += 1;
                active += u32::from(one.active);
                forwarding[one.end_times.iter().filter(|&&end| end != 0).count()] += 1;
                for (start, &end) in [0, 8, 16].iter().zip(&one.end_times) {
                    assert!(end == 0 || (start + 1..=start + 8).contains(&end));
                }
            }
        }
        let about = |count: u32, of: u32, share: f64| {
            let mean = f64::from(of) * share;
            assert!((f64::from(count) - mean).abs() < 6.0 * mean.sqrt(), "{count} of {of}");
        };
        for count in 1..=4 {
            about(access[count], 20_000, 0.25);
            about(facility[count], 20_000, 0.25);
        }
        for count in forwarding {
            about(count, facilities, 0.25);
        }
        about(active, facilities, 0.85);
    }
}
