//! Ranges: validation covers rows that scans have not found.
//!
//! Rows are in groups, by a prefix of their keys.
//!
//! - *add* counts the rows of a group, with or without reading them, and adds one only if there are fewer than [`GROUP_ROWS_MAX`];
//!   *remove* takes one away. Serializable executions keep every group at or below the limit.
//! - *compare* scans a group twice in one transaction, forward and backward, with a scan of another group in between, and counts the group. A
//!   row that came and went would be in one scan only. A few of these transactions keep others from writing meanwhile. Some have the
//!   primaries look for the group among all rows.
//! - *append* finds the highest number of a ledger, and adds the next. Two transactions that find the same highest number
//!   cannot both commit, so the ledger has each number once, without gaps.
//!
//! Values are 8 bytes to several packets long, and follow from their keys.
//!
//! *Source*: range write skew, and the phantoms of Berenson et al., A Critique of ANSI SQL Isolation Levels, P3 and A5B;
//! `docs/protocol.md`, "Ordered index".

use std::ops::Bound;

use gannet_engine::{
    Abort, Cluster, Coordinator, Deferred, Direction, FoldProgram, FoldRest, KeyRange, KeyValue,
    TableId,
};
use rand::RngExt;

use crate::check::Check;
use crate::harness::Settings;
use crate::report::Report;
use crate::rows::for_each_row_in_order;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

const ADD: usize = 0;
const REMOVE: usize = 1;
const COMPARE: usize = 2;
const APPEND: usize = 3;
/// Tally: a committed scan found a group above its limit.
const OVERFULL: usize = 0;
/// Tally: two scans of a committed transaction found different rows.
const DIFFERENT: usize = 1;
/// Tally: a committed scan found a value that does not belong to its key.
const FOREIGN_VALUE: usize = 2;

/// A row is added to a group only if the group has fewer rows.
pub const GROUP_ROWS_MAX: usize = 5;
/// Range of numbers from which a group's new key is drawn.
const KEYS_PER_GROUP: u64 = 40;
/// Rows in a page of a scan: fewer than a group may have, so scans continue across pages.
const PAGE_ROWS: usize = 3;
const LEDGER: &str = "ledger/";
/// As many groups as would be folded by each comparison.
const FOLDED_GROUPS: f64 = 8.0;
/// Bytes of rows in a part of a fold's result.
const FOLDED_BYTES: usize = 4 << 10;

/// The workload.
pub struct Ranges {
    groups: u64,
    table: Option<TableId>,
}

impl Ranges {
    /// A workload with `groups` groups of rows; few groups make conflicts frequent.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`] if `groups` is 0.
    pub fn new(groups: u64) -> std::result::Result<Self, BenchmarkError> {
        if groups == 0 || groups > 1 << 32 {
            let (value, allowed) = (groups.to_string(), "1 to 2^32".to_owned());
            return Err(BenchmarkError::Setting { setting: "--groups", value, allowed });
        }
        Ok(Self { groups, table: None })
    }

    /// Runs the workload. The loop of its clients is compiled with its transactions.
    ///
    /// # Errors
    /// Those of [`crate::run`].
    pub fn run(self, settings: &Settings) -> std::result::Result<Report, BenchmarkError> {
        crate::run(self, settings)
    }

    fn table(&self) -> TableId {
        self.table.expect("the harness creates the tables first")
    }

    /// The share of the comparisons that fold the table: as a fold reads all groups, few of them where there are many.
    #[expect(clippy::cast_precision_loss, reason = "at most 2^32 groups")]
    fn folds(&self) -> f64 {
        (FOLDED_GROUPS / self.groups as f64).min(0.5)
    }

    /// Runs one transaction of a type, up to its commit. Returns the tally, if there is one.
    fn transact(
        &self,
        coordinator: &mut Coordinator<'_>,
        random: &mut Random,
        transaction: usize,
    ) -> std::result::Result<(Result, Option<usize>), Abort> {
        let mut deferred = Deferred::new();
        if transaction == COMPARE && random.random_bool(0.05) {
            deferred = deferred.with_scan_barriers();
        }
        let group = random.random_range(0..self.groups);
        let mut run = Run { deferred: &mut deferred, coordinator, table: self.table() };
        let (result, tally) = match transaction {
            ADD => run.add(group, random)?,
            REMOVE => run.remove(group, random)?,
            COMPARE if random.random_bool(self.folds()) => run.compare_by_fold(group)?,
            COMPARE => run.compare(group, random.random_range(0..self.groups))?,
            _ => run.append(random)?,
        };
        deferred.commit(coordinator)?;
        Ok((result, tally))
    }
}

/// A transaction in progress.
struct Run<'a, 's> {
    deferred: &'a mut Deferred,
    coordinator: &'a mut Coordinator<'s>,
    table: TableId,
}

