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

use crate::answer::CopyPlace;
use crate::coordinator::Coordinator;
use crate::learning::Lesson;
use crate::node::Node;
use crate::outcome::Abort;
use crate::transaction::copy::Copied;
use crate::view::View;

/// Shorter pauses are added up.
const PAUSE_MIN_NS: u64 = 1_000_000;
/// A job that is late, as transactions had its worker, catches up with at most so much.
const APART_NS_MAX: u64 = 20_000_000;

/// Between two questions for a table that only one of both nodes has heard of.
const UNHEARD_PAUSE: Duration = Duration::from_millis(1);

/// How a partition was copied.
enum End {
    Whole,
    /// The node is no learner of it any more, or has ended, or closes.
    Ended,
}

/// Whether transactions may use a table, by a view.
fn is_used(view: &View, table: u32) -> bool {
    view.configuration().has_table(table)
}

/// Whether the node is a learner of a partition since some version, by a view.
fn is_learner(view: &View, (partition, since): Lesson) -> bool {
    let mut learners = view.configuration().learners(partition).iter();
    learners.any(|learner| (learner.node, learner.since) == (view.id(), since))
}

/// A job of a learner's worker that copies partitions, one after the other.
pub(crate) struct Copier<'n> {
    node: &'n Node,
    worker: u16,
    pace: Pace,
}

impl<'n> Copier<'n> {
    pub(crate) fn new(node: &'n Node, worker: u16) -> Self {
        Self { node, worker, pace: Pace::default() }
    }

    /// Copies what the worker is to copy, as long as there is something.
    pub(crate) fn run(mut self, coordinator: &mut Coordinator<'_>) {
        while let Some(lesson) = self.node.learning().next(self.worker) {
            self.copy_partition(coordinator, lesson);
        }
    }

    fn copy_partition(&mut self, coordinator: &mut Coordinator<'_>, lesson: Lesson) {
        match self.copy_tables(coordinator, lesson) {
            End::Whole => {
                let (partition, _) = lesson;
                let view = self.node.view();
                // For what is of halves that were merged before they were copied.
                view.tables().for_each(|(_, table)| table.bury_dead(partition));
                let used = |table| view.table(table).filter(|_| is_used(&view, table));
                assert!(
                    self.node.learning().finish(lesson, used) || !rule!(GRACE_PERIOD),
                    "updates of partition {partition} wait, although all its buckets are copied"
                );
            }
            End::Ended => self.node.learning().give_up(lesson),
        }
    }

    fn copy_tables(&mut self, coordinator: &mut Coordinator<'_>, lesson: Lesson) -> End {
        if !rule!(LEARNED_WHOLE) {
            return End::Whole;
        }
        let tables: Vec<u32> = self.node.view().tables().map(|(number, _)| number).collect();
        for table in tables {
            let (node, place) = (self.node, CopyPlace::default());
            let mut copy = TableCopy { node, table, lesson, place, bytes: Vec::new() };
            loop {
                if !is_learner(&node.view(), lesson) || node.learning().is_over() {
                    return End::Ended;
                }
                match copy.next(coordinator) {
                    Ok(Step { bytes, is_last }) => {
                        self.keep_pace(coordinator, bytes);
                        coordinator.give_way();
                        if is_last {
                            break;
                        }
                    }
                    // The next epoch goes on, and so does the copy.
                    Err(abort) if abort.is_conflict() => {}
                    // The node has ended.
                    Err(_) => return End::Ended,
                }
            }
        }
        End::Whole
    }

    /// Waits until bytes may have been copied that were copied just now.
    fn keep_pace(&mut self, coordinator: &mut Coordinator<'_>, bytes: usize) {
        let time_ns = self.node.learning().time_of(self.worker, bytes);
        if let Some(pause) = self.pace.pause_after(time_ns, coordinator.now_ns()) {
            coordinator.pause(pause);
        }
    }
}

/// The pace of a job.
#[derive(Default)]
struct Pace {
    /// When it allows further bytes.
    due_ns: u64,
}

impl Pace {
    /// How long to pause after what is to take some time, which the job may have taken already.
    fn pause_after(&mut self, time_ns: u64, now_ns: u64) -> Option<Duration> {
        // The clock may have jumped.
        let bounds_ns = (now_ns.saturating_sub(APART_NS_MAX), now_ns.saturating_add(APART_NS_MAX));
        self.due_ns = self.due_ns.clamp(bounds_ns.0, bounds_ns.1).saturating_add(time_ns);
        let early_ns = self.due_ns.saturating_sub(now_ns);
        (early_ns >= PAUSE_MIN_NS).then(|| Duration::from_nanos(early_ns))
    }
}

