//! Exactly-once execution: the receiver's slot for each session.
//!
//! A session has one outstanding message per destination, so one slot per session is enough: the
//! number of the last message run and the response to it. The same number again means that the
//! response was lost, and it is sent again; an older number is a late duplicate, and is dropped; so
//! a LOCK that arrives after its transaction's UNLOCK is never run.
//!
//! *Source*: `architecture.md`, "RPC"; Birrell and Nelson's call identifiers, as used since 1984.

use crate::buffer::Buffer;
use crate::mutant::{Mutant, active};

/// The last message of one session.
#[derive(Default)]
pub(crate) struct Session {
    sequence: u64,
    /// The whole response packet, header included.
    response: Buffer,
}

/// What to do with a request.
pub(crate) enum Admission<'a> {
    /// Not seen before: run it and leave the response packet in this buffer.
    Run(&'a mut Buffer),
    /// Run already: send this response again.
    Resend(&'a [u8]),
    /// Older than the last one: drop it.
    Drop,
}

impl Session {
    /// Admits message `sequence` of the session.
    #[inline]
    pub(crate) fn admit(&mut self, sequence: u64) -> Admission<'_> {
        match sequence.cmp(&self.sequence) {
            std::cmp::Ordering::Greater => {
                self.sequence = sequence;
                self.response.clear();
                Admission::Run(&mut self.response)
            }
            std::cmp::Ordering::Equal if !active(Mutant::RunDuplicates) => {
                Admission::Resend(self.response.as_slice())
            }
            std::cmp::Ordering::Less if !active(Mutant::RunDuplicates) => Admission::Drop,
            _ => {
                self.response.clear();
                Admission::Run(&mut self.response)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_runs_once() {
        let mut session = Session::default();
        for (sequence, expected) in
            [(1, "run"), (1, "resend"), (3, "run"), (2, "drop"), (3, "resend")]
        {
            let seen = match session.admit(sequence) {
                Admission::Run(response) => {
                    assert_eq!(response.len(), 0);
                    response.claim(1)[0] = u8::try_from(sequence).unwrap();
                    "run"
                }
                Admission::Resend(response) => {
                    assert_eq!(response, [u8::try_from(sequence).unwrap()]);
                    "resend"
                }
                Admission::Drop => "drop",
            };
            assert_eq!(seen, expected, "message {sequence}");
        }
    }
}
