//! `gannet node`: `add` waits for a new node. `drain` empties a node, so that its process may be stopped, and `cancel` undoes that. `restart`
//! restarts processes. `remove` removes a silent node. `give-up` gives up a majority that is gone for ever.
//!
//! *Not here*: what follows (`gannet_engine`), and the procedures of SQL that do the same (`gannet_frontend`).
//!
//! Exit codes: 0 it is done, 1 it is not in time, or a stop would leave copies too few, 2 it is refused, or no node answers.

mod restart;

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use gannet_shell::{Connected, ServerAddress, connect_to_first};

use crate::connection::{Addresses, Credentials, parse_addresses};
use crate::output::print_line;
use crate::status::CommandError;
use crate::units::parse_duration;

/// Between two looks at what a drained node still has.
const LOOK: Duration = Duration::from_millis(200);
/// Looks in a row that find a node with its share: the process before it may be there still, as nobody has noticed its end.
const SETTLED_LOOKS: u32 = 5;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Wait until a node that is added is a member and holds its share; a drained one holds its share again. Its process, `gannet serve` with
    /// --join, is started before or meanwhile. The node is added all the same if this command is interrupted.
    Add {
        #[command(flatten)]
        at: At,
        /// Longest wait. Then the exit code is 1.
        #[arg(long, default_value = "60m", value_parser = parse_duration)]
        timeout: Duration,
    },
    /// Move what a node holds to others, and wait until its process may be stopped. It goes on if this command is interrupted.
    Drain {
        #[command(flatten)]
        at: At,
        /// Be content with fewer copies, if no other node can have those of this one.
        #[arg(long)]
        fewer_copies: bool,
        /// Longest wait. Then the exit code is 1, and the node is drained all the same.
        #[arg(long, default_value = "60m", value_parser = parse_duration)]
        timeout: Duration,
    },
    /// Have a drained node hold its share again.
    Cancel {
        #[command(flatten)]
        at: At,
    },
    /// Restart the process of a node, or those of all nodes one after the other, each when the cluster is healthy. The process ends as if by a
    /// signal, with exit code 75, and the program that has started it, such as an init system, starts it again.
    Restart {
        /// The node's number.
        #[arg(required_unless_present = "rolling", conflicts_with = "rolling")]
        node: Option<u16>,
        /// All nodes that are up.
        #[arg(long)]
        rolling: bool,
        #[command(flatten)]
        servers: Servers,
        /// Longest wait for all of it. Then the exit code is 1, and no further node is told.
        #[arg(long, default_value = "60m", value_parser = parse_duration)]
        timeout: Duration,
    },
    /// Go on without a majority of the nodes that decide on the membership, which is gone for ever: the node that is told decides without them.
    ///
    /// Be sure that none of their processes runs, and that none will be started with its old --manager-data: there would be two clusters, which
    /// both answer.
    GiveUp {
        /// The nodes' numbers: all that are silent.
        #[arg(required = true)]
        nodes: Vec<u16>,
        #[command(flatten)]
        servers: Servers,
    },
    /// Remove a node that is silent, and that the others wait for, because it has the last copy of some rows.
    Remove {
        #[command(flatten)]
        at: At,
        /// These rows may be lost, for ever.
        #[arg(long)]
        lose_rows: bool,
    },
}

/// Which node, and the servers that are told.
#[derive(Args)]
struct At {
    /// The node's number.
    node: u16,
    #[command(flatten)]
    servers: Servers,
}

/// The servers that are told.
#[derive(Args)]
struct Servers {
    /// The server of a node, or of several, separated by commas: the first that answers is told.
    #[arg(long, value_name = "ADDRESSES", value_parser = parse_addresses, default_value = "127.0.0.1")]
    connect: Addresses,
    #[command(flatten)]
    credentials: Credentials,
}

