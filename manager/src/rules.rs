//! The rules of this crate that a test can remove.
//!
//! *Source*: `docs/protocol.md`, "Rules by name".

gannet_rules::rules! {
    /// What a replica has stored is on its disk before it says so.
    SYNCED_ANSWERS,
    /// What is for another incarnation of a node is passed over.
    ONE_INCARNATION,
}
