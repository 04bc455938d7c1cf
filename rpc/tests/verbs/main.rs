//! Endpoints over queue pairs of RDMA devices: Soft-RoCE's rx0 and rx1 in the guest of `tests/verbs/guest`. The tests run
//! one at a time, and change the guest's network. `tests/verbs/run` boots the guest; `cargo test` leaves these tests out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod datagrams;
#[path = "../echo/mod.rs"]
mod echo;
mod faults;
mod nodes;
mod one_sided;
mod preflight;
