//! `gannet demo`, whose user kills nodes: the session goes on, and no row is lost.
//!
//! *Not here*: the start and the end of its processes (`nodes.rs`).

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::failures::pass;
use crate::process::folder;

/// Runs the demonstration's shell with a script on standard input.
fn demo(name: &str, script: &str) -> Output {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["demo", "--memory", "64MiB"])
        .env("TMPDIR", folder(name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A shell that stops early does not read the whole script.
    let _ = demo.stdin.take().unwrap().write_all(script.as_bytes());
    demo.wait_with_output().unwrap()
}

#[test]
fn the_session_of_a_demonstration_outlives_a_node() {
    for (node, told) in [
        (1, "node 1 was killed, and 2 of 3 nodes are left"),
        // The shell's own node: it connects to another.
        (0, "has ended; connected to"),
    ] {
        let output = demo(
            &format!("demo-kills-{node}"),
            &format!(
                "CREATE TABLE town (id INTEGER PRIMARY KEY);\nINSERT INTO town VALUES (1), (2);\n.kill {node}\n\
                 SELECT count(*) FROM town;\nINSERT INTO town VALUES (3);\nSELECT count(*) FROM town;\n"
            ),
        );
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n3\n", "{errors}");
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert!(errors.contains(told), "{errors}");
    }
}

/// As the README has it: a load at one node, while the process of another is killed from outside.
#[test]
fn a_load_at_a_demonstration_outlives_a_node() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["demo", "--memory", "64MiB"])
        .env("TMPDIR", folder("demo-load"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = demo.stdin.take().unwrap();
    let lines = BufReader::new(demo.stderr.take().unwrap()).lines();
    let nodes: Vec<_> = lines.take(3).map(Result::unwrap).collect();
    let word = |node: usize, before: &str| {
        let rest = nodes[node].split_once(before).unwrap_or_else(|| panic!("{nodes:?}")).1;
        rest.split([',', ' ']).next().unwrap().to_owned()
    };
    let load = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["bench", "tatp", "--subscribers=200", "--clients=4", "--duration=6s"])
        .arg(format!("--connect=postgres://gannet@{}/gannet", word(0, "serves SQL at ")))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    pass(Duration::from_secs(3));
    let killed = Command::new("kill").args(["-9", &word(2, "process ")]).status().unwrap();
    assert!(killed.success());
    let load = load.wait_with_output().unwrap();
    let report = String::from_utf8(load.stdout).unwrap();
    assert!(load.status.success() && report.contains("verify: passed"), "{report}");
    stdin.write_all(b"SELECT 1 + 1;\n").unwrap();
    drop(stdin);
    let output = demo.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n");
}

#[test]
fn a_demonstration_kills_only_nodes_that_live() {
    let script = ".bail off\n.kill 7\n.kill one\n.kill\n.kill 2;\n.kill 2\n.help\nSELECT 1;\n";
    let output = demo("demo-kills-none", script);
    let errors = String::from_utf8(output.stderr).unwrap();
    let usage = "use .kill N, where N is the number of a node, 0 to 2";
    assert_eq!(errors.matches(usage).count(), 3, "{errors}");
    assert!(errors.contains("there is no node 7; use"), "{errors}");
    assert_eq!(errors.matches("node 2 was killed").count(), 1, "{errors}");
    assert!(errors.contains("node 2 has ended before; kill another one"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(".kill N                end the process of node N"), "{text}");
    assert!(text.contains("\n.tables ") && text.ends_with("\n1\n"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{errors}");
}
