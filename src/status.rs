//! `gannet status`: how the nodes of a cluster are, as one of them sees it.
//!
//! Exit codes: 0 all nodes are up, 1 one is not or the cluster has halted, 2 it could not be asked.

use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use gannet_frontend::{AddressError, ServerAddress};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Row};

use crate::connection::{Credentials, parse_address};
use crate::units::parse_duration;

const NODES: &str = "SELECT node, address, state, silent_seconds, memory_bytes, memory_limit_bytes, committed, \
    aborted, packets, retransmitted, refused, \
    (SELECT count(*) FROM gannet_copies c WHERE c.node = n.node AND role = 'primary') AS primaries, \
    (SELECT count(*) FROM gannet_copies c WHERE c.node = n.node) AS copies \
    FROM gannet_nodes n ORDER BY node";
const COPIES: &str =
    "SELECT count(DISTINCT partition), count(*) / count(DISTINCT partition) FROM gannet_copies";
/// What is counted, and shown as a rate.
const COUNTED: [&str; 5] = ["committed", "aborted", "packets", "retransmitted", "refused"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// The server of one node: 127.0.0.1:5433, or postgres://user:password@host:port/database. A
    /// password is taken from PGPASSWORD.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, default_value = "127.0.0.1")]
    connect: ServerAddress,
    #[command(flatten)]
    credentials: Credentials,
    /// Time over which rates are measured.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
}

/// Why the cluster could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{}", said(.0))]
    Server(#[from] tokio_postgres::Error),
    #[error("the operating system refused a thread: {0}")]
    Runtime(#[from] std::io::Error),
}

/// What a server said, or what kept it from saying anything.
fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("the server says {}: {}", error.code().code(), error.message()),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        }
    }
}

/// Prints how the nodes are; whether all are up.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let Arguments { connect: mut address, credentials, interval } = arguments;
    credentials.complete(&mut address)?;
    let (config, tls) = address.connector()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, connection) = config.connect(tls).await?;
        // Its error, if any, is that of the next statement too.
        tokio::spawn(async { connection.await.unwrap_or_default() });
        let before = match client.query(NODES, &[]).await {
            Err(error) if error.code() == Some(&SqlState::CANNOT_CONNECT_NOW) => {
                println!("{}", error.as_db_error().map_or("halted", DbError::message));
                return Ok(false);
            }
            before => before?,
        };
        tokio::time::sleep(interval).await;
        let after = client.query(NODES, &[]).await?;
        print(&client, &before, &after, interval).await
    })
}

async fn print(
    client: &Client,
    before: &[Row],
    after: &[Row],
    interval: Duration,
) -> Result<bool, CommandError> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let rates = COUNTED.map(|name| format!("{name}/s"));
    let fixed = ["node", "address", "state", "primary of", "copies", "memory"];
    table.set_header(fixed.iter().map(ToString::to_string).chain(rates));
    for (row, earlier) in after.iter().zip(before) {
        table.add_row(cells(row, earlier, interval));
    }
    for column in table.column_iter_mut().filter(|column| !(1..=2).contains(&column.index)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let counts = client.query_one(COPIES, &[]).await?;
    let (partitions, copies): (i64, i64) = (counts.get(0), counts.get(1));
    let down = after.iter().filter(|row| row.get::<_, &str>("state") != "up").count();
    println!("{} nodes, {partitions} partitions, {copies} copies of each\n", after.len());
    println!("{table}\n");
    println!(
        "can take 0 failures: the cluster halts when a node ends, as there is no recovery yet"
    );
    Ok(down == 0)
}

fn cells(row: &Row, earlier: &Row, interval: Duration) -> Vec<String> {
    let number = |row: &Row, name: &str| row.get::<_, Option<i64>>(name);
    let mebibytes =
        |name| number(row, name).map_or("?".to_owned(), |bytes| format!("{}", bytes >> 20));
    let state = match number(row, "silent_seconds") {
        Some(seconds) => format!("silent for {seconds} s"),
        None => row.get("state"),
    };
    let mut cells = vec![
        row.get::<_, i64>("node").to_string(),
        row.get::<_, Option<String>>("address").unwrap_or_else(|| "in this process".to_owned()),
        state,
        row.get::<_, i64>("primaries").to_string(),
        row.get::<_, i64>("copies").to_string(),
        format!("{} of {} MiB", mebibytes("memory_bytes"), mebibytes("memory_limit_bytes")),
    ];
    cells.extend(COUNTED.map(|name| match (number(row, name), number(earlier, name)) {
        (Some(now), Some(before)) => {
            format!("{:.0}", (now - before) as f64 / interval.as_secs_f64().max(0.001))
        }
        _ => "?".to_owned(),
    }));
    cells
}