/// Does it, and says what has become of it. Whether it is done.
pub(crate) fn run(arguments: Arguments) -> Result<bool, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match arguments.command {
            Command::Drain {
                at: At { node, servers: Servers { connect, credentials } },
                fewer_copies,
                timeout,
            } => {
                let addresses = credentials.complete(connect)?;
                let drained = async {
                    call(&addresses, format!("CALL gannet_drain_node({node})")).await?;
                    wait_until_drained(&addresses, node, fewer_copies).await
                };
                if let Ok(is_done) = tokio::time::timeout(timeout, drained).await {
                    return is_done;
                }
                print_line(format_args!("node {node} is not drained in time, and may be later"))?;
                Ok(false)
            }
            Command::Add {
                at: At { node, servers: Servers { connect, credentials } },
                timeout,
            } => {
                let addresses = credentials.complete(connect)?;
                let added = wait_until_added(&addresses, node);
                if let Ok(added) = tokio::time::timeout(timeout, added).await {
                    return added.map(|()| true);
                }
                print_line(format_args!("node {node} does not hold its share in time"))?;
                Ok(false)
            }
            Command::Cancel { at: At { node, servers: Servers { connect, credentials } } } => {
                let addresses = credentials.complete(connect)?;
                call(&addresses, format!("CALL gannet_cancel_drain({node})")).await?;
                print_line(format_args!("node {node} is to hold its share"))?;
                Ok(true)
            }
            Command::Restart {
                node,
                rolling: _,
                servers: Servers { connect, credentials },
                timeout,
            } => {
                let addresses = credentials.complete(connect)?;
                let restarted = restart::restart(&addresses, node);
                if let Ok(restarted) = tokio::time::timeout(timeout, restarted).await {
                    return restarted.map(|()| true);
                }
                print_line("not all is done in time; gannet status tells what is missing")?;
                Ok(false)
            }
            Command::GiveUp { nodes, servers: Servers { connect, credentials } } => {
                let addresses = credentials.complete(connect)?;
                let numbers: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                let numbers = numbers.join(", ");
                call(&addresses, format!("CALL gannet_give_up_nodes({numbers})")).await?;
                print_line(format_args!("nodes {numbers} are given up; the others go on"))?;
                Ok(true)
            }
            Command::Remove {
                at: At { node, servers: Servers { connect, credentials } },
                lose_rows,
            } => {
                let addresses = credentials.complete(connect)?;
                call(&addresses, format!("CALL gannet_remove_node({node}, {lose_rows})")).await?;
                print_line(format_args!("node {node} is removed"))?;
                Ok(true)
            }
        }
    })
}

async fn call(addresses: &[ServerAddress], sql: String) -> Result<(), CommandError> {
    let Connected { client, connection, .. } = connect_to_first(addresses, 0).await?;
    // The connection's error is also that of the statement.
    tokio::spawn(async { connection.await.unwrap_or_default() });
    client.batch_execute(&sql).await?;
    Ok(())
}

/// What a node has.
struct Held {
    /// Up, silent or gone.
    state: String,
    /// As the column `drain` of `gannet_nodes` has it; none if the node is not drained.
    drain: Option<String>,
    /// Partitions that it has a part of.
    partitions: usize,
    /// Why the cluster is not healthy.
    unhealthy: Option<String>,
    /// Whether copies are to be made or to move, or an epoch is prepared.
    moves: bool,
}

/// What a node has; none if there is no such node.
async fn held(addresses: &[ServerAddress], number: u16) -> Result<Option<Held>, CommandError> {
    loop {
        match held_now(addresses, number).await {
            // The node that was asked may have been about to stop.
            Err(CommandError::Server(error)) if error.is_closed() => {}
            result => return result,
        }
    }
}

