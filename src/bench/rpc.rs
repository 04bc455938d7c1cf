//! `gannet bench rpc`: its options.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use gannet_benchmarks::{BenchmarkError, EchoSettings, EchoTransport, Report, rpc_echo};

use super::Common;

/// Options of the RPC echo.
#[derive(Args)]
pub(super) struct RpcArguments {
    /// Requests per batch.
    #[arg(long, default_value_t = 11)]
    batch: usize,
    /// What carries the packets; over UDP the nodes are on two threads with a core each.
    #[arg(long, value_enum, default_value_t = TransportArgument::Memory)]
    transport: TransportArgument,
    /// Seal datagrams with a key, which is the benchmark's own.
    #[arg(long)]
    key: bool,
    /// Run one of two nodes here, and the other by the same command in another process or on another host.
    #[arg(long, requires = "addresses")]
    node: Option<usize>,
    /// Addresses of both nodes, such as 127.0.0.1:7000,127.0.0.1:7001.
    #[arg(long, value_delimiter = ',', requires = "node")]
    addresses: Vec<SocketAddr>,
}

#[derive(Clone, Copy, ValueEnum)]
enum TransportArgument {
    Memory,
    Udp,
}

impl RpcArguments {
    pub(super) fn run(&self, common: &Common, threads: usize) -> Result<Report, BenchmarkError> {
        let transport = match (self.transport, self.node) {
            (TransportArgument::Memory, None) if !self.key => EchoTransport::Memory,
            (TransportArgument::Memory, _) => {
                return Err(BenchmarkError::Setting {
                    setting: "--transport",
                    value: "memory".to_owned(),
                    allowed: "udp with --key, --node and --addresses".to_owned(),
                });
            }
            (TransportArgument::Udp, None) => EchoTransport::Udp,
            (TransportArgument::Udp, Some(node)) => {
                EchoTransport::UdpAcross { node, addresses: self.addresses.clone() }
            }
        };
        rpc_echo::run(&EchoSettings {
            batch: self.batch,
            threads,
            is_apart: common.thread_per_node,
            transport,
            with_key: self.key,
            coroutines: common.coroutines,
            duration: common.duration,
            warmup: common.warmup,
        })
    }
}
