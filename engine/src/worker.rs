//! A worker: one endpoint, its participant, and c coroutines, advanced by `poll`.
//!
//! ```text
//! poll(now):  prefetch the slots of local rows that coroutines read when they are resumed
//!             receive packets, and prefetch the headers of the buckets that their requests are about
//!             resume every coroutine whose turn it is, or whose batch is answered
//!             prefetch the requests' slots, and run them; resume the coroutines whose batches this answers
//!             (while one of several runs, the frame of the next one arrives)
//!             resume every coroutine whose time has come, and give submitted jobs to idle ones
//!             prefetch the headers of local rows that coroutines read when they are resumed
//!             one doorbell for all batches and responses; retransmit what was lost
//! ```
//! So a bucket arrives while other work is done. Prefetches of buckets are issued together: a single prefetch that misses the TLB stalls
//! the processor, while several look up their pages at a time. The pages of the coroutines' stacks are few.
//!
//! A value without a thread or a clock of its own: an OS thread drives it, or a simulator.
//!
//! While an epoch is prepared, a worker is *stopped*: no coroutine and no handler takes a step, and no packet is received. When the
//! epoch begins, the worker settles the commits of its coroutines and interrupts their transactions.
//!
//! *Source*: FaSST section 4.1 (the master coroutine's loop), which runs requests before it resumes coroutines.

mod others;
mod own_jobs;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use gannet_rpc::{Clock, Coroutine, Counters, Endpoint, Incoming, PacketReceiver, PacketSender};
use gannet_rules::rule;
use gannet_storage::{CommitLog, TransactionId, prefetch_line};

use crate::commit::{Commits, Settled, Stage};
use crate::configuration::{Configuration, Phase};
use crate::control::{Control, Interruption, PrefetchQueue, WaitReason};
use crate::coordinator::Coordinator;
use crate::dead_locks::DeadLockPass;
use crate::fence::WorkerLease;
use crate::fold::FoldPrograms;
use crate::giving_back::GivingBack;
use crate::idle::Idle;
use crate::node::{Adopted, Flushed, Node};
use crate::participant::{Participant, Prepared};
use crate::statistics::Statistics;
use crate::transaction::Transaction;
use crate::transaction::round::Round;
use crate::view::{AdoptedView, View};

/// Requests of a batch of packets, and prefetches of local rows, that there is room for before the lists grow.
const REQUESTS_EXPECTED: usize = 512;