impl Run<'_, '_> {
    fn scan(
        &mut self,
        group: u64,
        direction: Direction,
    ) -> std::result::Result<Vec<KeyValue>, Abort> {
        let mut rows = Vec::new();
        let mut rest = Some(prefixed(&prefix(group)));
        while let Some(range) = rest {
            let Self { deferred, coordinator, table } = self;
            let page = deferred.scan(coordinator, *table, &range, direction, PAGE_ROWS)?;
            rows.extend(page.rows);
            rest = page.rest;
        }
        Ok(rows)
    }

    /// Reads a key, which is necessary before a write. Returns whether the key exists.
    fn is_there(&mut self, key: &[u8]) -> std::result::Result<bool, Abort> {
        let found = self.deferred.get_many(self.coordinator, self.table, &[key.to_vec()])?;
        Ok(found[0].is_some())
    }

    fn add(
        &mut self,
        group: u64,
        random: &mut Random,
    ) -> std::result::Result<(Result, Option<usize>), Abort> {
        let (count, tally) = if random.random_bool(0.5) {
            let count = self.count(group)?;
            (count, (count > GROUP_ROWS_MAX).then_some(OVERFULL))
        } else {
            let rows = self.scan(group, Direction::Ascending)?;
            (rows.len(), tally_of(&rows))
        };
        let number = random.random_range(0..KEYS_PER_GROUP);
        let key = format!("{}{number:04}", prefix(group)).into_bytes();
        let is_possible = count < GROUP_ROWS_MAX && !self.is_there(&key)?;
        if is_possible {
            let value = value_of(&key);
            self.deferred.put(self.table, key, value);
        }
        let result = if is_possible { Result::Qualified } else { Result::RowsMissing };
        Ok((result, tally))
    }

    /// The number of a group's rows, none of which is read.
    fn count(&mut self, group: u64) -> std::result::Result<usize, Abort> {
        let range = prefixed(&prefix(group));
        let count = self.deferred.count(self.coordinator, self.table, &range)?;
        Ok(usize::try_from(count).expect("fewer rows than bytes of memory"))
    }

    fn remove(
        &mut self,
        group: u64,
        random: &mut Random,
    ) -> std::result::Result<(Result, Option<usize>), Abort> {
        let rows = self.scan(group, Direction::Descending)?;
        if rows.is_empty() {
            return Ok((Result::RowsMissing, None));
        }
        let (key, _) = rows[random.random_range(0..rows.len())].clone();
        self.deferred.delete(self.table, key);
        Ok((Result::Qualified, tally_of(&rows)))
    }

    fn compare(
        &mut self,
        group: u64,
        between: u64,
    ) -> std::result::Result<(Result, Option<usize>), Abort> {
        let forward = self.scan(group, Direction::Ascending)?;
        self.scan(between, Direction::Ascending)?;
        let mut backward = self.scan(group, Direction::Descending)?;
        backward.reverse();
        let are_equal = forward == backward && forward.len() == self.count(group)?;
        let tally = if are_equal { tally_of(&forward) } else { Some(DIFFERENT) };
        Ok((Result::Qualified, tally))
    }

    /// Has the primaries look for the rows of a group among all rows, and scans the group. If the fold were not validated, the rows could
    /// have changed in between.
    fn compare_by_fold(
        &mut self,
        group: u64,
    ) -> std::result::Result<(Result, Option<usize>), Abort> {
        let (prefix, mut rest, mut found) = (prefix(group), FoldRest::whole(), Vec::new());
        while !rest.is_empty() {
            let Self { deferred, coordinator, table } = self;
            let parts = deferred.fold(coordinator, *table, prefix.as_bytes(), &mut rest)?;
            parts.iter().for_each(|part| found.extend(rows_of(part)));
        }
        found.sort_unstable();
        let are_equal = found == self.scan(group, Direction::Ascending)?;
        let tally = if are_equal { tally_of(&found) } else { Some(DIFFERENT) };
        Ok((Result::Qualified, tally))
    }

    fn append(
        &mut self,
        random: &mut Random,
    ) -> std::result::Result<(Result, Option<usize>), Abort> {
        let Self { deferred, coordinator, table } = self;
        let ledger = prefixed(LEDGER);
        let limit = random.random_range(1..3);
        let page = deferred.scan(coordinator, *table, &ledger, Direction::Descending, limit)?;
        let rows: Vec<KeyValue> = page.rows.into_iter().collect();
        let next = rows.first().map_or(0, |(key, _)| ledger_number(key) + 1);
        let key = [LEDGER.as_bytes(), &next.to_be_bytes()].concat();
        self.is_there(&key)?;
        let value = value_of(&key);
        self.deferred.put(self.table, key, value);
        Ok((Result::Qualified, tally_of(&rows).filter(|&tally| tally != OVERFULL)))
    }
}

/// Finds the rows whose keys have a prefix: `u32 bytes of the key | u32 bytes of the value | key | value`, again and again.
struct WithPrefix {
    prefix: Vec<u8>,
    found: Vec<u8>,
}

impl FoldProgram for WithPrefix {
    fn row(&mut self, key: &[u8], value: &[u8]) {
        if key.starts_with(&self.prefix) {
            for part in [key, value] {
                let bytes = u32::try_from(part.len()).expect("a value is at most 1 MiB long");
                self.found.extend_from_slice(&bytes.to_le_bytes());
            }
            self.found.extend_from_slice(key);
            self.found.extend_from_slice(value);
        }
    }

