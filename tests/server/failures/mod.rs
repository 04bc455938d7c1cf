//! Processes that fail: nodes are killed, stand still and are cut off, and the cluster goes on without them.
//!
//! ```text
//! cluster     processes of this host, or of a network whose links can be cut; a log file for each
//! histories   clients of all nodes, whose sessions may break; checkers judge what they saw
//! deaths, pauses, majority, partitions, restarts      one kind of failure each
//! copies      copies that are made again on other nodes
//! drains      nodes that are drained and stopped
//! joins       nodes that nobody has named at the start, and machines that are replaced
//! batches     work of several transactions, which a death of another node does not end
//! run         all of them in turn, for a minute; in campaigns for six
//! ```
//! A short lease is long enough for threads of a busy machine, so that only nodes are removed that fail. No time is asserted:
//! what is expected to happen has half a minute.
//!
//! *Not here*: failures in virtual time, which `gannet simulate` strikes at chosen steps of a commit; bad networks, in `chaos`.

mod batches;
mod cluster;
mod copies;
mod deaths;
mod drains;
mod histories;
mod joins;
mod lost;
mod majority;
mod partitions;
mod pauses;
mod restarts;
mod run;

pub(crate) use cluster::{awaited, pass};
pub(crate) use run::run_for;
