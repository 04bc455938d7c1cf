//! The fence around libibverbs: devices, memory that they may use, queue pairs, and the slots that are posted to them.
//!
//! ```text
//! Device ─ Memory ─┐
//!    └─ QueuePair ─┴─ Ring: slots that are posted in turn (`device/slots.rs`)
//! ```
//! Facts that the unsafe code rests on:
//! - each object of libibverbs is owned by one value, which destroys it in `drop`; what it was made of lives longer,
//!   as a field behind it or through an `Arc`;
//! - libibverbs may be called from any thread (ibv_open_device(3)), and of its structures all-zero bytes are values;
//! - a device writes into memory only where a work request says so, between its posting and its completion; queues
//!   complete in the order of posting. A [`Ring`] hands out no slot in between. A queue pair that was reset has
//!   forgotten its requests;
//! - when memory is deregistered, the device has let go of it; memory that cannot be deregistered is never freed.
//!
//! *Source*: the manual pages of rdma-core, ibv_post_send(3) and those it names; FaSST section 3.2 (Doorbell batching).
//!
//! *Not here*: which device, port and GID (`preflight.rs`); when to post, and what to do when it fails.
#![allow(unsafe_code, reason = "the fence around libibverbs; see the facts above")]

mod slots;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int};
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::ibv_qp_attr_mask as mask;
use sys::ibv_qp_state as state;

pub(super) use slots::{Failure, Ring};

/// Bytes that precede every datagram in its slot: the global route header, or room for it.
pub(super) const GRH_BYTES: usize = 40;
/// Alignment of registered memory: a page.
const PAGE_BYTES: usize = 4_096;
/// Completions fetched at once.
const COMPLETIONS_MAX: usize = 32;
/// A completion before it is fetched.
// SAFETY: all-zero bytes are a completion, of integers only.
const NOTHING: sys::ibv_wc = unsafe { std::mem::zeroed() };

/// An open device, and the domain that all objects made of it share.
#[derive(Debug)]
pub(super) struct Device {
    context: NonNull<sys::ibv_context>,
    domain: NonNull<sys::ibv_pd>,
    pub(super) attributes: sys::ibv_device_attr,
}

// SAFETY: libibverbs may be called from any thread, and the device is only used through it.
unsafe impl Send for Device {}
// SAFETY: as for Send; nothing here is changed through a shared reference but by libibverbs.
unsafe impl Sync for Device {}

/// An entry of a port's table of addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gid {
    pub(super) index: u32,
    pub(super) address: Ipv6Addr,
    /// Of RoCE's first version, which does not cross routers.
    pub(super) is_first_roce: bool,
}

/// Calls `take` with the devices of this host, which stay valid so long.
fn with_devices<T>(take: impl FnOnce(&[*mut sys::ibv_device]) -> T) -> io::Result<T> {
    let mut count = 0;
    // SAFETY: `count` is valid for a write.
    let list = unsafe { sys::ibv_get_device_list(&raw mut count) };
    let Some(list) = NonNull::new(list) else { return Err(io::Error::last_os_error()) };
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: libibverbs returned a list of so many devices, which is freed below and not before.
    let taken = take(unsafe { std::slice::from_raw_parts(list.as_ptr(), count) });
    // SAFETY: the list came from ibv_get_device_list() and is not used any more.
    unsafe { sys::ibv_free_device_list(list.as_ptr()) };
    Ok(taken)
}

fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: only called by those who take a device of `with_devices`.
    let name = unsafe { sys::ibv_get_device_name(device) };
    // SAFETY: a device's name is a string that lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// What a call says that returns 0 or an error's number.
fn checked(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.abs())) }
}

fn not_null<T>(created: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(created).ok_or_else(io::Error::last_os_error)
}

impl Device {
    /// The names of this host's devices.
    pub(super) fn names() -> io::Result<Vec<String>> {
        with_devices(|devices| devices.iter().copied().map(name_of).collect())
    }

    /// Opens a device by its name.
    pub(super) fn open(name: &str) -> io::Result<Arc<Self>> {
        let context = with_devices(|devices| {
            let device = devices.iter().find(|&&device| name_of(device) == name);
            let device = device.ok_or(io::ErrorKind::NotFound)?;
            // SAFETY: the device is in the list, which is not freed yet.
            not_null(unsafe { sys::ibv_open_device(*device) })
        })??;
        // SAFETY: the context is open.
        let domain =
            not_null(unsafe { sys::ibv_alloc_pd(context.as_ptr()) }).inspect_err(|_| {
                // SAFETY: nothing was made of the context, and it is not used any more.
                unsafe { sys::ibv_close_device(context.as_ptr()) };
            })?;
        let mut device = Self { context, domain, attributes: sys::ibv_device_attr::default() };
        let attributes = &raw mut device.attributes;
        // SAFETY: the context is open, and `attributes` valid for a write.
        checked(unsafe { sys::ibv_query_device(context.as_ptr(), attributes) })?;
        Ok(Arc::new(device))
    }

