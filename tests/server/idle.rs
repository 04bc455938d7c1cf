//! An idle server sleeps: the test counts how often the threads of a real server go to sleep, and so wake up, in two seconds,
//! and the time of the processor that they take. The test fails if each of ten such spans has 40 wake-ups or more, or takes a
//! tenth of a core: threads that poll never go to sleep.

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

/// Hundredths of a second of the processor that a process has taken.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Behind the name, which may have spaces: user and system time are the 12th and 13th field.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Waking up is the cost of an idle thread: some tens of microseconds each time.
#[tokio::test]
async fn an_idle_server_sleeps() {
    let server = Server::start(&["--threads", "2"]);
    assert_eq!(server.query("SELECT 1"), "1");
    let mut counts = Vec::new();
    // At first the server has something to do, for a time that depends on the machine.
    for _ in 0..10 {
        let before = (sleeps(server.id()), ticks(server.id()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let woken = sleeps(server.id()).saturating_sub(before.0);
        let taken = ticks(server.id()) - before.1;
        counts.push((woken, taken));
        if woken < 40 && taken < 20 {
            println!("woken so often, and hundredths of a second, each in two seconds: {counts:?}");
            return;
        }
    }
    panic!("woken so often, and hundredths of a second, each in two seconds: {counts:?}");
}
