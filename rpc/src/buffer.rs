//! A byte buffer that is filled and cleared over and over.
//!
//! *Invariants*: clearing neither zeroes nor frees the bytes, up to a size that is kept. Claimed bytes have unspecified contents
//! until they are written.

/// Length of a buffer once it is used: the packets of small transactions fit.
const BYTES_MIN: usize = 512;
/// A buffer that had to be longer gives its memory back when it is cleared.
const BYTES_KEPT_MAX: usize = 64 << 10;

/// Bytes that grow to what they are used for and stay that long.
#[derive(Default)]
pub(crate) struct Buffer {
    /// Initialised to its full length; the first `used` bytes are the contents.
    bytes: Vec<u8>,
    used: usize,
}

impl Buffer {
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        if self.bytes.len() > BYTES_KEPT_MAX {
            self.shrink();
        }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Appends `count` bytes of unspecified contents, to be overwritten.
    #[inline(always)]
    pub(crate) fn claim(&mut self, count: usize) -> &mut [u8] {
        let start = self.used;
        self.used += count;
        if self.used > self.bytes.len() {
            return self.grow_and_claim(start);
        }
        &mut self.bytes[start..self.used]
    }

    /// Lets the next [`Self::claim`] of an empty buffer begin behind `count` bytes of unspecified contents.
    #[inline(always)]
    pub(crate) fn begin_at(&mut self, count: usize) {
        debug_assert!(
            self.used == 0 || self.used >= count,
            "the buffer is empty or has the room already"
        );
        self.used = self.used.max(count);
    }

    /// Drops what lies behind the first `count` bytes.
    #[inline(always)]
    pub(crate) fn truncate(&mut self, count: usize) {
        self.used = self.used.min(count);
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.used]
    }

    #[cold]
    fn shrink(&mut self) {
        self.bytes = Vec::new();
    }

    #[cold]
    fn grow_and_claim(&mut self, start: usize) -> &mut [u8] {
        self.bytes.resize(self.used.next_power_of_two().max(BYTES_MIN), 0);
        &mut self.bytes[start..self.used]
    }
}
