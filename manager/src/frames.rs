//! Frames: what the files of a replica are made of.
//!
//! ```text
//! frame: u32 bytes of the payload | u32 CRC-32C of the first field and the payload | payload, not empty
//! ```
//! *Invariants*: a frame is written, and synced, before the next one is. So a bad frame with a good one behind it is damage, and
//! one with nothing good behind it was being written when the machine stopped: nobody has relied on it.
//!
//! *Not here*: what a payload means, in `journal`.

use std::io;

const FIELD_BYTES: usize = size_of::<u32>();
const HEADER_BYTES: usize = 2 * FIELD_BYTES;

/// A frame is bad, and a later one is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged {
    /// Where the bad one begins.
    pub(crate) at: usize,
}

/// The frames of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frames<'b> {
    /// Where each begins, and its payload.
    pub(crate) payloads: Vec<(usize, &'b [u8])>,
    /// Bytes of all good frames. What follows was being written.
    pub(crate) whole_bytes: usize,
}

fn crc(length: &[u8], payload: &[u8]) -> [u8; FIELD_BYTES] {
    crc32c::crc32c_append(crc32c::crc32c(length), payload).to_le_bytes()
}

/// A payload in its frame.
pub(crate) fn frame(payload: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?.to_le_bytes();
    Ok([&length[..], &crc(&length, payload), payload].concat())
}

/// The payload of the good frame at the beginning of these bytes.
fn first(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<FIELD_BYTES>()?;
    let (expected, rest) = rest.split_first_chunk::<FIELD_BYTES>()?;
    let payload_bytes = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let payload = rest.get(..payload_bytes).filter(|payload| !payload.is_empty())?;
    (crc(length, payload) == *expected).then_some(payload)
}

/// The frames of a file.
pub(crate) fn read(bytes: &[u8]) -> Result<Frames<'_>, Damaged> {
    let (mut payloads, mut at) = (Vec::new(), 0);
    while let Some(payload) = first(&bytes[at..]) {
        payloads.push((at, payload));
        at += HEADER_BYTES + payload.len();
    }
    if (at + 1..bytes.len()).any(|later| first(&bytes[later..]).is_some()) {
        return Err(Damaged { at });
    }
    Ok(Frames { payloads, whole_bytes: at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(payloads: &[&[u8]]) -> Vec<u8> {
        payloads.iter().flat_map(|payload| frame(payload).unwrap()).collect()
    }

    #[test]
    fn a_file_that_ends_anywhere_has_the_frames_before() {
        let bytes = file(&[b"one", b"three", b"2"]);
        let ends = [0, 11, 24, 33];
        for end in 0..=bytes.len() {
            let frames = read(&bytes[..end]).unwrap();
            let count = ends.iter().filter(|it| **it <= end).count() - 1;
            assert_eq!((frames.payloads.len(), frames.whole_bytes), (count, ends[count]));
        }
    }

    #[test]
    fn a_tail_of_zeros_or_a_damaged_last_frame_was_being_written() {
        let mut bytes = file(&[b"one", b"two"]);
        bytes.extend([0; 100]);
        assert_eq!(read(&bytes).unwrap().whole_bytes, 22);
        bytes[20] ^= 1;
        assert_eq!(read(&bytes).unwrap().whole_bytes, 11);
    }

    #[test]
    fn every_changed_bit_before_a_good_frame_is_found() {
        let bytes = file(&[b"one", b"two", b"three"]);
        for bit in 0..22 * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&changed), Err(Damaged { at: bit / 8 / 11 * 11 }), "bit {bit}");
        }
    }
}
