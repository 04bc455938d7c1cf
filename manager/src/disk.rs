//! The files of a replica, in a directory of its own.
//!
//! ```text
//! DIR/log        is appended to, and replaced when most of it is dead
//! DIR/snapshot   is replaced whole
//! DIR/*.new      what will replace a file
//! DIR/lock       is locked for as long as a process uses the directory
//! ```
//! *Invariants*: what a function has written is on the disk when it returns. So is what it has read: the process before may have
//! ended between a write and its sync. A file is replaced as a whole or not at all.
//!
//! *Not here*: what is in the files, in `journal`; what follows an error, in `store`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gannet_rules::rule;

use crate::{ReplicaId, journal};

/// Why a replica cannot use its directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The system refuses.
    #[error("cannot use the manager's directory: {0}")]
    System(#[from] io::Error),
    /// Another process uses it.
    #[error("{0} is in use; end the process that uses it, or give this node another directory")]
    InUse(String),
    /// It belongs to another node.
    #[error(
        "{path} belongs to node {found_node} of cluster {found_cluster:?}, and this is node {node} of cluster {cluster:?}; \
         give each node its own directory"
    )]
    Foreign {
        /// The file that says so.
        path: String,
        /// Its node.
        found_node: u16,
        /// Its cluster.
        found_cluster: String,
        /// This node.
        node: u16,
        /// This node's cluster.
        cluster: String,
    },
    /// It belongs to an earlier process of the node, which has made promises that this one does not know.
    #[error("{0} is of an earlier process of this node; begin with an empty directory")]
    Predecessor(String),
    /// The file is none of ours.
    #[error("{0} is no log of a manager; give this node another directory")]
    NoLog(String),
    /// Another version of the program has written it.
    #[error("{path} has format {found}, and not {known}; use the program that has written it")]
    Format {
        /// The file.
        path: String,
        /// Its format.
        found: u32,
        /// The format of this program.
        known: u32,
    },
    /// A file is not as it was written.
    #[error("{path} is damaged at byte {at}; look at the disk, and do not start this node from it")]
    Damaged {
        /// The file.
        path: String,
        /// Where.
        at: usize,
    },
    /// The snapshot is missing, or older than the log needs.
    #[error("{0} does not fit the log beside it; use both as one process has left them")]
    Snapshot(String),
    /// The owner does not know what the snapshot says.
    #[error("{path} cannot be read ({reason}); use the program that has written it")]
    State {
        /// The file.
        path: String,
        /// What the owner says.
        reason: String,
    },
}

/// A file of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Log,
    Snapshot,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Where the files are.
pub(crate) trait Disk: Send {
    /// All bytes of a file; none if there is none.
    fn read(&mut self, file: Kind) -> io::Result<Option<Vec<u8>>>;

    /// Appends to the log. After an error the log may end in some of the bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file that has these bytes alone.
    fn replace(&mut self, file: Kind, bytes: &[u8]) -> io::Result<()>;

    /// What a file is called in messages.
    fn path(&self, file: Kind) -> String;
}

/// A directory of the file system, locked.
pub struct Directory {
    path: PathBuf,
    /// For appending.
    log: Option<File>,
    /// Is unlocked when it is closed.
    _lock: File,
}

/// An error that names its file.
fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// Syncs a file with a function of it.
fn sync(file: &File, with: fn(&File) -> io::Result<()>) -> io::Result<()> {
    if rule!(SYNCED_ANSWERS) { with(file) } else { Ok(()) }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path).and_then(|directory| sync(&directory, File::sync_all)).map_err(named(path))
}

