//! The options of `gannet bench recovery`.
//!
//! ```text
//! one process    TATP in it, Cluster::kill_node        gannet_benchmarks::recovery
//! --processes    clients of `gannet serve`, kill -9    processes
//! ```
//! *Not here*: the measurement (`gannet_benchmarks::recovery`).

mod processes;

use std::time::Duration;

use clap::Args;
use gannet_benchmarks::recovery::{self, RecoveryReport, RecoverySettings};
use gannet_benchmarks::{BenchmarkError, Settings};
use gannet_tatp::Tatp;

use super::{CommandError, Common};
use crate::processes::TransportName;
use crate::units::parse_duration;
pub(crate) use processes::RecoveryError;

/// Options of the benchmark of recovery.
#[derive(Args)]
pub(super) struct RecoveryArguments {
    /// Kills, each of a node of a fresh cluster; nodes take turns.
    #[arg(long, default_value_t = 12)]
    kills: usize,
    /// TATP's subscribers; between processes, rows that clients change.
    #[arg(long, default_value_t = 100_000)]
    subscribers: u64,
    /// How long a partition may take to come back.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Clients that change rows, between processes.
    #[arg(long, default_value_t = 8)]
    clients: usize,
}

impl RecoveryArguments {
    /// Runs it on clusters with these settings.
    pub(super) fn run(
        &self,
        common: &Common,
        mut settings: Settings,
    ) -> Result<RecoveryReport, CommandError> {
        let is_apart = common.processes.starts();
        if is_apart {
            // Nodes in processes of their own share the cores.
            settings.cluster.threads = common.threads.unwrap_or(1);
        }
        let settings = RecoverySettings {
            cluster: settings.cluster,
            kills: self.kills,
            warmup: settings.warmup,
            timeout: self.timeout,
            seed: settings.seed,
        };
        let mut report = if is_apart {
            settings.check()?;
            self.check_clients()?;
            let transport = common.processes.transport.unwrap_or(TransportName::Udp);
            let lease = common.processes.lease();
            processes::run(&settings, self.subscribers, self.clients, (transport, lease))?
        } else {
            let tatp = || Tatp::new(self.subscribers, false, settings.seed);
            recovery::run(tatp, &settings)?
        };
        report.settings.insert("subscribers", self.subscribers.to_string());
        Ok(report)
    }
    fn check_clients(&self) -> Result<(), BenchmarkError> {
        for (setting, is_none) in
            [("--subscribers", self.subscribers == 0), ("--clients", self.clients == 0)]
        {
            if is_none {
                let (value, allowed) = ("0".to_owned(), "at least 1".to_owned());
                return Err(BenchmarkError::Setting { setting, value, allowed });
            }
        }
        Ok(())
    }
}
