//! A session: one connection of a link as a state machine. Bytes of the other go in, messages come out, and the other way round.
//!
//! ```text
//! handshake ─▶ the caller's opening ─▶ the welcome of the called process ─▶ messages, both ways
//! ```
//! The opening shows that the caller took part in this very handshake. Until then nothing long is heard from the caller.
//!
//! *Invariants*: no socket and no clock: [`stream`](super::stream) has them, and a simulation has others. After an error
//! nothing is heard any more.
//!
//! *Not here*: what outlives a connection, in `delivery.rs`; what messages mean, which a [`User`](super::User) knows.

use gannet_rpc::ClusterKey;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::link::frame::{Opener, Sealer, directions};
use crate::link::handshake::{Handshake, Progress};
use crate::link::{LinkError, Role};

/// One connection of a link.
pub(crate) struct Session {
    stage: Stage,
    /// What this end says, until it is sent.
    said: Vec<u8>,
}

enum Stage {
    Handshake {
        handshake: Handshake,
        heard: Vec<u8>,
        /// What a caller says first behind the handshake.
        opening: Option<Vec<u8>>,
    },
    Open(Sealer, Opener),
    Failed,
}

impl Session {
    /// The session of a caller, which opens with these words.
    pub(crate) fn call(
        role: Role,
        key: Option<&ClusterKey>,
        opening: &impl Serialize,
    ) -> Result<Self, LinkError> {
        let mut said = Vec::new();
        let handshake = Handshake::call(role, key, &mut said)?;
        let opening = Some(encoded(opening)?);
        Ok(Self { stage: Stage::Handshake { handshake, heard: Vec::new(), opening }, said })
    }

    /// The session of a called process.
    pub(crate) fn answer(role: Role, key: Option<&ClusterKey>) -> Self {
        let handshake = Handshake::answer(role, key);
        let stage = Stage::Handshake { handshake, heard: Vec::new(), opening: None };
        Self { stage, said: Vec::new() }
    }

    /// Takes bytes of the other, as they come.
    ///
    /// # Errors
    /// Why the connection must end, after [`Self::take_said`] was sent, which may tell the other.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Handshake { handshake, mut heard, opening } => {
                heard.extend_from_slice(bytes);
                self.stage = match handshake.proceed(&mut heard, &mut self.said)? {
                    Progress::Waiting(handshake) => Stage::Handshake { handshake, heard, opening },
                    Progress::Done(ciphers) => {
                        let (mut sealer, mut opener) = directions(ciphers, heard);
                        if let Some(opening) = opening {
                            // The called process took part in the handshake, as its message shows.
                            opener.trust();
                            sealer.seal(&opening, &mut self.said)?;
                        }
                        Stage::Open(sealer, opener)
                    }
                };
                Ok(())
            }
            Stage::Open(sealer, mut opener) => {
                opener.hear(bytes);
                self.stage = Stage::Open(sealer, opener);
                Ok(())
            }
            Stage::Failed => Err(LinkError::Ended),
        }
    }

    /// The next message of the other, if all of it was heard. The first one is the opening or the welcome.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        match &mut self.stage {
            Stage::Handshake { .. } => Ok(None),
            Stage::Open(_, opener) => {
                let next = opener.next();
                if next.is_err() {
                    self.stage = Stage::Failed;
                }
                next
            }
            Stage::Failed => Err(LinkError::Ended),
        }
    }

    /// The caller's opening was accepted: its messages may be long.
    pub(crate) fn trust(&mut self) {
        if let Stage::Open(_, opener) = &mut self.stage {
            opener.trust();
        }
    }

    /// Says a message, behind the handshake.
    pub(crate) fn say(&mut self, message: &[u8]) -> Result<(), LinkError> {
        match &mut self.stage {
            Stage::Open(sealer, _) => sealer.seal(message, &mut self.said),
            Stage::Handshake { .. } | Stage::Failed => Err(LinkError::Ended),
        }
    }

    /// Takes the bytes that are to be sent now.
    pub(crate) fn take_said(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.said)
    }

    /// The two directions, behind the handshake, for a thread each.
    pub(crate) fn split(self) -> Result<(Sealer, Opener), LinkError> {
        match self.stage {
            Stage::Open(sealer, opener) => Ok((sealer, opener)),
            Stage::Handshake { .. } | Stage::Failed => Err(LinkError::Ended),
        }
    }
}

/// A message as bytes.
pub(crate) fn encoded(message: &impl Serialize) -> Result<Vec<u8>, LinkError> {
    postcard::to_stdvec(message).map_err(|_| LinkError::Malformed)
}

/// A message of these bytes, all of them.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, LinkError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(LinkError::Malformed),
    }
}
