//! What the rows must look like after any run.

use std::collections::BTreeMap;

use gannet_benchmarks::{Check, Totals, for_each_row};
use gannet_engine::Cluster;

use crate::population::Subscriber;
use crate::rows::sub_nbr;
use crate::selection::Selection;
use crate::{DELETE_CALL_FORWARDING, INSERT_CALL_FORWARDING, Tables};

/// A set of keys below some bound, one bit each.
struct KeySet(Vec<u64>);

impl KeySet {
    fn new(bound: u64) -> Self {
        Self(vec![0; usize::try_from(bound / 64 + 1).expect("subscribers fit memory")])
    }

    fn place(key: u64) -> (usize, u32) {
        (
            usize::try_from(key / 64).unwrap_or(usize::MAX),
            u32::try_from(key % 64).expect("below 64"),
        )
    }

    fn insert(&mut self, key: u64) {
        let (word, bit) = Self::place(key);
        if let Some(word) = self.0.get_mut(word) {
            *word |= 1 << bit;
        }
    }

    fn contains(&self, key: u64) -> bool {
        let (word, bit) = Self::place(key);
        self.0.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }
}

pub(crate) fn rows(
    cluster: &Cluster,
    tables: Tables,
    selection: &Selection,
    seed: u64,
    totals: &Totals,
) -> Vec<Check> {
    let bound = selection.subscribers() + 1;
    let mut found: BTreeMap<&str, i128> = BTreeMap::new();
    let mut count = |name, rows: i128| *found.entry(name).or_insert(0) += rows;
    let (mut subscribers, mut facilities) = (KeySet::new(bound), KeySet::new(4 * bound));
    let (mut wrong_number, mut wrong_secondary, mut orphans) = (0, 0, 0);
    for_each_row(cluster, tables.subscriber, |s_id, row| {
        count("subscriber", 1);
        subscribers.insert(s_id);
        wrong_number += i128::from(row[..8] != sub_nbr(s_id).to_le_bytes());
    });
    for_each_row(cluster, tables.secondary, |number, row| {
        count("secondary", 1);
        let s_id = u64::from_le_bytes(row.try_into().expect("a secondary row is 8 bytes"));
        wrong_secondary += i128::from(sub_nbr(s_id) != number);
    });
    for_each_row(cluster, tables.access_info, |_, _| count("access_info", 1));
    for_each_row(cluster, tables.special_facility, |key, _| {
        count("special_facility", 1);
        facilities.insert(key);
    });
    for_each_row(cluster, tables.call_forwarding, |key, _| {
        count("call_forwarding", 1);
        orphans += i128::from(!facilities.contains(key >> 2) || !subscribers.contains(key >> 4));
    });
    let mut expected = loaded(selection, seed);
    let committed = |transaction: usize| i128::from(totals.types[transaction].qualified);
    if let Some(rows) = expected.get_mut("call_forwarding") {
        *rows += committed(INSERT_CALL_FORWARDING) - committed(DELETE_CALL_FORWARDING);
    }
    let mut checks: Vec<_> = expected
        .iter()
        .map(|(name, &rows)| {
            Check::equal(format!("rows of {name}"), rows, found.get(name).copied().unwrap_or(0))
        })
        .collect();
    checks.push(Check::equal("call forwardings without facility or subscriber", 0, orphans));
    checks.push(Check::equal("subscribers with another's number", 0, wrong_number));
    checks.push(Check::equal("numbers of another subscriber", 0, wrong_secondary));
    checks
}

/// Rows that were loaded, by table.
fn loaded(selection: &Selection, seed: u64) -> BTreeMap<&'static str, i128> {
    let subscribers = i128::from(selection.subscribers());
    let (mut access_info, mut facilities, mut forwardings) = (0, 0, 0);
    for s_id in 1..=selection.subscribers() {
        let subscriber = Subscriber::generate(seed, s_id);
        access_info += subscriber.access_types.iter().filter(|&&present| present).count() as i128;
        for facility in subscriber.facilities.iter().filter(|facility| facility.present) {
            facilities += 1;
            forwardings += facility.end_times.iter().filter(|&&end| end != 0).count() as i128;
        }
    }
    BTreeMap::from([
        ("subscriber", subscribers),
        ("secondary", subscribers),
        ("access_info", access_info),
        ("special_facility", facilities),
        ("call_forwarding", forwardings),
    ])
}
