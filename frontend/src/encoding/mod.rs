//! Rows and keys as bytes in the engine's table.

pub(crate) mod key;
pub(crate) mod row;
