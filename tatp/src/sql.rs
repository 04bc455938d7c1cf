//! TATP in SQL: the same subscribers, draws, transactions and checks, through statements.
//!
//! Each transaction's statements are in its file, as the specification writes them. A UNIQUE index on a subscriber's number
//! replaces the secondary table. Tables are named `tatp_...`, so that they do not collide with others in a database that is
//! not ours.

use gannet_benchmarks::sql::{
    SqlConnection, SqlFailure, SqlRows, SqlValue, SqlWorkload, copy_data,
};
use gannet_benchmarks::{Check, Profile, Ran, Random, Totals};

use crate::population::Subscriber;
use crate::rows::{BITS_AT, MSC_LOCATION_AT, VLR_LOCATION_AT, sub_nbr};
use crate::verify::Found;
use crate::{
    GET_ACCESS_DATA, GET_NEW_DESTINATION, GET_SUBSCRIBER_DATA, INSERT_CALL_FORWARDING, Tatp,
    UPDATE_LOCATION, UPDATE_SUBSCRIBER_DATA, delete_call_forwarding, draw_transaction,
    get_access_data, get_new_destination, get_subscriber_data, insert_call_forwarding,
    update_location, update_subscriber_data,
};

/// Subscribers whose rows are verified at a time.
const PAGE_SUBSCRIBERS: u64 = 10_000;

/// Each table with its columns.
const TABLES: [(&str, &str); 4] = [
    (
        "tatp_subscriber",
        "s_id bigint PRIMARY KEY, sub_nbr varchar(15) NOT NULL UNIQUE, \
         bit_1 smallint, bit_2 smallint, bit_3 smallint, bit_4 smallint, bit_5 smallint, \
         bit_6 smallint, bit_7 smallint, bit_8 smallint, bit_9 smallint, bit_10 smallint, \
         hex_1 smallint, hex_2 smallint, hex_3 smallint, hex_4 smallint, hex_5 smallint, \
         hex_6 smallint, hex_7 smallint, hex_8 smallint, hex_9 smallint, hex_10 smallint, \
         byte2_1 smallint, byte2_2 smallint, byte2_3 smallint, byte2_4 smallint, byte2_5 smallint, \
         byte2_6 smallint, byte2_7 smallint, byte2_8 smallint, byte2_9 smallint, byte2_10 smallint, \
         msc_location bigint, vlr_location bigint",
    ),
    (
        "tatp_access_info",
        "s_id bigint, ai_type smallint, data1 smallint, data2 smallint, data3 char(3), \
         data4 char(5), PRIMARY KEY (s_id, ai_type)",
    ),
    (
        "tatp_special_facility",
        "s_id bigint, sf_type smallint, is_active smallint, error_cntrl smallint, \
         data_a smallint, data_b char(5), PRIMARY KEY (s_id, sf_type)",
    ),
    (
        "tatp_call_forwarding",
        "s_id bigint, sf_type smallint, start_time smallint, end_time smallint, \
         numberx varchar(15), PRIMARY KEY (s_id, sf_type, start_time)",
    ),
];

/// A number as a parameter.
pub(crate) fn integer(number: impl Into<u64>) -> SqlValue {
    SqlValue::Integer(i64::try_from(number.into()).expect("TATP's numbers are small"))
}

/// The 15 digits of a subscriber's number, or of a call's destination.
pub(crate) fn digits(number: u64) -> String {
    format!("{number:015}")
}

/// The lines of a subscriber's rows in a table.
fn lines(table: &str, subscriber: &Subscriber, s_id: u64) -> Vec<String> {
    let letters = |bytes: &[u8]| bytes.iter().map(|&byte| char::from(byte)).collect::<String>();
    match table {
        "tatp_subscriber" => vec![subscriber_line(&subscriber.row(), s_id)],
        "tatp_access_info" => subscriber
            .access_info()
            .map(|(ai_type, row)| {
                let (data3, data4) = (letters(&row[2..5]), letters(&row[5..10]));
                format!("{s_id}\t{ai_type}\t{}\t{}\t{data3}\t{data4}\n", row[0], row[1])
            })
            .collect(),
        "tatp_special_facility" => subscriber
            .special_facilities()
            .map(|(sf_type, row)| {
                let data_b = letters(&row[3..8]);
                format!("{s_id}\t{sf_type}\t{}\t{}\t{}\t{data_b}\n", row[0], row[1], row[2])
            })
            .collect(),
        _ => subscriber
            .call_forwardings()
            .map(|(sf_type, start_time, row)| {
                let numberx = letters(&row[1..16]);
                format!("{s_id}\t{sf_type}\t{start_time}\t{}\t{numberx}\n", row[0])
            })
            .collect(),
    }
}

/// The line of a subscriber row, with the columns in the order of `rows.rs`.
fn subscriber_line(row: &[u8], s_id: u64) -> String {
    let number = |at: usize| {
        let bytes = row[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes).to_string()
    };
    let bits = u16::from_le_bytes([row[BITS_AT], row[BITS_AT + 1]]);
    let nibbles = &row[BITS_AT + 2..BITS_AT + 7];
    let columns = [s_id.to_string(), digits(s_id)]
        .into_iter()
        .chain((0..10).map(|bit| (bits >> bit & 1).to_string()))
        .chain(nibbles.iter().flat_map(|byte| [(byte & 15).to_string(), (byte >> 4).to_string()]))
        .chain(row[BITS_AT + 7..BITS_AT + 17].iter().map(u8::to_string))
        .chain([number(MSC_LOCATION_AT), number(VLR_LOCATION_AT)]);
    columns.collect::<Vec<_>>().join("\t") + "\n"
}

