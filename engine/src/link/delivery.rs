//! Delivery: messages that outlive the connection that they were said on.
//!
//! ```text
//! message    number, if it is kept | number of the last one heard | body
//! ```
//! Each end numbers its messages, and keeps them until the other says that it has heard them. On a new connection each end tells
//! the number that it has heard last, and the other says again what follows. So kept messages arrive in order, none twice
//! and none lost, whatever connections break. A message that is not kept may be lost with its connection, as a report may.
//!
//! *Invariants*: bytes in, bytes out; no socket and no clock. At most [`KEPT_MAX`] messages are kept.

use std::collections::VecDeque;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::link::LinkError;
use crate::link::frame::MESSAGE_BYTES_MAX;
use crate::link::session::{decoded, encoded};

/// Messages that the other has not heard yet.
const KEPT_MAX: usize = 4_096;

/// What two ends have said to each other, at one of them.
#[derive(Default)]
pub(crate) struct Delivery {
    /// Number of the last message that was kept.
    said: u64,
    /// Messages that the other may not have heard, with their numbers.
    kept: VecDeque<(u64, Vec<u8>)>,
    /// Number of the last message of the other that was heard.
    heard: u64,
}

#[derive(Serialize, Deserialize)]
struct Message<T> {
    number: Option<u64>,
    heard: u64,
    body: T,
}

impl Delivery {
    /// A message that is kept until the other has heard it.
    ///
    /// # Errors
    /// [`LinkError::Silent`] if the other has not heard too many, [`LinkError::TooLong`] for a message that no frames hold.
    pub(crate) fn keep(&mut self, body: &impl Serialize) -> Result<&[u8], LinkError> {
        if self.kept.len() == KEPT_MAX {
            return Err(LinkError::Silent);
        }
        let number = self.said + 1;
        let message = encoded(&Message { number: Some(number), heard: self.heard, body })?;
        // No connection would ever take it.
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(LinkError::TooLong);
        }
        self.said = number;
        self.kept.push_back((number, message));
        Ok(self.kept.back().map_or(&[], |(_, message)| message))
    }

    /// A message that may be lost with its connection.
    pub(crate) fn pass(&self, body: &impl Serialize) -> Result<Vec<u8>, LinkError> {
        encoded(&Message { number: None, heard: self.heard, body })
    }

    /// Takes a message of the other; none if it was heard before.
    pub(crate) fn hear<T: DeserializeOwned>(
        &mut self,
        message: &[u8],
    ) -> Result<Option<T>, LinkError> {
        let Message { number, heard, body } = decoded(message)?;
        self.forget(heard)?;
        match number {
            None => Ok(Some(body)),
            Some(number) if number <= self.heard => Ok(None),
            Some(number) if number == self.heard + 1 => {
                self.heard = number;
                Ok(Some(body))
            }
            Some(_) => Err(LinkError::Malformed),
        }
    }

    /// Number of the last message of the other that was heard, to be told on a new connection.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// What is to be said again on a new connection, on which the other has told what it has heard.
    pub(crate) fn again(&mut self, heard: u64) -> Result<impl Iterator<Item = &[u8]>, LinkError> {
        self.forget(heard)?;
        Ok(self.kept.iter().map(|(_, message)| &message[..]))
    }

    /// Forgets what the other has heard.
    fn forget(&mut self, heard: u64) -> Result<(), LinkError> {
        if heard > self.said {
            return Err(LinkError::Malformed);
        }
        while self.kept.front().is_some_and(|(number, _)| *number <= heard) {
            self.kept.pop_front();
        }
        Ok(())
    }
}
