//! A question for the terms of a cluster, by a process that joins: its command names a few members, and none of the terms.
//!
//! ```text
//! ask_members ─ Opening::Question ─▶ a member of a cluster that has begun ─ Welcome::Terms ─▶ ClusterTerms ─▶ Membership
//! ```
//! *Invariant*: a process that has asked never founds a cluster.
//!
//! *Not here*: how the process is let in then, in `coming_back.rs`.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use gannet_rpc::{BootClock, Clock, ClusterKey};

use crate::link::{Connection, LinkError};
use crate::members::calls::Speaker;
use crate::members::membership::JoinError;
use crate::members::message::{Opening, Welcome};
use crate::members::terms::ClusterTerms;

/// Longest wait for a connection to a member that is asked.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two rounds of questions.
const ASK_INTERVAL: Duration = Duration::from_millis(200);

/// Asks members for the terms of their cluster, one after the other and again, until one answers that is a member of a cluster which has begun.
///
/// # Errors
/// [`JoinError::NobodyAnswers`] after `timeout`, and [`JoinError::Stranger`] at once if one that answers has another key or another version.
pub fn ask_members(
    addresses: &[SocketAddr],
    key: Option<&ClusterKey>,
    timeout: Duration,
) -> Result<ClusterTerms, JoinError> {
    let began_ns = BootClock.now_ns();
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let mut reason = String::new();
    loop {
        for address in addresses {
            let (error, is_final) = match ask(*address, key) {
                Ok(Welcome::Terms(terms)) => return Ok(*terms),
                Ok(Welcome::NotYet(why)) => (why, false),
                Ok(_) => ("it is about to stop".to_owned(), false),
                Err(error) => (error.to_string(), is_final(&error)),
            };
            let is_first = reason.is_empty();
            reason = format!("{address}: {error}");
            if is_final {
                return Err(JoinError::Stranger { reason });
            }
            if is_first {
                tracing::info!("waiting for a member of the cluster: {reason}");
            }
        }
        if BootClock.now_ns().saturating_sub(began_ns) >= timeout_ns {
            return Err(JoinError::NobodyAnswers { reason, seconds: timeout.as_secs() });
        }
        std::thread::park_timeout(ASK_INTERVAL);
    }
}

fn ask(address: SocketAddr, key: Option<&ClusterKey>) -> Result<Welcome, LinkError> {
    let stream = TcpStream::connect_timeout(&address, CALL_TIMEOUT)?;
    Connection::call::<Speaker<'_>>(stream, key, &Opening::Question).map(|(_, welcome)| welcome)
}

/// Whether another answer is of no use: the one who answers is not of this cluster, or the key is wrong.
fn is_final(error: &LinkError) -> bool {
    !matches!(error, LinkError::Ended | LinkError::TimedOut | LinkError::Broken(_))
}
