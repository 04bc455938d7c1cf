//! A server that has nothing to do.

use std::time::Duration;

use crate::process::Server;

/// How often the threads of a process have gone to sleep.
fn sleeps(process: u32) -> u64 {
    let of_thread = |thread: std::fs::DirEntry| -> u64 {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    };
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(|thread| of_thread(thread.unwrap())).sum()
}

/// To be woken is what costs an idle thread: some tens of microseconds each time.
#[tokio::test]
async fn an_idle_server_sleeps() {
    let server = Server::start(&["--threads", "2"]);
    assert_eq!(server.query("SELECT 1"), "1");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = sleeps(server.id());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let woken = sleeps(server.id()) - before;
    println!("woken {woken} times in three seconds");
    assert!(woken < 60, "woken {woken} times in three seconds");
}
