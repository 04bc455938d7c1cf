//! The prefaces: what both ends of a connection say in clear before the handshake.
//!
//! ```text
//! caller   "gannet" | u8 version | u8 role | u8 1 if it has a key     | 15 bytes: 0
//! called   "gannet" | u8 version | u8 0    | u8 why it refuses, or 0  | 15 bytes: 0
//! ```
//! The caller's preface is bound into the handshake, so a preface that was changed on the way ends the handshake. The answer of
//! the called process is not: whoever can forge a refusal can break connections anyway.
//!
//! A preface has 24 bytes because the hello of clients up to version 3 had as many, with the version at the same place: such a
//! client reads this version from the answer.
//!
//! *Not here*: the handshake, in `handshake.rs`.

use crate::link::{LinkError, Role, VERSION};

const MAGIC: [u8; 6] = *b"gannet";
/// Bytes of a preface.
pub(super) const PREFACE_BYTES: usize = 24;
pub(super) type Preface = [u8; PREFACE_BYTES];

/// Why a called process refuses a caller before the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The caller speaks another version.
    Version = 1,
    /// The port is for another role.
    Role = 2,
    /// The called process has a key, and the caller has none.
    KeyWanted = 3,
    /// The caller has a key, and the called process has none.
    NoKeyWanted = 4,
    /// Both have keys, which differ.
    Key = 5,
}

impl Refusal {
    const ALL: [Self; 5] =
        [Self::Version, Self::Role, Self::KeyWanted, Self::NoKeyWanted, Self::Key];
}

fn preface(role: u8, last: u8) -> Preface {
    let mut preface = [0; PREFACE_BYTES];
    preface[..MAGIC.len()].copy_from_slice(&MAGIC);
    preface[MAGIC.len()..][..3].copy_from_slice(&[VERSION, role, last]);
    preface
}

/// The version, and the two bytes behind it.
fn parts(preface: &Preface) -> Result<[u8; 2], LinkError> {
    match *preface {
        _ if preface[..MAGIC.len()] != MAGIC => Err(LinkError::Malformed),
        [_, _, _, _, _, _, VERSION, first, second, ..] => Ok([first, second]),
        [_, _, _, _, _, _, version, ..] => Err(LinkError::Version(version)),
    }
}

/// The preface of a caller.
pub(super) fn calling(role: Role, has_key: bool) -> Preface {
    preface(role as u8, u8::from(has_key))
}

/// The preface of a called process.
pub(super) fn answering(refusal: Option<Refusal>) -> Preface {
    preface(0, refusal.map_or(0, |refusal| refusal as u8))
}

/// Whether the caller with this preface may go on at a port for `role`; if not, what it is told, and what is logged.
pub(super) fn judge(
    caller: &Preface,
    role: Role,
    has_key: bool,
) -> Result<(), (Refusal, LinkError)> {
    let [of, keyed] = parts(caller).map_err(|error| (Refusal::Version, error))?;
    match (of == role as u8, keyed, has_key) {
        (false, ..) => Err((Refusal::Role, LinkError::Role)),
        (true, 0, true) => Err((Refusal::KeyWanted, LinkError::NoKeyWanted)),
        (true, 1, false) => Err((Refusal::NoKeyWanted, LinkError::KeyWanted)),
        (true, 0 | 1, _) => Ok(()),
        (true, ..) => Err((Refusal::Version, LinkError::Malformed)),
    }
}

/// Whether the called process goes on; if not, why.
pub(super) fn verdict(called: &Preface) -> Result<(), LinkError> {
    let [_, reason] = parts(called)?;
    match Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == reason) {
        None if reason == 0 => Ok(()),
        // It names no other version, so the caller's preface was damaged.
        None | Some(Refusal::Version) => Err(LinkError::Malformed),
        Some(Refusal::Role) => Err(LinkError::Role),
        Some(Refusal::KeyWanted) => Err(LinkError::KeyWanted),
        Some(Refusal::NoKeyWanted) => Err(LinkError::NoKeyWanted),
        Some(Refusal::Key) => Err(LinkError::Key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_of_another_version_role_or_key_is_refused() {
        for has_key in [false, true] {
            let caller = calling(Role::Client, has_key);
            assert_eq!(judge(&caller, Role::Client, has_key).ok(), Some(()));
            assert_eq!(judge(&caller, Role::Member, has_key).err().unwrap().0, Refusal::Role);
            assert!(judge(&caller, Role::Client, !has_key).is_err());
            let mut other = caller;
            other[6] += 1;
            let (refusal, error) = judge(&other, Role::Client, has_key).err().unwrap();
            assert_eq!(refusal, Refusal::Version);
            let text = error.to_string();
            assert!(text.contains(&format!("version {}", VERSION + 1)), "{text}");
            assert!(text.contains(&format!("version {VERSION}")), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_read_as_it_was_written() {
        assert!(verdict(&answering(None)).is_ok());
        for refusal in Refusal::ALL {
            assert!(verdict(&answering(Some(refusal))).is_err(), "{refusal:?}");
        }
        let unknown = |last| verdict(&preface(0, last));
        assert!(matches!(unknown(77), Err(LinkError::Malformed)));
        assert!(matches!(verdict(&[0; PREFACE_BYTES]), Err(LinkError::Malformed)));
    }
}
