//! The metrics of this process's nodes, which Prometheus fetches over HTTP.
//!
//! *Source*: Prometheus, "Exposition formats", text format 0.0.4.
//!
//! *Invariants*: the number of connections and the time of each are bounded.
//!
//! *Not here*: the state of other nodes; each node reports its own.

use std::convert::Infallible;
use std::fmt::Write;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gannet_engine::{
    Cluster, LeaseLeft, LogLimiter, MembershipStatus, NodeReport, NodeState, NodeStatus,
    PendingConnections,
};
use gannet_server::Admission;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::log::lines_dropped;

/// Pause after a failed accept, such as for too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections of one address, and of all; a further one replaces the oldest.
const CONNECTIONS_MAX: (usize, usize) = (16, 64);
/// Time limit for a request and its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Listens for requests for metrics.
///
/// # Errors
/// The system's error if it refuses the address; an error if other hosts could connect, unless `is_public`.
pub(super) fn bind(listen: &str, is_public: bool) -> std::io::Result<TcpListener> {
    let addresses: Vec<_> = listen.to_socket_addrs()?.collect();
    if !is_public && addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(std::io::Error::other(
            "other hosts could read the metrics without a password; give --metrics-public if they may",
        ));
    }
    let listener = TcpListener::bind(&addresses[..])?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves metrics on a thread of its own, until the process ends.
///
/// # Errors
/// The system's error if it refuses the thread.
pub(super) fn serve(
    listener: TcpListener,
    cluster: Weak<Cluster>,
    admission: Arc<Admission>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    tracing::info!("metrics at http://{}/metrics", listener.local_addr()?);
    let serve = move || runtime.block_on(accept(&listener, &cluster, &admission));
    std::thread::Builder::new().name("gannet-metrics".to_owned()).spawn(serve).map(drop)
}

async fn accept(
    listener: &tokio::net::TcpListener,
    cluster: &Weak<Cluster>,
    admission: &Arc<Admission>,
) {
    let pending = PendingConnections::new(CONNECTIONS_MAX.0, CONNECTIONS_MAX.1);
    let log = LogLimiter::default();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(suppressed) = log.permit() {
                    tracing::warn!("cannot accept a connection for metrics: {error}{suppressed}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (evict, evicted) = tokio::sync::oneshot::channel::<()>();
        let pending = pending.admit(from.ip(), move || drop(evict));
        let (cluster, admission) = (Weak::clone(cluster), Arc::clone(admission));
        let answer = service_fn(move |request: Request<Incoming>| {
            let answer = answer(&request, &cluster, &admission);
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        // Errors need no handling: a wrong request has its answer, and a client that hangs up is gone.
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(REQUEST_TIMEOUT, connection) => {}
                _ = evicted => {}
            }
            drop(pending);
        });
    }
}

