//! The `gannet bench` command, as users run it.
//!
//! Each test starts the built command; some runs start a process for each node, over UDP or shared memory. A test fails if a
//! run does not verify, if a report lacks a field, or if bad input does not end with code 2 and advice. With a rule removed or
//! a fault injected by `--mutant`, a run must fail.
//!
//! *Not here*: benchmarks at a server (`tests/server/benchmarks.rs`), which check notices which rule (`tests/mutants.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Output};

fn gannet(arguments: &str) -> Output {
    let arguments = arguments.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_gannet")).arg("bench").args(arguments).output().unwrap()
}

const SHORT: &str = "--duration 200ms --warmup 50ms --memory 128MiB";

#[test]
fn every_workload_runs_and_verifies() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for workload in [
        "tatp --subscribers 2000 --floor",
        "tatp --subscribers 20000 --grown",
        "smallbank --accounts 5000 --floor",
        "objects --reads 1 --writes 0 --keys 5000",
        "objects --reads 4 --writes 2 --keys 5000 --theta 0.9",
        "pairs",
        "skew --pairs 20",
        "ranges --groups 50",
        "rpc --batch 3",
        "rpc --batch 2 --thread-per-node",
        "rpc --batch 2 --transport udp",
        "rpc --batch 2 --transport udp --key",
    ] {
        if workload.contains("thread-per-node") && cores < 2 {
            continue;
        }
        let output = gannet(&format!("{workload} {SHORT}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{workload}: {text}");
        assert!(text.contains("verify: passed") && text.contains(" committed per core"), "{text}");
        assert_eq!(text.contains("floor: "), workload.contains("--floor"), "{text}");
    }
}

