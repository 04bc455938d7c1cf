//! Clusters on threads of another runtime.
//!
//! A runtime of one thread polls the driver of a cluster between tasks of its own, and sleeps for as long as the driver allows.
//! A test fails if a task's job runs on another thread, if a closing cluster drops a job, or if copies differ at the end. A
//! test hangs if a job that waits or is long keeps tasks from running, or if a job of another thread does not wake the runtime.
//!
//! *Source*: `docs/architecture.md`, "Threads".
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use gannet::{
    Abort, Cluster, ClusterError, ClusterOptions, Completion, Driver, Outcome, TableId, ThreadHost,
    Transaction,
};
use gannet_benchmarks::check_replicas;

type Task = Box<dyn FnOnce() + Send>;

/// A minimal runtime of one thread: its tasks run to their end.
struct Host {
    tasks: Mutex<Receiver<Task>>,
    thread: Sender<Thread>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl ThreadHost for Host {
    fn run(&self, number: usize, mut driver: Pin<&mut dyn Driver>) {
        assert_eq!(number, 0);
        self.thread.send(thread::current()).unwrap();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let tasks = self.tasks.lock().unwrap();
        while driver.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let mut any = false;
            while let Ok(task) = tasks.try_recv() {
                task();
                any = true;
            }
            match driver.sleep_max() {
                _ if any => {}
                Some(wait) => thread::park_timeout(wait),
                None => thread::park(),
            }
        }
    }
}

/// A cluster on one hosted thread, and the runtime of that thread.
struct Hosted {
    cluster: Arc<Cluster>,
    table: TableId,
    tasks: Sender<Task>,
    thread: Thread,
}

impl Hosted {
    fn open() -> Self {
        let (tasks, receiver) = channel();
        let (sender, thread) = channel();
        let host = Arc::new(Host { tasks: Mutex::new(receiver), thread: sender });
        let options = ClusterOptions {
            threads: 1,
            memory_limit_bytes: Some(16 << 20),
            host: Some(host),
            ..ClusterOptions::default()
        };
        let cluster = Arc::new(Cluster::open(options).unwrap());
        let table = cluster.create_table("t", 8, 1000).unwrap();
        Self { cluster, table, tasks, thread: thread.recv().unwrap() }
    }

    /// Runs a task on the cluster's thread, and returns its result.
    fn task<T: Send + 'static>(&self, work: impl FnOnce(&Cluster) -> T + Send + 'static) -> T {
        let (sender, result) = channel();
        let cluster = Arc::clone(&self.cluster);
        let task = move || {
            let result = work(&cluster);
            // The test must hold the last handle when it closes the cluster, because a thread cannot wait for its own end.
            drop(cluster);
            sender.send(result).unwrap();
        };
        self.tasks.send(Box::new(task)).unwrap();
        self.thread.unpark();
        result.recv().unwrap()
    }

    fn close(self) {
        for check in check_replicas(&self.cluster) {
            assert!(check.passed, "{}: {}", check.name, check.detail);
        }
        Arc::into_inner(self.cluster).unwrap().close();
    }
}

/// The result of a job that has ended.
fn now<T>(completion: &mut Completion<T>) -> Option<T> {
    match Pin::new(completion).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.unwrap()),
        Poll::Pending => None,
    }
}

fn put(
    cluster: &Cluster,
    table: TableId,
    key: u64,
) -> Result<Completion<Outcome<(), Abort>>, ClusterError> {
    cluster.submit(move |tx| tx.insert(table, key, &key.to_le_bytes()))
}

/// If the system preempts the thread meanwhile, the driver runs the job.
#[test]
fn jobs_of_a_task_run_on_its_thread_mostly_at_once() {
    let hosted = Hosted::open();
    let table = hosted.table;
    let at_once = hosted.task(move |cluster| {
        let own = thread::current().id();
        let is_done_here = |&key: &u64| {
            let mut job = cluster
                .spawn_anywhere(move |coordinator| {
                    let insert = |tx: &mut Transaction<'_>| tx.insert(table, key, &[0; 8]);
                    (coordinator.run::<(), Abort>(insert), thread::current().id())
                })
                .unwrap();
            now(&mut job).is_some_and(|(outcome, thread)| {
                matches!(outcome, Outcome::Committed(())) && thread == own
            })
        };
        (0..1_000).filter(is_done_here).take(50).count()
    });
    assert_eq!(at_once, 50, "of 1,000 at most");
    hosted.close();
}

