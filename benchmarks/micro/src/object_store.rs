//! The object store O(r, w) of FaSST section 6.1.
//!
//! 8-byte keys, 40-byte values, a million keys per worker thread of the cluster. A transaction reads r keys, and writes each
//! of them with probability w/r. If there are at least as many nodes as keys, keys are drawn again until their primaries lie
//! on different nodes. Otherwise messages to one node coalesce, and the report says so.
//!
//! Each write increments the counter in its row. The sum of all counters must equal the number of keys that committed
//! transactions have written, so a lost update shows.
//!
//! *Source*: FaSST section 6.1.

use gannet_benchmarks::{
    BenchmarkError, Check, Ran, Random, Report, Result, Settings, Totals, Workload, for_each_row,
};
use gannet_engine::{Abort, Cluster, Coordinator, LockMode, RowId, TableId};
use rand::RngExt;
use rand_distr::{Distribution, Zipf};

/// Bytes of a value.
const VALUE_BYTES: usize = 40;
/// Maximum number of keys of a transaction.
pub const KEYS_MAX: usize = 16;
/// Attempts to draw a key on another node, before any key will do.
const DRAWS_MAX: u32 = 100;

/// Commits are tallied by the number of keys that they wrote.
static TALLIES: [&str; KEYS_MAX] = [
    "wrote 1 key",
    "wrote 2 keys",
    "wrote 3 keys",
    "wrote 4 keys",
    "wrote 5 keys",
    "wrote 6 keys",
    "wrote 7 keys",
    "wrote 8 keys",
    "wrote 9 keys",
    "wrote 10 keys",
    "wrote 11 keys",
    "wrote 12 keys",
    "wrote 13 keys",
    "wrote 14 keys",
    "wrote 15 keys",
    "wrote 16 keys",
];

/// The workload O(`reads`, `writes`).
pub struct ObjectStore {
    keys: u64,
    reads: usize,
    writes: usize,
    theta: f64,
    zipf: Option<Zipf<f64>>,
    spread: bool,
    table: Option<TableId>,
}

impl ObjectStore {
    /// A store of `keys` keys; `theta` above 0 makes keys Zipf-distributed instead of uniform.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`] for sizes out of range.
    pub fn new(
        keys: u64,
        reads: usize,
        writes: usize,
        theta: f64,
    ) -> std::result::Result<Self, BenchmarkError> {
        let setting = |setting, value: String, allowed: String| {
            Err(BenchmarkError::Setting { setting, value, allowed })
        };
        if !(1..=KEYS_MAX).contains(&reads) {
            return setting("--reads", reads.to_string(), format!("1 to {KEYS_MAX}"));
        }
        if writes > reads {
            return setting("--writes", writes.to_string(), format!("at most --reads, {reads}"));
        }
        if keys < 2 * KEYS_MAX as u64 {
            return setting("--keys", keys.to_string(), format!("at least {}", 2 * KEYS_MAX));
        }
        let zipf = if theta == 0.0 { None } else { Zipf::new(keys as f64, theta).ok() };
        if !(0.0..=10.0).contains(&theta) || (theta != 0.0 && zipf.is_none()) {
            return setting("--theta", theta.to_string(), "0 to 10".to_owned());
        }
        Ok(Self { keys, reads, writes, theta, zipf, spread: false, table: None })
    }

    /// Runs the workload. The loop of its clients is compiled with its transactions.
    ///
    /// # Errors
    /// Those of [`gannet_benchmarks::run`].
    pub fn run(self, settings: &Settings) -> std::result::Result<Report, BenchmarkError> {
        gannet_benchmarks::run(self, settings)
    }

    fn table(&self) -> TableId {
        self.table.expect("the harness creates the tables first")
    }

