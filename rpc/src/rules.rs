//! The rules of this crate that a test can remove.
//!
//! *Source*: `docs/protocol.md`, "Rules by name", for `EPOCH_OF_PACKETS`; `session.rs` and `endpoint.rs` for the others.

gannet_rules::rules! {
    /// A request that comes again is not run again.
    EXACTLY_ONCE,
    /// A packet of another epoch is dropped.
    EPOCH_OF_PACKETS,
    /// A packet whose checksum is wrong is dropped.
    CHECKSUM,
}
