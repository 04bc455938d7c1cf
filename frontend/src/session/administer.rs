//! What an operator does with the cluster: CALL runs it on a thread of its own, because it waits until all nodes go by it.
//!
//! *Invariants*: a statement that is cancelled meanwhile has perhaps been done. To do it twice is to do it once. The number of threads is
//! bounded.
//!
//! *Not here*: the procedures, in `plan::administer`.

use std::sync::Arc;

use gannet_engine::{ChangeError, ClusterError};
use tokio::sync::oneshot;

use crate::error::SqlError;
use crate::plan::administer::Administration;
use crate::session::command::done;
use crate::session::run::canceled;
use crate::session::{Session, StatementResult, TransactionStatus};

impl Session {
    /// Does it, and waits until it is decided.
    pub(super) async fn administer(
        &mut self,
        administration: Administration,
    ) -> Result<StatementResult, SqlError> {
        if self.status != TransactionStatus::Idle {
            let message = "nodes cannot be drained, removed, given up or restarted inside a transaction block";
            return Err(SqlError::new("25001", message).with_hint("end it first"));
        }
        self.refuse_token("CALL")?;
        let permit = Arc::clone(&self.database.administrations).try_acquire_owned();
        let permit = permit.map_err(|_| {
            SqlError::new("53000", "too many calls at this node wait for the cluster")
                .with_hint("gannet_nodes tells which node is silent; CALL it at another node")
        })?;
        let cluster = Arc::clone(&self.database.cluster);
        let (sender, decided) = oneshot::channel();
        let decide = move || {
            let result = match administration {
                Administration::Drain { node, is_drained } => cluster.drain_node(node, is_drained),
                Administration::Remove { node, loses_rows } => {
                    cluster.remove_node(node, loses_rows)
                }
                Administration::GiveUp { nodes } => cluster.give_up_nodes(&nodes),
                Administration::Restart { node } => cluster.restart_node(node),
            };
            drop(permit);
            // The session may have ended meanwhile.
            let _ = sender.send(result);
        };
        let thread = std::thread::Builder::new().name("gannet-administer".to_owned());
        thread.spawn(decide).map_err(|error| {
            SqlError::new("53000", format!("no thread to wait for the cluster: {error}"))
        })?;
        match self.cancel.unless_given_up(decided).await {
            None => Err(canceled().with_hint("it may happen all the same; gannet_nodes tells")),
            Some(Ok(Ok(()))) => Ok(done("CALL")),
            Some(Ok(Err(error))) => Err(refusal(&error)),
            Some(Err(_)) => Err(SqlError::new("XX000", "the cluster could not be changed")),
        }
    }
}

fn refusal(error: &ClusterError) -> SqlError {
    let code = match error {
        ClusterError::OneProcess => "0A000",
        ClusterError::Change(ChangeError::NoSuchMember(_)) => "22023",
        ClusterError::Join(_) => "57P03",
        _ => "55000",
    };
    let refused = SqlError::new(code, error.to_string());
    match error {
        ClusterError::Change(ChangeError::NoSuchMember(node)) => refused.with_hint(format!(
            "gannet_nodes lists the members; a process becomes node {node} by gannet serve --node {node} --join ..."
        )),
        _ => refused,
    }
}
