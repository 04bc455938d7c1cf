//! The options of `gannet bench rpc`.
//!
//! Over UDP, the nodes are two threads on a core each, or two processes. Processes that share memory meet at the first
//! address of the members.
//!
//! *Not here*: the echo itself (`gannet_microbenchmarks::rpc_echo`).

use clap::Args;
use gannet_benchmarks::{BenchmarkError, Report};
use gannet_microbenchmarks::rpc_echo::{self, EchoSettings, EchoTransport};

use super::Common;
use crate::processes::TransportName;

/// Options of the RPC echo.
#[derive(Args)]
pub(super) struct RpcArguments {
    /// Requests per batch.
    #[arg(long, default_value_t = 11)]
    batch: usize,
    /// Encrypt datagrams, with a key of the benchmark's own.
    #[arg(long)]
    key: bool,
}

impl RpcArguments {
    pub(super) fn run(&self, common: &Common, threads: usize) -> Result<Report, BenchmarkError> {
        let transport = common.processes.transport.unwrap_or(TransportName::Memory);
        if self.key && transport != TransportName::Udp {
            return Err(BenchmarkError::Setting {
                setting: "--key",
                value: "true".to_owned(),
                allowed: "--transport udp: memory is not sealed, and RDMA neither".to_owned(),
            });
        }
        if common.processes.has_key() {
            return Err(BenchmarkError::Setting {
                setting: "--cluster-key",
                value: "a file".to_owned(),
                allowed: "--key, which is the benchmark's own".to_owned(),
            });
        }
        let transport = match (transport, common.processes.across()) {
            (TransportName::Memory, None) => EchoTransport::Memory,
            (TransportName::Memory, Some(across)) => EchoTransport::MemoryAcross(across),
            (TransportName::Udp, None) => EchoTransport::Udp,
            (TransportName::Udp, Some(across)) => EchoTransport::UdpAcross(across),
            #[cfg(feature = "verbs")]
            (TransportName::Verbs, None) => EchoTransport::Verbs(common.processes.rdma_devices()),
            (TransportName::Verbs, _) => {
                return Err(BenchmarkError::Setting {
                    setting: "--transport",
                    value: "verbs".to_owned(),
                    allowed: "a build with the feature verbs, and both nodes here".to_owned(),
                });
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