    /// What a port is like at present.
    pub(super) fn port(&self, number: u8) -> io::Result<sys::ibv_port_attr> {
        let mut port = sys::ibv_port_attr::default();
        let out = (&raw mut port).cast();
        // SAFETY: the context is open; the function fills the leading part of the structure, as `ibv_query_port` of
        // verbs.h uses it where a provider has no newer one.
        checked(unsafe { sys::ibv_query_port(self.context.as_ptr(), number, out) })?;
        Ok(port)
    }

    /// The addresses of a port.
    pub(super) fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        let entries_max = usize::try_from(self.port(port)?.gid_tbl_len).unwrap_or(0);
        // The table is of all ports.
        let entries_max = entries_max * usize::from(self.attributes.phys_port_cnt.max(1));
        let mut entries = vec![sys::ibv_gid_entry::default(); entries_max];
        let (out, entry_bytes) = (entries.as_mut_ptr(), size_of::<sys::ibv_gid_entry>());
        let context = self.context.as_ptr();
        // SAFETY: the context is open, and `out` valid for `entries_max` entries of this size.
        let count = unsafe { sys::_ibv_query_gid_table(context, out, entries_max, 0, entry_bytes) };
        let count = usize::try_from(count).map_err(|_| {
            io::Error::from_raw_os_error(c_int::try_from(count.abs()).unwrap_or(c_int::MAX))
        })?;
        entries.truncate(count);
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        let gid = |entry: &sys::ibv_gid_entry| Gid {
            index: entry.gid_index,
            // SAFETY: both fields of the union are 16 bytes of any value.
            address: Ipv6Addr::from(unsafe { entry.gid.raw }),
            is_first_roce: entry.gid_type == sys::IBV_GID_TYPE_ROCE_V1,
        };
        Ok(of_port.map(gid).collect())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: what was made of the domain held the device, so that nothing of it is left.
        unsafe { sys::ibv_dealloc_pd(self.domain.as_ptr()) };
        // SAFETY: as for the domain.
        unsafe { sys::ibv_close_device(self.context.as_ptr()) };
    }
}

/// Memory that a device may use.
#[derive(Debug)]
pub(super) struct Memory {
    region: NonNull<sys::ibv_mr>,
    bytes: NonNull<u8>,
    layout: Layout,
    /// It outlives the region.
    _device: Arc<Device>,
}

// SAFETY: the memory is owned by this value, and deregistered through libibverbs, from any thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Zeroed memory, which other hosts may read if they know its key.
    pub(super) fn new(device: &Arc<Device>, bytes: usize, is_readable: bool) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes.max(1), PAGE_BYTES);
        let layout = layout.map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the layout has at least a byte.
        let bytes = unsafe { alloc_zeroed(layout) };
        let Some(bytes) = NonNull::new(bytes) else { handle_alloc_error(layout) };
        let mut access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        if is_readable {
            access |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        }
        let access = access.cast_signed();
        let (domain, address) = (device.domain.as_ptr(), bytes.as_ptr().cast());
        // SAFETY: the domain is alive, and the memory is until it is deregistered.
        let region = unsafe { sys::ibv_reg_mr(domain, address, layout.size(), access) };
        let region = not_null(region).inspect_err(|_| {
            // SAFETY: it was allocated with this layout, and registered nowhere.
            unsafe { dealloc(bytes.as_ptr(), layout) };
        })?;
        Ok(Self { region, bytes, layout, _device: Arc::clone(device) })
    }

    /// Its address and the keys for local and for remote use.
    pub(super) fn keys(&self) -> (u64, u32, u32) {
        // SAFETY: the region is alive, and libibverbs does not change it.
        let region = unsafe { self.region.as_ref() };
        (self.bytes.as_ptr().addr() as u64, region.lkey, region.rkey)
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Some of its bytes; a ring reads only those that the device does not write.
    fn part(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.layout.size(), "a part of memory lies inside of it");
        // SAFETY: inside of the allocation, initialised, and not written while it is borrowed.
        let start = unsafe { self.bytes.add(at) };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// As [`Self::part`], to be written.
    fn part_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= self.layout.size(), "a part of memory lies inside of it");
        // SAFETY: inside of the allocation.
        let start = unsafe { self.bytes.add(at) };
        // SAFETY: initialised, borrowed exclusively, and not in use by the device.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// All of it, if it is in no ring.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.part_mut(0, self.layout.size())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region came from ibv_reg_mr() and is not used any more.
        if unsafe { sys::ibv_dereg_mr(self.region.as_ptr()) } == 0 {
            // SAFETY: it was allocated with this layout, and the device has let go of it.
            unsafe { dealloc(self.bytes.as_ptr(), self.layout) };
        }
    }
}

