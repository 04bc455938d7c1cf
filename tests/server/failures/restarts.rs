//! Processes that want to be a node that is there, which are refused with the reason and disturb nobody, or that was there, which come back.
//!
//! *Not here*: members whose settings do not fit, before the cluster has begun, in `nodes.rs`.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::failures::cluster::{Cluster, LONG_LEASE, SHORT_LEASE, Site, awaited, pass};
use crate::failures::histories::record;
use crate::nodes::free_address;
use crate::process::{Server, errors, read_all};

/// Between two looks whether a process has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The option of each of three nodes that names a directory for its replica of the manager.
pub(super) fn manager_data(site: &Site) -> [String; 3] {
    let folder = |node: usize| site.path(&format!("manager-{node}"));
    [0, 1, 2].map(|node| format!("--manager-data={}", folder(node).display()))
}

#[test]
fn a_second_process_of_a_living_node_is_refused_and_disturbs_nobody() {
    let cluster = Cluster::start(Site::new("failures-second", 3), &[LONG_LEASE]);
    let all = cluster.all();
    let summary = record(&cluster, |clients| {
        for node in all.iter().copied() {
            for arguments in [&[LONG_LEASE][..], &[LONG_LEASE, "--cluster-name=other"]] {
                let error = cluster.site.failure(node, arguments);
                assert!(error.contains("in use"), "{error}");
            }
            // One that stands still lives, too.
            cluster.signal(node, "STOP");
            let error = cluster.site.failure(node, &[LONG_LEASE]);
            cluster.signal(node, "CONT");
            assert!(error.contains("in use"), "{error}");
        }
        clients.wait_for(&all, 20);
        clients.serving(&all)
    });
    assert_eq!(summary.broken, [0_u64; 3], "{summary:?}");
}

