//! Rings between processes of one host: each makes the memory of the rings that lead to it, and maps that of the others.
//!
//! ```text
//! header: u64 magic | u64 random number | u64 nodes, workers, MTU, ring bytes
//! ```
//! The memory is a file without a name (memfd) that the others open through its owner's `/proc` entry, so nothing is
//! left when a process ends, however it does. Its size is sealed: nobody's access can miss. What a process knows of
//! another's memory is a line of text, the [`SharedRings::handle`], which travels by other ways.
//!
//! *Invariants*: memory is used only if it holds the random number of its handle, and has the same shape.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use std::os::fd::AsRawFd;

use crate::memory::{MemoryPort, MemoryReceiver, MemorySender, SendLane, Shape};
use crate::parking::{Parking, Waker};
use crate::ring::ConsumerSet;
use crate::ring::memory::Segment;

/// Says what the memory is, and how it is laid out.
const MAGIC: u64 = u64::from_le_bytes(*b"gannet 1");

/// Memory of processes of one host could not be shared; every message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum SharedRingsError {
    /// The system gives no memory.
    #[error("the system gives no memory for rings between processes: {0}")]
    System(#[from] io::Error),
    /// Another process' memory cannot be opened.
    #[error(
        "cannot open the memory of node {node} at {path} ({reason}): run all nodes on one host, as the same user and \
         in the same container, or use the udp transport"
    )]
    Unreachable {
        /// The node that has the memory.
        node: usize,
        /// Where it was to be.
        path: String,
        /// Why not.
        reason: String,
    },
    /// What another process has said is no handle.
    #[error("node {node} shares no memory: it says {said:?}; give all nodes the same transport")]
    NoHandle {
        /// Which one.
        node: usize,
        /// What it has said.
        said: String,
    },
}

/// The rings that lead to this process's node, before those of the other processes are known.
pub struct SharedRings {
    node: usize,
    shape: Shape,
    handle: String,
    segment: Arc<Segment>,
}

impl SharedRings {
    /// Makes the memory of the rings that lead to `node`, each of `ring_bytes` (a power of two).
    ///
    /// # Errors
    /// [`SharedRingsError::System`] if there is none.
    ///
    /// # Panics
    /// If a ring would not hold a few packets of `mtu` bytes.
    pub fn create(
        node: usize,
        (nodes, workers): (usize, usize),
        mtu: usize,
        ring_bytes: usize,
    ) -> Result<Self, SharedRingsError> {
        let shape = Shape::new(nodes, workers, mtu, ring_bytes);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("gannet-rings", flags).map_err(io::Error::from)?);
        ftruncate(&file, shape.segment_bytes() as u64).map_err(io::Error::from)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(io::Error::from)?;
        let number = getrandom::u64().map_err(io::Error::from)?;
        let handle = format!("{} {} {number:016x}", std::process::id(), file.as_raw_fd());
        let segment = Segment::of(file, shape.segment_bytes())?;
        for (word, value) in shape.header(number).into_iter().enumerate() {
            // Relaxed: the handle travels by another way, which orders it.
            segment.word(word * 8).store(value, Ordering::Relaxed);
        }
        Ok(Self { node, shape, handle, segment })
    }

    /// What the other processes need to find this memory, for as long as a worker uses it.
    #[must_use]
    pub fn handle(&self) -> String {
        self.handle.clone()
    }

    /// Maps the memory of the others, by the handles of all nodes that are there; where each worker sleeps, and what it sends and
    /// receives with.
    ///
    /// # Errors
    /// [`SharedRingsError`] if one is of another shape or cannot be opened.
    ///
    /// # Panics
    /// If there are not as many handles as nodes.
    pub fn connect(
        self,
        handles: &[Option<String>],
    ) -> Result<Vec<(Parking, MemoryPort)>, SharedRingsError> {
        assert_eq!(handles.len(), self.shape.nodes, "each node has a handle, or is not there");
        (0..self.shape.workers).map(|worker| self.ends(worker, handles)).collect()
    }

    fn ends(
        &self,
        worker: usize,
        handles: &[Option<String>],
    ) -> Result<(Parking, MemoryPort), SharedRingsError> {
        let Self { node, shape, .. } = *self;
        let finder = Finder { own_node: node, worker, shape };
        let lane = |(peer, handle): (usize, &Option<String>)| match handle {
            Some(handle) if peer != node => finder.lane(peer, handle),
            _ => Ok(SendLane { producer: None, waker: None, queued: false }),
        };
        let lanes = handles.iter().enumerate().map(lane).collect::<Result<_, _>>()?;
        let others = (0..shape.nodes).filter(|peer| *peer != node);
        let consumers = others.map(|peer| shape.ring(&self.segment, worker, peer).1);
        let receiver = MemoryReceiver { consumers: ConsumerSet::new(consumers) };
        let parking = Parking::at(shape.word(&self.segment, worker));
        let mut sender = MemorySender::new(lanes, shape.mtu);
        sender.finder = Some(finder);
        Ok((parking, (sender, receiver)))
    }
}

/// How a worker finds the rings that lead to other processes.
pub(super) struct Finder {
    own_node: usize,
    worker: usize,
    shape: Shape,
}

impl Finder {
    /// The sending end to the peer worker of a node, whose process has said where its memory is.
    pub(super) fn lane(&self, peer: usize, handle: &str) -> Result<SendLane, SharedRingsError> {
        let segment = open(peer, handle, &self.shape)?;
        Ok(SendLane {
            producer: Some(self.shape.ring(&segment, self.worker, self.own_node).0),
            waker: Some(Waker::at(self.shape.word(&segment, self.worker))),
            queued: false,
        })
    }
}

impl Shape {
    /// The words at the beginning of a segment.
    fn header(&self, number: u64) -> [u64; 6] {
        let Self { nodes, workers, mtu, ring_bytes } = *self;
        [MAGIC, number, nodes as u64, workers as u64, mtu as u64, ring_bytes as u64]
    }
}

/// Maps the memory of another process' node.
fn open(node: usize, handle: &str, shape: &Shape) -> Result<Arc<Segment>, SharedRingsError> {
    let parts: Vec<_> = handle.split(' ').collect();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let is_decimal = |text: &str| text.parse::<u32>().is_ok();
    let (path, number) = match parts[..] {
        [process, descriptor, text] if is_decimal(process) && is_decimal(descriptor) => {
            (format!("/proc/{process}/fd/{descriptor}"), number(text))
        }
        _ => (String::new(), None),
    };
    let said = || handle.to_owned();
    let number = number.ok_or_else(|| SharedRingsError::NoHandle { node, said: said() })?;
    let unreachable = |path: &str, reason: &str| SharedRingsError::Unreachable {
        node,
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    let refused = |error: io::Error| unreachable(&path, &error.to_string());
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(refused)?;
    let bytes = shape.segment_bytes();
    let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !is_sealed || file.metadata().map_err(refused)?.len() != bytes as u64 {
        return Err(unreachable(&path, "it is no memory of rings of this shape"));
    }
    let segment = Segment::of(file, bytes).map_err(refused)?;
    for (word, value) in shape.header(number).into_iter().enumerate() {
        // Relaxed: as in create().
        if segment.word(word * 8).load(Ordering::Relaxed) != value {
            return Err(unreachable(&path, "it is another process' memory, or of another shape"));
        }
    }
    Ok(segment)
}
