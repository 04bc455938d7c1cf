//! A round: the requests of one phase are sent together, and the coroutine waits for all answers.
//!
//! *Invariants*: the first answer that is not `Done` decides a phase; `Refused` counts more than any other. Piggybacked requests are
//! answered before the coroutine logs, sleeps, or ends its job. When another epoch has begun or the node has ended, the wait of a round ends
//! with [`Interrupted`], and the transaction begins no further round.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use gannet_rpc::{RequestBatch, Suspend};

use crate::cancellation::CancellationToken;
use crate::commit::Commits;
use crate::control::{Control, Interruption, WaitReason};
use crate::fence::WorkerLease;
use crate::outcome::Abort;
use crate::request::Status;

/// The transaction must not go on: nothing more is sent for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted(Interruption);

impl From<Interrupted> for Abort {
    fn from(Interrupted(interruption): Interrupted) -> Self {
        interruption.into()
    }
}

/// What the phases of a coroutine's transactions send their requests through.
pub(crate) struct Round<'s> {
    batch: Rc<RefCell<RequestBatch>>,
    control: Rc<Control>,
    lease: Rc<WorkerLease>,
    suspend: Suspend<'s>,
    /// The first answer of the present phase that was not `Done`.
    refusal: Option<Status>,
}

impl<'s> Round<'s> {
    pub(crate) fn new(
        batch: Rc<RefCell<RequestBatch>>,
        control: Rc<Control>,
        lease: Rc<WorkerLease>,
        suspend: Suspend<'s>,
    ) -> Self {
        Self { batch, control, lease, suspend, refusal: None }
    }

    /// The commits of the coroutine.
    #[inline(always)]
    pub(super) fn commits(&self) -> &Commits {
        &self.control.commits
    }

    /// Counts a transaction that has ended.
    #[inline(always)]
    pub(super) fn count(&self, committed: bool) {
        let Control { committed: commits, aborted: aborts, .. } = &*self.control;
        let counter = if committed { commits } else { aborts };
        counter.set(counter.get() + 1);
    }

    /// Tells the worker what the job shares with its waiter.
    pub(super) fn tell_token(&self, token: Option<Arc<CancellationToken>>) {
        self.control.token.replace(token);
    }

    /// Tells the worker by which version of the configuration the coroutine goes.
    pub(super) fn tell_view(&self, version: u64) {
        self.control.view_version.set(version);
    }

