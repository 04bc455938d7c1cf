//! Processes that are started again one after the other, each while the cluster is healthy without it.
//!
//! ```text
//! healthy ─▶ CALL gannet_restart_node ─▶ the node leaves: the next epoch ─▶ its process is started again ─▶ it is up, and all is healthy
//! ```
//! *Invariant*: no second node is told before the first one is back.
//!
//! *Not here*: who starts the process again: an init system, or a script.

use std::io::Write;

use gannet_shell::{Connected, ServerAddress, connect_to_first};
use tokio_postgres::error::SqlState;

use super::{LOOK, call};
use crate::output::print_line;
use crate::status::{ANSWER, CommandError};

/// What the first node that answers says of all.
struct Seen {
    epoch: i64,
    /// By node: whether it is up.
    nodes: Vec<(i64, bool)>,
    /// Why the cluster is not healthy.
    unhealthy: Option<String>,
}

async fn seen(addresses: &[ServerAddress]) -> Result<Seen, CommandError> {
    let Connected { client, connection, .. } = connect_to_first(addresses, 0).await?;
    // The connection's error is also that of the statement.
    tokio::spawn(async { connection.await.unwrap_or_default() });
    let rows = client.query("SHOW gannet_nodes", &[]).await?;
    let is_up = |row: &tokio_postgres::Row| row.get::<_, &str>("state") == "up";
    Ok(Seen {
        epoch: rows.first().map_or(0, |row| row.get("epoch")),
        nodes: rows.iter().map(|row| (row.get("node"), is_up(row))).collect(),
        unhealthy: rows.first().and_then(|row| row.get("unhealthy")),
    })
}

/// Waits until the cluster is healthy, and what was seen says so, too. A node that is asked may be one that starts or stops.
async fn wait_until(addresses: &[ServerAddress], is_so: impl Fn(&Seen) -> bool) -> Seen {
    let mut said = None;
    loop {
        let why = match tokio::time::timeout(ANSWER, seen(addresses)).await {
            Ok(Ok(seen)) if seen.unhealthy.is_none() && is_so(&seen) => return seen,
            Ok(Ok(seen)) => seen.unhealthy.or_else(|| Some("nothing has happened yet".to_owned())),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("a node does not answer".to_owned()),
        };
        if let Some(why) = why.filter(|why| said.as_ref() != Some(why)) {
            // Standard error may be closed; the exit code tells what matters.
            let _ = writeln!(std::io::stderr(), "waiting: {why}");
            said = Some(why);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Restarts the process of a node, or those of all nodes that are up.
pub(super) async fn restart(
    addresses: &[ServerAddress],
    node: Option<u16>,
) -> Result<(), CommandError> {
    // At once, if nobody answers.
    seen(addresses).await?;
    let before = wait_until(addresses, |_| true).await;
    let up = before.nodes.iter().filter(|(_, is_up)| *is_up).map(|(number, _)| *number);
    let numbers = node.map_or_else(|| up.collect(), |node| vec![i64::from(node)]);
    for number in numbers {
        let Seen { epoch, .. } = wait_until(addresses, |_| true).await;
        match call(addresses, format!("CALL gannet_restart_node({number})")).await {
            // The node that was asked may be this one, and end the session before it answers.
            Err(CommandError::Server(error))
                if error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN) => {}
            told => told?,
        }
        let is_back = |seen: &Seen| seen.epoch > epoch && seen.nodes.contains(&(number, true));
        wait_until(addresses, is_back).await;
        print_line(format_args!("node {number} was started again, and the cluster is healthy"))?;
    }
    Ok(())
}
