//! Copies that are made again after a node of this process was killed: its nodes take the steps of a decider themselves.
//!
//! ```text
//! kill_node ─▶ steps: Learn, Fill ─▶ workers copy, while transactions go on ─▶ the thread: Learned, HandOver ─▶ it ends
//! ```
//! *Invariants*: steps are taken under the lock of changes, so tables are not created meanwhile. The thread ends with the cluster.
//!
//! *Not here*: which steps, in `placement`; how rows are copied, in `copying`; a cluster of processes, in `decider`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::configuration::Change;
use crate::local_members::LocalMembers;
use crate::placement::{self, CopiedPartition};

/// Between two looks at what was copied.
const LOOK: Duration = Duration::from_millis(20);
/// After a step that was not possible.
const AGAIN: Duration = Duration::from_secs(1);

/// Heals the cluster of this process.
#[derive(Default)]
pub(crate) struct Healer {
    shared: Arc<HealerState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a healer and its thread share.
#[derive(Default)]
struct HealerState {
    /// The thread that holds this lock holds the lock of changes, too.
    steps: Mutex<Steps>,
    is_over: Mutex<bool>,
    over: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HealerState {
    /// Waits for some time. Whether to go on.
    fn wait(&self, time: Duration) -> bool {
        let waited = self.over.wait_timeout_while(lock(&self.is_over), time, |is_over| !*is_over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The body of the thread.
    fn follow(&self, members: &LocalMembers, changing: &Mutex<()>) {
        let mut pause = LOOK;
        while self.wait(pause) {
            let _one_at_a_time = lock(changing);
            let mut steps = lock(&self.steps);
            if steps.take(members) {
                // Under the lock of changes: the next call of `heal` finds no thread.
                steps.has_thread = false;
                return;
            }
            pause = if steps.is_refused { AGAIN } else { LOOK };
        }
    }
}

impl Healer {
    /// Takes the steps that are possible now, and has a thread take those that follow. The caller holds `changing`.
    pub(crate) fn heal(&self, members: LocalMembers, changing: &Arc<Mutex<()>>) {
        let mut steps = lock(&self.shared.steps);
        // A thread that runs goes on with what is left.
        if steps.take(&members) || steps.has_thread {
            return;
        }
        let (shared, changing) = (Arc::clone(&self.shared), Arc::clone(changing));
        let body = move || shared.follow(&members, &changing);
        match std::thread::Builder::new().name("gannet-copies".to_owned()).spawn(body) {
            Ok(thread) => {
                steps.has_thread = true;
                // The one before has ended.
                *lock(&self.thread) = Some(thread);
            }
            Err(error) => tracing::warn!("copies are not made again, without a thread: {error}"),
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        *lock(&self.shared.is_over) = true;
        self.shared.over.notify_all();
        let thread = lock(&self.thread).take();
        // One that has panicked has nothing more to do.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// The steps towards the placement.
#[derive(Default)]
struct Steps {
    copied: BTreeSet<CopiedPartition>,
    /// The last step was not possible, and this was said.
    is_refused: bool,
    /// A thread takes those that follow.
    has_thread: bool,
}

impl Steps {
    /// Takes all that are possible now. Whether the placement is reached, as far as there are nodes for it.
    fn take(&mut self, members: &LocalMembers) -> bool {
        self.copied.append(&mut members.take_copied());
        loop {
            let configuration = members.configuration();
            let next = placement::under_way(&configuration, &self.copied).or_else(|| {
                let changes = match configuration.settled_placement() {
                    Some(_) => placement::next_changes(&configuration),
                    None => vec![Change::Learn(placement::learners(&configuration))],
                };
                let is_some = |change: &Change| *change != Change::Learn(Vec::new());
                changes.into_iter().find(is_some)
            });
            let Some(change) = next else { return placement::is_reached(&configuration) };
            if let Err(reason) = members.take_step(&change) {
                if !std::mem::replace(&mut self.is_refused, true) {
                    tracing::warn!("copies and primaries stay where they are for now: {reason}");
                }
                return false;
            }
            self.is_refused = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use crate::cluster::{Cluster, ClusterOptions};

    use super::*;

    /// Enough for a copy that takes minutes at the pace.
    const ROWS: u64 = 10_000;
    const ROW: [u8; 1_000] = [7; 1_000];
    const BYTES_PER_SECOND: u64 = 64 << 10;
    /// A close that waits for no copy takes less.
    const CLOSES: Duration = Duration::from_secs(30);

    #[test]
    fn a_cluster_that_closes_waits_for_no_copies() {
        let options = ClusterOptions {
            nodes: 3,
            replicas: 2,
            threads: 1,
            memory_limit_bytes: Some(64 << 20),
            ..ClusterOptions::default()
        };
        let cluster = Cluster::open(options).unwrap();
        let table = cluster.create_table("rows", ROW.len(), ROWS).unwrap();
        let mut loader = cluster.loader();
        (0..ROWS).for_each(|row| loader.add(table, row, &ROW).unwrap());
        loader.finish().unwrap();
        for node in cluster.nodes() {
            node.learning().set_bytes_per_second(BYTES_PER_SECOND);
        }
        cluster.kill_node(1).unwrap();
        assert!(cluster.membership().copies_missing > 0, "they are being made");
        let (closed, waited) = channel();
        let closing = std::thread::spawn(move || {
            cluster.close();
            closed.send(()).unwrap();
        });
        waited.recv_timeout(CLOSES).expect("it closes");
        closing.join().unwrap();
    }
}
