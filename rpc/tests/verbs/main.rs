//! Endpoints over queue pairs of real RDMA devices: Soft-RoCE's rx0 and rx1, as `tests/verbs/guest` sets them up. They
//! run there, one at a time, and change the guest's network.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod datagrams;
#[path = "../echo/mod.rs"]
mod echo;
mod faults;
mod nodes;
mod one_sided;
mod preflight;
