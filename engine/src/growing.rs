//! Growing: a job of a worker that splits buckets of tables whose rows have become more than the buckets are meant for, and merges those of
//! tables that have emptied.
//!
//! ```text
//! LOCK for an insert finds a long bucket ─▶ its partition is noted as crowded ─▶ the first worker that sees it begins the job
//! PRIMARY removes rows of few            ─▶ it is noted as well
//! of each partition that is noted: splits, some at a time, until it is not crowded any more
//!                             merges, some at a time, when nothing is removed from it any more, until it has rows for its buckets
//! memory of dead buckets: when each worker has begun another step, it is handed out again
//! ```
//! The job runs in a coroutine of its own, so that its splits and merges have log slots of their own.
//!
//! *Source*: `docs/protocol.md`, "Growth" and "Shrinking".
//!
//! *Not here*: what splits and merges are, in crate `storage`; how they commit, in `transaction/split` and `transaction/merge`.

use std::collections::BTreeMap;
use std::time::Duration;

use gannet_storage::{Reshaping, Retired};

use crate::coordinator::Coordinator;
use crate::node::Node;
use crate::outcome::Abort;
use crate::transaction::split::Splits;

/// How long the job waits where memory has ended, before it looks for partitions again.
const PUT_OFF: Duration = Duration::from_millis(20);
/// How often the worker's other coroutines go on between some splits and the next ones, unless the splits are late. So transactions beside
/// the growth keep nine tenths of their rate (`docs/benchmarks.md`, "Tables that have grown").
const TURNS: u32 = 8;
/// Locks of the next bucket that are refused before others come first.
const ATTEMPTS_MAX: u32 = 10;
/// Between two looks at partitions that may be shrunk.
const LOOK: Duration = Duration::from_millis(2);
/// One from which nothing was removed for so many looks is shrunk; and one that was looked at so often, although something was.
const QUIET_LOOKS: u32 = 25;
const LOOKS_MAX: u32 = 500;
/// Looks whether each worker has begun another step, before memory waits for the next growth.
const RECLAIM_LOOKS_MAX: u32 = 500;

/// Partitions that may have too many buckets, by table.
type Sparse = BTreeMap<(u32, u16), Looks>;

/// What looks at a partition have seen.
#[derive(Clone, Copy, Default)]
struct Looks {
    count: u32,
    /// The last ones that have seen the same number of removals, and that number.
    quiet: u32,
    removals: u32,
}

impl Looks {
    /// Looks again. Whether the partition is to be shrunk.
    fn look(&mut self, removals: u32) -> bool {
        self.quiet = if removals == self.removals { self.quiet + 1 } else { 0 };
        (self.count, self.removals) = (self.count + 1, removals);
        self.quiet >= QUIET_LOOKS || self.count >= LOOKS_MAX
    }
}

/// Grows and shrinks the tables of which this node is the primary of a partition that is noted.
pub(crate) fn grow_tables(coordinator: &mut Coordinator<'_>, node: &Node) {
    let (mut sparse, mut reclaiming) = (Sparse::new(), Reclaiming::default());
    loop {
        if node.view().take_crowded() {
            grow_crowded(coordinator, node, &mut sparse);
        }
        shrink_sparse(coordinator, node, &mut sparse);
        let reclaims = reclaiming.goes_on(node);
        if node.view().has_crowded() {
            continue;
        }
        if sparse.is_empty() && !reclaims || node.parts() {
            return reclaiming.end(node);
        }
        coordinator.pause(LOOK);
    }
}

/// Memory of buckets that have died, which is taken back when no worker looks at them any more.
#[derive(Default)]
struct Reclaiming {
    /// Since which round, and how often was looked whether each worker has begun another step.
    retired: Option<(Retired, u64, u32)>,
}

impl Reclaiming {
    /// Takes back what it can. Whether there is more.
    fn goes_on(&mut self, node: &Node) -> bool {
        match self.retired.take() {
            Some((retired, round, _)) if node.has_begun_steps(round) && !node.arena.is_loaded() => {
                node.arena.reclaim(retired);
            }
            Some((retired, round, looks)) if looks < RECLAIM_LOOKS_MAX => {
                self.retired = Some((retired, round, looks + 1));
                return true;
            }
            // Workers that sleep begin no step. The next growth goes on.
            Some((retired, ..)) => {
                node.arena.put_back(retired);
                return false;
            }
            None => {}
        }
        let retired = node.arena.take_retired();
        let has_more = !retired.is_empty();
        self.retired = has_more.then(|| (retired, node.begin_round(), 0));
        has_more
    }

