//! Stand-ins for tests: a disk in memory that fills up or fails, and a state machine that remembers all decisions.
//!
//! A test sets the error of all writes to come. An append that fails still writes half of its bytes, as a torn write does.
//! Clones of a disk are the same disk, so a test opens the files again as the next process would.
//!
//! *Not here*: files and their sync (`disk.rs`; `tests/server/synced.rs` watches the system calls).

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::decisions::StateMachine;
use crate::disk::{Disk, Kind};
use crate::replica::{Event, OnEvent};

/// What a disk has, and how it will fail.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) log: Option<Vec<u8>>,
    pub(crate) snapshot: Option<Vec<u8>>,
    /// Writes that were requested, those that have failed included.
    pub(crate) writes: usize,
    /// The error of all writes to come.
    pub(crate) failure: Option<io::ErrorKind>,
}

/// A disk in memory. Its clones are the same disk.
#[derive(Clone, Default)]
pub(crate) struct FakeDisk(Arc<Mutex<Files>>);

impl FakeDisk {
    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn boxed(&self) -> Option<Box<dyn Disk>> {
        Some(Box::new(self.clone()))
    }
}

impl Files {
    fn file(&mut self, file: Kind) -> &mut Option<Vec<u8>> {
        match file {
            Kind::Log => &mut self.log,
            Kind::Snapshot => &mut self.snapshot,
        }
    }

    fn request(&mut self) -> io::Result<()> {
        self.writes += 1;
        self.failure.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl Disk for FakeDisk {
    fn read(&mut self, file: Kind) -> io::Result<Option<Vec<u8>>> {
        Ok(self.files().file(file).clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut files = self.files();
        let requested = files.request();
        let log = files.log.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let written = if requested.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        log.extend_from_slice(written);
        requested
    }

    fn replace(&mut self, file: Kind, bytes: &[u8]) -> io::Result<()> {
        let mut files = self.files();
        files.request()?;
        *files.file(file) = Some(bytes.to_vec());
        Ok(())
    }

    fn path(&self, file: Kind) -> String {
        format!("fake {file:?}")
    }
}

/// All decisions with their terms.
#[derive(Default)]
pub(crate) struct All(pub(crate) Vec<(u64, Vec<u8>)>);

impl StateMachine for All {
    fn apply(&mut self, term: u64, decision: &[u8]) {
        self.0.push((term, decision.to_vec()));
    }

    fn snapshot(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.0).unwrap()
    }

    fn install(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0 = postcard::from_bytes(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Events, as they come.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<Event>>>);

impl Heard {
    pub(crate) fn on_event(&self) -> OnEvent {
        let Self(heard) = self.clone();
        Arc::new(move |event| heard.lock().unwrap_or_else(PoisonError::into_inner).push(event))
    }

    /// Those since the last call.
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
