//! When a server stops: at the first signal, unless rows would be lost that the other nodes go on without; then at the second.
//!
//! ```text
//! signal, or CALL gannet_restart_node ─▶ the others hear of it ─▶ the cluster ends as a whole, or keeps a copy of each row ─▶ stop
//!                                    this node has the only copy of some rows
//!                                      for 2 s: perhaps the others are told to stop as well
//!                                      then a line in the log; the node goes on until ─▶ a second signal, or all others stop
//! ```
//! *Invariant*: a second signal always stops the server.
//!
//! *Not here*: what would be lost, in the engine (`Cluster::lost_by_stop`); what a stopping server does with its clients, beside this file.

use std::sync::Arc;
use std::time::Duration;

use gannet_engine::OnlyCopies;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use gannet_frontend::{Database, TransactionStatus};

/// Between two looks at the other nodes; also how long they have to say that they were told to stop at the same moment.
const LOOK: Duration = Duration::from_millis(50);
/// Looks until the log says why the node goes on: 2 s.
const LOOKS_BEFORE_LINE: u32 = 40;
/// Tables that the line names.
const TABLES_NAMED_MAX: usize = 10;

/// Whether a server stops, as its sessions see it: each is told so (57P01), and ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopping {
    /// It serves.
    No,
    /// Sessions end between two transactions.
    BetweenTransactions,
    /// Sessions end, in the middle of a transaction, too.
    Now,
}

impl Stopping {
    /// Whether a session that waits for its client ends.
    pub(super) fn ends(self, status: TransactionStatus) -> bool {
        match self {
            Self::No => false,
            Self::BetweenTransactions => status == TransactionStatus::Idle,
            Self::Now => true,
        }
    }
}

/// The signals that stop a server.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// From now on they do not end the process at once.
    pub(super) fn new() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Why a server has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A signal said so.
    BySignal,
    /// It is to be started again, as an operator said at some node.
    ToRestart,
}

/// Completes when the server is to stop; see the module's text.
pub(super) async fn stopped(mut signals: StopSignals, database: Arc<Database>) -> Stopped {
    let restart = Arc::new(Notify::new());
    let wanted = Arc::clone(&restart);
    database.cluster().on_restart(move || wanted.notify_one());
    let stopped = tokio::select! {
        () = signals.next() => Stopped::BySignal,
        () = restart.notified() => Stopped::ToRestart,
    };
    if !database.cluster().announce_stop() {
        return stopped;
    }
    let mut looks = 0;
    loop {
        tokio::select! {
            () = signals.next() => return Stopped::BySignal,
            () = tokio::time::sleep(LOOK) => {}
        }
        let Some(lost) = database.cluster().lost_by_stop() else { return stopped };
        looks += 1;
        if looks == LOOKS_BEFORE_LINE {
            tracing::warn!("{}", line(&lost, database.table_names()));
        }
    }
}

/// What is lost at the second signal, with the known tables.
fn line(lost: &OnlyCopies, mut tables: Vec<String>) -> String {
    let more = tables.len().saturating_sub(TABLES_NAMED_MAX);
    tables.truncate(TABLES_NAMED_MAX);
    let rows = match (tables.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(", with rows of {}", tables.join(", ")),
        (false, more) => format!(", with rows of {} and {more} more tables", tables.join(", ")),
    };
    format!("{lost}{rows}; stop it again to lose them, or stop all nodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_some_tables() {
        let lost = OnlyCopies { node: 1, partitions: vec![3], of: 16 };
        let named = |tables: &[&str]| line(&lost, tables.iter().map(ToString::to_string).collect());
        let start = "node 1 has the only copy of 1 of 16 partitions (3)";
        let end = "; stop it again to lose them, or stop all nodes";
        assert_eq!(named(&[]), format!("{start}{end}"));
        assert_eq!(named(&["a", "b"]), format!("{start}, with rows of a, b{end}"));
        let many = named(&["t"; 12]);
        assert!(many.contains("t, t and 2 more tables;"), "{many}");
    }
}