/// Each of three nodes is killed under load and started again by the same command. Before the next one is killed, it is a copy, a voter and
/// primary of its share again. All nodes, twice, whichever node decides.
#[test]
fn every_node_comes_back_twice_under_load() {
    let site = Site::new("failures-restart", 3);
    let folders = manager_data(&site);
    let of_node = |node: usize| vec![SHORT_LEASE.to_owned(), folders[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    cluster.query(0, "CREATE TABLE kept (round INT PRIMARY KEY)");
    let is_whole = "SELECT min(copies_missing) = 0 AND sum(CASE WHEN votes AND state = 'up' THEN 1 ELSE 0 END) = 3 FROM gannet_nodes";
    let primaries = "SELECT count(*) FROM gannet_copies WHERE role = 'primary'";
    for round in 0..6 {
        let dead = round % 3;
        let mut survivors = cluster.all();
        survivors.remove(&dead);
        let mut back = None;
        let summary = record(&cluster, |clients| {
            cluster.kill(dead);
            clients.wait_for(&survivors, 20);
            // A process with other settings is told so.
            let other = [SHORT_LEASE, "--cluster-name=other"];
            let error = awaited("the dead process has given up its port", || {
                let error = cluster.site.failure(dead, &other);
                (!error.contains("in use")).then_some(error)
            });
            assert!(error.contains("cluster name: node"), "{error}");
            let arguments = of_node(dead);
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            back = Some(Server::listening(cluster.site.start(dead, &arguments)));
            for node in &survivors {
                awaited("the node is a copy and a voter again", || {
                    (cluster.query(*node, is_whole) == "t").then_some(())
                });
                awaited("the node is primary of its share", || {
                    let of_node = format!("{primaries} AND node = {dead}");
                    let [all, of_node] = [primaries, &of_node]
                        .map(|counted| cluster.query(*node, counted).parse::<u64>().unwrap());
                    (all / 3..=all.div_ceil(3)).contains(&of_node).then_some(())
                });
            }
            clients.wait_for(&survivors, 20);
            clients.serving(&survivors)
        });
        assert!(survivors.iter().all(|node| summary.broken[*node] == 0), "{summary:?}");
        drop(std::mem::replace(&mut cluster.nodes[dead], back.expect("it has come back")));
        cluster.query(dead, &format!("INSERT INTO kept VALUES ({round})"));
        for node in 0..3 {
            let rounds = cluster.query(node, "SELECT count(*) FROM kept");
            assert_eq!(rounds, (round + 1).to_string(), "at node {node}");
        }
    }
}

/// A node whose processes end soon after they have come is let in later each time, so that it does not keep the others from their work.
#[test]
fn a_node_that_ends_again_and_again_is_let_in_later_each_time() {
    let mut cluster = Cluster::start(Site::new("failures-restless", 3), &[SHORT_LEASE]);
    // The decider remembers the ends of processes, so it stays.
    let leader = cluster.leader(&cluster.all());
    let restless = (leader + 1) % 3;
    let mut others = cluster.all();
    others.remove(&restless);
    let mut last = None;
    let summary = record(&cluster, |clients| {
        cluster.kill(restless);
        for _ in 0..3 {
            Server::listening(cluster.site.start(restless, &[SHORT_LEASE])).signal("KILL");
        }
        last = Some(Server::listening(cluster.site.start(restless, &[SHORT_LEASE])));
        assert_eq!(cluster.healthy(&others, "60s"), (true, String::new()));
        clients.wait_for(&others, 20);
        clients.serving(&others)
    });
    assert!(others.iter().all(|node| summary.broken[*node] == 0), "{summary:?}");
    drop(std::mem::replace(&mut cluster.nodes[restless], last.unwrap()));
    let log = cluster.logs();
    // The first one had been there from the start.
    for (processes, seconds) in [(2, 1), (3, 2)] {
        let ended = format!("{processes} processes of node {restless} have ended soon after");
        let line = log.lines().find(|line| line.contains(&ended));
        assert!(
            line.is_some_and(|line| line.contains(&format!("let in {seconds} s later"))),
            "{log}"
        );
    }
}

/// Each node is stopped and started again under load, and the next one when the cluster is healthy: no transaction is lost or unknown.
#[test]
fn a_rolling_restart_leaves_no_transaction_unknown() {
    let of_node = |_: usize| vec![LONG_LEASE.to_owned()];
    let mut cluster = Cluster::start_each(Site::new("failures-rolling", 3), of_node);
    assert_eq!(cluster.healthy(&cluster.all(), "60s"), (true, String::new()));
    for node in 0..3 {
        let mut others = cluster.all();
        others.remove(&node);
        let mut back = None;
        let summary = record(&cluster, |clients| {
            clients.wait_for(&cluster.all(), 20);
            cluster.signal(node, "TERM");
            let gone = "1 nodes are gone; start their processes again";
            awaited("the node has left", || {
                let (is_healthy, reason) = cluster.healthy(&others, "500ms");
                (!is_healthy && reason.contains(gone)).then_some(())
            });
            back = Some(Server::listening(cluster.site.start(node, &[LONG_LEASE])));
            assert_eq!(cluster.healthy(&others, "60s"), (true, String::new()));
            clients.wait_for(&others, 20);
            clients.serving(&others)
        });
        assert_eq!(summary.unknown, 0, "{summary:?}");
        assert!(others.iter().all(|other| summary.broken[*other] == 0), "{summary:?}");
        let mut stopped = std::mem::replace(&mut cluster.nodes[node], back.unwrap());
        assert_eq!(stopped.wait().code(), Some(0));
    }
}

/// One command restarts all nodes under load; the test starts a process again when its exit code says so.
#[test]
fn the_command_restarts_all_nodes_one_after_the_other() {
    let site = Site::new("failures-rolling-command", 3);
    let listens = [0, 1, 2].map(|_| format!("--listen={}", free_address()));
    let of_node = |node: usize| vec![LONG_LEASE.to_owned(), listens[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    cluster.query(0, "CREATE TABLE hits (id INT PRIMARY KEY, n INT)");
    cluster.query(0, "INSERT INTO hits VALUES (1, 0)");
    let nodes = std::mem::take(&mut cluster.nodes);
    let (site, is_over) = (&cluster.site, AtomicBool::new(false));
    let (restarts, has_load_ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let hosts = listens.each_ref().map(|listen| listen.trim_start_matches("--listen="));
    let url = format!("postgresql://tester@{}/test?sslmode=disable", hosts.join(","));
    let psql = |statement: &str| {
        Command::new("psql").args(["-AtqX", &url, "-c", statement]).output().unwrap()
    };
    let restart = |arguments: &[&str]| {
        let mut gannet = Command::new(env!("CARGO_BIN_EXE_gannet"));
        gannet.args(["node", "restart"]).args(arguments);
        let output = gannet.arg("--connect").arg(hosts.join(",")).output().unwrap();
        (output.status.code(), read_all(&output.stdout[..]), errors(&output))
    };
    let ended = std::thread::scope(|scope| {
        let supervised = nodes.into_iter().enumerate().map(|(node, mut server)| {
            let (is_over, restarts) = (&is_over, &restarts);
            let arguments = of_node(node);
            scope.spawn(move || {
                let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                loop {
                    while server.is_running() && !is_over.load(Relaxed) {
                        pass(LOOK);
                    }
                    if server.is_running() {
                        server.signal("TERM");
                    }
                    let code = server.wait().code();
                    if code != Some(75) {
                        return code;
                    }
                    restarts.fetch_add(1, Relaxed);
                    server = Server::listening(site.start(node, &arguments));
                }
            })
        });
        let supervised: Vec<_> = supervised.collect();
        let load = scope.spawn(|| {
            let (mut committed, mut failed) = (0, 0);
            while !has_load_ended.load(Relaxed) {
                let hit = psql("UPDATE hits SET n = n + 1 WHERE id = 1").status;
                *(if hit.success() { &mut committed } else { &mut failed }) += 1;
            }
            (committed, failed)
        });
        let (code, said, error) = restart(&["--rolling"]);
        assert_eq!(code, Some(0), "{error}");
        let lines = [0, 1, 2]
            .map(|node| format!("node {node} was started again, and the cluster is healthy\n"));
        assert_eq!((said, restarts.load(Relaxed)), (lines.concat(), 3));
        let (code, said, error) = restart(&["1", "--timeout=60s"]);
        assert_eq!((code, said, restarts.load(Relaxed)), (Some(0), lines[1].clone(), 4), "{error}");
        let (code, _, error) = restart(&["7"]);
        assert!(code == Some(2) && error.contains("node 7"), "{code:?}: {error}");
        has_load_ended.store(true, Relaxed);
        let (committed, failed) = load.join().unwrap();
        let n: u64 = read_all(&psql("SELECT n FROM hits").stdout[..]).trim().parse().unwrap();
        // A statement whose session ended may have been done.
        assert!((committed..=committed + failed).contains(&n), "{committed} + {failed}: {n}");
        assert!(committed > 20, "{committed} of {failed}");
        is_over.store(true, Relaxed);
        supervised.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(ended, [Some(0); 3]);
}

/// The rows are gone with the processes. What the managers' directories say of them is no cluster any more.
#[test]
fn a_cluster_whose_processes_have_all_ended_begins_anew_only_when_told() {
    let begin_anew = "--begin-anew";
    let site = Site::new("failures-anew", 3);
    let folders = manager_data(&site);
    let of_node = |node: usize| vec![LONG_LEASE.to_owned(), folders[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    cluster.query(0, "CREATE TABLE town (id INT PRIMARY KEY)");
    cluster.query(1, "INSERT INTO town VALUES (7)");
    // A process of another cluster may not use the directory of one that lives.
    let elsewhere = Site::new("failures-anew-elsewhere", 3);
    for arguments in [&[folders[0].as_str()][..], &[folders[0].as_str(), begin_anew]] {
        let error = elsewhere.failure(0, arguments);
        assert!(error.contains("is in use; end the process that uses it"), "{error}");
    }
    assert_eq!(cluster.query(2, "SELECT id FROM town"), "7");
    for signal in ["STOP", "KILL"] {
        (0..3).for_each(|node| cluster.signal(node, signal));
    }
    cluster.nodes.drain(..).for_each(|mut node| {
        node.wait();
    });
    // None of them finds a cluster to come back to.
    std::thread::scope(|scope| {
        for (node, folder) in folders.iter().enumerate() {
            let site = &cluster.site;
            scope.spawn(move || {
                let error = site.failure(node, &[LONG_LEASE, folder.as_str()]);
                assert!(error.contains("is of an earlier run of the cluster"), "{error}");
                assert!(error.contains("begin anew with --begin-anew"), "{error}");
            });
        }
    });
    let Cluster { site, .. } = cluster;
    let cluster =
        Cluster::start_each(site, |node| [of_node(node), vec![begin_anew.to_owned()]].concat());
    let error = cluster.attempt(0, &["SELECT id FROM town"]).unwrap_err();
    assert!(error.contains("42P01"), "{error}");
    cluster.query(1, "CREATE TABLE town (id INT PRIMARY KEY)");
    assert_eq!(cluster.query(2, "SELECT count(*) FROM town"), "0");
}
