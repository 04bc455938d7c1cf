//! Benchmarks in SQL over connections, and the violations that they notice.

use std::process::{Command, Output};

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
