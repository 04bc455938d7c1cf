//! Atomics of the standard library and `parking_lot`'s mutex, or loom's under `--cfg loom`, so that
//! one source serves both.
//!
//! The mutex is not the standard library's because that one waits in code which the thread sanitizer
//! does not see: it would take what the lock protects for a race.

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

/// The contents of `mutex`, once nobody else has them.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The contents of `mutex`, once nobody else has them.
#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends loom's run")
}
