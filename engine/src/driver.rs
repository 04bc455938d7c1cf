//! The body of an OS thread that drives workers.
//!
//! An idle thread polls for a while, and then sleeps until a packet or a job arrives; `waiting.rs` decides how long it polls.
//! Clients often share the cores with it: a thread that polled for long would delay the requests that it waits for.
//!
//! *Not here*: which thread drives which workers, in `threads`; a thread that has other tasks beside its workers, in `hosted`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Sender;

use gannet_rpc::{Parking, Port};

use crate::cluster_state::ClusterState;
use crate::hosted::{self, ThreadHost};
use crate::member::Assignment;
use crate::waiting::{Decision, Medium, NearClient, Waiting};
use crate::worker_group::{Step, WorkerGroup};

/// Where the workers of a thread run.
pub(crate) struct ThreadOptions {
    /// The thread's number, from 0.
    pub(crate) number: usize,
    /// The core that it stays on, by its index among those that the process may use, if any.
    pub(crate) core: Option<usize>,
    /// The host that the thread is shared with, if it is.
    pub(crate) host: Option<Arc<dyn ThreadHost>>,
}

/// Runs the workers of one thread until the cluster closes or halts. `started` gets a message when the workers are there. If they
/// cannot be made, the cluster has failed before `started` is dropped.
pub(crate) fn drive<P: Port>(
    assignments: Vec<(Assignment, P)>,
    parking: Parking,
    options: &ThreadOptions,
    state: &Arc<ClusterState>,
    started: Sender<()>,
) {
    let assigned: Vec<_> = assignments.iter().map(|(assigned, _)| assigned.clone()).collect();
    let group = catch_unwind(AssertUnwindSafe(|| {
        WorkerGroup::new(assignments, parking, Arc::clone(state))
    }));
    match &group {
        // Nobody waits for it if another thread could not start.
        Ok(_) => drop(started.send(())),
        // The thread that waits finds the reason.
        Err(panic) => state.fail(&**panic),
    }
    drop(started);
    match (group, &options.host) {
        (Err(_), _) => {}
        (Ok(group), None) => {
            // Where the host does not allow it, the scheduler decides.
            let cores = core_affinity::get_core_ids().unwrap_or_default();
            if let Some(&core) = options.core.and_then(|index| cores.get(index)) {
                core_affinity::set_for_current(core);
            }
            poll_until_ended(group);
        }
        (Ok(group), Some(host)) => {
            let workers = assigned.iter().map(|assigned| assigned.index).collect();
            hosted::run(group, &**host, options.number, workers);
        }
    }
    // Pairs with the one in Cluster::put().
    fence(Ordering::SeqCst);
    for Assignment { member, worker, .. } in assigned {
        drop(member.take_jobs(worker));
    }
}

fn poll_until_ended<P: Port>(mut group: WorkerGroup<P>) {
    let busy_poll = group.state().busy_poll;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut waiting = Waiting::new(Medium::of::<P>());
        loop {
            match group.step() {
                Step::Progressed => waiting.progressed(group.now_ns()),
                Step::Ended(end) => return end,
                Step::Idle if busy_poll => std::hint::spin_loop(),
                Step::Idle => {
                    let expects = group.awaits_answers() || NearClient::exists();
                    match waiting.idle(group.now_ns(), expects) {
                        Decision::Poll => std::hint::spin_loop(),
                        Decision::Yield => std::thread::yield_now(),
                        Decision::Sleep => group.sleep(),
                    }
                }
            }
        }
    }));
    group.end(result);
}
