//! Slots of memory that are posted to a queue pair in turn, and which of them the device may touch.
//!
//! ```text
//!    freed <= completed <= posted <= staged <= freed + count       numbers of slots, which only rise
//!  ours: free │ ours: done │ the device's │ ours: filled │
//! ```
//! A doorbell is one call for all that is staged, as a linked list of work requests that are written where they were
//! the last time. SENDs that fit the device's inline size are copied into their requests; one in several requests a
//! completion, which says that all before it are done, too.
//!
//! The facts that the unsafe code rests on are those of `device.rs`.
//!
//! *Source*: FaSST section 3.2 (Doorbell batching) and 4.2 (cheap RECV posting); HERD section 2.2.2 (inlining, selective
//! signaling).
//!
//! *Invariants*: a slot between `completed` and `posted` is neither read nor written here.
//!
//! *Not here*: when to post, and what to do when it fails.
#![allow(unsafe_code, reason = "the fence around libibverbs; see the facts of `device.rs`")]

use std::cell::Cell;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;

use ibverbs_sys as sys;

use super::{COMPLETIONS_MAX, GRH_BYTES, Memory, NOTHING, QueuePair};

/// Work requests that failed, after which the queue pair takes no more until it is reset.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Failure {
    /// Why the first did: an `ibv_wc_status`.
    pub(in crate::verbs) status: u32,
    pub(in crate::verbs) requests: u64,
}

/// Slots of memory that are posted to one of a pair's queues, in turn.
pub(in crate::verbs) struct Ring {
    pair: Rc<QueuePair>,
    memory: Memory,
    /// Bytes from one slot to the next; and where in it its contents begin.
    stride: usize,
    offset: usize,
    count: u64,
    freed: u64,
    completed: u64,
    posted: u64,
    staged: u64,
    life: u32,
    /// By slot: bytes that arrived.
    arrived: Vec<usize>,
    requests: Requests,
    pieces: Vec<sys::ibv_sge>,
    fetched: [sys::ibv_wc; COMPLETIONS_MAX],
    /// Fetched when a thread was about to sleep.
    early: Cell<Option<sys::ibv_wc>>,
    is_armed: Cell<bool>,
}

/// Work requests, by slot.
enum Requests {
    /// Of which every n-th is signalled; and how many were not since.
    Sends {
        requests: Vec<sys::ibv_send_wr>,
        signal_every: usize,
        unsignalled: usize,
    },
    Receives(Vec<sys::ibv_recv_wr>),
}

impl Ring {
    /// As many slots as memory of `stride` bytes each has, for SENDs and READs: one of `signal_every` is signalled.
    pub(in crate::verbs) fn of_sends(
        pair: &Rc<QueuePair>,
        memory: Memory,
        stride: usize,
        signal_every: usize,
    ) -> Self {
        let slots = memory.len() / stride;
        // At least the last of all slots is signalled, or no slot would ever be free again.
        let signal_every = signal_every.min(slots);
        let requests = vec![sys::ibv_send_wr::default(); slots];
        let requests = Requests::Sends { requests, signal_every, unsignalled: 0 };
        Self::new(pair, memory, (stride, 0), requests)
    }

    /// The same for RECVs; a datagram's contents begin at `offset` of a slot, behind the room for its header.
    pub(in crate::verbs) fn of_receives(
        pair: &Rc<QueuePair>,
        memory: Memory,
        (stride, offset): (usize, usize),
    ) -> Self {
        let requests = vec![sys::ibv_recv_wr::default(); memory.len() / stride];
        Self::new(pair, memory, (stride, offset), Requests::Receives(requests))
    }

    fn new(
        pair: &Rc<QueuePair>,
        memory: Memory,
        (stride, offset): (usize, usize),
        requests: Requests,
    ) -> Self {
        let slots = memory.len() / stride;
        let count = slots as u64;
        let (freed, completed, posted, staged, life) = (0, 0, 0, 0, pair.life.get());
        let (arrived, pieces) = (vec![0; slots], vec![sys::ibv_sge::default(); slots]);
        let (fetched, early, is_armed) = ([NOTHING; _], Cell::new(None), Cell::new(false));
        let pair = Rc::clone(pair);
        Self {
            pair,
            memory,
            stride,
            offset,
            count,
            freed,
            completed,
            posted,
            staged,
            life,
            arrived,
            requests,
            pieces,
            fetched,
            early,
            is_armed,
        }
    }

    pub(in crate::verbs) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Slots that can be staged.
    #[inline]
    pub(in crate::verbs) fn room(&self) -> u64 {
        self.count - (self.staged - self.freed)
    }

    /// Slots that are staged or with the device.
    pub(in crate::verbs) fn under_way(&self) -> u64 {
        self.staged - self.completed
    }

