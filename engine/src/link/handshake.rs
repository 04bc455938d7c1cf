//! The handshake of a connection: prefaces, and a Noise handshake that gives each direction a key of its own.
//!
//! ```text
//! caller                                      called
//! preface, Noise: [psk] e ──────────────────▶ same version and role, same key
//!                         ◀────────────────── preface, Noise: e, ee
//! ```
//! With a key the pattern is NNpsk0: both ends show that they have the key, and an attacker who learns the key afterwards
//! cannot read what they say later. Without a key it is NN, which keeps out nobody who can change what passes on the network.
//! A Noise message is preceded by its length (u16, little-endian). The psk is derived from the key and the role, so a key of
//! clients makes no member, even if a member's port hears it.
//!
//! *Source*: the Noise Protocol Framework, revision 34, sections 5, 7.5 and 9, by the crate `snow`.
//!
//! *Invariants*: bytes in, bytes out; no socket and no clock. The called process answers the first message of a caller without
//! its key with a refusal, before it computes anything on a curve. The caller of a replayed first message never proves itself:
//! it can seal nothing behind the handshake, and nobody is trusted before something sealed was heard.
//!
//! *Not here*: what is said behind the handshake, in `session.rs`.

use gannet_rpc::ClusterKey;
use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::link::preface::{
    PREFACE_BYTES, Preface, Refusal, answering, calling, judge, refusing, verdict,
};
use crate::link::{LinkError, Role};

const WITH_KEY: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const WITHOUT_KEY: &str = "Noise_NN_25519_AESGCM_SHA256";
/// Longest message of the two patterns: a public key, and the tag of an empty text.
const NOISE_BYTES_MAX: usize = 32 + 16;
/// Of a length.
const LENGTH_BYTES: usize = 2;

/// A handshake under way: what this end waits for.
pub(super) enum Handshake {
    /// The preface and the first message of a caller.
    Called { role: Role, key: Option<ClusterKey> },
    /// The preface and the message of the called process.
    Calling { noise: Box<HandshakeState> },
}

/// How far a handshake has come.
pub(super) enum Progress {
    /// More must be heard.
    Waiting(Handshake),
    /// The ciphers of both directions.
    Done(StatelessTransportState),
}

impl Handshake {
    /// The handshake of a caller, which says this first.
    pub(super) fn call(
        role: Role,
        key: Option<&ClusterKey>,
        said: &mut Vec<u8>,
    ) -> Result<Self, LinkError> {
        let preface = calling(role, key.is_some());
        let mut noise = noise(&preface, role, key, true)?;
        said.extend_from_slice(&preface);
        write(&mut noise, said)?;
        Ok(Self::Calling { noise: Box::new(noise) })
    }

    /// The handshake of a called process.
    pub(super) fn answer(role: Role, key: Option<&ClusterKey>) -> Self {
        Self::Called { role, key: key.cloned() }
    }

    /// Takes what the other has said from the front of `heard` when all of it has come, and says the answer, or why it refuses.
    pub(super) fn proceed(
        self,
        heard: &mut Vec<u8>,
        said: &mut Vec<u8>,
    ) -> Result<Progress, LinkError> {
        let Some(preface) = heard.first_chunk::<PREFACE_BYTES>().copied() else {
            return Ok(Progress::Waiting(self));
        };
        let mut refuse = |(refusal, error)| {
            said.extend_from_slice(&refusing(&preface, refusal, &error));
            error
        };
        match &self {
            Self::Called { role, key } => {
                judge(&preface, *role, key.is_some()).map_err(&mut refuse)?;
            }
            Self::Calling { .. } => verdict(&preface)?,
        }
        let Some(message) = message(&heard[PREFACE_BYTES..])? else {
            return Ok(Progress::Waiting(self));
        };
        let wrong_key = |_| (Refusal::Key, LinkError::Key);
        let noise = match self {
            Self::Called { role, key } => {
                let mut noise = noise(&preface, role, key.as_ref(), false)?;
                read(&mut noise, message).map_err(wrong_key).map_err(refuse)?;
                said.extend_from_slice(&answering(None));
                write(&mut noise, said)?;
                noise
            }
            Self::Calling { mut noise } => {
                read(&mut noise, message).map_err(|_| LinkError::Key)?;
                *noise
            }
        };
        let end = PREFACE_BYTES + LENGTH_BYTES + message.len();
        heard.drain(..end);
        Ok(Progress::Done(noise.into_stateless_transport_mode().map_err(cipher)?))
    }
}

/// What the system refuses to the ciphers, such as random bytes.
fn cipher(error: snow::Error) -> LinkError {
    LinkError::Cipher(error.to_string())
}

fn noise(
    preface: &Preface,
    role: Role,
    key: Option<&ClusterKey>,
    is_caller: bool,
) -> Result<HandshakeState, LinkError> {
    let pattern = if key.is_some() { WITH_KEY } else { WITHOUT_KEY };
    let key = key.map(|key| key.derived(role.purpose()));
    let build = || {
        let builder = Builder::new(pattern.parse()?).prologue(preface)?;
        let builder = match &key {
            Some(key) => builder.psk(0, key)?,
            None => builder,
        };
        if is_caller { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map_err(cipher)
}

/// The Noise message at the front of `bytes`, if all of it is there.
fn message(bytes: &[u8]) -> Result<Option<&[u8]>, LinkError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*length));
    if length > NOISE_BYTES_MAX {
        return Err(LinkError::Malformed);
    }
    Ok(rest.get(..length))
}

fn read(noise: &mut HandshakeState, message: &[u8]) -> Result<usize, snow::Error> {
    noise.read_message(message, &mut [0; NOISE_BYTES_MAX])
}

/// Says the next Noise message.
fn write(noise: &mut HandshakeState, said: &mut Vec<u8>) -> Result<(), LinkError> {
    let mut message = [0; NOISE_BYTES_MAX];
    let length = noise.write_message(&[], &mut message).map_err(cipher)?;
    let prefix = u16::try_from(length).expect("at most 48");
    said.extend_from_slice(&prefix.to_le_bytes());
    said.extend_from_slice(&message[..length]);
    Ok(())
}
