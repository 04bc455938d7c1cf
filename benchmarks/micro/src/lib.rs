//! FaSST's two small benchmarks: the object store O(r, w), and RPC echo. They are compiled for speed, as TATP and SmallBank are, and apart from the
//! harness, which is compiled for size.
//!
//! *Source*: FaSST sections 4.5 and 6.1.
//!
//! *Not here*: the harness (`gannet_benchmarks`).
#![forbid(unsafe_code)]

pub mod object_store;
pub mod rpc_echo;
