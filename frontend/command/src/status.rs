//! `gannet status`: the state of a cluster's nodes, as one of them reports it: the first that answers.
//!
//! *Not here*: how the node knows (`gannet_frontend`, the tables `gannet_nodes` and `gannet_copies`).
//!
//! Exit codes: 0 each node is up or was drained, 1 a node is down, the cluster has halted, or `--wait` was in vain, 2 there is no status.

use std::io::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use gannet_shell::{
    AddressError, ConnectError, Connected, ServerAddress, connect_to_first, server_error_text,
};
use tokio_postgres::Row;
use tokio_postgres::error::{DbError, SqlState};

use crate::connection::{Addresses, Credentials, parse_addresses};
use crate::output::{OutputError, print_line};
use crate::units::parse_duration;

// SHOW works even if the cluster has halted, unlike SELECT.
const NODES: &str = "SHOW gannet_nodes";
const COPIES: &str = "SHOW gannet_copies";
/// Between two looks whether the cluster is what is waited for.
const LOOK: Duration = Duration::from_millis(100);
/// A node that is asked for that answers in this time.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// Counters, shown as rates.
const COUNTED: [&str; 6] =
    ["committed", "aborted", "packets", "retransmitted", "refused", "copied_bytes"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// The server of one node: 127.0.0.1:5433, or postgres://user:password@host:port/database. The password may come from
    /// PGPASSWORD. Of several nodes, separated by commas, the first that answers is asked.
    #[arg(long, value_name = "ADDRESSES", value_parser = parse_addresses, default_value = "127.0.0.1")]
    connect: Addresses,
    #[command(flatten)]
    credentials: Credentials,
    /// Time over which rates are measured.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Show each partition's copies, and what is still to be copied.
    #[arg(long)]
    partitions: bool,
    /// Wait until the cluster is so, then print its status.
    #[arg(long, value_name = "CONDITION")]
    wait: Option<Condition>,
    /// Longest wait for it. Then the exit code is 1.
    #[arg(long, default_value = "2m", value_parser = parse_duration, requires = "wait")]
    timeout: Duration,
}

/// What a cluster is waited to be.
#[derive(Clone, Copy, ValueEnum)]
enum Condition {
    /// All nodes are up, all copies are there, primaries are spread evenly, and as many nodes vote as should.
    Healthy,
}

/// Why the cluster's status is unavailable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("no node answers: {0}")]
    Connect(#[from] ConnectError),
    #[error("{}", server_error_text(.0))]
    Server(#[from] tokio_postgres::Error),
    #[error("the operating system refused a thread: {0}")]
    Runtime(#[from] std::io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Prints the state of the nodes. Returns whether all are up.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let Arguments { connect, credentials, interval, partitions, wait, timeout } = arguments;
    let addresses = credentials.complete(connect)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let in_time = match wait {
            Some(Condition::Healthy) => wait_until_healthy(&addresses, timeout).await,
            None => true,
        };
        let Connected { client, connection, .. } = connect_to_first(&addresses, 0).await?;
        // The connection's error is also that of the next statement.
        tokio::spawn(async { connection.await.unwrap_or_default() });
        let before = client.query(NODES, &[]).await?;
        let copies_before = client.query(COPIES, &[]).await?;
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
        let to_copy = to_copy(&before, &after, interval);
        let (membership, prospect) = (membership(&after), prospect(&after) + &to_copy);
        let has_halted = halted.is_some();
        let outlook = halted.unwrap_or(prospect);
        if partitions {
            print_line(format_args!("{}\n", partition_table(&copies, &copies_before, interval)))?;
        }
        print_line(format_args!("{shown}\n\n{membership}{outlook}"))?;
        Ok(in_time && !has_halted && after.iter().all(is_where_it_is_to_be))
    })
}

/// Whether a node is up, or has left when it was drained.
fn is_where_it_is_to_be(node: &Row) -> bool {
    let has_left = || {
        let drain: Option<&str> = node.get("drain");
        node.get::<_, &str>("state") == "gone" && drain.is_some()
    };
    node.get::<_, &str>("state") == "up" || has_left()
}

/// Waits until the cluster is healthy. Whether it is so in time; if not, says why.
async fn wait_until_healthy(addresses: &[ServerAddress], timeout: Duration) -> bool {
    let mut reason = "no node has answered yet".to_owned();
    let healthy = async {
        // A node that is asked may be one that starts or stops.
        while let Some(present) = match tokio::time::timeout(ANSWER, unhealthy(addresses)).await {
            Ok(Ok(unhealthy)) => unhealthy,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("a node does not answer".to_owned()),
        } {
            reason = present;
            tokio::time::sleep(LOOK).await;
        }
    };
    let in_time = tokio::time::timeout(timeout, healthy).await.is_ok();
    if !in_time {
        // Standard error may be closed; the exit code tells the failure as well.
        let _ = writeln!(std::io::stderr(), "gannet: not healthy in time: {reason}");
    }
    in_time
}

