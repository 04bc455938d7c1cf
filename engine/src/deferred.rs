//! Deferred transactions: they read at once, and lock when they commit.
//!
//! ```text
//! statement:  get_many, scan ─ versions and numbers of indexes are kept      put, delete ─ are kept
//! commit:     observe all that was kept ─ lock what is written ─ validate ─ log ─ backup ─ primary
//! ```
//! An interactive session must hold neither locks nor a coroutine while a person thinks. It owns its
//! read and write set as a [`Deferred`]. Each statement takes the set into the coroutine that runs it. Commit fails if anything
//! that was read has changed. Keys are byte strings; those of tables with fixed values are numbers, little-endian.
//!
//! *Source*: `docs/architecture.md`, "Transactions": lock mode *at commit*; the commit is FaSST's, section 5.

mod scans;
#[cfg(test)]
mod tests;
mod times;

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::coordinator::Coordinator;
pub use crate::deferred::scans::Page;
use crate::deferred::scans::Scans;
use crate::deferred::times::Times;
use crate::holder::Passes;
use crate::observed::Observed;
use crate::outcome::{Abort, Conflict};
use crate::table_id::{TableId, TableKey};
use crate::transaction::expect::EXPECTED_ROWS_MIN;
use crate::transaction::{Change, Observation, ScanObservation};

/// Attempts to read what others hold, before the conflict is reported.
const READ_ATTEMPTS_MAX: u32 = 20;
/// The same, and those of a commit to lock or validate what others hold, of a transaction that is not run again by itself. They take about four
/// seconds, and so outlast threads that have lost their cores with rows locked, however many threads want the cores.
const ATTEMPTS_MAX: u32 = 200;
/// Observations that name their rows. A transaction that has made more forgets which rows of a bucket it has read, and conflicts with
/// changes of all of them.
const ROWS_OBSERVED_MAX: usize = 64 << 10;
/// Observations that are validated in one step; other coroutines run between two steps.
const VALIDATED_AT_A_TIME: usize = 4 << 10;
/// The same of scans: ranges are validated at all partitions, and spans have many buckets.
const SCANS_AT_A_TIME: usize = 16;
/// Bytes of memory that a key takes beside its own, in a set or map of keys.
const KEY_OVERHEAD_BYTES: usize = 48;
/// The same of a key with a value.
const WRITE_OVERHEAD_BYTES: usize = 96;
/// Waits of a commit for the end of a scan barrier or a reservation on what it changes, before the conflict is reported: about 100 ms.
const WAITS_MAX: u32 = 200;

/// A row as a transaction has seen it, in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    observation: Observation,
    epoch: u32,
}

impl Seen {
    /// Whether the last transaction of a coordinator may assume it: not if another epoch has begun since.
    #[must_use]
    pub fn is_of_epoch_of(&self, coordinator: &Coordinator<'_>) -> bool {
        self.epoch == coordinator.epoch()
    }
}

/// A point in the changes of a transaction, for a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

/// The last change of a key.
#[derive(Clone, Debug)]
struct Write {
    /// Whether the key was there before this transaction.
    existed: bool,
    /// The value it is given; `None` removes it.
    value: Option<Vec<u8>>,
}

/// A write that a later one has replaced, for a rollback.
struct Undo {
    table: TableId,
    key: Vec<u8>,
    before: Option<Write>,
}

/// Rows of a table with byte-string keys that a transaction adds with its commit.
#[derive(Clone, Copy, Debug)]
pub struct NewRows<'r> {
    /// The table.
    pub table: TableId,
    /// Their keys and values. No two have one key.
    pub rows: &'r [(&'r [u8], &'r [u8])],
}

