//! Rounds of requests that are answered by a status alone: all phases but execute.

use crate::outcome::Abort;
use crate::request::Status;
use crate::transaction::Transaction;

impl Transaction<'_> {
    /// Starts a phase.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.refusal = None;
        self.batch.borrow_mut().clear();
    }

    /// Adds a request; sends what there is first if the packet for its destination is full.
    ///
    /// # Errors
    /// [`Abort::TooLarge`] if the request alone does not fit a packet.
    #[inline]
    pub(super) fn request(
        &mut self,
        destination: u16,
        kind: u16,
        payload: &[u8],
    ) -> Result<(), Abort> {
        let pushed = self.batch.borrow_mut().push(destination, kind, payload, 0);
        match pushed {
            Ok(()) => Ok(()),
            Err(too_large) if self.batch.borrow().is_empty() => Err(too_large.into()),
            Err(_) => {
                self.wait_for_answers();
                Ok(self.batch.borrow_mut().push(destination, kind, payload, 0)?)
            }
        }
    }

    /// Ends a phase: the first answer that was not `Done`, if any.
    #[inline]
    pub(super) fn end_round(&mut self) -> Option<Status> {
        if !self.batch.borrow().is_empty() {
            self.wait_for_answers();
        }
        self.refusal.take()
    }

    fn wait_for_answers(&mut self) {
        self.wait_for_responses();
        let refusal = &mut self.refusal;
        let mut batch = self.batch.borrow_mut();
        batch.for_each_response(|answer| {
            let status = Status::from_wire(answer.kind);
            if status != Status::Done {
                refusal.get_or_insert(status);
            }
        });
        batch.clear();
    }
}
