//! Rows and keys as bytes in the engine's ordered tables.
//!
//! ```text
//! key   the order of the bytes is the order of the values    key.rs
//! row   each value with its kind                             row.rs
//! ```
//!
//! *Not here*: values on the wire (`gannet_server`) and as text (`text`).

pub(crate) mod key;
pub(crate) mod row;