#[test]
fn a_second_table_takes_rows_while_tatp_runs() {
    for (options, layout) in [("", "growing"), ("--beside-laid-out", "laid out")] {
        let short = "--subscribers 2000 --warmup 50ms --memory 128MiB --format json";
        let output = gannet(&format!("tatp --beside 20000 {options} {short}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{options}: {text}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["settings"]["beside"], format!("20000 rows, {layout}"));
        let checks = report["verify"]["checks"].as_array().unwrap();
        let of_second = checks.iter().filter(|it| it["name"] == "rows of the second table");
        let details: Vec<_> = of_second.map(|it| it["detail"].as_str().unwrap()).collect();
        assert_eq!(details, ["expected 20000, found 20000, 20000 of them whole"], "{options}");
    }
}

#[test]
fn workloads_in_sql_run_and_verify() {
    for workload in [
        "tatp --sql --subscribers 500",
        "smallbank --sql --accounts 500",
        "smallbank --sql --accounts 50",
        "sql select --rows 2000",
        "sql update --rows 2000 --clients 3 --client-threads 2",
        "sql copy --rows 2000",
        "sql copy --rows 20000 --filler 84",
        "sql scan --rows 2000",
        "sql sum --rows 2000",
    ] {
        let output = gannet(&format!("{workload} {SHORT}"));
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{workload}: {text}{errors}");
        assert!(text.contains("verify: passed") && text.contains("replicas equal"), "{text}");
        let rows = ["copy", "scan", "sum "].iter().any(|counts| workload.contains(counts));
        assert_eq!(text.contains(" M rows/s per core"), rows, "{workload}: {text}");
        let is_sql = workload.starts_with("sql ");
        assert_eq!(text.contains(" bytes per byte of key and value"), is_sql, "{workload}: {text}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn verification_fails_in_sql_without_a_rule() {
    for (workload, mutant, check) in [
        ("tatp --subscribers 200", "FACILITY_CHECK", "without facility or subscriber"),
        ("smallbank --accounts 500", "DROP_BACKUP_UPDATES", "replicas equal byte for byte"),
    ] {
        let run = format!("{workload} --sql --memory 128MiB --transactions 10000");
        let output = gannet(&format!("{run} --mutant {mutant}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{mutant} survives {workload}: {text}");
        let line = text.lines().find(|line| line.contains(check)).unwrap();
        assert!(line.contains("FAILED"), "{mutant}: {text}");
        let output = gannet(&run);
        assert!(output.status.success(), "{workload}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn other_shapes_of_a_cluster_run_and_verify() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for shape in [
        "--nodes 1 --replicas 1 --threads 1",
        "--nodes 5 --replicas 2 --threads 1 --coroutines 1",
        "--nodes 2 --replicas 2 --threads 1 --thread-per-node",
        "--nodes 4 --replicas 3 --threads 1 --transactions 20000",
    ] {
        if shape.contains("thread-per-node") && cores < 2 {
            continue;
        }
        let short = if shape.contains("--transactions") { "--memory 128MiB" } else { SHORT };
        let output = gannet(&format!("smallbank --accounts 1000 {shape} {short}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("verify: passed"), "{shape}: {text}");
    }
}

#[test]
fn workloads_run_inside_of_processes_and_verify() {
    for (workload, nodes, transport) in [
        ("tatp --processes --subscribers 2000", 3, "udp"),
        ("tatp --processes --transport memory --subscribers 2000", 3, "memory"),
        (
            "smallbank --processes --trusted-network --accounts 2000 --nodes 2 --replicas 2",
            2,
            "udp",
        ),
        ("smallbank --processes --transport memory --accounts 2000", 3, "memory"),
        ("skew --processes --pairs 20 --transactions 6000", 3, "udp"),
        ("ranges --processes --groups 50 --coroutines 2", 3, "udp"),
    ] {
        let short = if workload.contains("--transactions") { "--memory 128MiB" } else { SHORT };
        let output = gannet(&format!("{workload} {short}"));
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{workload}: {text}{errors}");
        let topology = format!("{nodes} processes over {transport}, 1 OS threads in each");
        assert!(text.contains(&topology) && text.contains("verify: passed"), "{workload}: {text}");
        assert_eq!(text.matches("replicas equal byte for byte: 0").count(), 1, "{text}");
    }
}

/// With three copies primaries move, and no row; with two, copies too.
#[test]
fn partitions_move_while_a_workload_runs_in_processes() {
    for (replicas, copies) in [(3, false), (2, true)] {
        let run = format!("tatp --processes --subscribers 2000 --drains 2 --replicas {replicas}");
        let output = gannet(&format!("{run} --format json --warmup 100ms --memory 128MiB"));
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{errors}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let moves = &report["moves"];
        assert_eq!(moves["moves"], 4, "{moves}");
        assert!(moves["hand_overs"].as_u64().unwrap() >= 4, "{moves}");
        assert!(moves["unserved_us"]["p50"].as_f64().unwrap() > 0.0, "{moves}");
        assert_eq!(moves["copied_bytes"].as_u64().unwrap() > 100_000, copies, "{moves}");
        assert!(report["verify"]["passed"].as_bool().unwrap(), "{text}");
    }
}

#[test]
fn two_processes_echo_to_each_other() {
    // Two consecutive ports below those that the system assigns.
    let random = RandomState::new().build_hasher().finish() % 10_000;
    let ports = (10_000 + random..).step_by(2);
    let is_free = |port: &u64| {
        let address = |port: u64| format!("127.0.0.1:{port}");
        let is_free = |port| {
            let address = address(port);
            UdpSocket::bind(&address).is_ok() && TcpListener::bind(address).is_ok()
        };
        [*port, port + 1].into_iter().all(is_free)
    };
    for (transport, port) in ["udp", "udp --key", "memory"].iter().zip(ports.filter(is_free)) {
        let addresses = format!("127.0.0.1:{port},127.0.0.1:{}", port + 1);
        let common = format!("rpc --batch 3 --transport {transport} --members {addresses} {SHORT}");
        std::thread::scope(|scope| {
            for node in 0..2 {
                let command = format!("{common} --node {node}");
                scope.spawn(move || {
                    let output = gannet(&command);
                    let text = String::from_utf8(output.stdout).unwrap();
                    let errors = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{command}: {text}{errors}");
                    assert!(text.contains("in another process"), "{text}");
                    assert!(text.contains("verify: passed"), "{text}");
                });
            }
        });
    }
}

/// Processes without a rule of the protocol: the checks cover the data of all processes.
#[cfg(feature = "mutants")]
#[test]
fn verification_fails_in_processes_without_a_rule() {
    for (workload, mutant, check) in [
        ("skew --pairs 20", "READ_VALIDATION", "below zero"),
        ("smallbank --accounts 2000", "DROP_BACKUP_UPDATES", "replicas equal"),
    ] {
        let limits = "--memory 128MiB --transactions 60000";
        let output = gannet(&format!("{workload} --processes --mutant {mutant} {limits}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{mutant}: {text}");
        let failed = text.lines().filter(|line| line.contains("FAILED"));
        assert!(failed.into_iter().any(|line| line.contains(check)), "{mutant}: {text}");
    }
}

#[test]
fn the_json_report_has_its_fields() {
    let path = std::env::temp_dir().join(format!("gannet-report-{}.json", std::process::id()));
    let output = gannet(&format!(
        "tatp --subscribers 2000 {SHORT} --format json --output {}",
        path.display()
    ));
    assert!(output.status.success());
    assert!(output.stdout.is_empty(), "the report goes to the file");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    for field in [
        "workload",
        "settings",
        "seconds",
        "cores",
        "topology",
        "durability",
        "attempted_per_second",
        "committed_per_second",
        "committed_per_second_per_core",
        "aborts",
        "transactions",
        "verify",
    ] {
        assert!(!report[field].is_null(), "{field}");
    }
    assert_eq!(report["workload"], "tatp");
    assert_eq!(report["settings"]["subscribers"], "2000");
    assert_eq!(report["verify"]["passed"], true);
    assert!(report["verify"]["checks"].as_array().unwrap().len() > 10);
    let transactions = report["transactions"].as_array().unwrap();
    assert_eq!(transactions.len(), 7);
    for transaction in transactions {
        for field in ["name", "attempted", "succeeded", "rate"] {
            assert!(!transaction[field].is_null(), "{field}");
        }
        for quantile in ["p50", "p99", "p999", "max"] {
            assert!(transaction["latency_us"][quantile].as_f64().unwrap() > 0.0, "{quantile}");
        }
    }
}

#[test]
fn recovery_is_measured_after_every_kill() {
    for (shape, kills, topology) in [
        ("--threads 1 --warmup 50ms", 3, "3 nodes in one process"),
        ("--processes --clients 2", 1, "3 processes over udp"),
    ] {
        let output = gannet(&format!(
            "recovery --kills {kills} --subscribers 1000 --memory 64MiB --format json {shape}"
        ));
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shape}: {text}{errors}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["workload"], "recovery");
        assert_eq!(report["passed"], true);
        assert_eq!(report["settings"]["subscribers"], "1000");
        assert!(report["topology"].as_str().unwrap().starts_with(topology), "{text}");
        let quantiles = |times: &serde_json::Value| {
            ["median", "p95", "worst"].map(|quantile| times[quantile].as_f64().unwrap())
        };
        assert!(quantiles(&report["recovery_ms"]).is_sorted(), "{text}");
        let of_kills = report["kills"].as_array().unwrap();
        assert_eq!(of_kills.len(), kills);
        // Nodes take turns.
        let of_nodes = report["nodes"].as_array().unwrap();
        for ((number, kill), node) in (0_u64..).zip(of_kills).zip(of_nodes) {
            assert!(kill["recovery_ms"].as_f64().unwrap() > 0.0, "{text}");
            assert_eq!(kill["missing_partitions"], serde_json::json!([]));
            assert_eq!(kill["node"], number);
            assert_eq!(node["node"], number);
            assert_eq!(node["kills"], 1);
            assert!(quantiles(&node["recovery_ms"]).iter().all(|ms| *ms > 0.0), "{text}");
            let commits = kill["committed_per_10_ms"].as_array().unwrap();
            assert_eq!(commits.len(), 200);
            // Those before the kill.
            assert!(commits[..50].iter().any(|count| count.as_u64().unwrap() > 0), "{text}");
        }
    }
}

#[test]
fn a_partition_that_does_not_come_back_in_time_is_named() {
    let output = gannet(
        "recovery --kills 3 --subscribers 100 --threads 1 --warmup 0s --timeout 0s --memory 64MiB",
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let missing = "FAILED kill 1, of node 0: no write committed in partition 0, 1, 2, 3, 4, ";
    assert!(text.contains(missing) && text.contains("1 kills: FAILED"), "{text}");
}

/// Commands, and what the error says.
const BAD_INPUT: &[(&str, &str)] = &[
    ("tatp --replicas 4", "use 1 to 3, a copy per node at most"),
    ("tatp --nodes 0", "the number of nodes is 0; use 1 to 1024"),
    ("tatp --threads 0", "the number of threads is 0"),
    ("tatp --threads 4000", "the cores of this machine"),
    ("tatp --coroutines 0", "the number of coroutines is 0"),
    ("tatp --coroutines 100000", "use 1 to 255"),
    ("tatp --subscribers 0", "--subscribers is 0; use 1 to"),
    ("tatp --subscribers 1000000 --memory 1MiB", "raise the memory limit"),
    ("smallbank --accounts 1", "use 2 to"),
    ("objects --reads 0", "--reads is 0"),
    ("objects --reads 2 --writes 3", "at most --reads, 2"),
    ("objects --keys 3", "--keys is 3"),
    ("objects --theta=-1", "--theta is -1; use 0 to 10"),
    ("rpc --batch 0", "--batch is 0"),
    ("rpc --key", "memory is not sealed"),
    ("tatp --transport memory", "--transport is for --processes"),
    (
        "tatp --processes --transport udp --rdma-device rx0",
        "--rdma-device is for --transport verbs",
    ),
    (
        "rpc --transport udp --node 2 --members 127.0.0.1:7000,127.0.0.1:7001",
        "--node is 2; use 0 or 1",
    ),
    ("rpc --transport udp --node 0 --members 127.0.0.1:7000", "use two, one for each node"),
    ("tatp --node 0 --members 127.0.0.1:7000,127.0.0.1:7001", "give --cluster-key"),
    ("tatp --node 0 --members 127.0.0.1:7000 --trusted-network --sql", "--sql is for nodes"),
    ("tatp --processes --replicas 2", "use 3 with 3 processes"),
    ("tatp --drains 1", "nodes of one process are not drained"),
    ("tatp --processes --drains 1 --coroutines 3", "--coroutines is 3; use at least 4"),
    ("tatp --processes --sql", "--sql is for nodes in one process"),
    ("tatp --processes --floor", "--floor is for nodes in one process"),
    ("tatp --processes --grown", "--grown is for nodes in one process"),
    ("tatp --processes --beside 9", "--beside is for nodes in one process"),
    ("tatp --beside 9 --coroutines 1", "use at least 2: 1 runs no client"),
    ("tatp --beside-laid-out", "--beside <ROWS>"),
    ("pairs --processes --nodes 0", "the number of nodes is 0"),
    ("skew --pairs 0", "--pairs is 0"),
    ("ranges --groups 0", "--groups is 0"),
    ("sql select --rows 0", "--rows is 0"),
    ("sql copy --filler 70000", "--filler is 70000; use 0 to 65536"),
    ("tatp --sql --clients 0", "--clients is 0"),
    ("tatp --sql --clients 2 --client-threads 3", "--client-threads is 3; use 1 to 2"),
    ("tatp --sql --floor", "cannot be used with"),
    ("tatp --connect postgres:///x", "name a host"),
    ("tatp --duration 0s", "--duration is 0"),
    ("tatp --duration 10", "such as 10s"),
    ("tatp --output /no/such/directory/report", "choose another --output"),
    ("tatp --surely-unknown", "unexpected argument"),
    ("tatp --processes --transport verbs", "give --trusted-network"),
    ("tatp --nodes 2 --node 0 --members 127.0.0.1:1", "leave --nodes out"),
    (
        "tatp --node 0 --members 127.0.0.1:1 --cluster-key key --trusted-network",
        "one of --cluster-key and --trusted-network",
    ),
    ("recovery --kills 0", "--kills is 0; use at least 1"),
    ("recovery --nodes 1 --replicas 1", "--nodes is 1; use at least 2"),
    ("recovery --processes --replicas 1", "--replicas is 1; use at least 2"),
    ("recovery --threads 1 --coroutines 8", "use at least 9: 8 are for probes"),
    ("recovery --processes --clients 0", "--clients is 0; use at least 1"),
    ("recovery --processes --thread-per-node", "--thread-per-node is for nodes in one process"),
    ("recovery --node 0 --members 127.0.0.1:1 --trusted-network", "leave --node and --members out"),
    ("nothing", "unrecognized subcommand"),
];

#[test]
fn bad_input_is_an_error_that_says_what_to_do() {
    for &(arguments, expected) in BAD_INPUT {
        let output = gannet(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
        assert!(error.contains(expected), "{arguments}: {error}");
        assert!(!error.contains("panicked"), "{arguments}: {error}");
    }
}

#[cfg(not(feature = "verbs"))]
#[test]
fn a_build_without_verbs_says_so() {
    for (arguments, expected) in [
        (
            "tatp --processes --transport verbs --trusted-network",
            "build it with `--features verbs`",
        ),
        ("rpc --transport verbs", "a build with the feature verbs"),
    ] {
        let output = gannet(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let output = gannet(&format!("pairs {SHORT} --output /dev/full"));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write the report"));
}