#[test]
fn jobs_of_a_task_run_at_the_node_that_it_names() {
    let hosted = Hosted::open();
    for node in [2, 0, 1] {
        let job = hosted.task(move |cluster| {
            cluster.spawn_near(node, |at| (at.node(), thread::current().id())).unwrap()
        });
        assert_eq!(job.wait(), Ok((node, hosted.thread.id())));
    }
    hosted.close();
}

#[test]
fn jobs_of_other_threads_run_while_the_thread_sleeps_and_works() {
    let hosted = Hosted::open();
    let table = hosted.table;
    thread::scope(|scope| {
        for first in [0, 1_000] {
            let cluster = &hosted.cluster;
            scope.spawn(move || {
                for key in first..first + 500 {
                    let outcome = put(cluster, table, key).unwrap().wait().unwrap();
                    assert!(matches!(outcome, Outcome::Committed(())));
                }
            });
        }
        for key in 2_000..2_100 {
            let outcome = hosted.task(move |cluster| put(cluster, table, key).unwrap()).wait();
            assert!(matches!(outcome.unwrap(), Outcome::Committed(())));
        }
    });
    hosted.close();
}

#[test]
fn a_job_that_waits_is_finished_by_the_driver() {
    let hosted = Hosted::open();
    let spawned = hosted.task(|cluster| {
        let is_told = Arc::new(AtomicBool::new(false));
        let hears = Arc::clone(&is_told);
        let job = cluster.spawn_anywhere(move |coordinator| {
            while !hears.load(Ordering::SeqCst) {
                coordinator.back_off(16);
            }
        });
        let mut job = job.unwrap();
        assert_eq!(now(&mut job), None, "a waiting job does not block the task");
        is_told.store(true, Ordering::SeqCst);
        job
    });
    spawned.wait().unwrap();
    hosted.close();
}

#[test]
fn a_long_job_yields() {
    let hosted = Hosted::open();
    let (sender, stop) = channel::<()>();
    let stop = Mutex::new(stop);
    let long = hosted.task(move |cluster| {
        cluster
            .spawn_anywhere(move |coordinator| {
                let mut rounds = 0_u64;
                while stop.lock().unwrap().try_recv().is_err() {
                    coordinator.give_way();
                    rounds += 1;
                }
                rounds
            })
            .unwrap()
    });
    // Tasks and other jobs run meanwhile, or this would wait forever.
    let table = hosted.table;
    let outcome = hosted.task(move |cluster| put(cluster, table, 1).unwrap()).wait().unwrap();
    assert!(matches!(outcome, Outcome::Committed(())));
    sender.send(()).unwrap();
    assert!(long.wait().unwrap() > 0);
    hosted.close();
}

#[test]
fn jobs_of_jobs_and_panics_leave_the_thread_at_work() {
    let hosted = Hosted::open();
    let table = hosted.table;
    let cluster = Arc::clone(&hosted.cluster);
    let inner = hosted.task(move |outer| {
        outer.spawn_anywhere(move |_| put(&cluster, table, 5).unwrap()).unwrap()
    });
    assert!(matches!(inner.wait().unwrap().wait().unwrap(), Outcome::Committed(())));
    let lost =
        hosted.task(|cluster| cluster.spawn_anywhere(|_| -> u8 { panic!("on purpose") }).unwrap());
    assert!(lost.wait().is_err());
    let outcome = hosted.task(move |cluster| put(cluster, table, 6).unwrap()).wait();
    assert!(matches!(outcome.unwrap(), Outcome::Committed(())));
    hosted.close();
}

#[test]
fn a_cluster_that_closes_finishes_jobs_first() {
    for round in 0..20 {
        let hosted = Hosted::open();
        let waiting: Vec<_> = (0..20)
            .map(|number| {
                let job = hosted.cluster.spawn_anywhere(move |coordinator| {
                    let until = coordinator.now_ns() + round * 1_000_000;
                    while coordinator.now_ns() < until {
                        coordinator.back_off(16);
                    }
                    number
                });
                job.unwrap()
            })
            .collect();
        Arc::into_inner(hosted.cluster).unwrap().close();
        for (number, mut job) in waiting.into_iter().enumerate() {
            assert_eq!(now(&mut job), Some(number));
        }
    }
}