/// A queue of completions, and its channel if a thread can sleep until one comes.
#[derive(Debug)]
struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: Option<NonNull<sys::ibv_comp_channel>>,
}

impl CompletionQueue {
    fn new(device: &Device, entries: usize, has_channel: bool) -> io::Result<Self> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let context = device.context.as_ptr();
        let channel = if has_channel {
            // SAFETY: the context is open.
            Some(not_null(unsafe { sys::ibv_create_comp_channel(context) })?)
        } else {
            None
        };
        let raw_channel = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: the context is open, and the channel was made of it or is null.
        let raw = unsafe { sys::ibv_create_cq(context, entries, ptr::null_mut(), raw_channel, 0) };
        match not_null(raw) {
            Ok(raw) => Ok(Self { raw, channel }),
            Err(error) => {
                destroy_channel(channel);
                Err(error)
            }
        }
    }

    /// Fetches completions; how many.
    fn poll(&self, device: &Device, out: &mut [sys::ibv_wc]) -> usize {
        // SAFETY: the context is open, and its table of functions does not change.
        let poll_cq = unsafe { device.context.as_ref() }.ops.poll_cq;
        let poll_cq = poll_cq.expect("every provider has it");
        let entries = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive, and `out` valid for so many writes.
        let count = unsafe { poll_cq(self.raw.as_ptr(), entries, out.as_mut_ptr()) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Requests an event at the next completion.
    fn arm(&self, device: &Device) {
        // SAFETY: the context is open, and its table of functions does not change.
        let notify = unsafe { device.context.as_ref() }.ops.req_notify_cq;
        let notify = notify.expect("every provider has it");
        // SAFETY: the queue is alive. Where it fails, the thread wakes up at the end of its sleep.
        let _ = unsafe { notify(self.raw.as_ptr(), 0) };
    }

    /// Takes the events back that have come.
    fn take_events(&self) {
        let Some(channel) = self.channel else { return };
        let mut events = 0;
        let is_ready = |descriptor| {
            let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
            poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        };
        while self.descriptor().is_some_and(is_ready) {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            let (queue_out, context_out) = (&raw mut queue, &raw mut context);
            // SAFETY: the channel is alive, and both are valid for a write.
            if unsafe { sys::ibv_get_cq_event(channel.as_ptr(), queue_out, context_out) } != 0 {
                break;
            }
            events += 1;
        }
        if events > 0 {
            // SAFETY: so many events of this queue, the only one of the channel, were taken.
            unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), events) };
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the channel is alive, and its descriptor does not change.
        let descriptor = unsafe { self.channel?.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel, which the result borrows.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pair that used it is gone, and all its events are acknowledged.
        unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        destroy_channel(self.channel);
    }
}

fn destroy_channel(channel: Option<NonNull<sys::ibv_comp_channel>>) {
    if let Some(channel) = channel {
        // SAFETY: no queue uses it any more.
        unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
    }
}

/// Where datagrams go.
#[derive(Debug)]
pub(super) struct Peer {
    handle: NonNull<sys::ibv_ah>,
    queue_pair: u32,
    key: u32,
    /// It outlives the handle.
    _device: Arc<Device>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: the queue pair that it belonged to is gone, and with it what was under way.
        unsafe { sys::ibv_destroy_ah(self.handle.as_ptr()) };
    }
}

/// The destinations of a pair's datagrams.
#[derive(Debug, Default)]
struct Peers {
    /// None for the own node, and for one that is not there.
    by_node: Vec<Option<Peer>>,
    /// Where nodes were before they came back: datagrams to them may be under way for as long as the pair lives.
    before: Vec<Peer>,
}

/// A queue pair and its two completion queues.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    pub(super) number: u32,
    pub(super) inline_bytes: usize,
    /// Rises when it is reset.
    life: Cell<u32>,
    // Destroyed after the pair, in this order.
    peers: RefCell<Peers>,
    sends: CompletionQueue,
    receives: CompletionQueue,
    device: Arc<Device>,
}