/// Why the cluster is not healthy, as the first node that answers says.
async fn unhealthy(addresses: &[ServerAddress]) -> Result<Option<String>, CommandError> {
    let Connected { client, connection, .. } = connect_to_first(addresses, 0).await?;
    tokio::spawn(async { connection.await.unwrap_or_default() });
    let nodes = client.query(NODES, &[]).await?;
    let reason = nodes.first().and_then(|row| row.get("unhealthy"));
    let down = nodes.iter().find(|row| !is_where_it_is_to_be(row));
    let not_up = || {
        let down = down?;
        let (node, state): (i64, &str) = (down.get("node"), down.get("state"));
        Some(format!("node {node} is {state}"))
    };
    Ok(reason.or_else(not_up))
}

/// The epoch, and who decides on the membership: a line, if there is a node.
fn membership(nodes: &[Row]) -> String {
    let Some(any) = nodes.first() else { return String::new() };
    let (epoch, phase): (i64, &str) = (any.get("epoch"), any.get("phase"));
    let those = |column: &str| -> Vec<i64> {
        nodes.iter().filter(|row| row.get(column)).map(|row| row.get("node")).collect()
    };
    let named = |nodes: &[i64]| {
        let numbers: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let word = if nodes.len() == 1 { "node" } else { "nodes" };
        format!("{word} {}", numbers.join(", "))
    };
    let (leading, voting) = (those("leads"), those("votes"));
    let deciders = match (&leading[..], &voting[..]) {
        (_, []) => String::new(),
        ([], voting) => format!("; of {}, which vote on it, none is known to lead", named(voting)),
        (leading, voting) => {
            format!("; {} decides on it, by the votes of {}", named(leading), named(voting))
        }
    };
    let given_up = nodes.iter().filter(|row| row.get::<_, Option<i64>>("given_up").is_some());
    let given_up: Vec<i64> = given_up.map(|row| row.get("node")).collect();
    let overridden = match &given_up[..] {
        [] => String::new(),
        nodes => format!("\nan operator has given up {}, which had a majority", named(nodes)),
    };
    format!("epoch {epoch} of the membership is {phase}{deciders}{overridden}\n")
}

/// How many of the nodes that are left can be lost before rows are, and how many while the cluster goes on.
fn prospect(nodes: &[Row]) -> String {
    let members = nodes.iter().filter(|row| row.get::<_, &str>("state") != "gone").count();
    let number = |column: &str| nodes.first().map_or(0_i64, |row| row.get(column));
    let (keeping_rows, serving) = (number("losses_keeping_rows"), number("losses_serving"));
    let missing = match number("copies_missing") {
        0 if number("copies_moving") > 0 => {
            format!("; {} copies are to move, or are moving", number("copies_moving"))
        }
        0 => String::new(),
        missing => format!(
            "; {missing} copies of partitions are missing, and are made again if there is room"
        ),
    };
    format!(
        "of {members} nodes {keeping_rows} can be lost, one after the other, without losing rows, and {serving} \
         while the cluster goes on, even at once{missing}"
    )
}

/// How much nodes still copy that are being filled, at what rate, and for how long; nothing if none is.
fn to_copy(before: &[Row], after: &[Row], interval: Duration) -> String {
    let copied = |rows: &[Row]| {
        let of_nodes = rows.iter().filter_map(|row| row.get::<_, Option<i64>>("copied_bytes"));
        of_nodes.sum::<i64>()
    };
    let left = after.first().map_or(0_i64, |row| row.get("bytes_to_copy"));
    let rate = (copied(after) - copied(before)) as f64 / interval.as_secs_f64().max(0.001);
    copying(left, rate)
}

/// The same, of bytes, and of bytes in a second.
fn copying(left: i64, rate: f64) -> String {
    let to_go = mebibytes(left as f64);
    match paced(left, rate) {
        _ if left == 0 => String::new(),
        None => format!("; {to_go:.1} MiB are to be copied"),
        Some(pace) => format!("; {to_go:.1} MiB are to be copied, {pace}"),
    }
}

fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// How fast so many bytes are copied, and for how long; none if nothing is.
fn paced(left: i64, rate: f64) -> Option<String> {
    let seconds = left as f64 / rate;
    let rate_mebibytes = mebibytes(rate);
    (rate >= 1.0).then(|| format!("at {rate_mebibytes:.1} MiB/s for about {seconds:.0} s"))
}