/// Reads with the versions seen, and writes to be; belongs to a session, not to a coroutine.
#[derive(Default)]
pub struct Deferred {
    observations: Observed<Observation>,
    /// Whether observations are of whole buckets, as there are too many.
    observes_buckets: bool,
    times: Times,
    /// Whether the last observation was made when all others had been, so that they all hold at its
    /// moment if the others are unchanged afterwards.
    ends_in_latest: bool,
    /// What it has scanned and folded.
    scans: Scans,
    /// Whether a scan barrier is set on tables before they are scanned.
    sets_barriers: bool,
    /// Keys that were read and are not there.
    absent: BTreeSet<TableKey>,
    /// Bytes that those take.
    absent_bytes: usize,
    writes: BTreeMap<TableId, BTreeMap<Vec<u8>, Write>>,
    /// The reservations of others that its commit passes.
    passes: Passes,
    /// Whether its commit waits for a row that another has reserved, before it ends with a conflict.
    waits_for_reservations: bool,
    /// Whether nobody runs it again after a conflict.
    is_alone: bool,
    /// Writes since the first savepoint.
    undo: Option<Vec<Undo>>,
    written_bytes: usize,
}

impl Deferred {
    /// A transaction that has read and written nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets scan barriers on the tables that it scans, from the first scan to its commit: other transactions cannot change them. For a
    /// transaction that writes nothing, and that writers have overtaken several times. It should be short, because writers wait.
    ///
    /// It waits for nobody, and is validated like any other. The barriers stay after an attempt that ended in a conflict, so
    /// that the next attempt meets no new locks: run it again. The coordinator's next transaction without barriers releases
    /// them, and so does the end of its job.
    #[must_use]
    pub fn with_scan_barriers(self) -> Self {
        Self { sets_barriers: true, ..self }
    }

    /// Releases the barriers of [`Self::with_scan_barriers`]. From then on writers may overtake the transaction.
    pub fn release_barriers(&mut self, coordinator: &mut Coordinator<'_>) {
        self.sets_barriers = false;
        coordinator.release_barriers();
    }

    /// Has the commit pass what others have reserved: it has reserved rows itself.
    pub fn pass_reservations(&mut self) {
        self.passes = Passes::All;
    }

    /// Has the commit pass the ranges that others share: it could not reserve its rows.
    pub fn pass_readers(&mut self) {
        self.passes = self.passes.max(Passes::Readers);
    }

    /// For a transaction that is not run again by itself: its commit begins again, many times, when it meets another's lock, and
    /// [waits](Self::waiting_for_reservations).
    #[must_use]
    pub fn run_once(self) -> Self {
        Self { is_alone: true, ..self }.waiting_for_reservations()
    }

    /// Has the commit wait for about 100 ms for a row that another transaction has reserved, before it ends with a conflict.
    #[must_use]
    pub fn waiting_for_reservations(self) -> Self {
        Self { waits_for_reservations: true, ..self }
    }

    /// The values of some keys, in their order, own changes included: one round trip, or none if this
    /// node is the primary of all of them.
    ///
    /// # Errors
    /// [`Conflict::Locked`] if another transaction holds a row for long, [`Misuse::Row`](crate::Misuse::Row) for a key that
    /// is not possible.
    pub fn get_many(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        self.read(coordinator, keys.iter().map(|key| (table, key)))
    }

    /// As [`Self::get_many`], of rows of several tables.
    ///
    /// # Errors
    /// As [`Self::get_many`].
    pub fn get_each(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        rows: &[TableKey],
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        self.read(coordinator, rows.iter().map(|row| (row.table, &row.key)))
    }

    /// As [`Self::get_each`], of rows that the commit does not depend on.
    ///
    /// # Errors
    /// As [`Self::get_each`].
    pub fn peek_each(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        rows: &[TableKey],
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        let is_new = |row: &&TableKey| !self.absent.contains(row);
        let new: Vec<&TableKey> = rows.iter().filter(is_new).collect();
        let found = self.unshared(|deferred| deferred.get_each(coordinator, rows));
        // What is not there now may be there when the transaction reads it.
        for row in new.into_iter().filter(|row| self.absent.remove(row)) {
            self.absent_bytes -= row.key.len() + KEY_OVERHEAD_BYTES;
        }
        found
    }

