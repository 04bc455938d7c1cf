//! Conditions on the rows after any run, of coroutines or of SQL: their numbers, and that they belong together.
//!
//! *Invariants*: no transaction runs meanwhile. The rows of subscribers and facilities are added before those of call
//! forwardings, which lead to both. The loaded rows follow from seed and selection, so they are counted without a look at
//! the tables. The number of call forwardings follows from the transactions that qualified: the check is left out if
//! outcomes are unknown.
//!
//! *Source*: the TATP specification, for the keys between tables; `docs/simulation.md`, "Oracles".
//!
//! *Not here*: success rates (`expectation`); equality of copies, which the harness checks.

use std::collections::BTreeMap;

use gannet_benchmarks::{Check, Totals, for_each_row};
use gannet_engine::Cluster;

use crate::population::Subscriber;
use crate::rows::sub_nbr;
use crate::selection::Selection;
use crate::{DELETE_CALL_FORWARDING, INSERT_CALL_FORWARDING, Tables};

/// A set of keys below a bound, with one bit each.
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

/// The rows found: those of subscribers and facilities must be added before those of call forwardings.
pub(crate) struct Found {
    rows: BTreeMap<&'static str, i128>,
    subscribers: KeySet,
    facilities: KeySet,
    wrong_numbers: i128,
    wrong_secondaries: i128,
    orphans: i128,
}

impl Found {
    pub(crate) fn new(selection: &Selection) -> Self {
        let bound = selection.subscribers() + 1;
        Self {
            rows: BTreeMap::new(),
            subscribers: KeySet::new(bound),
            facilities: KeySet::new(4 * bound),
            wrong_numbers: 0,
            wrong_secondaries: 0,
            orphans: 0,
        }
    }

    fn count(&mut self, table: &'static str) {
        *self.rows.entry(table).or_insert(0) += 1;
    }

    /// Adds a subscriber, with the number in its row.
    pub(crate) fn subscriber(&mut self, s_id: u64, number: u64) {
        self.count("subscriber");
        self.subscribers.insert(s_id);
        self.wrong_numbers += i128::from(number != sub_nbr(s_id));
    }

    /// Adds a number, with the subscriber that it leads to.
    pub(crate) fn secondary(&mut self, number: u64, s_id: u64) {
        self.count("secondary");
        self.wrong_secondaries += i128::from(sub_nbr(s_id) != number);
    }

    pub(crate) fn access_info(&mut self) {
        self.count("access_info");
    }

    pub(crate) fn special_facility(&mut self, key: u64) {
        self.count("special_facility");
        self.facilities.insert(key);
    }

    /// Adds a call forwarding of the facility with this key.
    pub(crate) fn call_forwarding(&mut self, facility: u64) {
        self.count("call_forwarding");
        let parents =
            self.facilities.contains(facility) && self.subscribers.contains(facility >> 2);
        self.orphans += i128::from(!parents);
    }

    /// Compares the rows with those that were loaded and committed.
    pub(crate) fn checks(&self, selection: &Selection, seed: u64, totals: &Totals) -> Vec<Check> {
        let mut expected = loaded(selection, seed);
        let committed = |transaction: usize| i128::from(totals.types[transaction].qualified);
        if let Some(rows) = expected.get_mut("call_forwarding") {
            *rows += committed(INSERT_CALL_FORWARDING) - committed(DELETE_CALL_FORWARDING);
        }
        let rows = |table| self.rows.get(table).copied().unwrap_or(0);
        let mut checks: Vec<_> = expected
            .iter()
            .map(|(table, &expected)| {
                let check = Check::equal(format!("rows of {table}"), expected, rows(table));
                if *table == "call_forwarding" { check.of_all_outcomes() } else { check }
            })
            .collect();
        let orphans = "call forwardings without facility or subscriber";
        checks.push(Check::equal(orphans, 0, self.orphans));
        checks.push(Check::equal("subscribers with another's number", 0, self.wrong_numbers));
        checks.push(Check::equal("numbers of another subscriber", 0, self.wrong_secondaries));
        checks
    }
}

/// Reads the rows in the tables of a cluster.
pub(crate) fn found(cluster: &Cluster, tables: Tables, selection: &Selection) -> Found {
    let mut found = Found::new(selection);
    let number = |row: &[u8]| row[..8].try_into().map_or(0, u64::from_le_bytes);
    for_each_row(cluster, tables.subscriber, |s_id, row| found.subscriber(s_id, number(row)));
    for_each_row(cluster, tables.secondary, |digits, row| found.secondary(digits, number(row)));
    for_each_row(cluster, tables.access_info, |_, _| found.access_info());
    for_each_row(cluster, tables.special_facility, |key, _| found.special_facility(key));
    for_each_row(cluster, tables.call_forwarding, |key, _| found.call_forwarding(key >> 2));
    found
}

/// The number of loaded rows, by table.
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
