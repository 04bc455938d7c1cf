//! Atomics of the standard library, or loom's under `--cfg loom`, so that one source serves both.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};
