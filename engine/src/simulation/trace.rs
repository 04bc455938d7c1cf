//! The trace of a run, and a hash of it.
//!
//! *Invariant*: two runs of one seed with the same faults have the same hash.

use std::io::Write;

/// Hashes every event, and writes it to a file on request.
pub(crate) struct Trace {
    hash: u64,
    out: Option<Box<dyn Write>>,
}

impl Trace {
    pub(crate) fn new(out: Option<Box<dyn Write>>) -> Self {
        Self { hash: 0, out }
    }

    /// A packet arrives.
    pub(crate) fn arrival(&mut self, now_ns: u64, source: u16, destination: u16, packet: &[u8]) {
        let digest = u64::from(crc32c::crc32c(packet));
        self.mix(now_ns);
        self.mix(digest << 32 | u64::from(source) << 16 | u64::from(destination));
        self.write(|| {
            let bytes = packet.len();
            format!("{now_ns} {source} -> {destination} {bytes} bytes {digest:08x}")
        });
    }

    /// Something else happens.
    pub(crate) fn note(&mut self, now_ns: u64, what: impl FnOnce() -> String) {
        self.mix(now_ns);
        self.write(|| format!("{now_ns} {}", what()));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The finalizer of `SplitMix64` over the sum of both.
    fn mix(&mut self, word: u64) {
        let x = self.hash.rotate_left(5) ^ word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.hash = x ^ (x >> 27);
    }

    fn write(&mut self, line: impl FnOnce() -> String) {
        if let Some(out) = &mut self.out {
            // A trace that cannot be written any further ends; the run goes on.
            if writeln!(out, "{}", line()).is_err() {
                self.out = None;
            }
        }
    }
}
