//! Requests between coordinator and participants, and their answers, as bytes.
//!
//! ```text
//! READ      u16 table | u16 0         | u32 0      | u64 key     | u64 owner
//! LOCK      u16 table | u16 mode      | u32 0      | u64 key     | u64 owner
//! VALIDATE  u16 table | u16 partition | u32 bucket | u64 version | u64 owner
//! UNLOCK    u16 table | u16 partition | u32 bucket | u64 0       | u64 owner
//! LOG       a commit record           BACKUP, PRIMARY   a unit
//!
//! answer to READ and LOCK, where it has one: u64 version | value
//! ```
//! *Source*: FaSST section 5, figure 6.

use gannet_storage::{LockMode, Owner};

pub(crate) const READ: u16 = 1;
pub(crate) const LOCK: u16 = 2;
pub(crate) const VALIDATE: u16 = 3;
pub(crate) const LOG: u16 = 4;
pub(crate) const BACKUP: u16 = 5;
pub(crate) const PRIMARY: u16 = 6;
pub(crate) const UNLOCK: u16 = 7;

/// Modes of LOCK.
pub(crate) const UPDATE: u16 = 1;
pub(crate) const INSERT: u16 = 2;
pub(crate) const DELETE: u16 = 3;

/// Bytes of a request about one key or bucket.
pub(crate) const KEY_REQUEST_BYTES: usize = 24;
/// Bytes before the value in an answer to READ or LOCK.
pub(crate) const VERSION_BYTES: usize = 8;

/// What a participant answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Status {
    /// LOG, BACKUP, PRIMARY, UNLOCK: done, now or before. VALIDATE: unchanged.
    Done = 1,
    /// READ: found, with version and value.
    Found = 2,
    /// READ, LOCK for update or delete: no such key, with version.
    Absent = 3,
    /// LOCK: granted, with version, and value for update and delete.
    Granted = 4,
    /// LOCK for insert: the key is there, with version and value.
    Exists = 5,
    /// READ, LOCK, VALIDATE: another transaction holds the bucket.
    Locked = 6,
    /// VALIDATE: another version.
    Changed = 7,
    /// LOCK for insert: no memory.
    Full = 8,
    /// BACKUP: an earlier update is missing at this copy.
    Gap = 9,
    /// The request names a table, partition or bucket that is not here, or is malformed.
    Refused = 10,
}

impl Status {
    #[inline]
    pub(crate) fn from_wire(status: u16) -> Self {
        match status {
            1 => Self::Done,
            2 => Self::Found,
            3 => Self::Absent,
            4 => Self::Granted,
            5 => Self::Exists,
            6 => Self::Locked,
            7 => Self::Changed,
            8 => Self::Full,
            9 => Self::Gap,
            _ => Self::Refused,
        }
    }
}

/// A request about one key or one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRequest {
    pub(crate) table: u16,
    /// Lock mode, or partition.
    pub(crate) detail: u16,
    pub(crate) bucket: u32,
    /// Key, or version.
    pub(crate) key: u64,
    pub(crate) owner: Owner,
}

impl KeyRequest {
    #[inline(always)]
    pub(crate) fn encode(&self) -> [u8; KEY_REQUEST_BYTES] {
        let head =
            u64::from(self.table) | u64::from(self.detail) << 16 | u64::from(self.bucket) << 32;
        let mut bytes = [0; KEY_REQUEST_BYTES];
        for (bytes, word) in
            bytes.as_chunks_mut::<8>().0.iter_mut().zip([head, self.key, self.owner.0])
        {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; KEY_REQUEST_BYTES] = bytes.try_into().ok()?;
        let word = u64_at(bytes, 0);
        let [t0, t1, d0, d1, b0, b1, b2, b3] = word.to_le_bytes();
        Some(Self {
            table: u16::from_le_bytes([t0, t1]),
            detail: u16::from_le_bytes([d0, d1]),
            bucket: u32::from_le_bytes([b0, b1, b2, b3]),
            key: u64_at(bytes, 8),
            owner: Owner(u64_at(bytes, 16)),
        })
    }
}

/// The 8 bytes at `at`, which the caller knows to be there.
#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of 8 bytes"))
}

#[inline]
pub(crate) fn lock_mode_to_wire(mode: LockMode) -> u16 {
    match mode {
        LockMode::Update => UPDATE,
        LockMode::Insert => INSERT,
        LockMode::Delete => DELETE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let request = KeyRequest {
            table: 1,
            detail: 0x203,
            bucket: 0x405_0607,
            key: u64::MAX - 3,
            owner: Owner(9),
        };
        assert_eq!(KeyRequest::decode(&request.encode()), Some(request));
        assert_eq!(KeyRequest::decode(&request.encode()[1..]), None);
        for status in 1..=10 {
            assert_eq!(Status::from_wire(status) as u16, status);
        }
    }
}