// SAFETY: it is owned by one thread at a time, and libibverbs may be called from any.
unsafe impl Send for QueuePair {}

/// How large a queue pair is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    pub(super) sends: usize,
    pub(super) receives: usize,
    pub(super) inline_bytes: usize,
}

impl QueuePair {
    /// A pair for datagrams, or else one that is connected to another pair.
    pub(super) fn new(
        device: &Arc<Device>,
        is_datagram: bool,
        capacity: Capacity,
    ) -> io::Result<Self> {
        // Twice as many: what was flushed when the pair was reset may not be fetched yet.
        let sends = CompletionQueue::new(device, 2 * capacity.sends, false)?;
        let receives = CompletionQueue::new(device, 2 * capacity.receives, is_datagram)?;
        let entries = |count| u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput);
        let mut wanted = sys::ibv_qp_init_attr {
            send_cq: sends.raw.as_ptr(),
            recv_cq: receives.raw.as_ptr(),
            qp_type: if is_datagram {
                sys::ibv_qp_type::IBV_QPT_UD
            } else {
                sys::ibv_qp_type::IBV_QPT_RC
            },
            cap: sys::ibv_qp_cap {
                max_send_wr: entries(capacity.sends)?,
                max_recv_wr: entries(capacity.receives)?,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: entries(capacity.inline_bytes)?,
            },
            ..Default::default()
        };
        // SAFETY: the domain and both queues are alive, and `wanted` is valid for reads and writes.
        let raw = unsafe { sys::ibv_create_qp(device.domain.as_ptr(), &raw mut wanted) };
        let raw = not_null(raw)?;
        // SAFETY: the pair is alive, and libibverbs does not change its number.
        let number = unsafe { raw.as_ref() }.qp_num;
        let inline_bytes = wanted.cap.max_inline_data as usize;
        let (device, peers, life) = (Arc::clone(device), RefCell::default(), Cell::new(0));
        Ok(Self { raw, number, inline_bytes, life, peers, sends, receives, device })
    }

    /// Changes the state of the pair and what `fields` name.
    pub(super) fn modify(&self, attr: sys::ibv_qp_attr, fields: &[mask]) -> io::Result<()> {
        let fields = fields.iter().fold(mask::IBV_QP_STATE, |all, &field| all | field);
        let mut attr = attr;
        // SAFETY: the pair is alive, and `attr` valid for reads.
        let code =
            unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &raw mut attr, fields.0.cast_signed()) };
        checked(code)
    }

    /// Ends what is under way in the pair, which forgets it; then it takes nothing until it is set up again.
    pub(super) fn reset(&self) -> io::Result<()> {
        let to = |qp_state| sys::ibv_qp_attr { qp_state, ..Default::default() };
        // Refused where it is reset already.
        let _ = self.modify(to(state::IBV_QPS_ERR), &[]);
        // What was posted is completed as flushed: rdma_rxe resets only what is empty.
        let mut flushed = [NOTHING; COMPLETIONS_MAX];
        while self.sends.poll(&self.device, &mut flushed) > 0
            || self.receives.poll(&self.device, &mut flushed) > 0
        {}
        self.modify(to(state::IBV_QPS_RESET), &[])?;
        self.life.set(self.life.get().wrapping_add(1));
        Ok(())
    }

    /// Sets the destination of datagrams for a node.
    pub(super) fn set_peer(&self, node: usize, peer: Peer) {
        let mut peers = self.peers.borrow_mut();
        if peers.by_node.len() <= node {
            peers.by_node.resize_with(node + 1, || None);
        }
        let before = peers.by_node[node].replace(peer);
        peers.before.extend(before);
    }

    /// Resolves the way to a peer.
    pub(super) fn peer(
        &self,
        mut way: sys::ibv_ah_attr,
        queue_pair: u32,
        key: u32,
    ) -> io::Result<Peer> {
        // SAFETY: the domain is alive, and `way` valid for reads.
        let handle = unsafe { sys::ibv_create_ah(self.device.domain.as_ptr(), &raw mut way) };
        Ok(Peer { handle: not_null(handle)?, queue_pair, key, _device: Arc::clone(&self.device) })
    }
}

impl AsFd for QueuePair {
    /// The descriptor that becomes readable when a datagram comes; see [`Ring::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receives.descriptor().expect("only pairs for datagrams are watched")
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.receives.take_events();
        // SAFETY: the pair came from ibv_create_qp() and is not used any more.
        unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}