    fn read<'k>(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        keys: impl ExactSizeIterator<Item = (TableId, &'k Vec<u8>)> + Clone,
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        self.tidy(coordinator);
        let attempts_max = self.read_attempts();
        let Self { observations, writes, .. } = self;
        let own = |table, key| writes.get(&table).and_then(|own| own.get(key));
        let mut found = Vec::with_capacity(keys.len());
        let mut elsewhere = Vec::new();
        let before = observations.recent().len();
        let transaction = coordinator.begin();
        self.times.add(transaction.epoch());
        for ((table, key), number) in keys.clone().zip(0..) {
            if let Some(write) = own(table, key) {
                found.push(write.value.clone());
            } else if let Some((value, seen)) = transaction.read_local(table, key) {
                observations.push(seen);
                found.push(value);
            } else {
                elsewhere.push((number, table, key));
                found.push(None);
            }
        }
        if !elsewhere.is_empty() {
            let read = |coordinator: &mut Coordinator<'_>| {
                let transaction = coordinator.begin();
                let row = |(_, table, key): &(usize, TableId, &Vec<u8>)| {
                    transaction.add_any_to_read_set(*table, key)
                };
                let rows: Vec<_> = elsewhere.iter().map(row).collect();
                transaction.execute()?;
                for ((number, ..), row) in elsewhere.iter().zip(&rows) {
                    found[*number] = transaction.value(*row).map(<[u8]>::to_vec);
                }
                observations.extend(rows.iter().filter_map(|row| transaction.observation(*row)));
                Ok(())
            };
            retried(coordinator, attempts_max, read)?;
            self.times.add(coordinator.epoch());
        }
        if observations.recent().len() > before {
            self.ends_in_latest = elsewhere.len() <= 1;
        }
        for ((table, key), _) in keys.zip(&found).filter(|(_, value)| value.is_none()) {
            // A key that this transaction has removed was there before, and is again after a rollback to a savepoint.
            let is_absent = self.written(table, key).is_none();
            if is_absent && self.absent.insert(TableKey { table, key: key.clone() }) {
                self.absent_bytes += key.len() + KEY_OVERHEAD_BYTES;
            }
        }
        Ok(found)
    }

    /// The value of a key, and what others may assume of it: nothing if this transaction has written it.
    ///
    /// # Errors
    /// As [`Self::get_many`].
    pub fn get_seen(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        key: &Vec<u8>,
    ) -> Result<(Option<Vec<u8>>, Option<Seen>), Abort> {
        self.tidy(coordinator);
        let before = self.observations.recent().len();
        let value = self.get_many(coordinator, table, std::slice::from_ref(key))?.pop().flatten();
        let observation = self.observations.recent().get(before).copied();
        let epoch = coordinator.epoch();
        Ok((value, observation.map(|observation| Seen { observation, epoch })))
    }

    /// Adds another transaction's observation of a row, without reading the row. Commit fails with a conflict if the row has
    /// changed since.
    pub fn assume(&mut self, seen: Seen) {
        self.observations.push(seen.observation);
        self.times.add(seen.epoch);
        self.ends_in_latest = false;
    }

    /// About how many bytes it takes in memory: what it has read and depends on, and what it is to write.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let writes: usize = self.writes.values().map(BTreeMap::len).sum();
        let undo = self.undo.as_ref().map_or(0, Vec::len);
        self.observations.memory_bytes()
            + self.scans.memory_bytes()
            + self.absent_bytes
            + self.written_bytes
            + (writes + undo) * WRITE_OVERHEAD_BYTES
    }

    /// Forgets observations that it has made twice, if there are many.
    fn tidy(&mut self, coordinator: &mut Coordinator<'_>) {
        let bytes_max = ROWS_OBSERVED_MAX * size_of::<Observation>();
        if self.observes_buckets {
            self.observations.map_recent(Observation::of_bucket);
        } else if self.observations.memory_bytes() > bytes_max {
            self.observes_buckets = true;
            self.observations.map_all(Observation::of_bucket, || _ = coordinator.give_way());
        }
        if self.observations.tidy(|| _ = coordinator.give_way()) {
            // Which of them was the last is not known any more.
            self.ends_in_latest = false;
        }
    }

    /// Whether its commit depends on rows of a table that were read.
    #[must_use]
    pub fn depends_on(&self, table: TableId) -> bool {
        self.observations.iter().any(|seen| seen.table == table.0)
            || self.scans.iter().any(|scan| scan.table() == table.0)
    }

    /// The first of the keys that it writes.
    #[must_use]
    pub fn first_written(&self) -> Option<&[u8]> {
        self.writes.values().find_map(|own| own.keys().next()).map(Vec::as_slice)
    }

    /// The value that it gives a key, or None inside if it removes the key; None if it has not written the key.
    #[must_use]
    pub fn written(&self, table: TableId, key: &[u8]) -> Option<Option<&[u8]>> {
        Some(self.writes.get(&table)?.get(key)?.value.as_deref())
    }

    /// Whether it writes rows of a table.
    #[must_use]
    pub fn writes_to(&self, table: TableId) -> bool {
        self.writes.get(&table).is_some_and(|own| !own.is_empty())
    }

    /// Whether it writes rows of a table, or has read that one of them is not there.
    #[must_use]
    pub fn concerns(&self, table: TableId) -> bool {
        let first = TableKey { table, key: Vec::new() };
        self.writes_to(table)
            || self.absent.range(first..).next().is_some_and(|row| row.table == table)
    }

    /// Sets a key at commit, which fails if the key is not there, unless this transaction has read that
    /// it is not.
    pub fn put(&mut self, table: TableId, key: Vec<u8>, value: Vec<u8>) {
        self.write(table, key, Some(value));
    }

    /// Removes a key at commit, which fails if the key is not there, unless this transaction has read
    /// that it is not.
    pub fn delete(&mut self, table: TableId, key: Vec<u8>) {
        self.write(table, key, None);
    }

    /// Adds a key at commit, which fails with [`Conflict::Changed`] if the key is there already; it need not have been read.
    /// Returns `false`, and does nothing, if this transaction has written the key before.
    pub fn insert(&mut self, table: TableId, key: Vec<u8>, value: Vec<u8>) -> bool {
        let Entry::Vacant(vacant) = self.writes.entry(table).or_default().entry(key) else {
            return false;
        };
        self.written_bytes += vacant.key().len() + value.len();
        if let Some(undo) = &mut self.undo {
            undo.push(Undo { table, key: vacant.key().clone(), before: None });
        }
        vacant.insert(Write { existed: false, value: Some(value) });
        true
    }

    fn write(&mut self, table: TableId, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.written_bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        let writes = self.writes.entry(table).or_default();
        let before = writes.remove(&key);
        let row = TableKey { table, key };
        let existed = match &before {
            Some(write) => write.existed,
            None => !self.absent.contains(&row),
        };
        if let Some(undo) = &mut self.undo {
            undo.push(Undo { table, key: row.key.clone(), before });
        }
        writes.insert(row.key, Write { existed, value });
    }

    /// Where [`Self::rollback_to`] goes back to.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint(self.undo.get_or_insert_default().len())
    }

    /// Forgets the changes made since; what was read stays read.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        let Some(undo) = &mut self.undo else { return };
        for Undo { table, key, before } in undo.drain(savepoint.0.min(undo.len())..).rev() {
            let writes = self.writes.entry(table).or_default();
            let bytes = key.len();
            let after = match before {
                Some(write) => writes.insert(key, write),
                None => writes.remove(&key),
            };
            let value = after.and_then(|write| write.value);
            self.written_bytes -= bytes + value.map_or(0, |value| value.len());
        }
    }

    /// Bytes of keys and values that were written, those that were written again included.
    #[must_use]
    pub fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// Forgets what was to be written, and tells whether what was read is valid. Empty afterwards.
    ///
    /// # Errors
    /// The conflict because of which it is not.
    pub fn give_up(&mut self, coordinator: &mut Coordinator<'_>) -> Result<(), Abort> {
        self.writes.clear();
        self.commit(coordinator)
    }

    /// Locks what is written, validates what was read, and commits. Empty afterwards, whatever the
    /// result.
    ///
    /// # Errors
    /// Why nothing was written; [`Abort::is_conflict`] tells whether to run the transaction again.
    pub fn commit(&mut self, coordinator: &mut Coordinator<'_>) -> Result<(), Abort> {
        self.commit_with(coordinator, None)
    }

    /// As [`Self::commit`], and adds rows that it has not written: many at less cost than by [`Self::insert`].
    ///
    /// # Errors
    /// As [`Self::commit`]; [`Conflict::Changed`] if one of the rows is there already, [`Misuse::Row`](crate::Misuse::Row) if two of them
    /// have one key.
    pub fn commit_and_add(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        added: NewRows<'_>,
    ) -> Result<(), Abort> {
        self.commit_with(coordinator, Some(added))
    }

    fn commit_with(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        added: Option<NewRows<'_>>,
    ) -> Result<(), Abort> {
        let mut taken = std::mem::take(self);
        let changes = |write: &Write| write.existed || write.value.is_some();
        let mut writes = taken.writes.values().flat_map(BTreeMap::values);
        if added.is_none() && !writes.any(changes) {
            let sets_barriers = taken.sets_barriers;
            let result = taken.revalidate(coordinator);
            if result.is_ok() || !sets_barriers {
                coordinator.release_barriers();
            }
            return result;
        }
        // Its own barriers would block it, too.
        coordinator.release_barriers();
        let observations = std::mem::take(&mut taken.observations);
        let observations = observations.into_sorted(|| _ = coordinator.give_way());
        let scans = std::mem::take(&mut taken.scans).into_shared();
        // A split of a bucket that was folded would be a conflict.
        let is_folded = |table: TableId| {
            scans
                .iter()
                .any(|scan| scan.table() == table.0 && matches!(**scan, ScanObservation::Span(_)))
        };
        let many: Vec<_> = taken.many_new_keys(added).filter(|it| !is_folded(it.0)).collect();
        if !many.is_empty() {
            let transaction = coordinator.begin();
            let count = |(table, keys): (TableId, Vec<&[u8]>)| {
                (table, transaction.count_by_partition(table, &keys))
            };
            let rows = many.into_iter().map(count).collect();
            // A hint: what interrupts it, the commit learns.
            let _ = coordinator.expect_all(rows);
        }
        let mut waits = 0;
        loop {
            let result = unless_locked(coordinator, taken.commit_attempts(), |coordinator| {
                taken.write_all(coordinator, added, (&observations, &scans))
            });
            match result {
                Err(Abort::Conflict(Conflict::Barrier)) if waits < WAITS_MAX => waits += 1,
                Err(Abort::Conflict(Conflict::Reserved))
                    if waits < WAITS_MAX && taken.waits_for_reservations =>
                {
                    waits += 1;
                }
                result => return result,
            }
            coordinator.back_off(u32::MAX);
        }
    }

    fn commit_attempts(&self) -> u32 {
        if self.is_alone { ATTEMPTS_MAX } else { 1 }
    }

    fn read_attempts(&self) -> u32 {
        if self.is_alone { ATTEMPTS_MAX } else { READ_ATTEMPTS_MAX }
    }

    /// The tables that it adds many rows to, with the keys of those.
    fn many_new_keys<'k>(
        &'k self,
        added: Option<NewRows<'k>>,
    ) -> impl Iterator<Item = (TableId, Vec<&'k [u8]>)> {
        let is_new = |(_, write): &(&Vec<u8>, &Write)| !write.existed && write.value.is_some();
        let many = self.writes.iter().filter(|(_, own)| own.len() >= EXPECTED_ROWS_MIN);
        let new = many.map(move |(table, own)| {
            (*table, own.iter().filter(is_new).map(|(key, _)| key.as_slice()).collect::<Vec<_>>())
        });
        let keys_of = |added: NewRows<'k>| {
            (added.table, added.rows.iter().map(|(key, _)| *key).collect::<Vec<_>>())
        };
        new.chain(added.map(keys_of)).filter(|(_, keys)| keys.len() >= EXPECTED_ROWS_MIN)
    }

    /// Ends a transaction that writes nothing.
    ///
    /// All that it depends on is validated after all of it was read, so there is a moment in between at which all of it was true.
    /// The validation may take several steps, between which other coroutines run. The lease is held at its end, so that the node was
    /// a member when it read its own rows.
    fn revalidate(mut self, coordinator: &mut Coordinator<'_>) -> Result<(), Abort> {
        if self.ends_in_latest && self.scans.is_empty() {
            self.observations.pop();
        }
        let attempts_max = self.commit_attempts();
        let scans = std::mem::take(&mut self.scans).into_shared();
        let observations =
            std::mem::take(&mut self.observations).into_runs(|| _ = coordinator.give_way());
        let mut parts = observations.iter().flat_map(|run| run.chunks(VALIDATED_AT_A_TIME));
        let mut scan_parts = scans.chunks(SCANS_AT_A_TIME);
        loop {
            let (part, scan_part) = match (parts.next(), scan_parts.next()) {
                (None, None) if self.times.epoch.is_none() => return Ok(()),
                // Rows of this node were read and validated without a message.
                (None, None) => return coordinator.hold_lease(),
                (part, scan_part) => (part.unwrap_or_default(), scan_part.unwrap_or_default()),
            };
            unless_locked(coordinator, attempts_max, |coordinator| {
                let transaction = coordinator.begin();
                self.times.check(transaction, scan_part)?;
                transaction.revalidate(part, scan_part)
            })?;
            if part.len() == VALIDATED_AT_A_TIME {
                coordinator.give_way();
            }
        }
    }

    /// Locks, validates and commits.
    fn write_all(
        &self,
        coordinator: &mut Coordinator<'_>,
        added: Option<NewRows<'_>>,
        (observations, scans): (&[Observation], &[Arc<ScanObservation>]),
    ) -> Result<(), Abort> {
        let transaction = coordinator.begin();
        self.times.check(transaction, scans)?;
        transaction.pass(self.passes);
        observations.iter().for_each(|seen| transaction.observe(*seen));
        scans.iter().for_each(|scan| transaction.observe_scan(scan));
        let writes =
            self.writes.iter().flat_map(|(table, writes)| writes.iter().map(move |w| (*table, w)));
        let changes = writes.filter_map(|(table, (key, write))| {
            let change = match (write.existed, &write.value) {
                (true, Some(value)) => Change::Update(value),
                (false, Some(value)) => Change::Insert(value),
                (true, None) => Change::Delete,
                (false, None) => return None,
            };
            Some((table, key.as_slice(), change))
        });
        let added = added.iter().flat_map(|NewRows { table, rows }| {
            rows.iter().map(move |(key, value)| (*table, *key, Change::Insert(value)))
        });
        let mut numbered = Vec::new();
        for (table, key, change) in changes.chain(added) {
            match transaction.number(table, key) {
                None => {
                    transaction.add_row_to_write_set(table, key, change);
                }
                Some(number) => {
                    let (mode, value) = change.parts();
                    numbered.push((transaction.add_to_write_set(table, number, mode), value));
                }
            }
        }
        transaction.put_numbered(&numbered);
        transaction.commit()
    }
}

