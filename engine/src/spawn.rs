//! Submission of jobs by other threads to the workers of a cluster.
//!
//! *Invariant*: a job that was accepted runs, or is answered that it has not begun, as the cluster has halted.
//!
//! *Not here*: what a thread that drives workers does for a job of its own tasks, in `hosted`.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use gannet_rpc::is_cancel;

use crate::cluster::{Cluster, ClusterError, WorkerId};
use crate::completion::{Completion, completion};
use crate::coordinator::Coordinator;
use crate::hosted;
use crate::member::Member;
use crate::outcome::{Abort, Outcome};
use crate::transaction::Transaction;
use crate::worker::Job;

impl Cluster {
    /// Runs `job` on a coroutine of a worker.
    ///
    /// # Errors
    /// [`ClusterError::Busy`] if its queue is full, [`ClusterError::Join`] if the cluster has halted, [`ClusterError::NoSuchWorker`].
    pub fn spawn<T: Send + 'static>(
        &self,
        worker: WorkerId,
        job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
    ) -> Result<Completion<T>, ClusterError> {
        let WorkerId { node, worker } = worker;
        let lives = self.node(node).is_some_and(|node| !node.is_killed());
        if !lives || worker >= self.options.threads {
            return Err(ClusterError::NoSuchWorker { node, worker });
        }
        let (job, completion) = with_completion(job);
        self.enqueue(self.workers_of(node).start + worker, job)
            .map(|()| completion)
            .map_err(|_| self.refusal())
    }

    /// Runs `job` on a coroutine of some worker. Returns at once; but a task on one of the cluster's own threads, which it
    /// shares with a [`ThreadHost`](crate::ThreadHost), has the workers of that thread begin the job before.
    ///
    /// # Errors
    /// [`ClusterError::Busy`] if every queue is full, [`ClusterError::Join`] if the cluster has halted.
    pub fn spawn_anywhere<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
    ) -> Result<Completion<T>, ClusterError> {
        self.spawn_within(0..self.workers(), job)
    }

    /// As [`Self::spawn_anywhere`], on a worker of `node` if it is in this process and has room: there a transaction reads and
    /// locks rows without a message whose primary it is, which [`Configuration`](crate::Configuration) tells. A task on one of
    /// the cluster's own threads stays on that, even if it drives no worker of the node.
    ///
    /// # Errors
    /// [`ClusterError::Busy`] if every queue is full, [`ClusterError::Join`] if the cluster has halted.
    pub fn spawn_near<T: Send + 'static>(
        &self,
        node: u16,
        job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
    ) -> Result<Completion<T>, ClusterError> {
        let node = usize::from(node);
        let is_local = self.node(node).is_some();
        self.spawn_within(if is_local { self.workers_of(node) } else { 0..self.workers() }, job)
    }

    /// As [`Self::spawn_anywhere`], for a job beside which the caller has work of its own: on another of the cluster's threads than the
    /// caller's, if there is one that has room.
    ///
    /// # Errors
    /// As [`Self::spawn_anywhere`].
    pub fn spawn_beside<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
    ) -> Result<Completion<T>, ClusterError> {
        let (job, completion) = with_completion(job);
        let local = hosted::local_workers(&self.state);
        let is_local = |worker: &usize| local.as_ref().is_some_and(|local| local.drives(*worker));
        // Relaxed: the order of turns does not matter.
        let turn = self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers();
        let in_turn = (turn..self.workers()).chain(0..turn);
        let others = in_turn.clone().filter(|worker| !is_local(worker));
        self.enqueue_at_first(others.chain(in_turn.filter(is_local)), job)?;
        Ok(completion)
    }

    /// Workers of this process.
    pub(crate) fn workers(&self) -> usize {
        self.members.len() * self.options.threads
    }

    /// The member of a worker of this process, and the worker's number there.
    fn worker(&self, index: usize) -> (&Arc<Member>, usize) {
        let workers = self.options.threads;
        (&self.members[index / workers], index % workers)
    }

    fn queued(&self, index: usize) -> usize {
        let (member, worker) = self.worker(index);
        member.queued(worker)
    }

    /// The workers of a node, by their numbers in this process, which must have the node.
    fn workers_of(&self, node: usize) -> Range<usize> {
        let workers = self.options.threads;
        let first = (node - self.first_node) * workers;
        first..first + workers
    }

    /// Runs a job at one of some workers if there is room, and anywhere otherwise.
    fn spawn_within<T: Send + 'static>(
        &self,
        wanted: Range<usize>,
        job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
    ) -> Result<Completion<T>, ClusterError> {
        let (mut job, completion) = with_completion(job);
        if let Some(local) = hosted::local_workers(&self.state) {
            match self.put(local.next_worker(&wanted), job) {
                Ok(()) => {
                    local.run_until(&|| completion.is_complete());
                    return Ok(completion);
                }
                Err(refused) => job = refused,
            }
        }
        // Relaxed: the order of turns does not matter.
        let turn = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let in_turn = |turn: usize| wanted.start + turn % wanted.len();
        // Of two workers the one with fewer jobs: the thread of the other may have lost its core, perhaps to this one.
        let (mut first, second) = (in_turn(turn), in_turn(turn.wrapping_add(1)));
        if self.queued(second) < self.queued(first) {
            first = second;
        }
        let others = (0..wanted.start).chain(wanted.end..self.workers());
        let in_order = (first..wanted.end).chain(wanted.start..first).chain(others);
        self.enqueue_at_first(in_order, job)?;
        Ok(completion)
    }

    /// Gives a job to the first of some workers that has room.
    fn enqueue_at_first(
        &self,
        workers: impl Iterator<Item = usize>,
        mut job: Job,
    ) -> Result<(), ClusterError> {
        for worker in workers {
            match self.enqueue(worker, job) {
                Ok(()) => return Ok(()),
                Err(refused) => job = refused,
            }
        }
        Err(self.refusal())
    }

    pub(crate) fn enqueue(&self, index: usize, job: Job) -> Result<(), Job> {
        self.put(index, job)?;
        let (member, worker) = self.worker(index);
        member.wake(worker);
        Ok(())
    }

    /// Puts a job where a worker finds it.
    fn put(&self, index: usize, job: Job) -> Result<(), Job> {
        let halted = || self.state.halted.load(Ordering::Relaxed);
        let (member, worker) = self.worker(index);
        if halted() || member.node().is_killed() {
            return Err(job);
        }
        member.put(worker, job)?;
        // If the cluster halts at this moment, its threads may have emptied the queues before this job came. Either they see
        // the job, or this thread sees that they have ended.
        fence(Ordering::SeqCst);
        if halted() {
            drop(member.take_jobs(worker));
        } else if member.node().is_killed() {
            self.hand_over_jobs(member);
        }
        Ok(())
    }

    /// Runs `body` as a transaction on some worker, and again after conflicts; see
    /// [`Coordinator::run`]. Returns at once.
    ///
    /// # Errors
    /// [`ClusterError::Busy`] if every queue is full, [`ClusterError::Join`] if the cluster has halted.
    pub fn submit<T, E>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<Completion<Outcome<T, E>>, ClusterError>
    where
        T: Send + 'static,
        E: From<Abort> + Send + 'static,
    {
        self.spawn_anywhere(move |coordinator| coordinator.run(body))
    }

    /// As [`Self::submit`], and waits for the outcome.
    ///
    /// # Errors
    /// [`ClusterError::Busy`] if every queue is full, [`ClusterError::Join`] if the cluster has halted.
    pub fn run<T, E>(
        &self,
        body: impl FnMut(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<Outcome<T, E>, ClusterError>
    where
        T: Send + 'static,
        E: From<Abort> + Send + 'static,
    {
        self.submit(body)?.wait().map_err(|lost| self.loss(lost))
    }
}

/// A job that completes what is waited for.
fn with_completion<T: Send + 'static>(
    job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
) -> (Job, Completion<T>) {
    let (mut completer, completion) = completion();
    let job = Box::new(move |coordinator: &mut Coordinator<'_>| {
        completer.begin();
        let result = match catch_unwind(AssertUnwindSafe(|| job(coordinator))) {
            // A simulated crash unwinds the coroutine, which then sends nothing.
            Err(panic) if is_cancel(&*panic) => resume_unwind(panic),
            result => result,
        };
        // The job holds no lock when its result is reported.
        coordinator.finish_job();
        if let Ok(result) = result {
            completer.complete(result);
        }
        // Otherwise the panic was printed, and the completion is dropped and says so.
    });
    (job, completion)
}