impl Directory {
    /// Locks a directory, which is made if there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, DirectoryError> {
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(named(path))?;
        let path = path.canonicalize().map_err(named(path))?;
        if let Some(parent) = path.parent().filter(|_| is_new) {
            sync_directory(parent)?;
        }
        let lock_path = path.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(named(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DirectoryError::InUse(path.display().to_string()));
            }
            Err(TryLockError::Error(error)) => return Err(named(&lock_path)(error).into()),
        }
        sync_directory(&path)?;
        Ok(Self { path, log: None, _lock: lock })
    }

    /// The replica of a node of a cluster that a process before has left in the directory, if one has.
    ///
    /// # Errors
    /// [`DirectoryError`], if another process uses the directory, or what is there is another node's or cannot be read.
    pub fn left_in(
        path: &Path,
        cluster: &str,
        node: u16,
    ) -> Result<Option<ReplicaId>, DirectoryError> {
        journal::left_on(&mut Self::open(path)?, (cluster, node))
    }

    /// Forgets what a process before has left.
    ///
    /// # Errors
    /// [`DirectoryError::InUse`] if another process uses it, [`DirectoryError::System`] if the system refuses.
    pub fn clear(path: &Path) -> Result<(), DirectoryError> {
        let directory = Self::open(path)?;
        // The log first: without it the snapshot counts for nothing.
        for file in [Kind::Log, Kind::Snapshot].map(|file| directory.file(file)) {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(named(&file)(error).into());
                }
                Ok(()) | Err(_) => sync_directory(&directory.path)?,
            }
        }
        Ok(())
    }

    fn file(&self, file: Kind) -> PathBuf {
        self.path.join(file.name())
    }
}

impl Disk for Directory {
    fn read(&mut self, file: Kind) -> io::Result<Option<Vec<u8>>> {
        let path = self.file(file);
        match fs::read(&path) {
            Ok(bytes) => {
                File::open(&path).and_then(|file| file.sync_all()).map_err(named(&path))?;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(&path)(error)),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(Kind::Log);
        let mut log = match self.log.take() {
            Some(log) => log,
            None => OpenOptions::new().append(true).open(&path).map_err(named(&path))?,
        };
        log.write_all(bytes).and_then(|()| sync(&log, File::sync_data)).map_err(named(&path))?;
        self.log = Some(log);
        Ok(())
    }

    fn replace(&mut self, file: Kind, bytes: &[u8]) -> io::Result<()> {
        if file == Kind::Log {
            self.log = None;
        }
        let path = self.file(file);
        let new_path = path.with_extension("new");
        let write = || {
            let mut new = File::create(&new_path)?;
            new.write_all(bytes)?;
            sync(&new, File::sync_all)
        };
        write().map_err(named(&new_path))?;
        fs::rename(&new_path, &path).map_err(named(&path))?;
        sync_directory(&self.path)
    }

    fn path(&self, file: Kind) -> String {
        self.file(file).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_what_was_written() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("not/yet/there");
        let mut directory = Directory::open(&path).unwrap();
        assert_eq!(directory.read(Kind::Log).unwrap(), None);
        let error = directory.append(b"to what").unwrap_err();
        assert!(error.to_string().contains("there/log"), "{error}");
        directory.replace(Kind::Log, b"one").unwrap();
        directory.append(b" two").unwrap();
        assert_eq!(directory.read(Kind::Log).unwrap(), Some(b"one two".to_vec()));
        directory.replace(Kind::Log, b"three").unwrap();
        directory.append(b" four").unwrap();
        directory.replace(Kind::Snapshot, b"all").unwrap();
        drop(directory);
        let mut directory = Directory::open(&path).unwrap();
        assert_eq!(directory.read(Kind::Log).unwrap(), Some(b"three four".to_vec()));
        assert_eq!(directory.read(Kind::Snapshot).unwrap(), Some(b"all".to_vec()));
    }

    #[test]
    fn one_process_uses_a_directory_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let first = Directory::open(place.path()).unwrap();
        let second = Directory::open(place.path()).err().expect("it is in use");
        assert!(matches!(second, DirectoryError::InUse(_)), "{second}");
        drop(first);
        Directory::open(place.path()).unwrap();
    }
}