    /// The coroutine's batch.
    #[inline(always)]
    pub(super) fn batch(&self) -> RefMut<'_, RequestBatch> {
        self.batch.borrow_mut()
    }

    /// Why the transaction must not go on, if so.
    #[inline(always)]
    pub(super) fn interruption(&self) -> Option<Interruption> {
        self.control.interruption.get()
    }

    /// Lets the coroutine go on with its next transaction, in the epoch that has begun; not if its node has ended.
    #[inline(always)]
    pub(super) fn go_on(&self) {
        if self.interruption() == Some(Interruption::Reconfigured) {
            self.control.interruption.set(None);
        }
    }

    /// Code that is answered that its node has ended, as often as it may be: if it asks on, it is suspended for good.
    #[cold]
    pub(super) fn answer(&self, interruption: Interruption) -> Interrupted {
        let Control { answers_left, waits_for, .. } = &*self.control;
        if !interruption.is_end() {
            return Interrupted(interruption);
        }
        let Some(left) = answers_left.get().checked_sub(1) else {
            waits_for.set(WaitReason::End);
            loop {
                // The worker comes back to it only to drop it.
                self.suspend.suspend();
            }
        };
        answers_left.set(left);
        Interrupted(interruption)
    }

    /// Hands control to the worker until it can give what is wanted.
    #[inline(always)]
    pub(super) fn wait_for(&self, reason: WaitReason) -> Result<(), Interrupted> {
        self.suspend(reason);
        self.resumed(reason)
    }

    /// The first half of [`Self::wait_for`].
    #[inline(always)]
    pub(super) fn suspend(&self, reason: WaitReason) {
        if reason != WaitReason::Responses {
            self.assert_settled();
        }
        self.control.waits_for.set(reason);
        self.suspend.suspend();
    }

    /// The second half of [`Self::wait_for`].
    #[inline(always)]
    pub(super) fn resumed(&self, reason: WaitReason) -> Result<(), Interrupted> {
        if let Some(interruption) = self.interruption() {
            return Err(self.answer(interruption));
        }
        if reason == WaitReason::Responses {
            let refusal = self.batch().first_piggybacked_other_than(Status::Done as u16);
            if let Some(status) = refusal {
                self.fail("PRIMARY", Status::from_wire(status));
            }
            self.control.commits.applied();
        }
        Ok(())
    }

    /// Waits until the node holds its lease: then it was a member when it read its own rows, whichever node has them now.
    /// Where reads are confirmed, waits for that, too.
    #[inline(always)]
    pub(super) fn hold_lease(&mut self) -> Result<(), Interrupted> {
        if self.lease.suffices() { Ok(()) } else { self.wait_for_lease() }
    }

    #[cold]
    fn wait_for_lease(&mut self) -> Result<(), Interrupted> {
        if let Some(interruption) = self.interruption() {
            return Err(self.answer(interruption));
        }
        let read_ns = self.lease.now_ns();
        self.settle()?;
        while !self.lease.is_held() || !self.lease.is_confirmed(read_ns) {
            self.wait_for(WaitReason::Time(self.lease.next_look_ns()))?;
        }
        Ok(())
    }

    /// Waits for a while, in which another node may learn of the configuration.
    #[cold]
    pub(super) fn pause(&self) -> Result<(), Interrupted> {
        self.wait_for(WaitReason::Time(self.lease.next_look_ns()))
    }

    /// Ends the worker, and all that relies on it: a request that must be done was answered otherwise, which is a bug.
    #[cold]
    pub(super) fn fail(&self, request: &str, status: Status) -> ! {
        self.fail_with(format!("{request} was answered {status:?}, and is not to be refused"))
    }

    /// Ends the worker, because of a bug.
    #[cold]
    pub(super) fn fail_with(&self, bug: String) -> ! {
        self.control.bug.replace(Some(bug));
        self.control.waits_for.set(WaitReason::Failure);
        loop {
            // The worker comes back to it only to drop it.
            self.suspend.suspend();
        }
    }

    /// Starts a phase whose requests are answered by a status alone.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> Result<(), Interrupted> {
        if let Some(interruption) = self.interruption() {
            return Err(self.answer(interruption));
        }
        self.refusal = None;
        self.batch().clear();
        Ok(())
    }

    /// Ends a phase whose answers are all the same to the coroutine without waiting for them: its requests leave with the
    /// coroutine's next ones, at the latest when it [settles](Self::settle). What needed no request is answered already.
    #[inline(always)]
    pub(super) fn piggyback(&mut self) {
        if let Some(status) = self.refusal {
            self.fail("PRIMARY", status);
        }
        let mut batch = self.batch();
        batch.piggyback();
        if !batch.has_piggybacked() {
            self.control.commits.applied();
        }
    }

    /// Sends what is piggybacked, and waits until it is answered.
    #[inline(always)]
    pub(super) fn settle(&mut self) -> Result<(), Interrupted> {
        if self.batch().has_piggybacked() {
            // Not with what gave up before it was sent.
            self.begin()?;
            self.wait_for_answers()?;
        }
        Ok(())
    }

    /// The coroutine neither logs nor sleeps before what is piggybacked is answered.
    #[inline(always)]
    pub(super) fn assert_settled(&self) {
        debug_assert!(
            self.interruption().is_some() || !self.batch().has_piggybacked(),
            "requests wait to be sent"
        );
    }

    /// Adds a request; sends what there is first if the message to its destination is full.
    ///
    /// # Errors
    /// [`crate::Misuse::TooLarge`] if the request alone does not fit a message, that of an interruption.
    #[inline(always)]
    pub(super) fn request(
        &mut self,
        destination: u16,
        kind: u16,
        payload: &[u8],
    ) -> Result<(), Abort> {
        let pushed = self.batch().push(destination, kind, payload, 0);
        match pushed {
            Ok(()) => Ok(()),
            Err(too_large) if self.batch().is_empty() => Err(too_large.into()),
            Err(_) => self.request_in_next_message(destination, kind, payload),
        }
    }

    /// As [`Self::request`], for one that fits a message.
    ///
    /// # Errors
    /// That of an interruption.
    ///
    /// # Panics
    /// If it does not fit.
    #[inline(always)]
    pub(super) fn request_that_fits(
        &mut self,
        destination: u16,
        kind: u16,
        payload: &[u8],
    ) -> Result<(), Interrupted> {
        match (self.request(destination, kind, payload), self.interruption()) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(interruption)) => Err(Interrupted(interruption)),
            (Err(abort), None) => panic!("a request is larger than a message: {abort}"),
        }
    }

    #[cold]
    fn request_in_next_message(
        &mut self,
        destination: u16,
        kind: u16,
        payload: &[u8],
    ) -> Result<(), Abort> {
        self.wait_for_answers()?;
        Ok(self.batch().push(destination, kind, payload, 0)?)
    }

    /// Counts the answer to what needed no request.
    #[inline(always)]
    pub(super) fn answered(&mut self, status: Status) {
        if status != Status::Done {
            self.note(status);
        }
    }

    /// Keeps the first answer that was not `Done`, and `Refused` rather than any other.
    #[cold]
    fn note(&mut self, status: Status) {
        if self.refusal.is_none() || status == Status::Refused {
            self.refusal = Some(status);
        }
    }

    /// Ends the phase: the first answer that was not `Done`, if any.
    #[inline(always)]
    pub(super) fn end(&mut self) -> Result<Option<Status>, Interrupted> {
        if !self.batch().is_empty() {
            self.wait_for_answers()?;
        }
        Ok(self.refusal)
    }

    #[inline(always)]
    fn wait_for_answers(&mut self) -> Result<(), Interrupted> {
        self.wait_for(WaitReason::Responses)?;
        let mut batch = self.batch.borrow_mut();
        let refused = Status::Refused as u16;
        let refusal = batch.first_other_than(Status::Done as u16).map(|first| {
            if batch.statuses().any(|status| status == refused) { refused } else { first }
        });
        batch.clear();
        drop(batch);
        if let Some(status) = refusal {
            self.note(Status::from_wire(status));
        }
        Ok(())
    }
}
