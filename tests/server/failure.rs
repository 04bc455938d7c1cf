//! Bugs of the engine, injected as faults. A worker that dies of a bug ends its process, with a message. A transaction that
//! meets a bug before it is decided ends with an error, and is not retried.
//!
//! The variable `GANNET_MUTANT` injects the fault into a real server, or into one of three processes. A test fails if a process
//! goes on whose copy lacks a decided update (rule C9), if the other processes do not go on, or if a refused VALIDATE is
//! answered as a conflict, changes a row or leaves a lock.
//!
//! *Source*: `docs/protocol.md`, "Refusals". *Not here*: the same faults in an embedded cluster (`tests/mutants.rs`).

use std::process::{Command, Stdio};

use crate::nodes::Plan;
use crate::process::{Server, read_all};

/// The transaction is decided when a copy refuses its update or cannot apply it: no client may learn that it has committed,
/// and none may wait forever.
#[tokio::test]
async fn a_copy_without_what_is_decided_ends_the_process() {
    for (fault, expected) in [
        ("REFUSE_BACKUP", "BACKUP was answered Refused"),
        ("LOSE_BACKUP_UPDATE", "BACKUP was answered Gap"),
        ("LOSE_LOCK", "PRIMARY was answered Gap"),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["serve", "--listen", "127.0.0.1:0", "--nodes", "3", "--memory", "64MiB"])
            .env("GANNET_MUTANT", fault)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let mut server = Server::listening(child);
        let client = server.client().await;
        client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)").await.unwrap();
        client.batch_execute("INSERT INTO t VALUES (1, 0)").await.unwrap();
        let mut updates = 0;
        while client.execute("UPDATE t SET v = v + 1 WHERE id = 1", &[]).await.is_ok() {
            updates += 1;
            assert!(updates < 1_000, "{fault}: no coordinator read the answer");
        }
        assert_eq!(server.wait().code(), Some(1));
        let last_words = read_all(stderr);
        let expected = format!("gannet: a worker has failed: {expected}");
        assert!(last_words.contains(&expected), "{fault}: {last_words}");
    }
}

/// A copy that misses an update leaves with its node before a coordinator stops waiting for it; the others go on, and have
/// all updates.
#[tokio::test]
async fn a_node_whose_copy_misses_an_update_ends_and_the_others_go_on() {
    let plan = Plan::new("gap");
    let start = |node: usize, fault: Option<&str>| {
        let mut command = plan.command(node);
        command.envs(fault.map(|fault| ("GANNET_MUTANT", fault))).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut faulty = start(2, Some("LOSE_BACKUP_UPDATE"));
    let stderr = faulty.stderr.take().unwrap();
    let others = [start(0, None), start(1, None)];
    let mut faulty = Server::listening(faulty);
    let [server, _other] = others.map(Server::listening);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)").await.unwrap();
    let rows: Vec<_> = (0..64).map(|id| format!("({id}, 0)")).collect();
    client.batch_execute(&format!("INSERT INTO t VALUES {}", rows.join(", "))).await.unwrap();
    // The rows have primaries at all nodes, so some have a backup at node 2.
    for _ in 0..200 {
        client.execute("UPDATE t SET v = v + 1", &[]).await.unwrap();
    }
    assert_ne!(faulty.wait().code(), Some(0));
    let last_words = read_all(stderr);
    assert!(last_words.contains("BACKUP was answered Gap by node 2"), "{last_words}");
    let row = client.query_one("SELECT count(*), min(v), max(v) FROM t", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1), row.get::<_, i32>(2)), (64, 200, 200));
}

/// Nothing is decided when a node refuses to validate.
#[tokio::test]
async fn a_validation_that_is_refused_is_an_error_and_no_conflict() {
    let arguments = ["--nodes", "3", "--memory", "64MiB"];
    let server = Server::start_without(Some("REFUSE_VALIDATION"), &arguments);
    let mut client = server.client().await;
    // Two tables, because a bucket that the transaction has locked is not validated.
    for table in ["read", "written"] {
        let columns = "(id INTEGER PRIMARY KEY, v INTEGER)";
        client.batch_execute(&format!("CREATE TABLE {table} {columns}")).await.unwrap();
        client.batch_execute(&format!("INSERT INTO {table} VALUES (1, 0)")).await.unwrap();
    }
    let mut updates = 0;
    let error = loop {
        // The catalog's version, which is a low one, is validated.
        client.execute("UPDATE read SET v = v + 1 WHERE id = 1", &[]).await.unwrap();
        updates += 1;
        let block = client.transaction().await.unwrap();
        let written = async {
            block.query("SELECT v FROM read WHERE id = 1", &[]).await?;
            block.execute("UPDATE written SET v = v - 1 WHERE id = 1", &[]).await?;
            block.commit().await
        };
        if let Err(error) = written.await {
            break error;
        }
        assert!(updates < 1_000, "no coordinator read the refusal");
    };
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "XX000", "{error:?}");
    assert!(error.message().contains("a node refused"), "{error:?}");
    // The changes do not exist, and no lock is held.
    let rows = client.query("SELECT v FROM read", &[]).await;
    assert!(rows.is_err_and(|error| error.code().is_some_and(|code| code.code() == "XX000")));
    client.execute("UPDATE read SET v = v + 1 WHERE id = 1", &[]).await.unwrap();
    let both = "SELECT r.v, w.v FROM read r JOIN written w ON r.id = w.id";
    let row = client.query_one(both, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (updates + 1, 1 - updates));
}
