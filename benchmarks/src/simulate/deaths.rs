//! Checks after a member has died.
//!
//! Mostly the others go on. If they have halted, because they cannot go on without that member, the records in their log slots decide which
//! transactions have committed: each record is applied, unit by unit, at every copy. The survivors' answers to the code of their
//! jobs are compared with the records.
//!
//! *Source*: `docs/simulation.md`, "Members that die".

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use gannet_engine::simulation::{Simulation, Verdict};
use gannet_engine::{Completion, Lost, Settled, Stage};
use gannet_storage::{Applied, BucketUpdate, CommitRecord, Item, TransactionId};

use crate::check::Check;
use crate::replicas::check_replicas;
use crate::statistics::Statistics;

/// The result of a client's job: its counts.
pub(super) type Job = Completion<Option<Statistics>>;

/// Checks that the survivors' jobs were answered; adds the clients' counts to `sum`. `jobs` has the same number of jobs for each node that was there at first.
pub(super) fn check_jobs(
    simulation: &Simulation,
    jobs: Vec<Job>,
    sum: &mut Statistics,
) -> Vec<Check> {
    let nodes = simulation.cluster().nodes().len();
    let jobs_of_node = jobs.len() / simulation.first_nodes();
    let dead = simulation.died();
    let mut unfinished = vec![0; nodes];
    for (number, job) in jobs.into_iter().enumerate() {
        match pin!(job).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(found)) => found.iter().for_each(|found| sum.add(found)),
            Poll::Ready(Err(Lost::NotBegun)) => {}
            Poll::Ready(Err(Lost::Unfinished)) | Poll::Pending => {
                unfinished[number / jobs_of_node] += 1;
            }
        }
    }
    let of_dead: i128 = dead.iter().map(|node| std::mem::take(&mut unfinished[*node])).sum();
    let options = simulation.cluster().options();
    let begun_max = (dead.len() * options.threads * options.coroutines) as i128;
    vec![
        Check::equal("jobs of survivors without an answer", 0, unfinished.iter().sum()),
        Check::new(
            "jobs that dead members had not begun are taken over",
            of_dead <= begun_max,
            format!("{of_dead} are lost, of at most {begun_max} that had begun"),
        ),
    ]
}

/// After the survivors have halted: applies their records, and compares their answers with them.
pub(super) fn check_halted(simulation: &Simulation) -> Vec<Check> {
    let records = survivors(simulation);
    let damaged = records.iter().flat_map(|(_, of_node)| of_node).filter(|bytes| is_damaged(bytes));
    let damaged = damaged.count() as i128;
    let mut wrong = Vec::new();
    let gaps = flush(simulation, &records);
    // Before a change of the membership, a log group has kept its members.
    let comparable = if simulation.epoch() == 1 { simulation.verdicts() } else { &[] };
    for verdict in comparable {
        wrong.extend(contradiction(simulation, verdict, &records));
    }
    let said = wrong.first().cloned().unwrap_or_default();
    let detail = format!("{} compared, {} wrong {said}", comparable.len(), wrong.len());
    let mut checks = vec![
        Check::new("settled commits agree with the survivors' records", wrong.is_empty(), detail),
        Check::equal("records of the survivors that are damaged", 0, damaged),
    ];
    if !simulation.may_have_lost_records() {
        checks.push(Check::equal(
            "units of the survivors' records that miss an earlier one",
            0,
            gaps,
        ));
        // Locks and pending entries of unfinished transactions remain.
        checks.extend(check_replicas(simulation.cluster()).into_iter().take(1));
    }
    checks
}

/// The records of the survivors, by node.
fn survivors(simulation: &Simulation) -> Vec<(usize, Vec<Vec<u8>>)> {
    let dead = simulation.dead();
    let nodes = (0..simulation.cluster().nodes().len()).filter(|node| !dead.contains(node));
    nodes.map(|node| (node, simulation.log_records(node))).collect()
}

/// Whether a record's checksum is wrong, or the record names other partitions than its units.
fn is_damaged(bytes: &[u8]) -> bool {
    let record = CommitRecord::parse(bytes).expect("a log has records");
    let units = record.units().map(|unit| unit.expect("a record has units").partition);
    let partitions: BTreeSet<u16> = units.collect();
    !CommitRecord::is_intact(bytes) || record.participants().collect::<BTreeSet<_>>() != partitions
}

fn id_of(record: &[u8]) -> TransactionId {
    CommitRecord::parse(record).expect("a log has records").id
}

/// Applies the records at every copy. Returns the number of units whose predecessor is missing.
fn flush(simulation: &Simulation, records: &[(usize, Vec<Vec<u8>>)]) -> i128 {
    let records: BTreeSet<&Vec<u8>> = records.iter().flat_map(|(_, of_node)| of_node).collect();
    let parse = |record| CommitRecord::parse(record).expect("a log has records");
    let units = records.into_iter().flat_map(|record| parse(record).units());
    let mut units: Vec<_> = units.map(|unit| unit.expect("a record has units")).collect();
    units.sort_by_key(BucketUpdate::order);
    let cluster = simulation.cluster();
    let mut gaps = 0;
    for unit in units {
        for &copy in cluster.configuration().copies(unit.partition) {
            let view = cluster.nodes()[usize::from(copy)].view();
            // A table that was dropped has no rows to miss.
            let Some(table) = view.table(unit.table) else { continue };
            let address = table.address_to_fill(&unit);
            let mut address = address.expect("a copy has its partition");
            for item in unit.items() {
                let (Item::Put { key, .. } | Item::Delete { key }) = item;
                address = address.with_tag(table.locate(key.word()).tag);
            }
            gaps += i128::from(table.apply_at_backup(address, &unit) == Applied::Gap);
        }
    }
    gaps
}

/// The contradiction between the outcome of a commit and the survivors' records, if there is one.
fn contradiction(
    simulation: &Simulation,
    verdict: &Verdict,
    records: &[(usize, Vec<Vec<u8>>)],
) -> Option<String> {
    let Verdict { id, stage, settled } = *verdict;
    let nodes = simulation.cluster().nodes();
    let views: Vec<_> = records.iter().map(|(node, _)| nodes[*node].view()).collect();
    // While log groups change, a record is sure to be only where both groups have it; and survivors may go by different versions.
    let is_sure = |node: usize| {
        let mut sure = views.iter().map(|view| view.configuration().sure_log_group(id.node));
        sure.all(|sure| sure.iter().any(|replica| usize::from(*replica) == node))
    };
    let has_it = |of_node: &[Vec<u8>]| of_node.iter().any(|record| id_of(record) == id);
    let found = records.iter().filter(|(_, of_node)| has_it(of_node)).count();
    let lack = records.iter().filter(|(node, of_node)| is_sure(*node) && !has_it(of_node)).count();
    let is_right = match settled {
        Settled::Committed => {
            found > 0 && lack == 0 && matches!(stage, Stage::Logged | Stage::PrimariesSent)
        }
        Settled::Aborted => found == 0,
        Settled::Unknown => stage == Stage::Logging,
    };
    (!is_right).then(|| {
        format!(
            "{id:?} in {stage:?} was settled as {settled:?}; {found} have its record, and {lack} lack it"
        )
    })
}
