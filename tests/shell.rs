//! The `gannet sql` command, as scripts and people use it.
//!
//! *Not here*: a terminal's control sequences, which `tests/shell_terminal.py` checks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn gannet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
    command.args(["sql", "--memory", "64MiB"]).args(arguments);
    command
}

/// Runs the shell with a script on standard input.
fn script(arguments: &[&str], input: &str) -> Output {
    let mut shell = gannet(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A shell that stops early does not read the whole script.
    let _ = shell.stdin.take().unwrap().write_all(input.as_bytes());
    shell.wait_with_output().unwrap()
}

/// The output of a script that succeeds.
fn output(arguments: &[&str], input: &str) -> String {
    let output = script(arguments, input);
    assert_eq!(output.status.code(), Some(0), "{input}: {}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

const TABLE: &str = "CREATE TABLE pet (id INTEGER PRIMARY KEY, name TEXT, tame BOOLEAN);\n\
    INSERT INTO pet VALUES (1, 'Ida, the \"cat\"', TRUE), (2, NULL, FALSE);\n";

#[test]
fn results_come_in_every_format() {
    let query = format!("{TABLE}SELECT * FROM pet ORDER BY id;");
    for (format, expected) in [
        ("raw", "1\tIda, the \"cat\"\tt\n2\t\tf\n"),
        ("csv", "id,name,tame\n1,\"Ida, the \"\"cat\"\"\",t\n2,,f\n"),
        (
            "json",
            "[{\"id\":1,\"name\":\"Ida, the \\\"cat\\\"\",\"tame\":true},\n\
             {\"id\":2,\"name\":null,\"tame\":false}]\n",
        ),
        (
            "line",
            "  id = 1\nname = Ida, the \"cat\"\ntame = t\n\n  id = 2\nname = NULL\ntame = f\n",
        ),
        (
            "markdown",
            "| id | name | tame |\n| ---: | --- | --- |\n| 1 | Ida, the \"cat\" | t |\n\
             | 2 | NULL | f |\n",
        ),
    ] {
        assert_eq!(output(&["--format", format], &query), expected);
    }
    let table = output(&["--format", "table"], &query);
    assert!(table.contains("│  1 ┆ Ida, the \"cat\" ┆ t    │"), "{table}");
    assert!(table.ends_with("(2 rows)\n"), "{table}");
}

#[test]
fn output_to_a_pipe_is_undecorated() {
    assert_eq!(output(&[], TABLE), "");
    assert_eq!(output(&[], "SELECT 1, NULL, 'x';"), "1\t\tx\n");
}

#[test]
fn statements_come_from_arguments_and_files() {
    let file = folder("shell-files").join("script.sql");
    std::fs::write(&file, "SELECT id\nFROM pet; -- the end").unwrap();
    let file = file.to_str().unwrap();
    let run = gannet(&["-c", TABLE, "-c", "SELECT 7; SELECT 8", "-f", file]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "7\n8\n1\n2\n", "{}", errors(&run));
    assert_eq!(output(&[], &format!("{TABLE}.read {file}\n\\i {file}\n")), "1\n2\n1\n2\n");
}

#[test]
fn errors_show_their_place_with_a_caret() {
    let failed = script(&[], &format!("{TABLE}SELECT id,\n  nam FROM pet;"));
    assert_eq!(failed.status.code(), Some(1));
    let errors = errors(&failed);
    assert!(errors.starts_with("ERROR 42703: "), "{errors}");
    assert!(errors.contains("\nLINE 2:   nam FROM pet\n          ^\n"), "{errors}");
    assert!(errors.contains("HINT: did you mean \"name\"?"), "{errors}");
}

#[test]
fn output_without_a_reader_is_no_panic() {
    for closes_errors in [false, true] {
        let mut shell = gannet(&["--keep-going"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if closes_errors {
            drop(shell.stderr.take());
        } else {
            drop(shell.stdout.take());
        }
        // The shell may stop before it has read everything.
        let _ = shell.stdin.take().unwrap().write_all(b"SELECT 1/0;\nSELECT 1;\nSELECT 2;\n");
        assert_eq!(shell.wait().unwrap().code(), Some(1), "{closes_errors}");
    }
}

#[test]
fn a_script_stops_at_its_first_failure() {
    let failing = "SELECT 1; SELECT 1/0; SELECT 2;";
    let stopped = script(&[], failing);
    assert_eq!((stopped.status.code(), &stopped.stdout[..]), (Some(1), &b"1\n"[..]));
    let went_on = script(&["--keep-going"], failing);
    assert_eq!((went_on.status.code(), &went_on.stdout[..]), (Some(1), &b"1\n2\n"[..]));
    let bail_off = script(&[], &format!(".bail off\n{failing}"));
    assert_eq!((bail_off.status.code(), &bail_off.stdout[..]), (Some(1), &b"1\n2\n"[..]));
}

#[test]
fn a_failed_start_exits_with_2() {
    for arguments in [
        &["--format", "xml"][..],
        &["-f", "/nonexistent/script.sql"],
        &["--connect", "127.0.0.1:1"],
    ] {
        let failed = gannet(&[]).args(arguments).output().unwrap();
        assert_eq!(failed.status.code(), Some(2), "{arguments:?}: {}", errors(&failed));
    }
}

#[test]
fn unknown_commands_are_errors() {
    let failed = script(&[], ".tabels\n");
    assert_eq!(failed.status.code(), Some(1));
    assert!(errors(&failed).contains("did you mean .tables?"));
    // A shell without processes of its own has no command that kills one.
    let failed = script(&[], ".kill 1\n");
    assert_eq!(errors(&failed), "ERROR: there is no command .kill; see .help\n");
    assert!(!output(&[], ".help\n").contains(".kill"));
}

#[test]
fn commands_list_tables_and_indexes() {
    let text = output(
        &["--format", "csv"],
        &format!(
            "{TABLE}CREATE INDEX pet_name ON pet (name);\n.tables\n\\di\n.schema pet\n\\d pet\n"
        ),
    );
    for part in [
        "table\npet\n",
        "pet_name,pet\n",
        "CREATE TABLE pet (\n    id integer NOT NULL,\n    name text,\n",
        "PRIMARY KEY (id)",
        "name,text,",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(script(&[], "\\d nothing\n").status.code() == Some(1));
}

#[test]
fn imports_and_exports_are_inverse() {
    let folder = folder("shell-transfer");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (given, exported) = (path("given.csv"), path("exported.csv"));
    let data = "id,name,tame\n1,\"a, b\",t\n2,,f\n3,\"\",t\n";
    std::fs::write(&given, data).unwrap();
    let create = "CREATE TABLE pet (id INTEGER PRIMARY KEY, name TEXT, tame BOOLEAN);";
    let counted = output(
        &[],
        &format!(
            "{create}\n.import {given} pet\n.export {exported} SELECT * FROM pet ORDER BY id;\n\
             SELECT count(*), count(name) FROM pet;"
        ),
    );
    assert_eq!(counted, "3\t2\n");
    assert_eq!(std::fs::read_to_string(&exported).unwrap(), data);
    // The shell's own statement has no place that the user knows.
    let unknown = script(&[], &format!(".import {given} pets"));
    assert_eq!(errors(&unknown), "ERROR 42P01: relation \"pets\" does not exist\n");
    // Without a header, and with columns in another order.
    std::fs::write(path("plain.csv"), "4,x,f\n").unwrap();
    std::fs::write(path("other.csv"), "NAME,id\ny,5\n").unwrap();
    let rows = output(
        &[],
        &format!(
            "{create}\n.import {} pet\n.import {} pet\nSELECT * FROM pet ORDER BY id;",
            path("plain.csv"),
            path("other.csv")
        ),
    );
    assert_eq!(rows, "4\tx\tf\n5\ty\t\n");
    std::fs::write(path("wrong.csv"), "6,x,f\nseven,y,f\n").unwrap();
    let failed = script(
        &["--keep-going"],
        &format!("{create}\n.import {} pet\nSELECT count(*) FROM pet;", path("wrong.csv")),
    );
    assert_eq!((failed.status.code(), &failed.stdout[..]), (Some(1), &b"0\n"[..]));
    assert!(errors(&failed).contains("22P02"), "{}", errors(&failed));
}

#[test]
fn a_dump_creates_everything_again() {
    let create = "CREATE TABLE \"Odd name\" (a BIGINT PRIMARY KEY, \"B\" TEXT NOT NULL DEFAULT 'x''y',\n\
        c NUMERIC(8,2), d BYTEA, e TIMESTAMP, f DOUBLE PRECISION,\n\
        g TIMESTAMPTZ DEFAULT now(), UNIQUE (\"B\", c), CHECK (c > 0));\n\
        CREATE INDEX by_e ON \"Odd name\" (e);\n\
        INSERT INTO \"Odd name\" VALUES (1, 'it''s;\n', 1.50, '\\x00ff', '2024-01-02 03:04:05', '1e100', '2024-01-02 03:04:05+02'),\n\
        (2, DEFAULT, NULL, NULL, NULL, 'NaN', NULL);\n";
    let dump = output(&[], &format!("{create}{TABLE}.dump\n"));
    assert_eq!(output(&[], &format!("{dump}.dump\n")), dump);
    assert!(dump.contains("CREATE TABLE \"Odd name\"") && dump.contains("by_e"), "{dump}");
    assert!(dump.contains("g timestamp with time zone DEFAULT now()"), "{dump}");
    assert!(dump.contains("2024-01-02 01:04:05+00"), "{dump}");
}

#[test]
fn copy_takes_its_data_from_the_script() {
    let text = output(
        &[],
        "CREATE TABLE t (a INTEGER, b TEXT);\nCOPY t FROM STDIN;\n1\tx;y\n2\t\\N\n\\.\n\
         SELECT count(*) FROM t;\nCOPY (SELECT * FROM t ORDER BY a) TO STDOUT;",
    );
    assert_eq!(text, "2\n1\tx;y\n2\t\\N\n");
}

#[test]
fn transactions_span_statements() {
    let text = output(
        &[],
        &format!("{TABLE}BEGIN;\nDELETE FROM pet;\nROLLBACK;\nSELECT count(*) FROM pet;"),
    );
    assert_eq!(text, "2\n");
}

#[test]
fn the_shell_works_on_a_server_too() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["serve", "--listen", "127.0.0.1:0", "--memory", "64MiB"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    let remote = |arguments: &[&str], input: &str| {
        let mut shell = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["sql", "--connect", &address])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = shell.stdin.take().unwrap().write_all(input.as_bytes());
        shell.wait_with_output().unwrap()
    };
    let json =
        remote(&["--format", "json"], &format!("{TABLE}SELECT id, tame FROM pet ORDER BY id;"));
    assert_eq!(
        String::from_utf8_lossy(&json.stdout),
        "[{\"id\":1,\"tame\":true},\n{\"id\":2,\"tame\":false}]\n",
        "{}",
        errors(&json)
    );
    let copied =
        remote(&[], "COPY pet FROM STDIN;\n3\tnew\tt\n\\.\nCOPY pet TO STDOUT;\n.tables\n");
    let text = String::from_utf8_lossy(&copied.stdout);
    assert!(text.contains("3\tnew\tt\n") && text.ends_with("pet\n"), "{text}{}", errors(&copied));
    let failed = remote(&[], "SELECT nam FROM pet;");
    assert_eq!(failed.status.code(), Some(1));
    assert!(errors(&failed).contains("LINE 1: SELECT nam FROM pet\n               ^"));
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Input at a terminal: prompts, and commands within a statement.
#[test]
fn commands_typed_within_a_statement_are_understood() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shell_terminal.py");
    let home = folder("shell-terminal");
    let run = Command::new("python3")
        .args([script, env!("CARGO_BIN_EXE_gannet")])
        .env("HOME", &home)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}{}", String::from_utf8_lossy(&run.stdout), errors(&run));
    let history = std::fs::read_to_string(home.join(".gannet_history")).unwrap();
    assert!(history.contains("SELECT\\n6 * 7;"), "{history}");
}

#[test]
fn databases_are_listed() {
    assert_eq!(output(&[], "\\l\n.databases\n"), "gannet\tgannet\tUTF8\n".repeat(2));
}
