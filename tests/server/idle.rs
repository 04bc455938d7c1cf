//! An idle server sleeps: the test counts how often the threads of a real server go to sleep, and so wake up, in two seconds.
//! The test fails if each of ten such spans has 40 wake-ups or more.

use std::time::Duration;

use crate::process::Server;

/// How often the threads of a process have gone to sleep.
fn sleeps(process: u32) -> u64 {
    let of_thread = |thread: std::fs::DirEntry| -> u64 {
        // The thread may end meanwhile.
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse().unwrap())
    };
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(|thread| of_thread(thread.unwrap())).sum()
}

/// Waking up is the cost of an idle thread: some tens of microseconds each time.
#[tokio::test]
async fn an_idle_server_sleeps() {
    let server = Server::start(&["--threads", "2"]);
    assert_eq!(server.query("SELECT 1"), "1");
    let mut counts = Vec::new();
    // At first the server has something to do, for a time that depends on the machine.
    for _ in 0..10 {
        let before = sleeps(server.id());
        tokio::time::sleep(Duration::from_secs(2)).await;
        counts.push(sleeps(server.id()).saturating_sub(before));
        if counts.last().is_some_and(|woken| *woken < 40) {
            println!("woken {counts:?} times, each in two seconds");
            return;
        }
    }
    panic!("woken {counts:?} times, each in two seconds");
}
