//! Datagram RPC between peer threads; knows no transaction, table or key.
//!
//! ```text
//! coroutine ─ RequestBatch ─ Endpoint ─ PacketSender / PacketReceiver ─ (rings, UDP, RDMA)
//!                               └─ Handler, called for each request that arrives
//! ```
//! A coroutine fills a [`RequestBatch`] and suspends; its worker's [`Endpoint`] sends one coalesced
//! packet per destination, rings one doorbell, and resumes the coroutine when all have answered.
//!
//! *Source*: FaSST section 4 (batches, coalescing, response batching, peer threads); HERD section
//! 4.1.1 (staged prefetching). Added: exactly-once sessions and retransmission.
//!
//! *Not here*: what a request means (crate `engine`); membership changes: an epoch is a number that is compared.
#![deny(unsafe_code)]

mod buffer;
mod clock;
mod coroutine;
mod counters;
mod endpoint;
mod fragments;
mod identity;
mod loss_detection;
#[cfg(not(loom))]
mod memory;
mod message;
mod packet;
mod parking;
mod peer;
mod request_batch;
mod ring;
mod round_trip;
pub mod rules;
mod session;
mod statuses;
mod transport;
#[cfg(not(loom))]
mod udp;
#[cfg(all(feature = "verbs", not(loom)))]
mod verbs;
mod window;

pub use clock::{BootClock, Clock, MonotonicClock, TimeOfDay};
pub use coroutine::{Coroutine, Suspend, is_cancel};
pub use counters::Counters;
pub use endpoint::{Endpoint, Handler, Incoming};
pub use fragments::MESSAGE_BYTES_MAX;
pub use identity::Identity;
#[cfg(not(loom))]
pub use memory::{
    MemoryFabric, MemoryPort, MemoryReceiver, MemorySender, SharedRings, SharedRingsError,
};
pub use message::{Message, Messages, PAYLOAD_BYTES_MAX, ResponseWriter};
pub use packet::{Contents, HEADER_BYTES, Kind, Route};
pub use parking::{Parking, Waker};
pub use request_batch::{RequestBatch, TooLarge};
pub use transport::{PacketReceiver, PacketSender, Port, Refused};
#[cfg(not(loom))]
pub use udp::{ClusterKey, ClusterKeyError, UdpError, UdpOptions, UdpPort, UdpReceiver, UdpSender};
#[cfg(all(feature = "verbs", not(loom)))]
pub use verbs::{
    GidChoice, OneSided, OneSidedPair, ReadError, RemoteRegion, SharedRegion, VerbsError,
    VerbsOptions, VerbsPort, VerbsReceiver, VerbsSender,
};
