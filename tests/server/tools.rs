//! PostgreSQL's own pgbench, and Python's drivers asyncpg and psycopg.
//!
//! The programs run at a real server; `asyncpg_client.py` and `psycopg_client.py` check what the drivers answer. A test fails
//! if a program does, or if pgbench's sums of accounts, tellers, branches and history differ.
//!
//! *Not here*: JDBC (`jdbc.rs`), SQLAlchemy and sysbench (`campaign.rs`).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::process::{Server, errors, installed};

fn pgbench(server: &Server, arguments: &[&str]) -> Output {
    Command::new(installed("pgbench"))
        .args(["--host=127.0.0.1", "--username=tester"])
        .arg(format!("--port={}", server.port))
        .args(arguments)
        .arg("test")
        .output()
        .unwrap()
}

#[test]
fn pgbench_makes_its_tables_and_runs() {
    let server = Server::start(&["--memory", "512MiB"]);
    let made = pgbench(&server, &["--initialize"]);
    assert!(made.status.success(), "{}", errors(&made));
    assert_eq!(server.query("SELECT count(*) FROM pgbench_accounts"), "100000");
    let keys = "SELECT count(*) FROM pg_constraint WHERE conname LIKE 'pgbench%pkey'";
    assert_eq!(server.query(keys), "3");
    let refused = pgbench(&server, &["--initialize", "--init-steps=f"]);
    assert!(errors(&refused).contains("FOREIGN KEY is not supported"), "{}", errors(&refused));
    for mode in ["simple", "extended", "prepared"] {
        let protocol = format!("--protocol={mode}");
        let common =
            ["--no-vacuum", "--client=2", "--jobs=1", "--transactions=50", protocol.as_str()];
        for script in ["--builtin=select-only", "--builtin=tpcb-like"] {
            let arguments = [&common[..], &[script, "--max-tries=1000"]].concat();
            let run = pgbench(&server, &arguments);
            let text = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success(), "{mode} {script}: {}", errors(&run));
            assert!(text.contains("number of transactions actually processed: 100/100"), "{text}");
        }
    }
    // The invariant of TPC-B: every transaction changes an account, a teller and a branch by the same amount.
    let sums = server.query(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
         (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches), \
         (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)",
    );
    let sums: Vec<&str> = sums.split('|').collect();
    assert_eq!(sums[..3], [sums[3]; 3]);
    assert_eq!(sums[4], "300");
}

/// A Python with a module, in an environment of its own.
pub(crate) fn python_with(module: &str, packages: &[&str]) -> PathBuf {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{module}"));
    let python = environment.join("bin/python");
    let has_module = || {
        let import = Command::new(&python).args(["-c", &format!("import {module}")]).output();
        import.is_ok_and(|output| output.status.success())
    };
    if !has_module() {
        let run = |command: &mut Command| {
            let output = command.output();
            assert!(
                output.as_ref().is_ok_and(|output| output.status.success()),
                "install python3 with venv, and let pip install {packages:?}: {output:?}"
            );
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages));
    }
    python
}

#[test]
fn asyncpg_works() {
    let server = Server::start(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/asyncpg_client.py");
    let python = python_with("asyncpg", &["asyncpg"]);
    let output = Command::new(python).args([script, &server.port.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn psycopg_works() {
    let server = Server::start(&[]);
    let connection = format!("host=127.0.0.1 port={} user=tester dbname=test", server.port);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/psycopg_client.py");
    let python = python_with("psycopg", &["psycopg[binary]"]);
    let output = Command::new(python).args([script, &connection]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}
