//! Recorded workloads, and the checkers that judge whether a recorded history is strictly serializable.
//!
//! | file | invariant |
//! |---|---|
//! | `serializable.rs` | one order of all transactions, compatible with real time, explains every list |
//! | `linearizable.rs` | one order of the operations on each register does |
//! | `acknowledged.rs` | each acknowledged append is there once, no aborted one is |
//! | `second_opinion.rs` | the crate `adya`, a checker of other authors, agrees |
//!
//! *Source*: Adya's dependency graphs (Weak Consistency, 1999); Kingsbury and Alvaro, Elle (VLDB
//! 2020), for lists that reveal the order of their appends; Gibbons and Korach, Testing Shared
//! Memories (1997), for registers.

mod acknowledged;
mod history;
mod linearizable;
mod list_append;
mod register;
mod second_opinion;
mod serializable;

pub use history::{Fate, History, Operation, Recorded};
pub use list_append::{ListAppend, judge_lists};
pub use register::Registers;

use gannet_engine::{Cluster, TableId};

/// Keys of `table` that fall into the first `buckets` buckets of their partitions, so that transactions on different keys
/// conflict.
fn colliding_keys(cluster: &Cluster, table: TableId, count: usize, buckets: u32) -> Vec<u64> {
    let view = cluster.view();
    let table = view.table(table.number()).expect("the table was just created");
    (0..).filter(|&key| table.locate(key).root < buckets).take(count).collect()
}
