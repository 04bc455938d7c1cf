//! An exchange of texts between the processes of one benchmark, through a table of the cluster itself.
//!
//! ```text
//! key     point / node / number of the part
//! value   u8 1 if it is the last part | part of the text
//! ```
//!
//! An exchange is also a barrier: a process continues when it has the texts of all processes. It ends with an error if one of them is
//! gone, although the cluster goes on.
//!
//! *Invariants*: a process writes one text at each point, and never changes it.
//!
//! *Not here*: the contents of the texts (`members`).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Abort, Change, Cluster, HEAP_VALUE_BYTES_MAX, Lost, Outcome, TableId};
use serde::{Deserialize, Serialize};

use crate::workload::BenchmarkError;

/// The table, which does not belong to the workload.
pub(crate) const TABLE: &str = "benchmark exchange";
/// Expected rows: some for each process.
const ROWS: u64 = 64;
/// Time between two checks for another process's text.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The values of all processes at a point, by node. Returns at once if all nodes are in this process.
///
/// A process that misses another one ends, and the cluster may halt without the two. The error names the first one then, if this
/// process has heard of that loss.
pub(crate) fn exchanged<T: Serialize + for<'a> Deserialize<'a>>(
    cluster: &Cluster,
    point: &str,
    own: T,
) -> Result<Vec<T>, BenchmarkError> {
    if cluster.transport().is_none() {
        return Ok(vec![own]);
    }
    exchange(cluster, point, own).map_err(|error| {
        let configuration = cluster.configuration();
        let lost = nodes(cluster).find(|&node| !configuration.is_member(node));
        match (&error, lost) {
            (BenchmarkError::Cluster(_), Some(lost)) => BenchmarkError::Gone(lost),
            _ => error,
        }
    })
}

fn exchange<T: Serialize + for<'a> Deserialize<'a>>(
    cluster: &Cluster,
    point: &str,
    own: T,
) -> Result<Vec<T>, BenchmarkError> {
    let table = cluster.open_ordered_table(TABLE, ROWS)?;
    let text = serde_json::to_string(&own).map_err(BenchmarkError::Exchange)?;
    let node = cluster.nodes()[0].id();
    let parts: Vec<_> = text.as_bytes().chunks(HEAP_VALUE_BYTES_MAX - 1).collect();
    for (number, part) in parts.iter().enumerate() {
        let is_last = number + 1 == parts.len();
        let value = [&[u8::from(is_last)], *part].concat();
        tell(cluster, table, key(point, node, number), value)?;
    }
    let texts = nodes(cluster).map(|node| {
        let text = heard(cluster, table, point, node)?;
        serde_json::from_slice(&text).map_err(BenchmarkError::Exchange)
    });
    texts.collect()
}

/// The nodes that the cluster began with.
fn nodes(cluster: &Cluster) -> impl Iterator<Item = u16> {
    (0..=u16::MAX).take(cluster.options().nodes)
}

fn key(point: &str, node: u16, part: usize) -> Vec<u8> {
    format!("{point}/{node}/{part}").into_bytes()
}

fn tell(
    cluster: &Cluster,
    table: TableId,
    key: Vec<u8>,
    value: Vec<u8>,
) -> Result<(), BenchmarkError> {
    let (key, value): (Arc<[u8]>, Arc<[u8]>) = (key.into(), value.into());
    loop {
        let (key, value) = (Arc::clone(&key), Arc::clone(&value));
        let told = cluster.run(move |tx| {
            tx.add_row_to_write_set(table, &key, Change::Insert(&value));
            tx.execute()
        });
        if committed(cluster, told?)?.is_some() {
            return Ok(());
        }
    }
}

/// Waits for the text of a node, unless the node is no member any more and has told none.
fn heard(
    cluster: &Cluster,
    table: TableId,
    point: &str,
    node: u16,
) -> Result<Vec<u8>, BenchmarkError> {
    let mut text = Vec::new();
    for number in 0.. {
        let part = loop {
            let key = key(point, node, number);
            // Before the read: what a node has told, it has told as a member.
            let is_member = cluster.configuration().is_member(node);
            let read =
                cluster.run(move |tx| Ok::<_, Abort>(tx.get(table, &key[..])?.map(<[u8]>::to_vec)));
            match committed(cluster, read?)? {
                Some(Some(part)) => break part,
                Some(None) if !is_member => return Err(BenchmarkError::Gone(node)),
                Some(None) | None => std::thread::park_timeout(LOOK_INTERVAL),
            }
        };
        let (is_last, part) = part.split_first().unwrap_or((&1, &[]));
        text.extend_from_slice(part);
        if *is_last == 1 {
            break;
        }
    }
    Ok(text)
}

/// The result of a transaction; None if it met too many conflicts, and may run again.
fn committed<T: Debug>(
    cluster: &Cluster,
    outcome: Outcome<T, Abort>,
) -> Result<Option<T>, BenchmarkError> {
    match outcome {
        Outcome::Committed(result) => Ok(Some(result)),
        Outcome::Aborted(abort) if abort.is_conflict() => Ok(None),
        _ if cluster.halted().is_some() => Err(cluster.loss(Lost::Unfinished).into()),
        other => Err(BenchmarkError::Untold(format!("{other:?}"))),
    }
}
