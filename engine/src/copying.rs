//! Copying: a job of a learner's worker that fills a partition from its primary, bucket by bucket.
//!
//! ```text
//! for each table: COPY ─▶ units of the next buckets ─▶ Learning::copy ─▶ a pause, so that transactions have most of the network
//! ```
//! Where the primary is lost meanwhile, the next one goes on: buckets have the same versions at all copies. What was copied before stays.
//! A table that is created meanwhile has no rows to be copied: all its transactions send their updates to the learner.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again".
//!
//! *Not here*: updates of buckets that are not copied yet, in `learning`.

use std::sync::Arc;
use std::time::Duration;

use gannet_rules::rule;
use gannet_storage::BucketUpdate;

use crate::coordinator::Coordinator;
use crate::learning::Lesson;
use crate::node::Node;
use crate::outcome::Abort;
use crate::request::CopyPlace;
use crate::transaction::copy::Copied;
use crate::view::View;

/// Shorter pauses are added up.
const PAUSE_MIN_NS: u64 = 1_000_000;
/// A job that is late, as transactions had its worker, catches up with so much.
const CATCH_UP_NS: u64 = 20_000_000;

/// How a partition was copied.
enum End {
    Whole,
    /// The node is no learner of it any more, or has ended, or closes.
    Ended,
}

/// Copies a partition at a learner, in a job of one of its workers.
pub(crate) fn copy_partition(
    coordinator: &mut Coordinator<'_>,
    node: &Node,
    worker: u16,
    lesson: Lesson,
) {
    match copy_tables(coordinator, node, worker, lesson) {
        End::Whole => {
            let (partition, _) = lesson;
            let view = node.view();
            assert!(
                node.learning().finish(lesson, |table| is_used(&view, table))
                    || !rule!(GRACE_PERIOD),
                "updates of partition {partition} wait, although all its buckets are copied"
            );
        }
        End::Ended => node.learning().give_up(lesson),
    }
}

/// Whether transactions may use a table, by a view.
fn is_used(view: &View, table: u16) -> bool {
    let mut tables = view.configuration().tables();
    tables.any(|(number, entry)| number == table && !entry.is_leaving)
}

/// Whether the node is a learner of a partition since some version, by a view.
fn is_learner(view: &View, (partition, since): Lesson) -> bool {
    let mut learners = view.configuration().learners(partition).iter();
    learners.any(|learner| (learner.node, learner.since) == (view.id(), since))
}

fn copy_tables(coordinator: &mut Coordinator<'_>, node: &Node, worker: u16, lesson: Lesson) -> End {
    if !rule!(LEARNED_WHOLE) {
        return End::Whole;
    }
    let tables: Vec<u16> = node.view().tables().map(|(number, _)| number).collect();
    let mut due_ns = 0;
    for table in tables {
        let (place, bytes) = (CopyPlace::default(), Vec::new());
        let mut copy = TableCopy { node, worker, table, lesson, place, bytes, due_ns: &mut due_ns };
        loop {
            if !is_learner(&node.view(), lesson) || node.learning().is_over() {
                return End::Ended;
            }
            match copy.next(coordinator) {
                Ok(true) => break,
                Ok(false) => {}
                // The next epoch goes on, and so does the copy.
                Err(abort) if abort.is_conflict() => {}
                // The node has ended.
                Err(_) => return End::Ended,
            }
        }
    }
    End::Whole
}

/// The copy of a partition of one table.
struct TableCopy<'n> {
    node: &'n Node,
    worker: u16,
    table: u16,
    lesson: Lesson,
    place: CopyPlace,
    /// Units, or the first part of one.
    bytes: Vec<u8>,
    /// When the pace allows further ones.
    due_ns: &'n mut u64,
}

impl TableCopy<'_> {
    /// Copies the next buckets. Whether there are no further ones.
    fn next(&mut self, coordinator: &mut Coordinator<'_>) -> Result<bool, Abort> {
        let (partition, _) = self.lesson;
        let had_bytes = self.bytes.len();
        let transaction = coordinator.begin();
        let copied = transaction.copy_page((self.table, partition), self.place, &mut self.bytes)?;
        let place = match copied {
            Copied::More(place) | Copied::All(place) => place,
            Copied::Again => return Ok(false),
            Copied::Nothing => {
                let view = self.node.view();
                let is_learner = is_learner(&view, self.lesson);
                // Only a table that is being dropped is gone from the primary of a partition with learners.
                assert!(
                    !is_learner || !is_used(&view, self.table),
                    "the primary of partition {partition} refuses to copy table {}",
                    self.table
                );
                return Ok(is_learner);
            }
        };
        let pages = self.bytes.len() - had_bytes;
        if self.place.offset > 0 && place.version != self.place.version {
            // The bucket has changed between two parts of its copy.
            self.bytes.clear();
            self.place.offset = 0;
            return Ok(false);
        }
        self.place = place;
        if place.offset == 0 {
            self.install();
        }
        self.node.learning().count(pages);
        self.keep_pace(coordinator, pages);
        coordinator.give_way();
        Ok(matches!(copied, Copied::All(_)))
    }

    /// Waits until bytes may have been copied that were copied just now.
    fn keep_pace(&mut self, coordinator: &mut Coordinator<'_>, bytes: usize) {
        let now_ns = coordinator.now_ns();
        let earliest_ns = now_ns.saturating_sub(CATCH_UP_NS);
        let time_ns = self.node.learning().time_of(self.worker, bytes);
        *self.due_ns = (*self.due_ns).max(earliest_ns).saturating_add(time_ns);
        let early_ns = self.due_ns.saturating_sub(now_ns);
        if early_ns >= PAUSE_MIN_NS {
            coordinator.pause(Duration::from_nanos(early_ns));
        }
    }

    /// Makes buckets what they are at the primary.
    fn install(&mut self) {
        let view: Arc<View> = self.node.view();
        let mut rest = self.bytes.as_slice();
        if let Some(table) = view.table(self.table) {
            while !rest.is_empty() {
                let parsed = BucketUpdate::parse(rest);
                let (mut unit, behind) = parsed.expect("the primary sends whole units");
                if !rule!(COPIED_VERSION) {
                    unit.base_version = 0;
                }
                let address = table.address_to_fill(unit.partition, unit.bucket);
                let address = address.expect("a learner has its partition, and memory for it");
                let copied = self.node.learning().copy(table, address, &unit);
                assert!(
                    copied.is_ok() || !rule!(GRACE_PERIOD),
                    "bucket {} of partition {} of table {} lacks an update behind its copy",
                    unit.bucket,
                    unit.partition,
                    unit.table
                );
                rest = behind;
            }
        }
        self.bytes.clear();
    }
}
