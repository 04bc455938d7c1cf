//! TATP: the Telecom Application Transaction Processing benchmark.
//!
//! Five tables, seven transactions, 80 % of them read-only; one file per transaction, which opens with its profile. A
//! transaction that finds no row commits its reads and does not qualify.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it: the mix of transactions below, the rows in
//! `population.rs`, the choice of a subscriber in `selection.rs`. FaSST section 6: keys and values up to 48 bytes, and tables
//! that are not partitioned for locality, so that a subscriber's rows lie on different nodes.
//!
//! The success rate of GET_NEW_DESTINATION that is often printed, 23.9 %, does not follow from this population.
//! `expectation.rs` therefore derives every rate from the rows and the choice of subscribers.
#![forbid(unsafe_code)]

mod delete_call_forwarding;
mod expectation;
mod floor;
mod get_access_data;
mod get_new_destination;
mod get_subscriber_data;
mod insert_call_forwarding;
mod population;
mod rows;
pub mod rules;
mod selection;
mod sql;
mod update_location;
mod update_subscriber_data;
mod verify;

use gannet_benchmarks::{
    BenchmarkError, Check, Ran, Random, Report, Result, Settings, Totals, Workload, grow,
};
use gannet_engine::{Cluster, Coordinator, TableId};
use rand::RngExt;

pub use floor::Floor;

use crate::expectation::Expectation;
use crate::population::Subscriber;
use crate::rows::{access_info_key, call_forwarding_key, special_facility_key, sub_nbr};
use crate::selection::Selection;

/// Maximum number of subscribers: their numbers have 15 digits, and their weights fit into memory.
pub const SUBSCRIBERS_MAX: u64 = 100_000_000;

/// Rows that each table is laid out for if it is to grow.
const ROWS_BEFORE_GROWTH: u64 = 1_000;

/// The transaction types, in the order of the specification's mix.
const TRANSACTIONS: [&str; 7] = [
    "get_subscriber_data",
    "get_new_destination",
    "get_access_data",
    "update_subscriber_data",
    "update_location",
    "insert_call_forwarding",
    "delete_call_forwarding",
];
pub(crate) const GET_SUBSCRIBER_DATA: usize = 0;
pub(crate) const GET_NEW_DESTINATION: usize = 1;
pub(crate) const GET_ACCESS_DATA: usize = 2;
pub(crate) const UPDATE_SUBSCRIBER_DATA: usize = 3;
pub(crate) const UPDATE_LOCATION: usize = 4;
pub(crate) const INSERT_CALL_FORWARDING: usize = 5;
pub(crate) const DELETE_CALL_FORWARDING: usize = 6;

/// Draws a transaction type by the specification's mix, in percent: 35, 10, 35, 2, 14, 2, 2.
#[inline]
pub(crate) fn draw_transaction(random: &mut Random) -> usize {
    match random.random_range(0..100_u32) {
        0..35 => GET_SUBSCRIBER_DATA,
        35..45 => GET_NEW_DESTINATION,
        45..80 => GET_ACCESS_DATA,
        80..82 => UPDATE_SUBSCRIBER_DATA,
        82..96 => UPDATE_LOCATION,
        96..98 => INSERT_CALL_FORWARDING,
        _ => DELETE_CALL_FORWARDING,
    }
}

/// The tables of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) subscriber: TableId,
    pub(crate) secondary: TableId,
    pub(crate) access_info: TableId,
    pub(crate) special_facility: TableId,
    pub(crate) call_forwarding: TableId,
}

/// The workload.
pub struct Tatp {
    selection: Selection,
    seed: u64,
    expectation: Expectation,
    /// Whether the tables begin small, and grow before they are loaded.
    grows: bool,
    tables: Option<Tables>,
}

impl Tatp {
    /// TATP with `subscribers` subscribers, chosen by the specification's rule or uniformly.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`] if the number is out of range.
    pub fn new(
        subscribers: u64,
        uniform: bool,
        seed: u64,
    ) -> std::result::Result<Self, BenchmarkError> {
        if !(1..=SUBSCRIBERS_MAX).contains(&subscribers) {
            return Err(BenchmarkError::Setting {
                setting: "--subscribers",
                value: subscribers.to_string(),
                allowed: format!("1 to {SUBSCRIBERS_MAX}"),
            });
        }
        let selection = Selection::new(subscribers, uniform);
        let expectation = Expectation::new(&selection, seed);
        Ok(Self { selection, seed, expectation, grows: false, tables: None })
    }

    /// Has the tables begin with buckets for 1,000 rows, and grow before they are loaded.
    #[must_use]
    pub fn grown(self) -> Self {
        Self { grows: true, ..self }
    }