    /// Leaves the rest to the next growth.
    fn end(self, node: &Node) {
        self.retired.into_iter().for_each(|(retired, ..)| node.arena.put_back(retired));
    }
}

/// Grows the partitions that are noted. They may have too many buckets after that.
fn grow_crowded(coordinator: &mut Coordinator<'_>, node: &Node, sparse: &mut Sparse) {
    // No view is kept: the memory of what is given up waits until all are gone.
    let crowded: Vec<(u32, u16)> = node
        .view()
        .tables()
        .flat_map(|(number, table)| table.take_crowded().map(move |it| (number, it)))
        .collect();
    for (table, partition) in crowded {
        let grown = grow(coordinator, table, partition);
        let view = node.view();
        let Some(found) = view.table(table) else { continue };
        if grown == Reshaped::Refused {
            // Nobody may insert into it any more, so that nobody else notes it.
            found.note_crowded(partition);
        } else if found.merges_wanted(partition) > 0 {
            sparse.entry((table, partition)).or_default();
        }
    }
}

/// Shrinks the partitions from which nothing has been removed for a while: a transaction that removes many rows would meet buckets that
/// are being merged. Those are left that are to be looked at again.
fn shrink_sparse(coordinator: &mut Coordinator<'_>, node: &Node, sparse: &mut Sparse) {
    for ((table, partition), mut looks) in std::mem::take(sparse) {
        let view = node.view();
        let Some(found) = view.table(table).filter(|it| it.merges_wanted(partition) > 0) else {
            continue;
        };
        let is_due = looks.look(found.removals(partition)) || found.is_asked(partition);
        drop(view);
        if !is_due || shrink(coordinator, table, partition) == Reshaped::Refused {
            sparse.insert((table, partition), looks);
            continue;
        }
        node.view().table(table).into_iter().for_each(|table| table.bury_dead(partition));
    }
}

/// How the growth or the shrinking of a partition has ended for now.
#[derive(PartialEq, Eq)]
enum Reshaped {
    /// It has as many buckets as it needs, or is to be noted again.
    Done,
    /// Others held the locks of its next buckets.
    Refused,
    /// Memory has ended.
    Full,
}

fn grow(coordinator: &mut Coordinator<'_>, table: u32, partition: u16) -> Reshaped {
    let mut splits = Splits::default();
    let grown = reshape(coordinator, |it| {
        let reshaping = it.begin().split_buckets(table, partition, &mut splits)?;
        it.let_others_go_on(if splits.are_late { 0 } else { TURNS });
        Ok(reshaping)
    });
    if grown == Reshaped::Full {
        coordinator.pause(PUT_OFF);
    }
    grown
}

fn shrink(coordinator: &mut Coordinator<'_>, table: u32, partition: u16) -> Reshaped {
    // Without memory the buckets stay.
    reshape(coordinator, |it| {
        let reshaping = it.begin().merge_buckets(table, partition)?;
        it.let_others_go_on(TURNS);
        Ok(reshaping)
    })
}

/// Has buckets split or merged until there are enough, or it is refused too often.
fn reshape(
    coordinator: &mut Coordinator<'_>,
    mut some: impl FnMut(&mut Coordinator<'_>) -> Result<Reshaping, Abort>,
) -> Reshaped {
    let mut refused = 0;
    while refused < ATTEMPTS_MAX {
        let is_refused = match some(coordinator) {
            Ok(Reshaping::Granted { .. }) => false,
            Ok(Reshaping::Locked) => true,
            // The next epoch goes on.
            Err(abort) if abort.is_conflict() => true,
            Ok(Reshaping::Full) => return Reshaped::Full,
            // The node has ended.
            Ok(Reshaping::Enough) | Err(_) => return Reshaped::Done,
        };
        if is_refused {
            refused += 1;
            coordinator.back_off(refused);
        } else {
            refused = 0;
        }
        coordinator.give_way();
    }
    Reshaped::Refused
}
