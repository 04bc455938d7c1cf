//! Micro-benchmarks of the RPC layer: a coroutine's resume and suspend, and a packet through a ring.
//!
//! One thread resumes the 20 coroutines of a worker in turn. One thread sends 16 packets through a ring of the `memory`
//! transport with one doorbell, and receives them.
//!
//! *Not here*: requests and answers between threads (`benchmarks/micro/src/rpc_echo.rs`).
#![cfg(not(loom))]
#![allow(missing_docs, reason = "criterion's macros generate undocumented functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gannet_rpc::{Coroutine, MemoryFabric, PacketReceiver, PacketSender, Parking};

/// Coroutines of a worker by default.
const COROUTINES: usize = 20;
/// A request of one key with its headers.
const PACKET_BYTES: usize = 80;

fn resume_and_suspend(criterion: &mut Criterion) {
    let mut coroutines: Vec<_> = (0..COROUTINES)
        .map(|colour| {
            Coroutine::new(colour, |suspend| {
                loop {
                    suspend.suspend();
                }
            })
        })
        .collect();
    let mut group = criterion.benchmark_group("coroutine");
    group.throughput(Throughput::Elements(COROUTINES as u64));
    group.bench_function("resume and suspend, 20 in turn", |bencher| {
        bencher.iter(|| {
            for coroutine in &mut coroutines {
                assert!(coroutine.resume());
            }
        });
    });
    group.finish();
}

fn packet_through_a_ring(criterion: &mut Criterion) {
    let waker = Parking::new().waker();
    let mut fabric = MemoryFabric::new(2, 1, 4 << 10, 64 << 10);
    let wakers = [waker.clone(), waker.clone()];
    let (mut sender, _) = fabric.take(0, 0, &waker, &wakers);
    let (_, mut receiver) = fabric.take(1, 0, &waker, &wakers);
    let packet = [7; PACKET_BYTES];
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(16));
    group.bench_function("80-byte packet, 16 per doorbell", |bencher| {
        bencher.iter(|| {
            for _ in 0..16 {
                sender.queue(1, &packet);
            }
            sender.ring_doorbell();
            let count = receiver.poll();
            assert_eq!(count, 16);
            for index in 0..count {
                std::hint::black_box(receiver.packet(index));
            }
            receiver.release();
        });
    });
    group.finish();
}

criterion_group!(benches, resume_and_suspend, packet_through_a_ring);
criterion_main!(benches);