async fn held_now(addresses: &[ServerAddress], number: u16) -> Result<Option<Held>, CommandError> {
    let Connected { client, connection, .. } = connect_to_first(addresses, 0).await?;
    tokio::spawn(async { connection.await.unwrap_or_default() });
    let nodes = client.query("SHOW gannet_nodes", &[]).await?;
    let copies = client.query("SHOW gannet_copies", &[]).await?;
    let is_it = |row: &&tokio_postgres::Row| row.get::<_, i64>("node") == i64::from(number);
    let partitions = copies.iter().filter(is_it).count();
    Ok(nodes.iter().find(is_it).map(|row| Held {
        state: row.get("state"),
        drain: row.get("drain"),
        partitions,
        unhealthy: row.get("unhealthy"),
        moves: row.get::<_, i64>("copies_missing") + row.get::<_, i64>("copies_moving") > 0
            || row.get::<_, String>("phase") != "active",
    }))
}

async fn wait_until_drained(
    addresses: &[ServerAddress],
    node: u16,
    fewer_copies: bool,
) -> Result<bool, CommandError> {
    let mut progress = Progress::default();
    loop {
        let Some(Held { state, drain, partitions, unhealthy, .. }) = held(addresses, node).await?
        else {
            print_line(format_args!("there is no node {node}"))?;
            return Ok(false);
        };
        match drain.as_deref() {
            Some("empty") if state == "gone" => {
                print_line(format_args!(
                    "node {node} is gone; gannet status tells what is missing"
                ))?;
                return Ok(unhealthy.is_none());
            }
            Some("empty") => {
                print_line(format_args!(
                    "node {node} holds nothing that is needed; its process may be stopped"
                ))?;
                return Ok(true);
            }
            Some("needed") if fewer_copies => {
                print_line(format_args!(
                    "the process of node {node} may be stopped; {partitions} partitions have a copy less then"
                ))?;
                return Ok(true);
            }
            Some("needed") => {
                print_line(format_args!(
                    "node {node} keeps its copies of {partitions} partitions, as every other node has one already: \
                     if its process is stopped, there is a copy less; run this again with --fewer-copies to be content with that"
                ))?;
                return Ok(false);
            }
            Some(_) => {}
            None => {
                print_line(format_args!(
                    "node {node} is not drained: its drain was cancelled, or its process was started again"
                ))?;
                return Ok(false);
            }
        }
        let why = unhealthy.map_or_else(String::new, |why| format!("; {why}"));
        progress.say(format!("node {node} has {partitions} partitions still{why}"));
        tokio::time::sleep(LOOK).await;
    }
}

async fn wait_until_added(addresses: &[ServerAddress], node: u16) -> Result<(), CommandError> {
    let mut progress = Progress::default();
    let mut looks = 0;
    loop {
        match held(addresses, node).await? {
            Some(Held { state, drain: Some(_), .. }) if state == "up" => {
                call(addresses, format!("CALL gannet_add_node({node})")).await?;
            }
            Some(Held { state, partitions, unhealthy, moves, .. }) if state == "up" => {
                let why = unhealthy.unwrap_or_default();
                // Other reasons, such as a third node that is gone, do not concern this one.
                let is_settled = !moves && !why.starts_with("the primaries");
                looks = if is_settled { looks + 1 } else { 0 };
                if looks == SETTLED_LOOKS {
                    let note = if why.is_empty() { why } else { format!("; {why}") };
                    return Ok(print_line(format_args!(
                        "node {node} holds its share, {partitions} partitions{note}"
                    ))?);
                }
                progress.say(format!("node {node} has {partitions} partitions; {why}"));
            }
            _ => progress.say(format!(
                "node {node} is not there: start its process with gannet serve --node {node} --join ..."
            )),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What was said last of a wait.
#[derive(Default)]
struct Progress(String);

impl Progress {
    /// Says something new.
    fn say(&mut self, line: String) {
        if self.0 != line {
            // Standard error may be closed; the exit code tells what matters.
            let _ = writeln!(std::io::stderr(), "{line}");
            self.0 = line;
        }
    }
}
