//! PostgreSQL's own tools.

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

/// The tables of `pgbench --initialize`, whose own COPY has an option that is not known here.
fn load(server: &Server) {
    for statement in [
        "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88))",
        "CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))",
        "CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
        "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, \
         filler char(22))",
        "INSERT INTO pgbench_branches VALUES (1, 0, '')",
        "INSERT INTO pgbench_tellers SELECT n, 1, 0, '' FROM generate_series(1, 10) AS s (n)",
    ] {
        server.query(statement);
    }
    for first in (1..100_000).step_by(5_000) {
        let last = first + 4_999;
        server.query(&format!(
            "INSERT INTO pgbench_accounts SELECT n, 1, 0, '' FROM generate_series({first}, {last}) AS s (n)"
        ));
    }
}

#[test]
fn pgbench_runs() {
    let server = Server::start(&["--memory", "512MiB"]);
    load(&server);
    assert_eq!(server.query("SELECT count(*) FROM pgbench_accounts"), "100000");
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
    // What TPC-B keeps: every transaction changes an account, a teller and a branch alike.
    let sums = server.query(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
         (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches), \
         (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)",
    );
    let sums: Vec<&str> = sums.split('|').collect();
    assert_eq!(sums[..3], [sums[3]; 3]);
    assert_eq!(sums[4], "300");
}

/// A Python that has psycopg, in an environment of its own.
fn python_with_psycopg() -> std::path::PathBuf {
    let environment = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = environment.join("bin/python");
    let has = |python: &std::path::Path| {
        let import = Command::new(python).args(["-c", "import psycopg"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    if !has(&python) {
        let run = |command: &mut Command| {
            let output = command.output();
            assert!(
                output.as_ref().is_ok_and(|output| output.status.success()),
                "install python3 with venv, and let pip install psycopg[binary]: {output:?}"
            );
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "psycopg[binary]"]));
    }
    python
}

#[test]
fn psycopg_works() {
    let server = Server::start(&[]);
    let connection = format!("host=127.0.0.1 port={} user=tester dbname=test", server.port);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/psycopg_client.py");
    let output = Command::new(python_with_psycopg()).args([script, &connection]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}
