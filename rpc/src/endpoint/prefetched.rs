//! The first prefetch pass over the requests of a batch, some at a time.
//!
//! Each prefetch may miss the TLB. Those close together wait together for their pages; and the first arrive while the next
//! requests are parsed.

use crate::endpoint::{Handler, Incoming};

/// Requests that are prefetched together: about as many as processors look up pages for at a time.
const PREFETCHED_TOGETHER: usize = 6;

/// How many requests of the batch have been prefetched.
#[derive(Default)]
pub(super) struct Prefetched(usize);

impl Prefetched {
    /// Prefetches those that were prepared since, if they are enough.
    #[inline(always)]
    pub(super) fn follow<H: Handler>(&mut self, handler: &H, incoming: &[Incoming<H::Prepared>]) {
        if incoming.len() - self.0 >= PREFETCHED_TOGETHER {
            self.rest(handler, incoming);
        }
    }

    /// Prefetches all that were prepared since.
    #[inline(always)]
    pub(super) fn rest<H: Handler>(&mut self, handler: &H, incoming: &[Incoming<H::Prepared>]) {
        for request in &incoming[self.0..] {
            handler.prefetch(&request.prepared);
        }
        self.0 = incoming.len();
    }
}
