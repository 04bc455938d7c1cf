//! Endpoints of two nodes on two OS threads over the rings of the `memory` transport; the thread sanitizer runs this too.
//!
//! Each node sends 12,000 requests and answers those of the other node, through rings that run full all the time. The
//! test fails if an answer does not fit its request, or if the sanitizer sees a race.
//!
//! *Not here*: interleavings of the two ends of a ring (loom, in `rpc/src/ring.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod echo;

use echo::Echo;
use gannet_rpc::{Endpoint, Identity, MemoryFabric, Parking};

const COROUTINES: u16 = 4;
const CALLS: u64 = 3_000;

#[test]
fn packets_cross_threads_whole() {
    // Rings of a few packets run full all the time.
    let mut fabric = MemoryFabric::new(2, 1, 2_048, 8_192);
    let parkings = [Parking::new(), Parking::new()];
    let wakers = [parkings[0].waker(), parkings[1].waker()];
    let ends: Vec<_> = (0..2).map(|node| fabric.take(node, 0, &wakers[node], &wakers)).collect();
    let done = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (node, (sender, receiver)) in (0..).zip(ends) {
            let done = &done;
            threads.push(scope.spawn(move || {
                let identity = Identity {
                    cluster_id: 1,
                    epoch: 1,
                    node,
                    worker: 0,
                    coroutines: COROUTINES,
                    incarnations: vec![1; 2],
                };
                let mut endpoint = Endpoint::new(identity, sender, receiver);
                let (mut handler, mut incoming) = (Echo::default(), Vec::new());
                let payload = |coroutine: u16, call: u64| {
                    let size = usize::try_from(call * 37 % 1_500).unwrap();
                    let [fill, ..] = ((call % 251) ^ u64::from(coroutine)).to_le_bytes();
                    vec![fill; size]
                };
                let send = |endpoint: &mut Endpoint<_, _>, coroutine: u16, call: u64, now_ns| {
                    let batch = endpoint.batch(coroutine);
                    let payload = payload(coroutine, call);
                    batch.borrow_mut().clear();
                    batch.borrow_mut().push(1 - node, 1, &payload, payload.len()).unwrap();
                    endpoint.submit(coroutine, now_ns);
                };
                let mut calls = vec![1; usize::from(COROUTINES)];
                (0..COROUTINES).for_each(|coroutine| send(&mut endpoint, coroutine, 1, 0));
                let mut now_ns = 0;
                let mut finished = 0;
                // The thread serves the other one until both have finished.
                while done.load(std::sync::atomic::Ordering::Acquire) < 2 {
                    now_ns += 10_000;
                    endpoint.receive(&mut handler, &mut incoming, now_ns);
                    while let Some(coroutine) = endpoint.take_ready() {
                        let call = &mut calls[usize::from(coroutine)];
                        let batch = endpoint.batch(coroutine);
                        let answer = batch.borrow_mut().next_response(1 - node).payload.to_vec();
                        let asked = payload(coroutine, *call);
                        assert!(
                            answer.iter().eq(asked
                                .iter()
                                .map(|byte| byte + 1)
                                .collect::<Vec<_>>()
                                .iter())
                        );
                        *call += 1;
                        if *call <= CALLS {
                            send(&mut endpoint, coroutine, *call, now_ns);
                        } else {
                            finished += 1;
                            if finished == COROUTINES {
                                done.fetch_add(1, std::sync::atomic::Ordering::Release);
                            }
                        }
                    }
                    endpoint.ring_doorbell();
                    endpoint.retransmit(now_ns);
                }
            }));
        }
        // The thread sanitizer understands a join, but not a scope's wait for its threads.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
