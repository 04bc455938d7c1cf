//! Exactly-once execution: the receiver's slot for each session.
//!
//! A session has one outstanding message per destination, so one slot per session is enough: the
//! number of the last message run and the response to it. The same number again means that the
//! response was lost, and it is sent again; an older number is a late duplicate, and is dropped; so
//! a LOCK that arrives after its transaction's UNLOCK is never run.
//!
//! A message runs within the call that admits it, so no duplicate arrives while it runs. A duplicate of a
//! message that has not arrived in full is answered with a request for the missing fragments (`fragments.rs`).
//!
//! *Source*: `docs/architecture.md`, "RPC"; Birrell and Nelson's call identifiers, as used since 1984.

use crate::buffer::Buffer;
use crate::fragments::{Assembly, queue_window};
use crate::packet::{ContentsWords, seal};
use crate::transport::PacketSender;
use gannet_rules::rule;

/// The last message of one session, in a cache line.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Session {
    sequence: u64,
    /// Room for a packet header, then the responses.
    pub(crate) response: Buffer,
    /// The message that is being put together, once there was one in fragments.
    pub(crate) assembly: Option<Box<Assembly>>,
}

const _: () = assert!(size_of::<Session>() == 64, "a session is a cache line");

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Not seen before: run it and leave the responses in the session.
    Run,
    /// Run already: send the responses again.
    Resend,
    /// Older than the last one: drop it.
    Drop,
}

impl Session {
    /// Admits message `sequence` of the session.
    #[inline]
    pub(crate) fn admit(&mut self, sequence: u64) -> Admission {
        if sequence > self.sequence || !rule!(EXACTLY_ONCE) {
            self.sequence = sequence;
            self.response.clear();
            Admission::Run
        } else {
            self.known(sequence)
        }
    }

    /// What to do with a message that is not newer than the last one.
    pub(crate) fn known(&self, sequence: u64) -> Admission {
        match sequence.cmp(&self.sequence) {
            std::cmp::Ordering::Greater => Admission::Run,
            // Messages are numbered from 1: there is no response to a message 0.
            std::cmp::Ordering::Equal if sequence > 0 => Admission::Resend,
            std::cmp::Ordering::Equal | std::cmp::Ordering::Less => Admission::Drop,
        }
    }

    /// Queues the first window of the response again. `is_asked`: the request was sent again; the network has not merely doubled
    /// its packet.
    #[cold]
    pub(crate) fn queue_again<S: PacketSender>(
        &mut self,
        sender: &mut S,
        scratch: &mut Buffer,
        destination: u16,
        is_asked: bool,
    ) {
        let packet = self.response.as_mut_slice();
        if let (true, Some(contents)) = (is_asked, ContentsWords::parse(packet)) {
            contents.again().write(packet);
            if sender.wants_checksum() {
                seal(packet);
            }
        }
        queue_window(sender, scratch, destination, packet, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_runs_once() {
        let mut session = Session::default();
        for (sequence, expected) in [
            (0, Admission::Drop),
            (1, Admission::Run),
            (1, Admission::Resend),
            (3, Admission::Run),
            (2, Admission::Drop),
            (3, Admission::Resend),
        ] {
            assert_eq!(session.admit(sequence), expected, "message {sequence}");
            if expected == Admission::Run {
                assert_eq!(session.response.len(), 0);
                session.response.claim(1)[0] = u8::try_from(sequence).unwrap();
            }
        }
        assert_eq!(session.response.as_slice(), [3]);
    }
}
