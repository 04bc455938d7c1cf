//! Growing: a job of a worker that splits buckets of tables whose rows have become more than the buckets are meant for.
//!
//! ```text
//! LOCK for an insert finds a long bucket ─▶ its partition is noted as crowded ─▶ the first worker that sees it begins the job
//! of each partition that is noted: splits, some at a time, until it is not crowded any more
//! ```
//! The job runs in a coroutine of its own, so that its splits have log slots of their own.
//!
//! *Source*: `docs/protocol.md`, "Growth".
//!
//! *Not here*: what a split is, in crate `storage`; how it commits, in `transaction/split`.

use std::time::Duration;

use gannet_storage::Splitting;

use crate::coordinator::Coordinator;
use crate::node::Node;

/// How long the job waits where memory has ended, before it looks for partitions again.
const PUT_OFF: Duration = Duration::from_millis(20);
/// Locks of the next bucket that are refused before others come first.
const ATTEMPTS_MAX: u32 = 10;

/// Grows the tables of which this node is the primary of a partition that is noted as crowded.
pub(crate) fn grow_tables(coordinator: &mut Coordinator<'_>, node: &Node) {
    while node.view().take_crowded() {
        // No view is kept: the memory of what is given up waits until all are gone.
        let crowded: Vec<(u32, u16)> = node
            .view()
            .tables()
            .flat_map(|(number, table)| table.take_crowded().map(move |it| (number, it)))
            .collect();
        for (table, partition) in crowded {
            if grow(coordinator, table, partition) == Grown::Refused {
                // Nobody may insert into it any more, so that nobody else notes it.
                let view = node.view();
                view.table(table).into_iter().for_each(|table| table.note_crowded(partition));
            }
        }
    }
}

/// How the growth of a partition has ended for now.
#[derive(PartialEq, Eq)]
enum Grown {
    /// It is not crowded any more, or is to be noted again.
    Done,
    /// Others held the locks of its next buckets.
    Refused,
}

fn grow(coordinator: &mut Coordinator<'_>, table: u32, partition: u16) -> Grown {
    let mut refused = 0;
    while refused < ATTEMPTS_MAX {
        match coordinator.begin().split_buckets(table, partition) {
            Ok(Splitting::Granted { .. }) => refused = 0,
            Ok(Splitting::Locked) => {
                refused += 1;
                coordinator.back_off(refused);
            }
            Ok(Splitting::Full) => {
                coordinator.pause(PUT_OFF);
                return Grown::Done;
            }
            // The next epoch goes on.
            Err(abort) if abort.is_conflict() => {
                refused += 1;
                coordinator.back_off(refused);
            }
            // The node has ended.
            Ok(Splitting::Enough) | Err(_) => return Grown::Done,
        }
        coordinator.give_way();
    }
    Grown::Refused
}