fn answer(
    request: &Request<Incoming>,
    cluster: &Weak<Cluster>,
    admission: &Admission,
) -> Response<Full<Bytes>> {
    let is_known = request.uri().path() == "/metrics";
    let (status, text) = match (request.method(), is_known) {
        (&Method::GET, true) => match cluster.upgrade() {
            Some(cluster) => {
                let is_local = |node| cluster.node(node).is_some();
                let nodes = cluster.status();
                let mut text = exposition(&nodes, is_local);
                let local_nodes =
                    nodes.iter().map(|status| status.node).filter(|node| is_local(*node));
                text.push_str(&membership(&cluster.membership(), &local_nodes.collect::<Vec<_>>()));
                for (name, help, value) in admission.named() {
                    // Writing to a text cannot fail.
                    let _ = writeln!(
                        text,
                        "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}"
                    );
                }
                (StatusCode::OK, text)
            }
            None => (StatusCode::SERVICE_UNAVAILABLE, "this node is stopping\n".to_owned()),
        },
        (_, true) => (StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned()),
        (_, false) => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A measure of each node: name, kind, description, value.
type Measure = (&'static str, &'static str, &'static str, fn(&NodeReport) -> u64);

/// Writes one measure of some nodes.
fn write_family(
    text: &mut String,
    (name, kind, help): (&str, &str, &str),
    values: &[(usize, u64)],
) {
    // Writing to a text cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (node, value) in values {
        let _ = writeln!(text, "{name}{{node=\"{node}\"}} {value}");
    }
}

/// The membership as the nodes of this process see it.
fn membership(status: &MembershipStatus, local_nodes: &[usize]) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, of: &dyn Fn(usize) -> u64| {
        let values: Vec<_> = local_nodes.iter().map(|node| (*node, of(*node))).collect();
        write_family(&mut text, (name, kind, help), &values);
    };
    family(
        "gannet_epoch",
        "gauge",
        "Epoch of the membership; each removal begins another.",
        &|_| u64::from(status.epoch),
    );
    family("gannet_members", "gauge", "Nodes that are members.", &|_| status.members.len() as u64);
    family("gannet_lease_held", "gauge", "Whether the node may answer: 1, or 0.", &|_| {
        u64::from(status.lease != LeaseLeft::Over)
    });
    family(
        "gannet_manager_leader",
        "gauge",
        "Whether the node decides on the membership.",
        &|node| u64::from(status.leader.map(usize::from) == Some(node)),
    );
    let help = "Copies of partitions that are to be made again.";
    family("gannet_copies_missing", "gauge", help, &|_| status.copies_missing as u64);
    let help = "Copies of partitions that are to move to other nodes, or are moving.";
    family("gannet_copies_moving", "gauge", help, &|_| status.copies_moving as u64);
    let help = "Members that the node has suspected while it decided on the membership.";
    family("gannet_suspicions_total", "counter", help, &|_| status.suspicions);
    text
}

/// What each node of this process reports of its memory and of changes of the membership.
const MEASURES: [Measure; 12] = [
    (
        "gannet_copied_bytes_total",
        "counter",
        "Bytes of rows that the node has copied from others, as it was filled with partitions.",
        |r| r.changes.copied_bytes,
    ),
    (
        "gannet_copies_given_up_total",
        "counter",
        "Copies of partitions of a table that the node has given up to others.",
        |r| r.changes.copies_given_up,
    ),
    (
        "gannet_taught_bytes",
        "gauge",
        "Bytes of partitions that the node is primary of and that others are being filled with, once for each.",
        |r| {
            r.lessons
                .iter()
                .filter(|it| !it.learns)
                .map(|it| it.bytes * u64::from(it.learners))
                .sum()
        },
    ),
    (
        "gannet_learnt_bytes",
        "gauge",
        "Bytes that the node has of partitions that it is being filled with.",
        |r| r.lessons.iter().filter(|it| it.learns).map(|it| it.bytes).sum(),
    ),
    ("gannet_memory_bytes", "gauge", "Table memory in use.", |r| r.memory_bytes),
    (
        "gannet_memory_reserved_bytes",
        "gauge",
        "Table memory of main buckets, with rows or without.",
        |r| r.memory_reserved_bytes,
    ),
    ("gannet_memory_limit_bytes", "gauge", "Limit of the table memory.", |r| r.memory_limit_bytes),
    ("gannet_gaps_total", "counter", "Updates that a copy missed: 0, or a bug.", |r| r.gaps),
    (
        "gannet_membership_changes_total",
        "counter",
        "Epochs that have begun after the first one.",
        |r| r.changes.epochs,
    ),
    (
        "gannet_flushed_committed_total",
        "counter",
        "Transactions under way at the end of an epoch that were found to be committed.",
        |r| r.changes.flushed_committed,
    ),
    (
        "gannet_flushed_aborted_total",
        "counter",
        "Transactions under way at the end of an epoch that were found to be aborted.",
        |r| r.changes.flushed_aborted,
    ),
    (
        "gannet_partitions_handed_over_total",
        "counter",
        "Partitions of which the node was primary, and that it has handed over to other primaries.",
        |r| r.changes.handed_over,
    ),
];

/// The measures of all nodes as this node hears of them, and the reports of the nodes in this process.
fn exposition(nodes: &[NodeStatus], is_local: impl Fn(usize) -> bool) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, values: Vec<(usize, u64)>| {
        write_family(&mut text, (name, kind, help), &values);
    };
    let up = nodes.iter().map(|node| (node.node, u64::from(node.state == NodeState::Up))).collect();
    family("gannet_node_up", "gauge", "Whether this node hears from the node.", up);
    let reports: Vec<_> = nodes
        .iter()
        .filter(|status| is_local(status.node))
        .filter_map(|status| Some((status.node, status.report.as_ref()?)))
        .collect();
    for (name, kind, help, of) in MEASURES {
        let values = reports.iter().map(|(node, report)| (*node, of(report))).collect();
        family(name, kind, help, values);
    }
    let counters = reports.first().map(|(_, report)| report.statistics.named());
    for (index, (name, help, _)) in counters.into_iter().flatten().enumerate() {
        let value =
            |(node, report): &(usize, &NodeReport)| (*node, report.statistics.named()[index].2);
        let values = reports.iter().map(value).collect();
        family(&format!("gannet_{name}_total"), "counter", help, values);
    }
    let lost = lines_dropped();
    // Writing to a text cannot fail.
    let _ = writeln!(
        text,
        "# HELP gannet_log_lines_lost_total Lines of this process's log that could not be written.\n\
         # TYPE gannet_log_lines_lost_total counter\ngannet_log_lines_lost_total {lost}"
    );
    text
}
