//! Atomics of the standard library and `parking_lot`'s mutex, or loom's under `--cfg loom`, so that
//! one source serves both.
//!
//! The mutex is not the standard library's. That one waits in code which the thread sanitizer does not see, so
//! the sanitizer would report races on the data that the lock protects.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

/// Locks a mutex.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Locks a mutex.
#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends loom's run")
}
