//! Benchmarks in SQL over connections, and the violations that they notice.
//!
//! `gannet bench` runs against a real server; one test runs a benchmark in three processes and kills one of them. A test fails
//! if a run does not verify, if money that another client adds is not noticed, or if an error names no cause.
//!
//! *Not here*: benchmarks without a server (`tests/bench_command.rs`).

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::failures::{awaited, pass};
use crate::nodes::free_address;
use crate::process::Server;

fn bench(server: &Server, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gannet"))
        .arg("bench")
        .args(arguments.split_whitespace())
        .args(["--warmup", "50ms"])
        .args(["--connect", &format!("postgres://tester@127.0.0.1:{}/test", server.port)])
        .output()
        .unwrap()
}

#[test]
fn benchmarks_run_over_connections_and_verify() {
    let server = Server::start(&["--memory", "256MiB"]);
    for workload in [
        "tatp --subscribers 500 --duration 500ms",
        "smallbank --accounts 500 --duration 500ms",
        // This replaces the tables of the previous run.
        "smallbank --accounts 300 --transactions 500",
        "sql select --rows 2000 --duration 200ms",
        "sql update --rows 2000 --duration 200ms",
        "sql copy --rows 2000 --duration 200ms",
        "sql scan --rows 2000 --duration 200ms",
        "sql sum --rows 2000 --duration 200ms",
    ] {
        let output = bench(&server, workload);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{workload}: {text}{errors}");
        assert!(text.contains("verify: passed"), "{workload}: {text}");
        assert!(text.contains(&format!("a server at 127.0.0.1:{}", server.port)), "{text}");
    }
}

#[tokio::test]
async fn money_from_outside_is_noticed() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let arguments = "smallbank --accounts 500 --duration 1s";
    let benchmark = tokio::task::spawn_blocking(move || bench(&server, arguments));
    // As soon as the account exists.
    let bring = "UPDATE smallbank_savings SET balance = balance + 1 WHERE id = 0";
    while !benchmark.is_finished()
        && !client.execute(bring, &[]).await.is_ok_and(|count| count == 1)
    {
        tokio::task::yield_now().await;
    }
    let benchmark = benchmark.await.unwrap();
    let text = String::from_utf8(benchmark.stdout).unwrap();
    assert_eq!(benchmark.status.code(), Some(1), "{text}");
    assert!(text.contains("FAILED sum of all balances, cents"), "{text}");
}

/// The others go on without a process that ends, and nobody waits for its statistics.
#[test]
fn a_process_that_dies_during_a_benchmark_is_an_error_of_the_others() {
    let members: Vec<_> = (0..3).map(|_| free_address()).collect();
    let start = |node: usize| {
        Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["bench", "tatp", "--subscribers=500", "--duration=5s", "--warmup=50ms"])
            .args(["--threads=1", "--memory=64MiB", "--trusted-network", "--lease=1s"])
            .args([format!("--node={node}"), format!("--members={}", members.join(","))])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut nodes: Vec<_> = (0..3).map(start).collect();
    // All have joined, as a node that misses others has no workers, and is in its five seconds.
    let worker_of = |node: &Child| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", node.id())).unwrap();
        let mut names =
            tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name.starts_with("gannet-")))
    };
    awaited("workers run", || nodes.iter().all(worker_of).then_some(()));
    pass(Duration::from_secs(1));
    nodes[2].kill().unwrap();
    nodes.pop().unwrap().wait().unwrap();
    // The first that ends may take the majority with it: the other then tells of that one, whose own output tells of node 2.
    let errors: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let output = node.wait_with_output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{error}");
            error
        })
        .collect();
    assert!(errors.iter().any(|error| error.contains("node 2 is gone")), "{errors:?}");
    for error in &errors {
        assert!(error.contains("is gone") || error.contains("was stopped"), "{errors:?}");
    }
}

#[test]
fn a_missing_server_is_an_error() {
    let mut server = Server::start(&[]);
    server.signal("TERM");
    server.wait();
    let output = bench(&server, "tatp --subscribers 10 --duration 100ms");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("Connection refused"), "{error}");
}