/// What a step of a copy has brought.
struct Step {
    bytes: usize,
    /// There are no further buckets.
    is_last: bool,
}

/// The copy of a partition of one table.
struct TableCopy<'n> {
    node: &'n Node,
    table: u32,
    lesson: Lesson,
    place: CopyPlace,
    /// Units, or the first part of one.
    bytes: Vec<u8>,
}

impl TableCopy<'_> {
    /// Copies the next buckets.
    fn next(&mut self, coordinator: &mut Coordinator<'_>) -> Result<Step, Abort> {
        let (partition, _) = self.lesson;
        let had_bytes = self.bytes.len();
        let transaction = coordinator.begin();
        let copied = transaction.copy_page((self.table, partition), self.place, &mut self.bytes)?;
        let place = match copied {
            Copied::More(place) | Copied::All(place) => place,
            Copied::Again => return Ok(Step { bytes: 0, is_last: false }),
            Copied::Failed => {
                let view = self.node.view();
                view.table(self.table).into_iter().for_each(|it| it.fail_bulk_load(partition));
                return Ok(Step { bytes: 0, is_last: true });
            }
            Copied::Nothing => {
                // A table that this node uses has not come to the primary yet, or has left it already. The copy goes on when both have heard.
                let view = self.node.view();
                let is_dropped = is_learner(&view, self.lesson) && !is_used(&view, self.table);
                if !is_dropped {
                    coordinator.pause(UNHEARD_PAUSE);
                }
                return Ok(Step { bytes: 0, is_last: is_dropped });
            }
        };
        let pages = self.bytes.len() - had_bytes;
        if self.place.offset > 0 && place.version != self.place.version {
            // The bucket has changed between two parts of its copy.
            self.bytes.clear();
            self.place.offset = 0;
            return Ok(Step { bytes: 0, is_last: false });
        }
        self.place = place;
        if place.offset == 0 {
            self.install();
        }
        self.node.learning().count(pages);
        Ok(Step { bytes: pages, is_last: matches!(copied, Copied::All(_)) })
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
                let copied = self.node.learning().copy(table, &unit);
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_NS: u64 = 400_000;

    /// The time that so many pages take, each of which is copied in some time and is to take [`PAGE_NS`]; and how often the job has paused.
    fn copied(pages: u64, each_ns: u64) -> (u64, u64) {
        let (mut pace, start_ns, mut pauses) = (Pace::default(), 1_000_000_000, 0);
        let mut now_ns = start_ns;
        for _ in 0..pages {
            now_ns += each_ns;
            if let Some(pause) = pace.pause_after(PAGE_NS, now_ns) {
                now_ns += u64::try_from(pause.as_nanos()).unwrap();
                pauses += 1;
            }
        }
        (now_ns - start_ns, pauses)
    }

    #[test]
    fn short_pauses_are_added_up_and_the_time_of_copying_is_part_of_them() {
        for each_ns in [1_000, 100_000, 300_000] {
            let (took_ns, pauses) = copied(10_000, each_ns);
            let paced_ns = 10_000 * PAGE_NS;
            assert!(
                (paced_ns - APART_NS_MAX - PAUSE_MIN_NS..=paced_ns).contains(&took_ns),
                "{each_ns}: {took_ns}"
            );
            assert!((500..4_000).contains(&pauses), "{each_ns}: {pauses}");
        }
        assert_eq!(copied(10_000, PAGE_NS), (10_000 * PAGE_NS, 0), "there is nothing to wait for");
    }

    #[test]
    fn what_is_late_catches_up_a_little_and_a_clock_that_jumps_holds_nobody_up() {
        let mut pace = Pace::default();
        let mut unpaced = 0;
        while pace.pause_after(PAGE_NS, 90_000_000_000).is_none() {
            unpaced += 1;
        }
        assert!((APART_NS_MAX / PAGE_NS..60).contains(&unpaced), "{unpaced}");
        let pause = pace.pause_after(PAGE_NS, 1_000_000_000).unwrap();
        assert_eq!(pause, Duration::from_nanos(APART_NS_MAX + PAGE_NS));
    }
}