/// A number that a row holds.
fn unsigned(rows: &impl SqlRows, row: usize, column: usize) -> u64 {
    u64::try_from(rows.integer(row, column)).unwrap_or(u64::MAX)
}

/// The key of a row's facility; a NULL type gives a key that no facility has.
fn facility_key(rows: &impl SqlRows, row: usize) -> u64 {
    match rows.integer(row, 1) {
        sf_type @ 1..=4 => unsigned(rows, row, 0) << 2 | (sf_type - 1).unsigned_abs(),
        _ => u64::MAX,
    }
}

/// Adds the rows of a range of subscribers, by key, and by number through its index.
async fn add_page(
    found: &mut Found,
    connection: &mut impl SqlConnection,
    from: u64,
    to: u64,
) -> Result<(), SqlFailure> {
    let keys = [integer(from), integer(to)];
    let numbers = [SqlValue::Text(digits(from)), SqlValue::Text(digits(to))];
    let sql = "SELECT s_id, sub_nbr FROM tatp_subscriber WHERE s_id >= $1 AND s_id < $2";
    let rows = connection.query(sql, &keys).await?;
    for row in 0..rows.count() {
        let number = rows.text(row, 1).parse().map_or(u64::MAX, sub_nbr);
        found.subscriber(unsigned(&rows, row, 0), number);
    }
    let sql = "SELECT sub_nbr, s_id FROM tatp_subscriber WHERE sub_nbr >= $1 AND sub_nbr < $2";
    let rows = connection.query(sql, &numbers).await?;
    for row in 0..rows.count() {
        let number = rows.text(row, 0).parse().map_or(u64::MAX, sub_nbr);
        found.secondary(number, unsigned(&rows, row, 1));
    }
    let sql = "SELECT count(*) FROM tatp_access_info WHERE s_id >= $1 AND s_id < $2";
    let rows = connection.query(sql, &keys).await?;
    (0..rows.integer(0, 0)).for_each(|_| found.access_info());
    let sql = "SELECT s_id, sf_type FROM tatp_special_facility WHERE s_id >= $1 AND s_id < $2";
    let rows = connection.query(sql, &keys).await?;
    for row in 0..rows.count() {
        found.special_facility(facility_key(&rows, row));
    }
    let sql = "SELECT s_id, sf_type FROM tatp_call_forwarding WHERE s_id >= $1 AND s_id < $2";
    let rows = connection.query(sql, &keys).await?;
    for row in 0..rows.count() {
        found.call_forwarding(facility_key(&rows, row));
    }
    Ok(())
}

impl SqlWorkload for Tatp {
    fn profile(&self) -> Profile {
        Profile::of(self)
    }

    fn schema(&self) -> Vec<String> {
        let statements = TABLES.iter().flat_map(|(table, columns)| {
            [format!("DROP TABLE IF EXISTS {table}"), format!("CREATE TABLE {table} ({columns})")]
        });
        statements.collect()
    }

    async fn load(&self, connection: &mut impl SqlConnection) -> Result<u64, SqlFailure> {
        let mut rows = 0;
        for (table, _) in TABLES {
            let lines = (1..=self.selection.subscribers())
                .flat_map(|s_id| lines(table, &Subscriber::generate(self.seed, s_id), s_id));
            rows += connection.copy(&format!("COPY {table} FROM STDIN"), copy_data(lines)).await?;
        }
        Ok(rows)
    }

    async fn run_one(
        &self,
        connection: &mut impl SqlConnection,
        random: &mut Random,
    ) -> Result<Ran, SqlFailure> {
        let transaction = draw_transaction(random);
        let s_id = self.selection.draw(random);
        let outcome = match transaction {
            GET_SUBSCRIBER_DATA => get_subscriber_data::run_sql(connection, s_id).await,
            GET_NEW_DESTINATION => get_new_destination::run_sql(connection, s_id, random).await,
            GET_ACCESS_DATA => get_access_data::run_sql(connection, s_id, random).await,
            UPDATE_SUBSCRIBER_DATA => {
                update_subscriber_data::run_sql(connection, s_id, random).await
            }
            UPDATE_LOCATION => update_location::run_sql(connection, s_id, random).await,
            INSERT_CALL_FORWARDING => {
                insert_call_forwarding::run_sql(connection, s_id, random).await
            }
            _ => delete_call_forwarding::run_sql(connection, s_id, random).await,
        };
        Ran::of(transaction, outcome)
    }

    async fn verify(
        &self,
        connection: &mut impl SqlConnection,
        totals: &Totals,
    ) -> Result<Vec<Check>, SqlFailure> {
        let mut found = Found::new(&self.selection);
        // The range exceeds the last subscriber, to find rows that must not exist.
        for page in 0..=self.selection.subscribers() / PAGE_SUBSCRIBERS + 1 {
            let from = page * PAGE_SUBSCRIBERS;
            add_page(&mut found, connection, from, from + PAGE_SUBSCRIBERS).await?;
        }
        let mut checks = found.checks(&self.selection, self.seed, totals);
        checks.extend(self.expectation.check(totals));
        Ok(checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_columns_of_their_tables() {
        for s_id in 1..100 {
            let subscriber = Subscriber::generate(1, s_id);
            for (table, columns) in TABLES {
                let count = columns.replace(", PRIMARY KEY (", "").split(", ").count();
                let keys = columns.split_once("PRIMARY KEY (").map_or("", |(_, keys)| keys);
                let count = count - keys.matches(", ").count();
                for line in lines(table, &subscriber, s_id) {
                    assert_eq!(line.matches('\t').count() + 1, count, "{table}: {line}");
                    assert!(line.starts_with(&format!("{s_id}\t")) && line.ends_with('\n'));
                }
            }
        }
    }
}
