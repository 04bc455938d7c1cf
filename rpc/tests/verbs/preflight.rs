//! The preflight checks name every missing requirement.
//!
//! The guest has a third device, rx2, which is down. One test starts this program again as another user, with 64 KiB of
//! locked memory. A test fails if an error does not name the device, port, GID, MTU, limit or peer that does not fit.
//!
//! *Not here*: the choice among several GIDs (the unit tests in `rpc/src/verbs/preflight.rs`).

use std::os::unix::process::CommandExt;
use std::process::Command;

use gannet_rpc::{GidChoice, VerbsError, VerbsOptions, VerbsPort};

use crate::nodes::options;

/// Set in a process with a low limit of locked memory.
const IS_LIMITED: &str = "GANNET_VERBS_LIMITED";

fn error(options: &VerbsOptions) -> String {
    VerbsPort::open(options).unwrap_err().to_string()
}

#[test]
fn missing_requirements_are_named() {
    let right = options(0, 2);
    let device = |name: &str| VerbsOptions { device: Some(name.to_owned()), ..right.clone() };
    for (wrong, parts) in [
        (device("mlx5_0"), ["\"mlx5_0\"", "rx0, rx1, rx2"]),
        (device("rx2"), ["port 1 of the RDMA device rx2 is down", "ip link set"]),
        (VerbsOptions { port: Some(2), ..right.clone() }, ["rx0 has no port 2", "use 1 to 1"]),
        (
            VerbsOptions { gid: Some(GidChoice::Index(77)), ..right.clone() },
            ["no GID of index 77", "::ffff:10.1.0.1 (index 1)"],
        ),
        (VerbsOptions { mtu: Some(8_192), ..right.clone() }, ["an MTU of 4096 bytes", "is 8192"]),
    ] {
        let error = error(&wrong);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    // Without a named device, the one that is down is skipped.
    let any = VerbsOptions { device: None, ..right };
    assert!(VerbsPort::open(&any).unwrap().address().contains("gid=::ffff:10.1.0."));
}

#[test]
fn a_limit_of_locked_memory_is_named() {
    if std::env::var_os(IS_LIMITED).is_some() {
        println!("{}", error(&options(0, 2)));
        return;
    }
    let own = std::env::current_exe().unwrap();
    let name = "preflight::a_limit_of_locked_memory_is_named";
    let command = format!("ulimit -l 64 && exec {} --exact {name} --nocapture", own.display());
    let output =
        Command::new("/bin/sh").arg("-c").arg(command).env(IS_LIMITED, "").uid(1_000).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the limit is 65536") && said.contains("LimitMEMLOCK"), "{said}");
}

#[test]
fn unsuitable_peers_are_named() {
    let port = |options: &VerbsOptions| VerbsPort::open(options).unwrap();
    let peer = options(1, 2);
    let right = port(&peer).address();
    let refusal = |text: String| {
        let mut own = port(&options(0, 2));
        let addresses = [Some(own.address()), Some(text)];
        own.connect(&addresses).unwrap_err()
    };
    let error = refusal("nowhere".to_owned());
    assert!(matches!(error, VerbsError::NotAnAddress { node: 1, .. }), "{error}");
    let smaller = port(&VerbsOptions { mtu: Some(1_024), ..peer.clone() }).address();
    let error = refusal(smaller).to_string();
    assert!(error.contains("node 1 exchanges 1024") && error.contains("at most 1024"), "{error}");
    let other = port(&VerbsOptions { gid: Some(GidChoice::Ipv6), ..peer }).address();
    let error = refusal(other).to_string();
    assert!(error.contains("node 1 has an RDMA address of IPv6, this one of IPv4"), "{error}");
    let error = refusal(right.replace("10.1.0.2", "198.51.100.7"));
    assert!(matches!(error, VerbsError::Unreachable { node: 1, .. }), "{error}");
    let mut own = port(&options(0, 2));
    let error = own.connect(&[Some(own.address())]).unwrap_err();
    assert!(matches!(error, VerbsError::WrongCount { nodes: 2, found: 1 }), "{error}");
}