    /// Runs the workload. The loop of its clients is compiled with its transactions.
    ///
    /// # Errors
    /// Those of [`gannet_benchmarks::run`].
    pub fn run(self, settings: &Settings) -> std::result::Result<Report, BenchmarkError> {
        gannet_benchmarks::run(self, settings)
    }

    /// The same transactions on plain hash maps.
    #[must_use]
    pub fn floor(&self) -> Floor {
        Floor::new(self.selection.clone(), self.seed)
    }

    #[inline]
    fn tables(&self) -> Tables {
        self.tables.expect("the harness creates the tables first")
    }
}

impl Workload for Tatp {
    fn name(&self) -> &'static str {
        "tatp"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &TRANSACTIONS
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("subscribers", self.selection.subscribers().to_string()),
            ("selection", self.selection.name().to_owned()),
        ];
        if self.grows {
            settings.push(("grown from", ROWS_BEFORE_GROWTH.to_string()));
        }
        settings
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let subscribers = self.selection.subscribers();
        // Expected rows per subscriber: 1, 1, 2.5, 2.5, 3.75.
        let table = |name, bytes, rows: u64| -> std::result::Result<_, BenchmarkError> {
            if !self.grows {
                return Ok(cluster.open_table(name, bytes, rows)?);
            }
            let table = cluster.open_table(name, bytes, rows.min(ROWS_BEFORE_GROWTH))?;
            grow(cluster, table, rows)?;
            Ok(table)
        };
        self.tables = Some(Tables {
            subscriber: table("subscriber", rows::SUBSCRIBER_BYTES, subscribers)?,
            secondary: table("secondary", rows::SECONDARY_BYTES, subscribers)?,
            access_info: table("access_info", rows::ACCESS_INFO_BYTES, subscribers * 5 / 2)?,
            special_facility: table(
                "special_facility",
                rows::SPECIAL_FACILITY_BYTES,
                subscribers * 5 / 2,
            )?,
            call_forwarding: table(
                "call_forwarding",
                rows::CALL_FORWARDING_BYTES,
                subscribers * 15 / 4,
            )?,
        });
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        let mut loader = cluster.loader();
        let tables = self.tables();
        let stride = usize::try_from(shares).unwrap_or(1);
        for s_id in (1 + share..=self.selection.subscribers()).step_by(stride) {
            let subscriber = Subscriber::generate(self.seed, s_id);
            loader.add(tables.subscriber, s_id, &subscriber.row())?;
            loader.add(tables.secondary, sub_nbr(s_id), &s_id.to_le_bytes())?;
            for (ai_type, row) in subscriber.access_info() {
                loader.add(tables.access_info, access_info_key(s_id, ai_type), &row)?;
            }
            for (sf_type, row) in subscriber.special_facilities() {
                let key = special_facility_key(s_id, sf_type);
                loader.add(tables.special_facility, key, &row)?;
            }
            for (sf_type, start_time, row) in subscriber.call_forwardings() {
                let key = call_forwarding_key(s_id, sf_type, start_time);
                loader.add(tables.call_forwarding, key, &row)?;
            }
        }
        Ok(loader.finish()?)
    }

    #[inline]
    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let transaction = draw_transaction(random);
        let s_id = self.selection.draw(random);
        let tables = self.tables();
        let tx = coordinator.begin();
        // Parts of this function: after a suspension the processor mispredicts each return.
        let outcome = match transaction {
            GET_SUBSCRIBER_DATA => get_subscriber_data::run(tx, tables, s_id),
            GET_NEW_DESTINATION => get_new_destination::run(tx, tables, s_id, random),
            GET_ACCESS_DATA => get_access_data::run(tx, tables, s_id, random),
            UPDATE_SUBSCRIBER_DATA => update_subscriber_data::run(tx, tables, s_id, random),
            UPDATE_LOCATION => update_location::run(tx, tables, s_id, random),
            INSERT_CALL_FORWARDING => insert_call_forwarding::run(tx, tables, s_id, random),
            _ => delete_call_forwarding::run(tx, tables, s_id, random),
        };
        let result = match outcome {
            Ok(true) => Result::Qualified,
            Ok(false) => Result::RowsMissing,
            Err(abort) => {
                tx.abort();
                Result::Aborted(abort)
            }
        };
        Ran { transaction, result, tally: None }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        let found = verify::found(cluster, self.tables(), &self.selection);
        let mut checks = found.checks(&self.selection, self.seed, totals);
        checks.extend(self.expectation.check(totals));
        checks
    }
}
