//! Frames: sealed parts of messages on a stream.
//!
//! ```text
//! frame    u16 length of what follows | sealed: u8 1 if it ends a message, part of a message | 16 bytes: tag
//! ```
//! Little-endian. The number of a frame in its direction is the nonce of its seal, so a frame that is damaged, said again, left
//! out or moved does not open. A message longer than a frame takes several.
//!
//! *Invariants*: bytes in, bytes out; no socket and no clock. A length is bounded before its bytes are kept: a frame by its u16,
//! a message by [`MESSAGE_BYTES_MAX`], and by [`OPENING_BYTES_MAX`] until the other is trusted.

use std::sync::Arc;

use snow::StatelessTransportState;

use crate::link::LinkError;

/// Longest message of an end that is trusted.
pub(super) const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Longest message of an end that is not trusted yet: what a caller says first.
const OPENING_BYTES_MAX: usize = 64 << 10;
const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
const FRAME_BYTES_MAX: usize = u16::MAX as usize;
/// Bytes of a message in a frame, behind the byte that says whether it is the last.
const PART_BYTES_MAX: usize = FRAME_BYTES_MAX - TAG_BYTES - 1;

/// Seals what this end says.
pub(crate) struct Sealer {
    ciphers: Arc<StatelessTransportState>,
    /// Of the next frame.
    number: u64,
    /// A frame before it is sealed.
    clear: Vec<u8>,
}

/// Opens what the other says.
pub(crate) struct Opener {
    ciphers: Arc<StatelessTransportState>,
    /// Of the next frame.
    number: u64,
    message_bytes_max: usize,
    /// What was heard, and not opened yet.
    sealed: Vec<u8>,
    /// The parts of the next message.
    message: Vec<u8>,
    /// A frame after it was opened.
    clear: Vec<u8>,
}

/// The two directions of a connection behind its handshake; `heard` is what came behind that.
pub(super) fn directions(ciphers: StatelessTransportState, heard: Vec<u8>) -> (Sealer, Opener) {
    let ciphers = Arc::new(ciphers);
    let sealer = Sealer { ciphers: Arc::clone(&ciphers), number: 0, clear: Vec::new() };
    let opener = Opener {
        ciphers,
        number: 0,
        message_bytes_max: OPENING_BYTES_MAX,
        sealed: heard,
        message: Vec::new(),
        clear: Vec::new(),
    };
    (sealer, opener)
}

impl Sealer {
    /// Appends the frames of a message to `said`.
    pub(crate) fn seal(&mut self, message: &[u8], said: &mut Vec<u8>) -> Result<(), LinkError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(LinkError::TooLong);
        }
        let mut rest = message;
        loop {
            let part;
            (part, rest) = rest.split_at(rest.len().min(PART_BYTES_MAX));
            self.seal_part(part, rest.is_empty(), said)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn seal_part(
        &mut self,
        part: &[u8],
        is_last: bool,
        said: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        self.clear.clear();
        self.clear.push(u8::from(is_last));
        self.clear.extend_from_slice(part);
        let length = self.clear.len() + TAG_BYTES;
        said.extend_from_slice(&u16::try_from(length).expect("a part fits").to_le_bytes());
        let start = said.len();
        said.resize(start + length, 0);
        let sealed = self.ciphers.write_message(self.number, &self.clear, &mut said[start..]);
        sealed.map_err(|error| LinkError::Cipher(error.to_string()))?;
        self.number += 1;
        Ok(())
    }
}

impl Opener {
    /// Takes bytes of the other, as they come.
    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        self.sealed.extend_from_slice(bytes);
    }

    /// The other is trusted: its messages may be long.
    pub(super) fn trust(&mut self) {
        self.message_bytes_max = MESSAGE_BYTES_MAX;
    }

    /// The next message, if all of it was heard.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let mut start = 0;
        let opened = loop {
            match self.open(start) {
                Ok(None) => break Ok(None),
                Ok(Some((end, is_last))) => {
                    start = end;
                    if is_last {
                        break Ok(Some(std::mem::take(&mut self.message)));
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.sealed.drain(..start);
        opened
    }

    /// Opens the frame at `start`, if all of it was heard; its end, and whether it ends a message.
    fn open(&mut self, start: usize) -> Result<Option<(usize, bool)>, LinkError> {
        let heard = &self.sealed[start..];
        let Some((length, rest)) = heard.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes(*length));
        let part_bytes = length.checked_sub(TAG_BYTES + 1).ok_or(LinkError::Malformed)?;
        if self.message.len() + part_bytes > self.message_bytes_max {
            return Err(LinkError::TooLong);
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        self.clear.resize(length, 0);
        let opened = self.ciphers.read_message(self.number, frame, &mut self.clear);
        let opened = opened.map_err(|_| LinkError::Damaged)?;
        self.number += 1;
        let is_last = match self.clear[0] {
            last @ 0..=1 => last == 1,
            _ => return Err(LinkError::Malformed),
        };
        self.message.extend_from_slice(&self.clear[1..opened]);
        Ok(Some((start + LENGTH_BYTES + length, is_last)))
    }
}