/// Runs `attempt`, and again, a bounded number of times, while another transaction holds what it locks or validates. It holds no lock
/// meanwhile, so no two wait for each other.
fn unless_locked<'s, T>(
    coordinator: &mut Coordinator<'s>,
    attempts_max: u32,
    attempt: impl FnMut(&mut Coordinator<'s>) -> Result<T, Abort>,
) -> Result<T, Abort> {
    let is_locked = |abort: &Abort| matches!(abort, Abort::Conflict(Conflict::Locked));
    repeated(coordinator, attempts_max, is_locked, attempt)
}

/// Runs `read`, and again while another transaction holds what it needs.
fn retried<'s, T>(
    coordinator: &mut Coordinator<'s>,
    attempts_max: u32,
    read: impl FnMut(&mut Coordinator<'s>) -> Result<T, Abort>,
) -> Result<T, Abort> {
    repeated(coordinator, attempts_max, |abort| abort.is_conflict(), read)
}

/// Runs `attempt` up to `attempts_max` times, until it ends otherwise than `is_refused` says. After a cancellation of the job one attempt
/// follows, which does not log.
fn repeated<'s, T>(
    coordinator: &mut Coordinator<'s>,
    attempts_max: u32,
    is_refused: impl Fn(&Abort) -> bool,
    mut attempt: impl FnMut(&mut Coordinator<'s>) -> Result<T, Abort>,
) -> Result<T, Abort> {
    let is_last = Cell::new(false);
    let is_repeated = |abort: &Abort| !is_last.get() && is_refused(abort);
    coordinator.retried(attempts_max, is_repeated, |coordinator, _| {
        is_last.set(coordinator.acts_in_vain());
        attempt(coordinator)
    })
}
