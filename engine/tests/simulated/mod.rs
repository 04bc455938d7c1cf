//! Workers of a cluster on one thread, over a network that delays, loses, doubles, reorders and
//! corrupts packets, in virtual time, from a seed.

pub(crate) mod twins;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use gannet_engine::{Configuration, Coordinator, Job, Node, TableId, Worker, WorkerParts};
use gannet_rpc::{Clock, Endpoint, Identity, PacketReceiver, PacketSender};
use gannet_storage::{BucketSnapshot, CommitLog, Owner, Partitioning, TableLayout};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const MTU_BYTES: usize = 16 << 10;
const NODES: u16 = 3;
const COROUTINES: u16 = 6;
const MEMORY_BYTES: usize = 4 << 20;
/// A run that takes more steps than this does not end.
const STEPS_MAX: u64 = 20_000_000;

/// What the network does to packets, in percent of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    pub(crate) corrupted: u32,
    pub(crate) delay_ns_max: u64,
}

/// A packet under way: when it arrives, a serial number to part equals, its receiver, its bytes.
type InFlight = Reverse<(u64, u64, u16, Vec<u8>)>;

struct Network {
    now_ns: Rc<Cell<u64>>,
    random: SmallRng,
    faults: Faults,
    serial: u64,
    in_flight: BinaryHeap<InFlight>,
    /// How often each fault struck: lost, doubled, corrupted.
    struck: [u64; 3],
}

impl Network {
    fn send(&mut self, destination: u16, packet: &[u8]) {
        let Faults { lost, doubled, corrupted, delay_ns_max } = self.faults;
        let mut strikes = |percent| self.random.random_range(0..100) < percent;
        let (is_lost, is_doubled, is_corrupted) =
            (strikes(lost), strikes(doubled), strikes(corrupted));
        self.struck[0] += u64::from(is_lost);
        if is_lost {
            return;
        }
        let mut packet = packet.to_vec();
        if is_corrupted {
            self.struck[2] += 1;
            let at = self.random.random_range(0..packet.len());
            packet[at] ^= 1 << self.random.random_range(0..8);
        }
        self.struck[1] += u64::from(is_doubled);
        for copy in 0..=u32::from(is_doubled) {
            // A duplicate may come long after its transaction has ended.
            let delay_max = delay_ns_max * if copy == 0 { 1 } else { 100 };
            let at = self.now_ns.get() + self.random.random_range(1..=delay_max);
            self.serial += 1;
            self.in_flight.push(Reverse((at, self.serial, destination, packet.clone())));
        }
    }
}

pub(crate) struct Sender {
    network: Rc<RefCell<Network>>,
}

impl PacketSender for Sender {
    fn mtu(&self) -> usize {
        MTU_BYTES
    }

    fn wants_checksum(&self) -> bool {
        true
    }

    fn queue(&mut self, destination: u16, packet: &[u8]) {
        self.network.borrow_mut().send(destination, packet);
    }

    fn ring_doorbell(&mut self) {}

    fn dropped(&self) -> u64 {
        0
    }
}

pub(crate) struct Receiver {
    inbox: Rc<RefCell<Vec<Vec<u8>>>>,
    batch: Vec<Vec<u8>>,
}

impl PacketReceiver for Receiver {
    fn poll(&mut self) -> usize {
        std::mem::swap(&mut self.batch, &mut self.inbox.borrow_mut());
        self.batch.len()
    }

    fn packet(&self, index: usize) -> &[u8] {
        &self.batch[index]
    }

    fn release(&mut self) {
        self.batch.clear();
    }
}

struct VirtualClock(Rc<Cell<u64>>);

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}

/// Three nodes with three copies and one worker each.
pub(crate) struct SimulatedCluster {
    now_ns: Rc<Cell<u64>>,
    network: Rc<RefCell<Network>>,
    inboxes: Vec<Rc<RefCell<Vec<Vec<u8>>>>>,
    pub(crate) nodes: Vec<Arc<Node>>,
    workers: Vec<Worker<Sender, Receiver>>,
    jobs: Vec<Arc<ArrayQueue<Job>>>,
}

