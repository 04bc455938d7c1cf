//! Further clients and longer failures, for campaigns: `cargo test --profile checked --test server -- --ignored`.
//!
//! SQLAlchemy and sysbench, which the tests install, run at a real server; clusters of five processes meet failures for six
//! minutes. A test fails if a client does, if rows are missing, or if a history of the clients is not strictly serializable.
//!
//! *Source*: `docs/simulation.md`, "Campaigns and fuzzing". *Not here*: the failures and their checks (`failures/run.rs`).

use std::process::{Command, Output};
use std::time::Duration;

use crate::failures::run_for;
use crate::process::{Server, errors, install};
use crate::tools::python_with;

#[test]
#[ignore = "for campaigns: installs SQLAlchemy"]
fn sqlalchemy_works() {
    let server = Server::start(&[]);
    let url = format!("postgresql+psycopg://tester@127.0.0.1:{}/test", server.port);
    let python = python_with("sqlalchemy", &["sqlalchemy", "psycopg[binary]"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/sqlalchemy_client.py");
    let output = Command::new(python).args([script, &url]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}

fn sysbench(server: &Server, arguments: &[&str]) -> Output {
    Command::new("sysbench")
        .args([
            "oltp_read_write",
            "--db-driver=pgsql",
            "--pgsql-host=127.0.0.1",
            "--pgsql-user=tester",
        ])
        .args(["--pgsql-db=test", "--tables=2", "--table-size=10000"])
        .arg(format!("--pgsql-port={}", server.port))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
#[ignore = "for campaigns: installs sysbench"]
fn sysbench_reads_and_writes() {
    if Command::new("sysbench").arg("--version").output().is_err() {
        install(&["sysbench"]);
    }
    let server = Server::start(&["--memory", "512MiB"]);
    let made = sysbench(&server, &["prepare"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    assert_eq!(server.query("SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'k_%'"), "2");
    // sysbench retries an event that meets a conflict.
    let run = sysbench(&server, &["--threads=4", "--time=0", "--events=300", "run"]);
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}");
    assert!(text.contains("total number of events:              300"), "{text}");
    // An event updates by the primary key, deletes a row and inserts it again.
    assert_eq!(server.query("SELECT count(*) FROM sbtest1"), "10000");
    assert_eq!(server.query("SELECT count(*) FROM sbtest2 WHERE k > 0"), "10000");
    let cleaned = sysbench(&server, &["cleanup"]);
    assert!(cleaned.status.success());
}

#[test]
#[ignore = "for campaigns: takes six minutes"]
fn clusters_go_on_through_six_minutes_of_failures() {
    run_for("failures-campaign", Duration::from_secs(360));
}
