//! A worker that dies of a bug ends its process, with a message.

use std::process::{Command, Stdio};

use crate::process::{Server, read_all};

/// The transaction is decided when a backup refuses its update: nobody may be told that it has committed, or goes on waiting.
#[tokio::test]
async fn a_backup_that_refuses_what_is_decided_ends_the_process() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["serve", "--listen", "127.0.0.1:0", "--nodes", "3", "--memory", "64MiB"])
        .env("GANNET_MUTANT", "RefuseBackup")
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
        assert!(updates < 1_000, "the refusal was read by nobody");
    }
    assert_eq!(server.wait().code(), Some(1));
    let last_words = read_all(stderr);
    assert!(last_words.contains("gannet: a worker has failed: BACKUP"), "{last_words}");
}