    fn draw(&self, random: &mut Random) -> u64 {
        match &self.zipf {
            None => random.random_range(0..self.keys),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rank between 1 and the number of keys"
            )]
            Some(zipf) => zipf.sample(random) as u64 - 1,
        }
    }

    /// Distinct keys, with primaries on different nodes if there are enough nodes.
    fn draw_keys<'k>(
        &self,
        coordinator: &Coordinator<'_>,
        random: &mut Random,
        keys: &'k mut [u64; KEYS_MAX],
    ) -> &'k [u64] {
        for index in 0..self.reads {
            let mut draws = 0;
            keys[index] = loop {
                let key = self.draw(random);
                draws += 1;
                let clashes = |&other: &u64| {
                    other == key
                        || self.spread
                            && draws < DRAWS_MAX
                            && coordinator.primary(other) == coordinator.primary(key)
                };
                if !keys[..index].iter().any(clashes) {
                    break key;
                }
            };
        }
        &keys[..self.reads]
    }

    /// Runs one transaction. Returns the number of keys written.
    fn transact(
        &self,
        coordinator: &mut Coordinator<'_>,
        random: &mut Random,
    ) -> std::result::Result<usize, Abort> {
        let mut keys = [0; KEYS_MAX];
        let keys = self.draw_keys(coordinator, random, &mut keys);
        let mut rows = [None::<RowId>; KEYS_MAX];
        let mut written = 0;
        let transaction = coordinator.begin();
        for key in keys {
            if self.writes > 0 && random.random_range(0..self.reads) < self.writes {
                let row = transaction.add_to_write_set(self.table(), *key, LockMode::Update);
                rows[written] = Some(row);
                written += 1;
            } else {
                transaction.add_to_read_set(self.table(), *key);
            }
        }
        let run = |transaction: &mut gannet_engine::Transaction<'_>| {
            transaction.execute()?;
            for row in rows[..written].iter().flatten() {
                let value = transaction.value_mut(*row)?;
                let counter = u64::from_le_bytes(value[..8].try_into().expect("8 of 40 bytes"));
                value[..8].copy_from_slice(&(counter + 1).to_le_bytes());
            }
            transaction.commit()
        };
        match run(transaction) {
            Ok(()) => Ok(written),
            Err(abort) => {
                transaction.abort();
                Err(abort)
            }
        }
    }
}

impl Workload for ObjectStore {
    fn name(&self) -> &'static str {
        "objects"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["object_store"]
    }

    fn tallies(&self) -> &'static [&'static str] {
        &TALLIES
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let placement =
            if self.spread || self.reads == 1 { "different nodes" } else { "coalesced" };
        vec![
            ("keys", self.keys.to_string()),
            ("reads", self.reads.to_string()),
            ("writes", self.writes.to_string()),
            ("theta", self.theta.to_string()),
            ("keys of a transaction", placement.to_owned()),
        ]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        self.spread = self.reads <= cluster.options().nodes;
        self.table = Some(cluster.open_table("objects", VALUE_BYTES, self.keys)?);
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        let mut loader = cluster.loader();
        for key in (share..self.keys).step_by(usize::try_from(shares).unwrap_or(1)) {
            let mut value = [0; VALUE_BYTES];
            value[8..16].copy_from_slice(&key.to_le_bytes());
            loader.add(self.table(), key, &value)?;
        }
        Ok(loader.finish()?)
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let (result, tally) = match self.transact(coordinator, random) {
            Ok(written) => (Result::Qualified, written.checked_sub(1)),
            Err(abort) => (Result::Aborted(abort), None),
        };
        Ran { transaction: 0, result, tally }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        let (mut rows, mut sum, mut foreign) = (0_u64, 0_u64, 0_u64);
        let word = |value: &[u8], at: usize| {
            u64::from_le_bytes(value[at..at + 8].try_into().expect("8 of 40 bytes"))
        };
        for_each_row(cluster, self.table(), |key, value| {
            rows += 1;
            sum += word(value, 0);
            foreign += u64::from(word(value, 8) != key);
        });
        let counts = totals.tallies.iter().zip(1_i128..);
        let written: i128 = counts.map(|(&commits, keys)| i128::from(commits) * keys).sum();
        vec![
            Check::equal("rows", i128::from(self.keys), i128::from(rows)),
            Check::equal("writes in the data", written, i128::from(sum)),
            Check::equal("rows with another row's value", 0, i128::from(foreign)),
        ]
    }
}
