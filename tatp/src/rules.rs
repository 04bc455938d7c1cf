//! The rules of this crate that a test can remove.

gannet_rules::rules! {
    /// `INSERT_CALL_FORWARDING` inserts only if the special facility exists.
    FACILITY_CHECK,
}
