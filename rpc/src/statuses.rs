//! A summary of the statuses of the responses to a batch.
//!
//! The endpoint computes it as responses arrive. A coroutine whose responses all have the same status then need not look at
//! each of them.

use crate::message::{Messages, message_bytes};

/// What the statuses of some responses have in common: the bits that any of them has, and that all have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statuses {
    any: u16,
    all: u16,
}

impl Statuses {
    pub(crate) const NONE: Self = Self { any: 0, all: u16::MAX };
    /// Of responses that were not looked at.
    pub(crate) const UNKNOWN: Self = Self { any: u16::MAX, all: 0 };

    /// The summary of `bytes`, if they are exactly `requests` well-formed responses. The first `piggybacked` of them must have no
    /// payload, and do not count.
    #[inline]
    pub(crate) fn of(bytes: &[u8], requests: u16, piggybacked: u16) -> Option<Self> {
        let to_piggybacked = usize::from(piggybacked) * message_bytes(0);
        let (to_piggybacked, bytes) = bytes.split_at_checked(to_piggybacked)?;
        if piggybacked > 0 && !Messages::are_well_formed(to_piggybacked, piggybacked) {
            return None;
        }
        let mut responses = Messages::new(bytes, requests - piggybacked);
        let (mut statuses, mut count) = (Self::NONE, piggybacked);
        for response in responses.by_ref() {
            let status = response.kind;
            statuses = statuses.and(Self { any: status, all: status });
            count += 1;
        }
        (count == requests && responses.is_at_end()).then_some(statuses)
    }

    #[inline(always)]
    pub(crate) fn and(self, other: Self) -> Self {
        Self { any: self.any | other.any, all: self.all & other.all }
    }

    /// Whether each is `status`, and there is one.
    #[inline(always)]
    pub(crate) fn are_all(self, status: u16) -> bool {
        self.any == status && self.all == status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::message::append;

    fn of(responses: &[(u16, usize)], requests: u16, piggybacked: u16) -> Option<Statuses> {
        let mut bytes = Buffer::default();
        for &(status, payload) in responses {
            append(&mut bytes, payload, |_| (status, payload));
        }
        Statuses::of(bytes.as_slice(), requests, piggybacked)
    }

    #[test]
    fn only_responses_that_are_all_alike_are_said_to_be() {
        let alike = of(&[(5, 0), (5, 20)], 2, 0).unwrap();
        assert!(alike.are_all(5) && !alike.are_all(4) && !alike.are_all(7));
        let mixed = of(&[(5, 0), (4, 0)], 2, 0).unwrap();
        assert!([0, 4, 5, u16::MAX].iter().all(|&status| !mixed.are_all(status)));
        assert!(!alike.and(mixed).are_all(5) && alike.and(alike).are_all(5));
        assert!(Statuses::NONE.and(alike).are_all(5) && !Statuses::UNKNOWN.and(alike).are_all(5));
        assert!(!Statuses::NONE.are_all(0));
    }

    #[test]
    fn piggybacked_responses_do_not_count_and_have_no_payload() {
        assert!(of(&[(9, 0), (5, 20)], 2, 1).unwrap().are_all(5));
        assert_eq!(of(&[(9, 0), (9, 0)], 2, 2), Some(Statuses::NONE));
        assert_eq!(of(&[(9, 8), (5, 20)], 2, 1), None);
        assert_eq!(of(&[(9, 0)], 2, 1), None);
        assert_eq!(of(&[(9, 0), (5, 0), (5, 0)], 2, 1), None);
        assert_eq!(of(&[], 1, 1), None);
    }
}
