//! The data path allocates nothing: once its buffers have grown, TATP and SmallBank transactions allocate no memory.
//!
//! One thread drives three nodes over the `memory` transport, and an allocator counts the allocations of that thread. Each of
//! 24 clients runs 20,000 transactions to warm up, and then 20,000 that count, aborts included. One allocation fails the test.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a counting allocator is one: it forwards to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gannet_benchmarks::{Workload, seeded};
use gannet_engine::{Cluster, ClusterOptions, WorkerId};
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system allocator, which keeps the contract; the
// counter is a thread-local without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARMUP_TRANSACTIONS: u32 = 20_000;
const COUNTED_TRANSACTIONS: u32 = 20_000;

/// Allocations of the worker thread while one of its coroutines runs the counted transactions.
fn allocations_of(mut workload: impl Workload) -> u64 {
    let options = ClusterOptions {
        threads: 1,
        coroutines: 8,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    workload.create_tables(&cluster).unwrap();
    workload.load(&cluster, 0, 1).unwrap();
    let workload = std::sync::Arc::new(workload);
    // All coroutines of the thread run at once, so conflicts and aborts are counted, too. The first to finish its warm-up
    // starts counting, for the whole thread.
    let completions: Vec<_> = (0..3 * 8)
        .map(|client| {
            let workload = std::sync::Arc::clone(&workload);
            let job = move |coordinator: &mut gannet_engine::Coordinator<'_>| {
                let mut random = seeded(1, client);
                let mut run = |transactions| {
                    for _ in 0..transactions {
                        workload.run_one(coordinator, &mut random);
                    }
                };
                run(WARMUP_TRANSACTIONS);
                let before = ALLOCATIONS.get();
                run(COUNTED_TRANSACTIONS);
                ALLOCATIONS.get() - before
            };
            let worker = WorkerId { node: usize::try_from(client % 3).unwrap(), worker: 0 };
            cluster.spawn(worker, job).unwrap()
        })
        .collect();
    completions.into_iter().map(|completion| completion.wait().unwrap()).max().unwrap()
}

#[test]
fn no_transaction_allocates() {
    // This check can fail.
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert!(ALLOCATIONS.get() > before, "the counter counts");

    // Delivering a completion on the thread may allocate; a transaction may not.
    let tatp = allocations_of(Tatp::new(2_000, false, 1).unwrap());
    let smallbank = allocations_of(SmallBank::new(2_000, 1).unwrap());
    assert_eq!((tatp, smallbank), (0, 0), "allocations in TATP and SmallBank");
}