impl SimulatedCluster {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let now_ns = Rc::new(Cell::new(0));
        let network = Rc::new(RefCell::new(Network {
            now_ns: Rc::clone(&now_ns),
            random: SmallRng::seed_from_u64(seed),
            faults,
            serial: 0,
            in_flight: BinaryHeap::new(),
            struck: [0; 3],
        }));
        let partitioning = Partitioning::new(4).unwrap();
        let configuration = Arc::new(Configuration::new(9, NODES, 3, partitioning));
        let inboxes: Vec<_> = (0..NODES).map(|_| Rc::default()).collect();
        let jobs: Vec<_> = (0..NODES).map(|_| Arc::new(ArrayQueue::<Job>::new(64))).collect();
        let nodes: Vec<_> = (0..NODES)
            .map(|id| Arc::new(Node::new(id, Arc::clone(&configuration), MEMORY_BYTES).unwrap()))
            .collect();
        let workers = (0..NODES)
            .map(|node| {
                let index = usize::from(node);
                let identity = Identity {
                    cluster_id: configuration.cluster_id,
                    epoch: configuration.epoch,
                    node,
                    worker: 0,
                    coroutines: COROUTINES,
                    incarnations: configuration.incarnations.clone(),
                };
                let sender = Sender { network: Rc::clone(&network) };
                let receiver = Receiver { inbox: Rc::clone(&inboxes[index]), batch: Vec::new() };
                Worker::new(WorkerParts {
                    node: Arc::clone(&nodes[index]),
                    endpoint: Endpoint::new(identity, sender, receiver),
                    log: CommitLog::new(usize::from(NODES), usize::from(COROUTINES), None),
                    worker: 0,
                    coroutines: COROUTINES,
                    jobs: Arc::clone(&jobs[index]),
                    clock: Rc::new(VirtualClock(Rc::clone(&now_ns))),
                    seed: seed ^ u64::from(node),
                })
            })
            .collect();
        Self { now_ns, network, inboxes, nodes, workers, jobs }
    }

    /// Creates a table whose buckets are few.
    pub(crate) fn create_table(&self, value_bytes: usize) -> TableId {
        let partitioning = self.nodes[0].configuration().partitioning;
        let layout = TableLayout::new("t", value_bytes, 1, partitioning).unwrap();
        let create = |node: &Arc<Node>| node.create_table(0, "t", layout).unwrap();
        let ids: Vec<_> = self.nodes.iter().map(create).collect();
        ids[0]
    }

    pub(crate) fn load(&self, table: TableId, key: u64, value: &[u8]) {
        for node in &self.nodes {
            let table = node.table(table.number()).unwrap();
            table.load(table.place(key).unwrap(), key, value).unwrap();
        }
    }

    /// Gives each coroutine of each node a job.
    pub(crate) fn spawn_everywhere(
        &self,
        make: impl Fn(u64) -> Box<dyn FnOnce(&mut Coordinator<'_>) + Send>,
    ) {
        for (node, jobs) in (0_u64..).zip(&self.jobs) {
            for coroutine in 0..u64::from(COROUTINES) {
                let client = node * u64::from(COROUTINES) + coroutine;
                assert!(jobs.push(make(client)).is_ok(), "the queue takes a job per coroutine");
            }
        }
    }

    /// Runs until every job has ended; `false` if they do not.
    pub(crate) fn run(&mut self) -> bool {
        for _ in 0..STEPS_MAX {
            self.deliver();
            let now_ns = self.now_ns.get();
            let mut progressed = false;
            for worker in &mut self.workers {
                progressed |= worker.poll(now_ns);
            }
            if progressed {
                self.now_ns.set(now_ns + 100);
                continue;
            }
            if self.workers.iter().all(Worker::is_idle) {
                return true;
            }
            let arrival = self.network.borrow().in_flight.peek().map(|Reverse(packet)| packet.0);
            let deadlines =
                self.workers.iter().filter_map(|worker| worker.next_deadline_ns(now_ns));
            let next = deadlines.chain(arrival).min().unwrap_or(now_ns);
            self.now_ns.set(next.max(now_ns + 1));
        }
        false
    }

    fn deliver(&self) {
        let mut network = self.network.borrow_mut();
        while let Some(Reverse((at, ..))) = network.in_flight.peek() {
            if *at > self.now_ns.get() {
                break;
            }
            if let Some(Reverse((_, _, destination, packet))) = network.in_flight.pop() {
                self.inboxes[usize::from(destination)].borrow_mut().push(packet);
            }
        }
    }

    /// What is wrong with the tables when nothing runs: differences of copies, locks held.
    pub(crate) fn defects(&self, table: TableId) -> Vec<String> {
        let mut defects = Vec::new();
        let tables: Vec<_> =
            self.nodes.iter().map(|node| node.table(table.number()).unwrap()).collect();
        for partition in 0..self.nodes[0].configuration().partitioning.count() {
            let partition = u16::try_from(partition).unwrap();
            for bucket in 0..tables[0].layout().buckets {
                let mut copies = [
                    BucketSnapshot::default(),
                    BucketSnapshot::default(),
                    BucketSnapshot::default(),
                ];
                for (table, copy) in tables.iter().zip(&mut copies) {
                    table.snapshot(partition, bucket, copy);
                    if copy.owner != Owner::FREE {
                        defects.push(format!("bucket {partition}/{bucket} locked"));
                    }
                }
                if !copies[1..].iter().all(|copy| copy.equals(&copies[0])) {
                    defects.push(format!("copies of bucket {partition}/{bucket} differ"));
                }
            }
        }
        defects
    }

    /// How often packets were lost, doubled and corrupted.
    pub(crate) fn struck(&self) -> [u64; 3] {
        self.network.borrow().struck
    }

    /// Sum over all workers of one of their endpoint's counters.
    pub(crate) fn count(&self, counter: impl Fn(&gannet_rpc::Counters) -> u64) -> u64 {
        self.workers.iter().map(|worker| counter(&worker.counters())).sum()
    }
}

impl Drop for SimulatedCluster {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            if worker.is_idle() {
                worker.close();
            }
        }
    }
}