/// A line for each partition: where its copies are, and what is still to be copied.
fn partition_table(copies: &[Row], before: &[Row], interval: Duration) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["partition", "primary", "backups", "being filled"]);
    let place = |row: &Row| (row.get::<_, i64>("partition"), row.get::<_, i64>("node"));
    let to_copy = |row: &Row| row.get::<_, Option<i64>>("bytes_to_copy");
    for of_partition in copies.chunk_by(|one, next| place(one).0 == place(next).0) {
        let with_role = |role: &'static str| {
            of_partition.iter().filter(move |row| row.get::<_, &str>("role") == role)
        };
        let numbers = |role| {
            let numbers: Vec<_> = with_role(role).map(|row| place(row).1.to_string()).collect();
            numbers.join(", ")
        };
        let learners = with_role("learner").map(|row| {
            let (node, left) = (place(row).1, to_copy(row));
            let earlier = before.iter().find(|other| place(other) == place(row));
            let Some(left) = left else { return format!("{node}: not begun") };
            let to_go = mebibytes(left as f64);
            let copied = earlier.and_then(to_copy).map_or(0, |earlier| earlier - left);
            let pace = paced(left, copied as f64 / interval.as_secs_f64().max(0.001));
            let pace = pace.map(|pace| format!(" {pace}")).unwrap_or_default();
            format!("{node}: {to_go:.1} MiB to go{pace}")
        });
        let learners = learners.collect::<Vec<_>>().join("; ");
        let partition = of_partition.first().map(|row| place(row).0).unwrap_or_default();
        let cells = [partition.to_string(), numbers("primary"), numbers("backup"), learners];
        table.add_row(cells);
    }
    table
}

/// The table of nodes, each with its present row and that of an interval earlier.
fn table(nodes: &[(&Row, &Row)], copies: &[Row], interval: Duration) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let rates = COUNTED.map(|name| format!("{name}/s"));
    let fixed =
        ["node", "address", "state", "lease", "primary of", "copies", "memory", "main buckets"];
    table.set_header(fixed.iter().map(ToString::to_string).chain(rates));
    for (row, earlier) in nodes {
        table.add_row(cells(row, earlier, copies, interval));
    }
    for column in table.column_iter_mut().filter(|column| !(1..=2).contains(&column.index)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let primaries = copies.iter().filter(|copy| is_primary(copy)).count();
    let learners = copies.iter().filter(|copy| copy.get::<_, &str>("role") == "learner").count();
    let replicas = (copies.len() - learners) / primaries.max(1);
    format!("{} nodes, {primaries} partitions, {replicas} copies of each\n\n{table}", nodes.len())
}

fn is_primary(copy: &Row) -> bool {
    copy.get::<_, &str>("role") == "primary"
}

fn cells(row: &Row, earlier: &Row, copies: &[Row], interval: Duration) -> Vec<String> {
    let node: i64 = row.get("node");
    let is_own_copy = |copy: &&Row| {
        copy.get::<_, i64>("node") == node && copy.get::<_, &str>("role") != "learner"
    };
    let copies: Vec<_> = copies.iter().filter(is_own_copy).collect();
    let primaries = copies.iter().filter(|copy| is_primary(copy)).count();
    let number = |row: &Row, name: &str| row.get::<_, Option<i64>>(name);
    let mebibytes =
        |name| number(row, name).map_or("?".to_owned(), |bytes| format!("{}", bytes >> 20));
    let state = match number(row, "silent_seconds") {
        Some(seconds) => format!("silent for {seconds} s"),
        None => row.get("state"),
    };
    let address: Option<&str> = row.get("address");
    let place = match (address, row.get::<_, Option<&str>>("zone")) {
        (None, _) => "in this process".to_owned(),
        (Some(address), None) => address.to_owned(),
        (Some(address), Some(zone)) => format!("{address} in {zone}"),
    };
    let lease = match number(row, "lease_ms") {
        None if address.is_none() => "none needed".to_owned(),
        None => "?".to_owned(),
        Some(0) => "over".to_owned(),
        Some(left) => format!("{left} ms"),
    };
    let mut cells = vec![
        node.to_string(),
        place,
        state,
        lease,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_copied_is_said_with_its_rate_and_time() {
        assert_eq!(copying(0, 5e6), "");
        assert_eq!(copying(3 << 20, 0.0), "; 3.0 MiB are to be copied");
        let line = copying(96 << 20, f64::from(64 << 20));
        assert_eq!(line, "; 96.0 MiB are to be copied, at 64.0 MiB/s for about 2 s");
    }
}