/// Work for a coroutine: runs on it from start to end.
pub type Job = Box<dyn FnOnce(&mut Coordinator<'_>) + Send>;

type JobSlot = RefCell<Option<Job>>;

struct Slot {
    coroutine: Coroutine,
    control: Rc<Control>,
    /// The job that the coroutine begins when it is resumed.
    job: Rc<JobSlot>,
}

/// What a worker is made of; see [`Worker::new`].
pub struct WorkerParts<S, R> {
    /// The node that it belongs to, whose views it adopts.
    pub node: Arc<Node>,
    /// Its endpoint.
    pub endpoint: Endpoint<S, R>,
    /// The lease of the node.
    pub(crate) lease: Rc<WorkerLease>,
    /// Its log slots.
    pub log: CommitLog,
    /// Its number within the node.
    pub worker: u16,
    /// How many coroutines it has. The last one grows tables.
    pub coroutines: u16,
    /// Jobs from other threads.
    pub jobs: Arc<ArrayQueue<Job>>,
    /// The clock that its coordinators read.
    pub clock: Rc<dyn Clock>,
    /// The clock by which their tokens end: nanoseconds since 1970.
    pub time_of_day: Rc<dyn Clock>,
    /// Seed of its coordinators' random waits.
    pub seed: u64,
    /// What the programs of folds mean.
    pub programs: FoldPrograms,
}

/// One worker of a node; see the module's text.
pub struct Worker<S, R> {
    node: Arc<Node>,
    /// Its number within the node.
    number: u16,
    view: Arc<View>,
    /// The same, for its coroutines.
    adopted: Rc<AdoptedView>,
    /// The versions that the node knows it has come to.
    told: Adopted,
    /// How often the node has begun to hand partitions over, as far as this worker serves nobody any more.
    hand_overs: u64,
    /// Epoch that it works in.
    epoch: u32,
    /// Whether it takes no step, until another epoch begins.
    is_stopped: bool,
    /// Whether it takes no step any more.
    is_ending: bool,
    /// Whether its jobs have been told so.
    has_ended: bool,
    endpoint: Endpoint<S, R>,
    lease: Rc<WorkerLease>,
    participant: Participant,
    slots: Vec<Slot>,
    jobs: Arc<ArrayQueue<Job>>,
    /// Those that the worker has given itself.
    own_jobs: VecDeque<Job>,
    idle: Idle,
    /// Coroutines that go on with the next step, and with this one.
    next_turn: Vec<u16>,
    this_turn: Vec<u16>,
    prefetches: Rc<PrefetchQueue>,
    sleeping: Vec<(u64, u16)>,
    dead_locks: DeadLockPass,
    giving_back: GivingBack,
    /// Scratch space of the endpoint's passes.
    incoming: Vec<Incoming<Prepared>>,
}

impl<S: PacketSender, R: PacketReceiver> Worker<S, R> {
    /// A worker whose coroutines wait for jobs.
    #[must_use]
    pub fn new(parts: WorkerParts<S, R>) -> Self {
        let WorkerParts { node, endpoint, lease, log, programs, .. } = parts;
        let WorkerParts { worker, coroutines, jobs, clock, time_of_day, seed, .. } = parts;
        let log = Rc::new(RefCell::new(log));
        let view = node.view();
        let adopted = Rc::new(AdoptedView::new(Arc::clone(&view), coroutines));
        let prefetches = Rc::new(PrefetchQueue::new(Vec::with_capacity(REQUESTS_EXPECTED)));
        let slots = (0..coroutines)
            .map(|coroutine| {
                let epoch = view.configuration().epoch;
                let id = TransactionId { epoch, node: node.id(), worker, coroutine, counter: 0 };
                let control = Rc::new(Control::new(id, view.configuration().version));
                let job = Rc::new(JobSlot::default());
                let (control_inside, job_inside) = (Rc::clone(&control), Rc::clone(&job));
                let (adopted, batch) = (Rc::clone(&adopted), endpoint.batch(coroutine));
                let (log, prefetches) = (Rc::clone(&log), Rc::clone(&prefetches));
                let clocks = (Rc::clone(&clock), Rc::clone(&time_of_day));
                let lease = Rc::clone(&lease);
                let seed = seed ^ u64::from(coroutine) << 48;
                let body = move |suspend: gannet_rpc::Suspend<'_>| {
                    let control = Rc::clone(&control_inside);
                    let round = Round::new(batch, control_inside, lease, suspend);
                    let transaction = Transaction::new(adopted, (log, prefetches), round);
                    run_jobs(&control, &job_inside, Coordinator::new(transaction, clocks, seed));
                };
                Slot { coroutine: Coroutine::new(usize::from(coroutine), body), control, job }
            })
            .collect();
        let version = view.configuration().version;
        let told = Adopted { worker: version, coroutines: version };
        node.adopted(worker, told);
        let mut worker = Self {
            number: worker,
            adopted,
            told,
            hand_overs: node.hand_overs(),
            epoch: view.configuration().epoch,
            is_stopped: false,
            is_ending: false,
            has_ended: false,
            endpoint,
            lease,
            participant: Participant::new(Arc::clone(&view), log, Rc::clone(&clock), programs),
            view,
            node,
            slots,
            jobs,
            own_jobs: VecDeque::new(),
            idle: Idle::all(coroutines),
            next_turn: Vec::with_capacity(usize::from(coroutines)),
            this_turn: Vec::with_capacity(usize::from(coroutines)),
            prefetches,
            sleeping: Vec::with_capacity(usize::from(coroutines)),
            dead_locks: DeadLockPass::default(),
            giving_back: GivingBack::default(),
            incoming: Vec::with_capacity(REQUESTS_EXPECTED),
        };
        worker.begin_copies();
        worker
    }

    /// One step; returns whether there was anything to do.
    ///
    /// # Panics
    /// If it finds a bug. The worker must not be used any more then, and a job that needs it does not end.
    #[inline]
    pub fn poll(&mut self, now_ns: u64) -> bool {
        let is_present = self.node.version() == self.told.coroutines
            && self.node.hand_overs() == self.hand_overs;
        if !is_present && !self.follow_node() {
            self.endpoint.discard();
            return false;
        }
        self.participant.prefetch_slots(&mut self.prefetches.borrow_mut());
        std::mem::swap(&mut self.next_turn, &mut self.this_turn);
        let accepted = self.endpoint.accept(&self.participant, &mut self.incoming, now_ns);
        let mut progressed = accepted;
        while let Some(coroutine) = self.this_turn.pop() {
            self.resume(coroutine, now_ns);
            progressed = true;
        }
        self.resume_ready(now_ns);
        if accepted {
            self.endpoint.run(&mut self.participant, &self.incoming);
            self.resume_ready(now_ns);
        }
        if !self.sleeping.is_empty() {
            progressed |= self.wake_sleepers(now_ns);
        }
        if !self.idle.is_empty() && !self.node.parts() {
            progressed |= self.start_jobs(now_ns);
        }
        if self.view.has_crowded() {
            self.grow_tables(now_ns);
        }
        let passes = [self.dead_locks.due_ns(), self.giving_back.due_ns()];
        if passes.into_iter().flatten().any(|due_ns| due_ns <= now_ns) {
            self.pass(now_ns);
        }
        self.participant.prefetch_headers(&self.prefetches.borrow());
        self.endpoint.ring_doorbell();
        if self.endpoint.retransmit(now_ns) {
            self.complain(now_ns);
        }
        progressed
    }

    /// Does a little of what goes on in the background.
    #[cold]
    fn pass(&mut self, now_ns: u64) {
        let of_node = (self.number, self.node.worker_count());
        let is_due = |due_ns: Option<u64>| due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        if is_due(self.dead_locks.due_ns()) {
            self.dead_locks.step(&self.view, of_node, now_ns);
        }
        if is_due(self.giving_back.due_ns()) {
            self.giving_back.step(&self.node, &self.view, of_node, now_ns);
        }
    }

    /// Adopts the node's present view, if it is another, and tells the node when all coroutines have come to it, and that partitions
    /// are not served any more. Whether the worker may take a step.
    #[cold]
    fn follow_node(&mut self) -> bool {
        let hand_overs = self.node.hand_overs();
        let has_jobs = self.idle.count() < self.slots.len();
        if hand_overs != self.hand_overs && !(has_jobs && self.node.parts()) {
            self.hand_overs = hand_overs;
            self.node.serves_nobody(self.number, hand_overs);
        }
        let view = self.node.view();
        if self.node.has_ended() {
            self.end_with_node();
            return false;
        }
        if !Arc::ptr_eq(&view, &self.view) {
            match view.configuration().phase {
                Phase::Preparing => self.stop(view),
                Phase::Active if view.configuration().epoch != self.epoch => self.begin_epoch(view),
                Phase::Active => self.adopt(view),
            }
        }
        if self.is_stopped {
            return false;
        }
        let versions = self.slots.iter().map(|slot| slot.control.view_version.get());
        let oldest = versions.min().unwrap_or(self.view.configuration().version);
        let worker = self.view.configuration().version;
        let adopted = Adopted { worker, coroutines: oldest };
        if adopted != self.told {
            self.told = adopted;
            self.node.adopted(self.number, adopted);
        }
        true
    }

    /// Stops, as an epoch is prepared, and leaves its records with the node.
    fn stop(&mut self, view: Arc<View>) {
        self.is_stopped = rule!(C7);
        let Configuration { version, last_active_epoch, .. } = *view.configuration();
        if self.epoch != last_active_epoch {
            // That epoch has begun and ended between two steps of this worker.
            self.end_epoch();
            self.epoch = last_active_epoch;
        }
        let records = self.participant.log_records_of_epoch(last_active_epoch);
        self.node.stopped(self.number, version, records);
        self.view = view;
    }

    /// Ends the epoch that the worker works in, all nodes having been flushed: its commits are settled by the ids of the records that
    /// were found, and the transactions under way are interrupted.
    fn end_epoch(&mut self) {
        let flushed = self.node.flushed();
        assert_eq!(flushed.epoch(), self.epoch, "each epoch is flushed once");
        let (committed, aborted) = (Cell::new(0), Cell::new(0));
        let decide = |id, stage| {
            let settled = Commits::when_flushed(&flushed.ids, id, stage);
            match (stage, settled) {
                (Stage::Settled(_), _) => {}
                (_, Settled::Committed) => committed.set(committed.get() + 1),
                (_, Settled::Aborted | Settled::Unknown) => aborted.set(aborted.get() + 1),
            }
            settled
        };
        let controls = self.slots.iter().map(|slot| &slot.control);
        controls.for_each(|control| control.interrupt(Interruption::Reconfigured, decide));
        self.node.changes().count_flushed(committed.get(), aborted.get());
    }

    /// Begins an epoch. What was sent in the one before is given up.
    fn begin_epoch(&mut self, view: Arc<View>) {
        self.end_epoch();
        let identity = view.identity(self.number, self.coroutines());
        self.reconnect(&view, &identity);
        self.endpoint.adopt(identity);
        let waits = |slot: &Slot| slot.control.waits_for.get() == WaitReason::Responses;
        let waiting = (0..).zip(&self.slots).filter(|(_, slot)| waits(slot));
        self.next_turn.extend(waiting.map(|(number, _)| number));
        self.prefetches.borrow_mut().clear();
        self.epoch = view.configuration().epoch;
        self.is_stopped = false;
        self.dead_locks.begin();
        self.adopt(view);
    }

    /// Stops for good, as the node was killed or has halted. When the others have settled its commits, the code of the jobs is told how.
    fn end_with_node(&mut self) {
        self.is_stopped = true;
        if !std::mem::replace(&mut self.is_ending, true) {
            self.node.worker_ended(self.number);
        }
        let node = Arc::clone(&self.node);
        if let Some(Flushed { ids, .. }) = node.found_by_others()
            && !std::mem::replace(&mut self.has_ended, true)
        {
            let decide = |id, stage| Commits::when_flushed(ids, id, stage);
            self.end_jobs(|control| control.interrupt(Interruption::Revoked, decide));
        }
    }

    /// Goes by another view: the participant at once, idle coroutines too, and the others with their next transactions. No handler
    /// and no coroutine runs meanwhile.
    pub(crate) fn adopt(&mut self, view: Arc<View>) {
        self.adopted.adopt(&view);
        self.participant.adopt(&view);
        let before = std::mem::replace(&mut self.view, view);
        self.leave_others(before.configuration());
        self.meet_others();
        self.begin_own_jobs(before.configuration());
        for coroutine in self.idle.iter() {
            self.slots[usize::from(coroutine)].coroutine.resume();
        }
    }

    pub(crate) fn coroutines(&self) -> u16 {
        u16::try_from(self.slots.len()).expect("a worker has at most 256")
    }

    /// Whether [`Self::poll`] would find something to do at once, packets apart.
    #[must_use]
    pub fn has_work(&self) -> bool {
        if self.is_stopped {
            return self.node.version() > self.view.configuration().version && !self.has_ended;
        }
        !self.idle.is_empty() && self.has_jobs() && !self.node.parts()
            || self.idle.has_grower() && self.view.has_crowded()
            || self.node.version() > self.view.configuration().version
            || self.node.hand_overs() != self.hand_overs
            || !self.next_turn.is_empty()
            || self.endpoint.has_work()
    }

    /// Whether it takes no step, although there may be packets.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether packets have come.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.endpoint.receiver().has_packets()
    }

    /// When the worker next has something to do without a packet or a job, in nanoseconds.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        if self.is_stopped {
            return None;
        }
        let passes = self.dead_locks.due_ns().into_iter().chain(self.giving_back.due_ns());
        let due = self.endpoint.next_due_ns().into_iter().chain(passes);
        self.sleeping.iter().map(|&(until, _)| until).chain(due).min()
    }

    /// Whether no job runs or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.has_ended
            || self.idle.count() == self.slots.len()
                && !(self.has_jobs() || self.view.has_crowded())
    }

    /// Whether jobs wait for a coroutine.
    fn has_jobs(&self) -> bool {
        !(self.jobs.is_empty() && self.own_jobs.is_empty())
    }

    /// Whether a coroutine waits for answers.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.idle.count() + self.next_turn.len() + self.sleeping.len() < self.slots.len()
    }

    /// Requests, credits and coroutines in use: none when nothing runs.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn in_use(&self) -> usize {
        self.endpoint.open_requests() + self.slots.len() - self.idle.count() + self.sleeping.len()
    }

    /// The records that this worker keeps as log replica.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn log_records(&self) -> Vec<Vec<u8>> {
        self.participant.log_records()
    }

    /// What the endpoint has seen.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// What the worker has done.
    pub(crate) fn statistics(&self) -> Statistics {
        let sum = |of: fn(&Control) -> u64| self.slots.iter().map(|slot| of(&slot.control)).sum();
        let (committed, aborted) =
            (sum(|control| control.committed.get()), sum(|control| control.aborted.get()));
        Statistics::new(committed, aborted, self.endpoint.dropped(), &self.endpoint.counters())
    }

    /// Ends the coroutines, all of which are idle.
    pub fn close(&mut self) {
        for coroutine in self.idle.take().iter() {
            let slot = &mut self.slots[usize::from(coroutine)];
            slot.control.closing.set(true);
            slot.coroutine.resume();
        }
    }

    /// Ends all jobs, as the cluster has halted. The commits under way are settled first, and the code of the jobs is told how; from
    /// then on nothing is sent, and the worker takes no further step. Jobs that have not begun are dropped, and so is a job whose code
    /// does not end, or that found a bug.
    pub fn halt(&mut self) {
        self.end_jobs(Control::halt);
        while self.jobs.pop().is_some() {}
    }

    /// Ends the jobs that have begun: `settle` settles the commits, and the code is told how.
    fn end_jobs(&mut self, settle: impl Fn(&Control)) {
        self.slots.iter().for_each(|slot| settle(&slot.control));
        for Slot { coroutine, control, .. } in &mut self.slots {
            let has_job = !matches!(control.waits_for.get(), WaitReason::Job | WaitReason::Failure);
            if has_job && coroutine.is_suspended() {
                coroutine.resume();
            }
        }
        self.kill();
    }

    /// Settles the commits under way; from now on the coroutines send nothing.
    pub(crate) fn settle(&self) {
        self.slots.iter().for_each(|slot| slot.control.halt());
    }

    /// Drops the jobs that have begun, as the end of a process does. Their code is told nothing, and nothing is sent. The others wait
    /// in the queue.
    pub fn kill(&mut self) {
        self.settle();
        self.slots.iter_mut().for_each(|slot| slot.coroutine.cancel());
        let _: Idle = self.idle.take();
    }

    /// The commits of the coroutines: of each the decided one and the open one, and how far they have come.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn commits(&self) -> impl Iterator<Item = [(TransactionId, Stage); 2]> {
        let known = |commit: &crate::commit::Commit| (commit.id(), commit.stage());
        self.slots.iter().map(move |Slot { control, .. }| {
            [known(&control.commits.decided), known(&control.commits.open)]
        })
    }

    /// Resumes the coroutines whose batches are answered.
    #[inline(always)]
    fn resume_ready(&mut self, now_ns: u64) {
        while let Some(coroutine) = self.endpoint.take_ready() {
            if let Some(next) = self.endpoint.next_ready() {
                // Its lines arrive while this one runs.
                self.slots[usize::from(next)].coroutine.frame_lines().for_each(prefetch_line);
            }
            self.resume(coroutine, now_ns);
        }
    }

    #[inline(always)]
    fn resume(&mut self, coroutine: u16, now_ns: u64) {
        let slot = &mut self.slots[usize::from(coroutine)];
        slot.coroutine.resume();
        match slot.control.waits_for.get() {
            WaitReason::Responses => self.endpoint.submit(coroutine, now_ns),
            WaitReason::Turn => self.next_turn.push(coroutine),
            WaitReason::Time(until) => self.sleeping.push((until, coroutine)),
            WaitReason::Job => self.idle.push(coroutine),
            WaitReason::Failure => self.fail(coroutine),
            WaitReason::End => unreachable!("a coroutine ends so only in halt()"),
        }
    }

    /// Ends with what a coroutine has found to be wrong.
    #[cold]
    fn fail(&self, coroutine: u16) -> ! {
        let bug = self.slots[usize::from(coroutine)].control.bug.take();
        panic!("{}", bug.expect("a coroutine says why its worker fails"));
    }

    fn wake_sleepers(&mut self, now_ns: u64) -> bool {
        let mut woken = false;
        let mut index = 0;
        while index < self.sleeping.len() {
            let (until, coroutine) = self.sleeping[index];
            if until <= now_ns {
                self.sleeping.swap_remove(index);
                self.resume(coroutine, now_ns);
                woken = true;
            } else {
                index += 1;
            }
        }
        woken
    }

    fn start_jobs(&mut self, now_ns: u64) -> bool {
        let mut started = false;
        while !self.idle.is_empty() {
            let own = if self.own_jobs.is_empty() { None } else { self.own_jobs.pop_front() };
            let Some(job) = own.or_else(|| self.jobs.pop()) else { break };
            let coroutine = self.idle.pop().expect("one is idle");
            self.start_job(coroutine, job, now_ns);
            started = true;
        }
        started
    }

    fn start_job(&mut self, coroutine: u16, job: Job, now_ns: u64) {
        self.slots[usize::from(coroutine)].job.replace(Some(job));
        self.resume(coroutine, now_ns);
    }
}

impl<S, R> Drop for Worker<S, R> {
    fn drop(&mut self) {
        // A job that is dropped sends nothing, and does nothing at its own node, even if its code goes on.
        self.slots.iter().for_each(|slot| slot.control.halt());
        // The records are still there for a change of the membership.
        let records = self.participant.log_records_of_epoch(self.epoch);
        self.node.stopped(self.number, u64::MAX, records);
        self.node.worker_ended(self.number);
    }
}

/// The body of every coroutine: one job after the other.
fn run_jobs(control: &Control, jobs: &JobSlot, mut coordinator: Coordinator<'_>) {
    loop {
        let job = jobs.take();
        match job {
            Some(job) => job(&mut coordinator),
            None if control.closing.get() => return,
            None => coordinator.wait_for_job(),
        }
    }
}
