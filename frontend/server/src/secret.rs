//! Files that only their owner may read: users and keys.
//!
//! *Invariants*: a file with any permission for others is refused.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The permissions of everybody but the owner.
const OTHERS: u32 = 0o077;

/// Why a secret file is refused.
pub(super) enum SecretError {
    /// The file cannot be read.
    Unreadable(io::Error),
    /// Others may use the file, which has these permissions.
    Exposed(u32),
}

/// The bytes of a file that only its owner may use.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let mut file = File::open(path).map_err(SecretError::Unreadable)?;
    let mode = file.metadata().map_err(SecretError::Unreadable)?.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(SecretError::Exposed(mode));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(SecretError::Unreadable)?;
    Ok(bytes)
}
