//! Processes that cannot become a member: settings that do not fit, addresses that are taken, and others that do not come.
//!
//! *Not here*: processes in the place of members (`failures/restarts.rs`).

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::nodes::{Plan, failure, write_key};
use crate::process::{Server, read_all};

#[test]
fn unsuitable_members_are_refused_with_the_reason() {
    let plan = Plan::new("nodes-refused");
    // The node waits for as long as the test takes.
    let mut waiting = plan.start(0, &["--join-timeout", "60m"]);
    for (arguments, expected) in [
        (&["--threads", "2"][..], "threads: node 0 has 1 and node 1 has 2"),
        (&["--replicas", "2"], "replicas: node 0 has 3 and node 1 has 2"),
        (&["--cluster-name", "other"], "cluster name: node 0 has gannet and node 1 has other"),
        (&["--mtu", "1400"], "mtu: node 0 has automatic and node 1 has 1400"),
        (&["--transport", "memory"], "transport: node 0 has udp and node 1 has memory"),
    ] {
        let error = plan.failure(1, arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let other = write_key(&plan.key.with_file_name("other.key"), '8');
    let error = plan.failure(1, &["--cluster-key", other.to_str().unwrap()]);
    assert!(error.contains("its cluster key is not that of node 0"), "{error}");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
    let error = plan.failure(1, &["--cluster-key", other.to_str().unwrap()]);
    assert!(error.contains("chmod 600"), "{error}");
    let elsewhere = format!("{},127.0.0.1:1", plan.members.rsplit_once(',').unwrap().0);
    let error = plan.with_members(elsewhere).failure(1, &[]);
    assert!(error.contains("members: node 0 has"), "{error}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let error = plan.failure(1, &["--listen", &taken]);
    assert!(error.contains("cannot listen on"), "{error}");
    let error = plan.failure(1, &["--metrics", &taken]);
    assert!(error.contains("choose another --metrics"), "{error}");
    // Strangers are not members, whatever they send.
    let address = plan.members.split(',').next().unwrap();
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 5], &[255; 64], b"\x02\0\0\0\x01{}"] {
        TcpStream::connect(address).unwrap().write_all(said).unwrap();
    }
    let error = plan.failure(0, &[]);
    assert!(error.contains("is in use"), "{error}");
    let next = |port: u16| format!("127.0.0.1:7000,127.0.0.1:{port}");
    // Each worker has a UDP port of its own; the last one's is next to the other member's.
    for (members, threads, refused) in
        [(next(7000), "1", true), (next(7003), "4", true), (next(7004), "4", false)]
    {
        let error =
            plan.with_members(members).failure(0, &["--threads", threads, "--join-timeout", "1s"]);
        assert_eq!(error.contains("member 0 at 127.0.0.1:7000 and member 1"), refused, "{error}");
    }
    let error = plan.failure(0, &["--connections-max", "0"]);
    assert!(error.contains("connections-max is 0"), "{error}");
    let error = plan.failure(0, &["--memory", "102400GiB"]);
    assert!(error.contains("table memory of 104857600 MiB for a node"), "{error}");
    assert!(error.contains("this host has ") || error.contains("control group"), "{error}");
    let error = plan.failure(7, &[]);
    assert!(error.contains("the node's number is 7"), "{error}");
    assert!(waiting.try_wait().unwrap().is_none(), "the first node goes on waiting");
    waiting.kill().unwrap();
    let log = read_all(waiting.stderr.take().unwrap());
    assert!(log.contains("was refused: threads"), "{log}");
}

#[test]
fn a_node_that_times_out_names_the_missing_members() {
    let plan = Plan::new("nodes-missing");
    // The second node is there all the time. The first is alone until the second has started.
    let mut second = plan.start(1, &["--join-timeout", "60m"]);
    let waited = (1..60).map(|seconds| {
        let error = plan.failure(0, &["--join-timeout", &format!("{seconds}s")]);
        assert!(error.contains("node 2 at"), "{error}");
        assert!(error.contains(&format!("did not come within {seconds} s")), "{error}");
        error
    });
    assert!(waited.into_iter().any(|error| error.contains("node 1 is there")));
    second.kill().unwrap();
    second.wait().unwrap();
    let error = plan.failure(1, &["--join-timeout", "100ms"]);
    assert!(error.contains("node 2 at"), "{error}");
}

#[test]
fn a_file_of_settings_starts_a_node() {
    let plan = Plan::new("nodes-file");
    let file = plan.key.with_file_name("node.toml");
    let members = plan.members.replace(',', "\", \"");
    let text = |last: &str| {
        format!(
            "members = [\"{members}\"]\ncluster-key = {:?}\nlisten = \"127.0.0.1:0\"\n\
             memory = \"256MiB\"\nthreads = 1\n{last}",
            plan.key
        )
    };
    let start = |node: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command.args(["serve", "--config", file.to_str().unwrap(), "--node", node]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    fs::write(&file, text("thread = 2\n")).unwrap();
    let error = failure(start("0"));
    assert!(error.contains("line 6") && error.contains("unknown field `thread`"), "{error}");
    fs::write(&file, text("join-timeout = \"1m\"\n")).unwrap();
    let started: Vec<_> = ["0", "1", "2"].map(start).into_iter().collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    assert_eq!(nodes[2].query("SELECT 1"), "1");
    for node in &mut nodes {
        node.signal("TERM");
        assert_eq!(node.wait().code(), Some(0));
    }
}
