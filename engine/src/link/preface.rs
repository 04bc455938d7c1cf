//! The prefaces: what both ends of a connection say in clear before the handshake.
//!
//! ```text
//! caller   "gannet" | u8 version | u8 role | u8 1 if it has a key     | 15 bytes: 0
//! called   "gannet" | u8 version | u8 0    | u8 why it refuses, or 0  | 15 bytes: 0
//! ```
//! The caller's preface is bound into the handshake, so a preface that was changed on the way ends the handshake. The answer
//! of the called process is not: an attacker who can forge a refusal can break connections anyway.
//!
//! A preface has 24 bytes because the hello of clients up to version 3 had as many, with the version at the same place: such a
//! client reads this version from the answer.
//!
//! Members up to version 3 said frames of JSON. A called member knows the first bytes of such a frame, and answers with one, so that the
//! caller reads both versions there:
//!
//! ```text
//! u32 length of the text | u8 1 if it is authenticated | text: JSON | 32 bytes: tag, or 0
//! ```
//! *Not here*: the handshake, in `handshake.rs`.

use crate::link::{LinkError, Role, VERSION};

const MAGIC: [u8; 6] = *b"gannet";
/// Bytes of a preface.
pub(super) const PREFACE_BYTES: usize = 24;
pub(super) type Preface = [u8; PREFACE_BYTES];

/// Version of the members that said frames of JSON.
const JSON_VERSION: u8 = 3;
/// Bytes of the tag of such a frame.
const JSON_TAG_BYTES: usize = 32;

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
        [_, _, 0, 0, 0 | 1, b'{', b'"', ..] => Err(LinkError::Version(JSON_VERSION)),
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

/// What a called process says that refuses the caller with this preface.
pub(super) fn refusing(caller: &Preface, refusal: Refusal, error: &LinkError) -> Vec<u8> {
    let is_of_json = caller[..MAGIC.len()] != MAGIC && matches!(error, LinkError::Version(_));
    if !is_of_json {
        return answering(Some(refusal)).to_vec();
    }
    let text = format!(r#"{{"Refused":{{"reason":"{error}"}}}}"#);
    let length = u32::try_from(text.len()).expect("the text is short");
    [&length.to_le_bytes(), &[0][..], text.as_bytes(), &[0; JSON_TAG_BYTES]].concat()
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
    fn a_member_that_says_json_and_this_one_read_both_versions() {
        let text = br#"{"Hello":{"node":1,"incarnation":7,"nonce":[1,2],"settings":{}}}"#;
        let mut hello = vec![u8::try_from(text.len()).unwrap(), 0, 0, 0, 1];
        hello.extend_from_slice(text);
        let caller = *hello.first_chunk().unwrap();
        let (refusal, error) = judge(&caller, Role::Member, true).err().unwrap();
        let answer = refusing(&caller, refusal, &error);
        // The length, no seal, and the text.
        let length = usize::from(answer[0]);
        assert_eq!((&answer[1..5], answer.len()), (&[0; 4][..], 5 + length + JSON_TAG_BYTES));
        let text = std::str::from_utf8(&answer[5..][..length]).unwrap();
        let versions =
            format!("version {JSON_VERSION} of the protocol, and this is version {VERSION}");
        assert!(text.contains(&versions) && error.to_string().contains(&versions), "{text}");
        // Such a member refuses this one in clear.
        let refused = verdict(answer.first_chunk().unwrap());
        assert!(matches!(refused, Err(LinkError::Version(JSON_VERSION))));
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