    /// Slots that are completed and not freed yet, by their number, which rises with each.
    #[inline]
    pub(in crate::verbs) fn done(&self) -> Range<u64> {
        self.freed..self.completed
    }

    /// Frees the oldest slots that are done, those below `until`.
    pub(in crate::verbs) fn free(&mut self, until: u64) {
        self.freed = until.clamp(self.freed, self.completed);
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a remainder by a count of slots")]
    fn slot(&self, number: u64) -> usize {
        (number % self.count) as usize
    }

    /// What arrived in a slot that is done.
    #[inline]
    pub(in crate::verbs) fn contents(&self, number: u64) -> &[u8] {
        assert!(self.done().contains(&number), "the slot is not the device's");
        let slot = self.slot(number);
        self.memory.part(slot * self.stride + self.offset, self.arrived[slot])
    }

    /// Stages the next slot with `bytes` for the device, of which there must be room for one.
    #[inline]
    fn stage(&mut self, at: usize, bytes: usize) -> usize {
        assert!(self.room() > 0 && at + bytes <= self.stride, "the slot is free and large enough");
        let slot = self.slot(self.staged);
        let (address, key, _) = self.memory.keys();
        let addr = address + (slot * self.stride + at) as u64;
        let length = u32::try_from(bytes).expect("a slot is shorter than 4 GiB");
        self.pieces[slot] = sys::ibv_sge { addr, length, lkey: key };
        self.arrived[slot] = 0;
        self.staged += 1;
        slot
    }

    /// Stages a RECV for a datagram of at most `bytes`.
    pub(in crate::verbs) fn stage_receive(&mut self, bytes: usize) {
        let at = self.offset - GRH_BYTES;
        self.stage(at, GRH_BYTES + bytes);
    }

    /// Stages a SEND of `packet` to a peer; false if the peer has no address.
    #[inline]
    pub(in crate::verbs) fn stage_send(&mut self, peer: u16, packet: &[u8]) -> bool {
        let peers = self.pair.peers.borrow();
        let Some(Some(peer)) = peers.by_node.get(usize::from(peer)) else { return false };
        let (ah, remote_qpn, remote_qkey) = (peer.handle.as_ptr(), peer.queue_pair, peer.key);
        drop(peers);
        let slot = self.stage(0, packet.len());
        self.memory.part_mut(slot * self.stride, packet.len()).copy_from_slice(packet);
        if let Requests::Sends { requests, .. } = &mut self.requests {
            let request = &mut requests[slot];
            request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
            request.wr.ud =
                sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
        }
        true
    }

    /// Stages a READ of `bytes` at an address of the connected peer.
    pub(in crate::verbs) fn stage_read(&mut self, remote_addr: u64, rkey: u32, bytes: usize) {
        let slot = self.stage(0, bytes);
        if let Requests::Sends { requests, .. } = &mut self.requests {
            let request = &mut requests[slot];
            request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
            request.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        }
    }

    /// Posts what is staged: one doorbell. Returns how many the device did not take; those are free again.
    pub(in crate::verbs) fn post(&mut self) -> u64 {
        self.follow();
        if self.staged == self.posted {
            return 0;
        }
        let taken = match self.requests {
            Requests::Sends { .. } => self.post_sends(),
            Requests::Receives(_) => self.post_receives(),
        };
        let refused = self.staged - self.posted - taken;
        self.posted += taken;
        self.staged = self.posted;
        refused
    }

    /// Links and posts the staged SENDs and READs; how many were taken.
    fn post_sends(&mut self) -> u64 {
        let numbers = self.posted..self.staged;
        let (count, inline_bytes) = (self.count, self.pair.inline_bytes);
        let first = self.slot(numbers.start);
        let Requests::Sends { requests, signal_every, unsignalled } = &mut self.requests else {
            return 0;
        };
        let before = *unsignalled;
        let (base, pieces) = (requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for (number, slot) in numbers.clone().zip((0..requests.len()).cycle().skip(first)) {
            let next = if number + 1 == numbers.end {
                ptr::null_mut()
            } else {
                base.wrapping_add(if slot as u64 + 1 == count { 0 } else { slot + 1 })
            };
            let mut flags = 0;
            *unsignalled += 1;
            if *unsignalled >= *signal_every {
                *unsignalled = 0;
                flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
            let request = &mut requests[slot];
            let is_send = request.opcode == sys::ibv_wr_opcode::IBV_WR_SEND;
            if is_send && self.pieces[slot].length as usize <= inline_bytes {
                flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
            }
            (request.wr_id, request.next, request.send_flags) = (number, next, flags);
            (request.sg_list, request.num_sge) = (pieces.wrapping_add(slot), 1);
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the context is open, and its table of functions does not change.
        let post_send = unsafe { self.pair.device.context.as_ref() }.ops.post_send;
        let post_send = post_send.expect("every provider has it");
        let first = base.wrapping_add(first);
        // SAFETY: a list of requests that ends in null, each with a piece of registered memory that is handed to the
        // device here, and with a handle that lives as long as the pair.
        if unsafe { post_send(self.pair.raw.as_ptr(), first, &raw mut refused) } == 0 {
            return numbers.end - numbers.start;
        }
        let taken = taken_before(refused.addr(), base.addr(), size_of::<sys::ibv_send_wr>());
        let taken = taken.map_or(0, |slot| (slot + count - numbers.start % count) % count);
        // What was refused is not signalled either.
        *unsignalled = (before + usize::try_from(taken).unwrap_or(0)) % *signal_every;
        taken
    }

    /// Links and posts the staged RECVs; how many were taken.
    fn post_receives(&mut self) -> u64 {
        let numbers = self.posted..self.staged;
        let count = self.count;
        let first = self.slot(numbers.start);
        let Requests::Receives(requests) = &mut self.requests else { return 0 };
        let (base, pieces) = (requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for (number, slot) in numbers.clone().zip((0..requests.len()).cycle().skip(first)) {
            let next = if number + 1 == numbers.end {
                ptr::null_mut()
            } else {
                base.wrapping_add(if slot as u64 + 1 == count { 0 } else { slot + 1 })
            };
            let sg_list = pieces.wrapping_add(slot);
            requests[slot] = sys::ibv_recv_wr { wr_id: number, next, sg_list, num_sge: 1 };
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the context is open, and its table of functions does not change.
        let post_recv = unsafe { self.pair.device.context.as_ref() }.ops.post_recv;
        let post_recv = post_recv.expect("every provider has it");
        let first = base.wrapping_add(first);
        // SAFETY: a list of requests that ends in null, each with a piece of registered memory that is handed to the
        // device here.
        if unsafe { post_recv(self.pair.raw.as_ptr(), first, &raw mut refused) } == 0 {
            return numbers.end - numbers.start;
        }
        let taken = taken_before(refused.addr(), base.addr(), size_of::<sys::ibv_recv_wr>());
        taken.map_or(0, |slot| (slot + count - numbers.start % count) % count)
    }

    /// Fetches completions; what has failed, if anything.
    pub(in crate::verbs) fn poll(&mut self) -> Option<Failure> {
        self.follow();
        let queue = match self.requests {
            Requests::Sends { .. } => &self.pair.sends,
            Requests::Receives(_) => &self.pair.receives,
        };
        if self.is_armed.replace(false) {
            queue.take_events();
        }
        let early = self.early.take();
        let fetched = queue.poll(&self.pair.device, &mut self.fetched);
        let mut failure = None;
        for at in 0..fetched + usize::from(early.is_some()) {
            let completion = match early {
                Some(early) if at == 0 => early,
                early => self.fetched[at - usize::from(early.is_some())],
            };
            let number = completion.wr_id();
            // Others are of before a reset.
            if (self.completed..self.posted).contains(&number) {
                self.completed = number + 1;
                let slot = self.slot(number);
                if completion.is_valid() {
                    let is_read = matches!(self.requests, Requests::Sends { .. });
                    let requested = self.pieces[slot].length as usize;
                    let came = completion.len().min(requested).saturating_sub(GRH_BYTES);
                    self.arrived[slot] = if is_read { requested } else { came };
                } else {
                    let status = completion.error().map_or(0, |(status, _)| status);
                    failure =
                        Some(failure.map_or(Failure { status, requests: 1 }, |first: Failure| {
                            Failure { requests: first.requests + 1, ..first }
                        }));
                }
            }
        }
        failure
    }

    /// Requests an event when something completes, and looks whether something has: the last look of a thread before it
    /// sleeps.
    pub(in crate::verbs) fn arm(&self) -> bool {
        let mut fetched = self.early.take();
        if fetched.is_none() {
            self.is_armed.set(true);
            self.pair.receives.arm(&self.pair.device);
            let mut out = [NOTHING];
            let count = self.pair.receives.poll(&self.pair.device, &mut out);
            fetched = (count > 0).then_some(out[0]);
        }
        self.early.set(fetched);
        fetched.is_some()
    }

    /// Takes the slots back that the device had if the pair was reset since.
    fn follow(&mut self) {
        if self.life != self.pair.life.get() {
            self.life = self.pair.life.get();
            (self.freed, self.completed) = (self.posted, self.posted);
            if let Requests::Sends { unsignalled, .. } = &mut self.requests {
                *unsignalled = 0;
            }
        }
    }
}

/// The slot of the request at an address; none if it is none of the list.
fn taken_before(address: usize, base: usize, bytes: usize) -> Option<u64> {
    Some((address.checked_sub(base)? / bytes) as u64)
}