    fn is_full(&self) -> bool {
        self.found.len() >= FOLDED_BYTES
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.found);
    }
}

/// The rows in a part of the result of [`WithPrefix`].
fn rows_of(mut part: &[u8]) -> impl Iterator<Item = KeyValue> {
    std::iter::from_fn(move || {
        let (lengths, rest) = part.split_first_chunk::<8>()?;
        let length = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| lengths[at + byte]));
        let (key, rest) = rest.split_at(length(0) as usize);
        let (value, rest) = rest.split_at(length(4) as usize);
        part = rest;
        Some((key.to_vec(), value.to_vec()))
    })
}

fn prefix(group: u64) -> String {
    format!("group {group:08}/")
}

/// The keys with a prefix, which ends with a slash.
fn prefixed(prefix: &str) -> KeyRange {
    // '0' follows '/' in the order of bytes.
    let end = prefix.trim_end_matches('/').to_owned() + "0";
    KeyRange {
        from: Bound::Included(prefix.as_bytes().to_vec()),
        to: Bound::Excluded(end.into_bytes()),
    }
}

fn ledger_number(key: &[u8]) -> u64 {
    let number = key[LEDGER.len()..].try_into();
    u64::from_be_bytes(number.expect("a key of the ledger ends with 8 bytes"))
}

/// The value of a key: one value in sixteen is longer than a packet.
fn value_of(key: &[u8]) -> Vec<u8> {
    let seed = key
        .iter()
        .fold(7_u64, |seed, &byte| (seed ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let words = if seed >> 60 == 0 { 4_000 } else { 1 + (seed >> 56) % 16 };
    (0..words).flat_map(|word| (seed ^ word).to_le_bytes()).collect()
}

fn is_foreign((key, value): &KeyValue) -> bool {
    *value != value_of(key)
}

fn tally_of(rows: &[KeyValue]) -> Option<usize> {
    if rows.iter().any(is_foreign) {
        Some(FOREIGN_VALUE)
    } else {
        (rows.len() > GROUP_ROWS_MAX).then_some(OVERFULL)
    }
}

impl Workload for Ranges {
    fn name(&self) -> &'static str {
        "ranges"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["add", "remove", "compare", "append"]
    }

    fn tallies(&self) -> &'static [&'static str] {
        &["groups above their limit", "scans that differ", "values of other keys"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("groups", self.groups.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        cluster.options().programs.set(|prefix| {
            Some(Box::new(WithPrefix { prefix: prefix.to_vec(), found: Vec::new() }))
        });
        let rows = self.groups * GROUP_ROWS_MAX as u64;
        self.table = Some(cluster.open_ordered_table("ranges", rows)?);
        Ok(())
    }

    /// All groups are empty at first.
    fn load(&self, _: &Cluster, _: u64, _: u64) -> std::result::Result<(), BenchmarkError> {
        Ok(())
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let transaction = match random.random_range(0..100) {
            0..40 => ADD,
            40..65 => REMOVE,
            65..90 => COMPARE,
            _ => APPEND,
        };
        let (result, tally) = self
            .transact(coordinator, random, transaction)
            .unwrap_or_else(|abort| (Result::Aborted(abort), None));
        Ran { transaction, result, tally }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        let mut groups = std::collections::BTreeMap::new();
        let (mut ledger, mut foreign) = (Vec::new(), 0);
        for_each_row_in_order(cluster, self.table(), |key, value| {
            foreign += i128::from(is_foreign(&(key.to_vec(), value.to_vec())));
            if key.starts_with(LEDGER.as_bytes()) {
                ledger.push(ledger_number(key));
            } else {
                let group = key[..prefix(0).len()].to_vec();
                *groups.entry(group).or_insert(0_usize) += 1;
            }
        });
        ledger.sort_unstable();
        let gaps = (0..).zip(&ledger).filter(|(expected, number)| expected != *number).count();
        let committed = |transaction: usize| i128::from(totals.types[transaction].qualified);
        let tallies = totals.tallies.iter().map(|&tally| i128::from(tally));
        let mut checks: Vec<Check> = self
            .tallies()
            .iter()
            .zip(tallies)
            .map(|(name, tally)| Check::equal(format!("committed: {name}"), 0, tally))
            .collect();
        let overfull = groups.values().filter(|&&rows| rows > GROUP_ROWS_MAX).count();
        let rows = groups.values().sum::<usize>() as i128;
        checks.extend([
            Check::equal("groups above their limit at the end", 0, overfull as i128),
            Check::equal("rows of all groups", committed(ADD) - committed(REMOVE), rows)
                .of_all_outcomes(),
            Check::equal("rows of the ledger", committed(APPEND), ledger.len() as i128)
                .of_all_outcomes(),
            Check::equal("gaps in the ledger", 0, gaps as i128),
            Check::equal("values of other keys at the end", 0, foreign),
        ]);
        checks
    }
}
