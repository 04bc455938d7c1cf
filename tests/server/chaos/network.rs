//! A network inside of this host: a namespace for each node, and one in the middle that all packets pass.
//!
//! ```text
//! node 0: e ─┐
//! node 1: e ─┼─ bridge, in the namespace in the middle ─ UDP ─▶ relay (this process) ─▶ back to the bridge
//! node 2: e ─┘                                         ─ TCP ─▶ back to the bridge
//! ```
//!
//! Nodes reach each other only through the bridge's address, so the middle routes every packet. There, nft loses packets and
//! cuts nodes off, and a policy route sends UDP through the relay's tunnel device.
//!
//! The network needs root. The packages iproute2 and nftables are installed if they are missing.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, setns};

use crate::process::install;

/// The address of the bridge, and its name.
const MIDDLE: &str = "10.99.0.254";
const BRIDGE: &str = "middle";

/// The namespaces, removed when dropped.
pub(crate) struct Network {
    name: String,
    nodes: usize,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?} (these tests need root): {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `ip` with the words of a line.
fn ip(line: &str) -> String {
    run(Command::new("ip").args(line.split(' ')))
}

fn has(program: &str) -> bool {
    Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

impl Network {
    /// A network of so many nodes. The relay creates the tunnel device [`Self::tunnel_name`].
    pub(crate) fn new(nodes: usize) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !has("ip") || !has("nft") {
            install(&["iproute2", "nftables"]);
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let network = Self { name: format!("g{}-{number}", std::process::id()), nodes };
        let middle = network.middle();
        ip(&format!("netns add {middle}"));
        ip(&format!("-n {middle} link set lo up"));
        ip(&format!("-n {middle} link add name {BRIDGE} type bridge"));
        ip(&format!("-n {middle} address add {MIDDLE}/24 dev {BRIDGE}"));
        ip(&format!("-n {middle} link set {BRIDGE} up"));
        network.in_middle(
            "cd /proc/sys/net/ipv4; echo 1 > ip_forward; for one in all middle; do \
             echo 0 > conf/$one/send_redirects; echo 0 > conf/$one/rp_filter; done",
        );
        for node in 0..nodes {
            let (own, address) = (network.namespace(node), Self::address(node));
            ip(&format!("netns add {own}"));
            ip(&format!("-n {middle} link add h{node} type veth peer name e netns {own}"));
            ip(&format!("-n {middle} link set h{node} master {BRIDGE} up"));
            ip(&format!("-n {own} link set lo up"));
            ip(&format!("-n {own} address add {address}/32 dev e"));
            ip(&format!("-n {own} link set e up"));
            ip(&format!("-n {own} route add {MIDDLE} dev e"));
            ip(&format!("-n {own} route add default via {MIDDLE}"));
        }
        network
    }

    /// The address of a node.
    pub(crate) fn address(node: usize) -> String {
        format!("10.99.0.{}", node + 1)
    }

    fn middle(&self) -> String {
        format!("{}-m", self.name)
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}-{node}", self.name)
    }

    /// The name of the relay's device.
    pub(crate) fn tunnel_name(&self) -> String {
        format!("{}-t", self.name)
    }

    fn in_middle(&self, script: &str) -> String {
        run(Command::new("ip").args(["netns", "exec", &self.middle(), "sh", "-ec", script]))
    }

    /// Routes UDP through the relay, whose device exists, and loses so many datagrams of a hundred.
    pub(crate) fn begin_faults(&self, lost_percent: u32) {
        let (middle, tunnel) = (self.middle(), self.tunnel_name());
        ip(&format!("link set {tunnel} netns {middle}"));
        ip(&format!("-n {middle} link set {tunnel} up"));
        self.in_middle(&format!("echo 0 > /proc/sys/net/ipv4/conf/{tunnel}/rp_filter"));
        ip(&format!("-n {middle} route add default dev {tunnel} table 100"));
        ip(&format!("-n {middle} rule add iif {BRIDGE} ipproto udp lookup 100"));
        self.filter(&format!(
            "iifname {BRIDGE} meta l4proto udp numgen random mod 100 < {lost_percent} \
             counter name lost drop"
        ));
    }

    /// Lets nodes be cut off, and nothing else: no packet passes a relay or is lost.
    pub(crate) fn begin_cuts(&self) {
        self.filter("");
    }

    /// Filters what the middle forwards: cuts come first, and a further rule if there is one.
    fn filter(&self, rule: &str) {
        self.nft(&format!(
            "table ip chaos {{
                counter lost {{ }}
                counter cut {{ }}
                chain cut-off {{ }}
                chain forward {{
                    type filter hook forward priority 0;
                    iifname {BRIDGE} jump cut-off
                    {rule}
                }}
            }}"
        ));
    }

    /// Loses what a node sends to another one, over UDP and TCP, until [`Self::heal`].
    pub(crate) fn cut(&self, from: usize, to: usize) {
        let (from, to) = (Self::address(from), Self::address(to));
        self.nft(&format!(
            "add rule ip chaos cut-off ip saddr {from} ip daddr {to} counter name cut drop"
        ));
    }

    /// Cuts a node off from all others, over UDP and TCP, until [`Self::heal`].
    pub(crate) fn cut_off(&self, node: usize) {
        let address = Self::address(node);
        for end in ["saddr", "daddr"] {
            self.nft(&format!(
                "add rule ip chaos cut-off ip {end} {address} counter name cut drop"
            ));
        }
    }

    pub(crate) fn heal(&self) {
        self.nft("flush chain ip chaos cut-off");
    }

    /// Packets that nft has dropped: at random, and of nodes that were cut off.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        let count = |name: &str| {
            let text = self.in_middle(&format!("nft list counter ip chaos {name}"));
            let words: Vec<_> = text.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "packets").unwrap();
            words[at + 1].parse().unwrap()
        };
        (count("lost"), count("cut"))
    }

    fn nft(&self, rules: &str) {
        let mut nft = Command::new("ip")
            .args(["netns", "exec", &self.middle(), "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "nft refuses: {rules}");
    }

    fn file(&self, node: usize) -> File {
        File::open(format!("/run/netns/{}", self.namespace(node))).unwrap()
    }

    /// Moves this thread to a node's namespace: later connections start there.
    pub(crate) fn enter(&self, node: usize) {
        setns(self.file(node), CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// The command, in a node's namespace.
    pub(crate) fn command(&self, node: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node), program]).process_group(0);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let nodes = (0..self.nodes).map(|node| self.namespace(node));
        for namespace in nodes.chain([self.middle()]) {
            // The namespace may not exist.
            let _ = Command::new("ip").args(["netns", "delete", &namespace]).output();
        }
    }
}
