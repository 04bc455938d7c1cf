//! The tables `gannet_nodes` and `gannet_copies`: the nodes of the cluster, and the places of partitions.
//!
//! *Invariants*: their rows need no transaction, so SHOW prints them even if the cluster has halted.
//!
//! *Not here*: their columns (`list`).

use std::collections::BTreeMap;

use gannet_engine::{
    Drained, LessonReport, MembershipStatus, NodeReport, NodeState, NodeStatus, Phase,
};

use crate::catalog::system::Sink;
use crate::catalog::system::relations::{Put, text};
use crate::expression::function::Facts;
use crate::value::Value;

fn count(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A row for each node: see `list`, `gannet_nodes`.
pub(super) fn nodes(facts: &Facts, put: Sink<'_>) -> Put {
    let (membership, all) = (facts.cluster.membership(), facts.cluster.status());
    let to_copy = bytes_to_copy(&all).into_values().sum();
    let configuration = facts.cluster.configuration();
    let node = |status: &NodeStatus| {
        let zone = u16::try_from(status.node).ok().and_then(|node| configuration.zone(node));
        node(status, zone, &membership, to_copy)
    };
    all.iter().map(node).try_for_each(put)
}

/// Bytes that learners are still to copy, by partition and node, as all have last said.
fn bytes_to_copy(all: &[NodeStatus]) -> BTreeMap<(u16, u16), u64> {
    let lessons = || {
        all.iter().flat_map(|status| {
            let lessons = status.report.iter().flat_map(|report| &report.lessons);
            lessons.map(|lesson| (status.node, lesson))
        })
    };
    let whole = |partition: u16| {
        let mut of_primaries = lessons().filter(|(_, it)| !it.learns && it.partition == partition);
        of_primaries.next().map(|(_, it)| it.bytes)
    };
    let learnt = lessons().filter(|(_, lesson)| lesson.learns);
    let to_copy = learnt.filter_map(|(node, LessonReport { partition, bytes, .. })| {
        let left = whole(*partition)?.saturating_sub(*bytes);
        Some(((*partition, u16::try_from(node).ok()?), left))
    });
    to_copy.collect()
}

fn node(
    status: &NodeStatus,
    zone: Option<&str>,
    membership: &MembershipStatus,
    to_copy: u64,
) -> Vec<Value> {
    let number = u16::try_from(status.node).ok();
    let phase = match membership.phase {
        Phase::Preparing => "preparing",
        Phase::Active => "active",
    };
    // Of others as they last said, but one that is gone answers nobody.
    let lease = match (status.state, &status.report) {
        (NodeState::Gone, _) => count(0),
        (NodeState::Up | NodeState::Silent(_), report) => {
            report.as_ref().and_then(|report| report.lease_ms).map_or(Value::Null, count)
        }
    };
    let (state, silent) = match status.state {
        NodeState::Up => ("up", Value::Null),
        NodeState::Silent(seconds) => ("silent", count(seconds)),
        NodeState::Gone => ("gone", Value::Null),
    };
    let drained = number.and_then(|number| membership.drained.get(&number));
    let drained = drained.map(|has| match has {
        Drained::Moving(_) => "moving",
        Drained::Needed(_) => "needed",
        Drained::Empty => "empty",
    });
    let address = status.address.map_or(Value::Null, |address| text(address.to_string()));
    let reported = |of: fn(&NodeReport) -> u64| {
        status.report.as_ref().map_or(Value::Null, |report| count(of(report)))
    };
    vec![
        count(status.node as u64),
        address,
        zone.map_or(Value::Null, text),
        text(state),
        silent,
        reported(|report| report.memory_bytes),
        reported(|report| report.memory_reserved_bytes),
        reported(|report| report.memory_limit_bytes),
        reported(|report| report.statistics.committed),
        reported(|report| report.statistics.aborted),
        reported(|report| report.statistics.requests),
        reported(|report| report.statistics.packets),
        reported(|report| report.statistics.retransmitted),
        reported(|report| report.statistics.duplicates),
        reported(|report| report.statistics.unsent),
        reported(|report| report.statistics.refused),
        reported(|report| report.gaps),
        count(u64::from(membership.epoch)),
        text(phase),
        lease,
        Value::Boolean(number.is_some() && number == membership.leader),
        Value::Boolean(number.is_some_and(|number| membership.voters.contains(&number))),
        count(membership.losses.keeping_rows as u64),
        count(membership.losses.serving as u64),
        count(membership.copies_missing as u64),
        reported(|report| report.changes.copied_bytes),
        count(to_copy),
        count(membership.copies_moving as u64),
        drained.map_or(Value::Null, text),
        number.and_then(|number| given_up(membership, number)).map_or(Value::Null, count),
        membership.unhealthy.map_or(Value::Null, |reason| text(reason.to_string())),
    ]
}

/// The epoch in which an operator has given up a node last.
fn given_up(membership: &MembershipStatus, node: u16) -> Option<u64> {
    let mut with_it = membership.given_up.iter().filter(|(_, nodes)| nodes.contains(&node));
    with_it.next_back().map(|(epoch, _)| u64::from(*epoch))
}

/// A row for each copy of a partition, and for each that is being made: see `list`, `gannet_copies`.
pub(super) fn copies(facts: &Facts, put: Sink<'_>) -> Put {
    let configuration = facts.cluster.configuration();
    let to_copy = bytes_to_copy(&facts.cluster.status());
    let partitions = (0..configuration.partitioning.count()).filter_map(|p| u16::try_from(p).ok());
    partitions
        .flat_map(|partition| {
            let copies = configuration.copies(partition).iter().enumerate();
            let copies = copies.map(|(rank, node)| {
                let role = if rank == 0 { "primary" } else { "backup" };
                (*node, role)
            });
            let learners = configuration.learners(partition).iter();
            let all = copies.chain(learners.map(|learner| (learner.node, "learner")));
            let row = |(node, role)| {
                let to_copy = to_copy.get(&(partition, node));
                let to_copy = to_copy.map_or(Value::Null, |bytes| count(*bytes));
                vec![count(u64::from(partition)), count(u64::from(node)), text(role), to_copy]
            };
            all.map(row).collect::<Vec<_>>()
        })
        .try_for_each(put)
}
