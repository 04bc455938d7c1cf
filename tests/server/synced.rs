//! What the manager stores is on the disk before anybody hears of it: `strace` sees the system calls of a process on its files.
//!
//! *Not here*: what is in the files, and what follows a disk's error (crate `manager`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::nodes::Plan;
use crate::process::{Server, folder, install};

/// Calls that change files, make changes last, or tell others something.
const CALLS: &str = "trace=write,writev,sendto,sendmsg,sendmmsg,rename,fdatasync,fsync";

/// The system calls of a node, started without `rule`, while the cluster removes another node.
fn calls(name: &str, rule: Option<&str>, data: &Path) -> String {
    let traces = || Command::new("strace").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !traces() {
        install(&["strace"]);
        assert!(traces(), "strace is missing after its installation");
    }
    let plan = Plan::new(name);
    let start = |node: usize| {
        let mut command = plan.command(node);
        command.args(["--lease", "1s", "--manager-data"]).arg(data.join(node.to_string()));
        command.envs(rule.map(|rule| ("GANNET_MUTANT", rule))).spawn().unwrap()
    };
    let mut nodes: Vec<_> = [0, 1, 2].map(start).into_iter().map(Server::listening).collect();
    let output = data.join("calls");
    let mut strace = Command::new("strace")
        .args(["-f", "-y", "-s", "0", "-e", CALLS, "-o", output.to_str().unwrap()])
        .args(["-p", &nodes[0].id().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(strace.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("attached"), "{said}");
    nodes.pop();
    // This waits until the others go on.
    nodes[0].query("CREATE TABLE town (id INT PRIMARY KEY)");
    let pid = strace.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    strace.wait().unwrap();
    std::fs::read_to_string(&output).unwrap()
}

/// How often files in a folder were written and synced. The error is the first call that came between a write and its sync.
fn synced_writes(calls: &str, folder: &Path) -> Result<usize, String> {
    let folder = folder.to_str().unwrap();
    let mut synced = 0;
    // By thread: what is to be synced before it does anything else.
    let mut unsynced = BTreeMap::<&str, String>::new();
    for line in calls.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let Some((name, rest)) = call.trim_start().split_once('(') else { continue };
        let file = rest.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let file = file.map_or("", |(file, _)| file);
        let is_of_folder = file.starts_with(folder);
        match (name, unsynced.get(thread)) {
            ("fsync" | "fdatasync", Some(written)) if written == file => {
                unsynced.remove(thread);
                synced += 1;
            }
            // One buffer may take several calls.
            ("write", Some(written)) if written == file => {}
            (_, Some(written)) => return Err(format!("{written} is not synced before {call}")),
            ("write", None) if is_of_folder => {
                unsynced.insert(thread, file.to_owned());
            }
            // A name is as much as its folder has.
            ("rename", None) if rest.contains(folder) => {
                unsynced.insert(thread, folder.to_owned());
            }
            _ => {}
        }
    }
    // The trace may end between a write and its sync.
    Ok(synced)
}

#[test]
fn what_the_manager_stores_is_synced_before_it_says_anything() {
    let data = folder("synced-data");
    let calls = calls("synced", None, &data);
    let synced = synced_writes(&calls, &data.join("0"));
    assert!(synced.as_ref().is_ok_and(|synced| *synced >= 2), "{synced:?}: {calls}");
}

#[cfg(feature = "mutants")]
#[test]
fn a_manager_that_does_not_sync_is_noticed() {
    let data = folder("unsynced-data");
    let calls = calls("unsynced", Some("SYNCED_ANSWERS"), &data);
    let synced = synced_writes(&calls, &data.join("0"));
    assert!(matches!(synced, Ok(0) | Err(_)), "{synced:?}: {calls}");
}
