//! `gannet status`: the state of a cluster's nodes, as one of them reports it.
//!
//! *Not here*: how the node knows (`gannet_frontend`, the tables `gannet_nodes` and `gannet_copies`).
//!
//! Exit codes: 0 all nodes are up, 1 a node is not up or the cluster has halted, 2 the status is unavailable.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use gannet_frontend::{AddressError, ServerAddress};
use tokio_postgres::Row;
use tokio_postgres::error::{DbError, SqlState};

use crate::connection::{Credentials, parse_address};
use crate::output::{OutputError, print_line};
use crate::units::parse_duration;

// SHOW works even if the cluster has halted, unlike SELECT.
const NODES: &str = "SHOW gannet_nodes";
const COPIES: &str = "SHOW gannet_copies";
/// Counters, shown as rates.
const COUNTED: [&str; 5] = ["committed", "aborted", "packets", "retransmitted", "refused"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// The server of one node: 127.0.0.1:5433, or postgres://user:password@host:port/database. The password may come from
    /// PGPASSWORD.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address, default_value = "127.0.0.1")]
    connect: ServerAddress,
    #[command(flatten)]
    credentials: Credentials,
    /// Time over which rates are measured.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
}

/// Why the cluster's status is unavailable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{}", said(.0))]
    Server(#[from] tokio_postgres::Error),
    #[error("the operating system refused a thread: {0}")]
    Runtime(#[from] std::io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// The server's error, or the connection's.
fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("the server says {}: {}", error.code().code(), error.message()),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        }
    }
}

/// Prints the state of the nodes. Returns whether all are up.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let Arguments { connect: mut address, credentials, interval } = arguments;
    credentials.complete(&mut address)?;
    let (config, tls) = address.connector()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, connection) = config.connect(tls).await?;
        // The connection's error is also that of the next statement.
        tokio::spawn(async { connection.await.unwrap_or_default() });
        let before = client.query(NODES, &[]).await?;
        tokio::time::sleep(interval).await;
        let after = client.query(NODES, &[]).await?;
        let copies = client.query(COPIES, &[]).await?;
        let nodes: Vec<_> = after.iter().zip(&before).collect();
        let shown = table(&nodes, &copies, interval);
        let halted = match client.simple_query("SELECT 1").await {
            Err(error) if error.code() == Some(&SqlState::CANNOT_CONNECT_NOW) => {
                Some(error.as_db_error().map_or("halted", DbError::message).to_owned())
            }
            answer => answer.map(|_| None)?,
        };
        let prospect = prospect(&after, &copies);
        let has_halted = halted.is_some();
        print_line(format_args!("{shown}\n\n{}", halted.unwrap_or(prospect)))?;
        Ok(!has_halted && after.iter().all(|row| row.get::<_, &str>("state") == "up"))
    })
}

/// How many of the nodes that are left can be lost before rows are, and how many while the cluster goes on.
fn prospect(nodes: &[Row], copies: &[Row]) -> String {
    let mut by_partition = BTreeMap::<i64, usize>::new();
    for copy in copies {
        *by_partition.entry(copy.get("partition")).or_default() += 1;
    }
    let losses = by_partition.values().min().map_or(0, |copies| copies - 1);
    let members: Vec<_> =
        nodes.iter().filter(|row| row.get::<_, &str>("state") != "gone").collect();
    let is_one_process =
        members.iter().all(|row| row.get::<_, Option<String>>("address").is_none());
    // Of as many nodes as decide on the membership, a majority must be left.
    let going_on = match members.len() {
        _ if is_one_process => losses,
        0..=2 => 0,
        3..=4 => losses.min(1),
        _ => losses.min(2),
    };
    let members = members.len();
    format!(
        "of {members} nodes {losses} can be lost, one after the other, without losing rows, and {going_on} \
         while the cluster goes on"
    )
}

/// The table of nodes, each with its present row and that of an interval earlier.
fn table(nodes: &[(&Row, &Row)], copies: &[Row], interval: Duration) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let rates = COUNTED.map(|name| format!("{name}/s"));
    let fixed = ["node", "address", "state", "primary of", "copies", "memory", "main buckets"];
    table.set_header(fixed.iter().map(ToString::to_string).chain(rates));
    for (row, earlier) in nodes {
        table.add_row(cells(row, earlier, copies, interval));
    }
    for column in table.column_iter_mut().filter(|column| !(1..=2).contains(&column.index)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let primaries = copies.iter().filter(|copy| is_primary(copy)).count();
    let replicas = copies.len() / primaries.max(1);
    format!("{} nodes, {primaries} partitions, {replicas} copies of each\n\n{table}", nodes.len())
}

fn is_primary(copy: &Row) -> bool {
    copy.get::<_, &str>("role") == "primary"
}

fn cells(row: &Row, earlier: &Row, copies: &[Row], interval: Duration) -> Vec<String> {
    let node: i64 = row.get("node");
    let copies: Vec<_> = copies.iter().filter(|copy| copy.get::<_, i64>("node") == node).collect();
    let primaries = copies.iter().filter(|copy| is_primary(copy)).count();
    let number = |row: &Row, name: &str| row.get::<_, Option<i64>>(name);
    let mebibytes =
        |name| number(row, name).map_or("?".to_owned(), |bytes| format!("{}", bytes >> 20));
    let state = match number(row, "silent_seconds") {
        Some(seconds) => format!("silent for {seconds} s"),
        None => row.get("state"),
    };
    let mut cells = vec![
        node.to_string(),
        row.get::<_, Option<String>>("address").unwrap_or_else(|| "in this process".to_owned()),
        state,
        primaries.to_string(),
        copies.len().to_string(),
        format!("{} of {} MiB", mebibytes("memory_bytes"), mebibytes("memory_limit_bytes")),
        format!("{} MiB of it", mebibytes("memory_reserved_bytes")),
    ];
    cells.extend(COUNTED.map(|name| match (number(row, name), number(earlier, name)) {
        (Some(now), Some(before)) => {
            format!("{:.0}", (now - before) as f64 / interval.as_secs_f64().max(0.001))
        }
        _ => "?".to_owned(),
    }));
    cells
}
