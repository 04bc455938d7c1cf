//! Transaction ids, and the lock word that a bucket header stores.
//!
//! ```text
//! Owner, 64 bits:  epoch 14 | node 10 | worker 8 | coroutine 8 | counter 24     0 = free
//! ```
//! A lock of another epoch is *dead*: a membership change has settled its transaction before the present epoch began, and
//! everybody passes over it. So a change of the membership clears no lock words, and takes no longer for larger tables. They are freed
//! afterwards ([`crate::Table::free_dead_locks`]), before epochs come around.
//!
//! The counter's low 24 bits rule out ABA: a coroutine would have to run 16.7 million transactions
//! while a message of its oldest is still unanswered, and a session has one outstanding message.

use gannet_rules::rule;

/// Identifies a transaction for all time: a coroutine of a node in an epoch, and its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionId {
    /// Membership epoch in which the transaction started; from 1.
    pub epoch: u32,
    /// Node of the coordinator.
    pub node: u16,
    /// Worker of that node.
    pub worker: u16,
    /// Coroutine of that worker.
    pub coroutine: u16,
    /// Rises by one with each transaction of the coroutine; from 1.
    pub counter: u64,
}

/// A transaction as a bucket's lock word names it; never 0 for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub u64);

impl Owner {
    /// No transaction: the word of a bucket that is not locked.
    pub const FREE: Self = Self(0);
    /// Number of epochs that a lock word tells apart.
    pub const EPOCHS: u32 = 1 << 14;
    /// Largest number of nodes in a cluster.
    pub const NODES: usize = 1 << 10;
    /// Largest number of workers in a node.
    pub const WORKERS: usize = 1 << 8;
    /// Largest number of coroutines in a worker.
    pub const COROUTINES: usize = 1 << 8;
    /// The bits of the counter.
    const COUNTER: u64 = (1 << 24) - 1;
    pub(crate) const EPOCH_SHIFT: u32 = 50;

    /// Whether the lock of this owner keeps `other` out: it is held, by another transaction of the same epoch.
    #[inline(always)]
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        self != Self::FREE && self != other && (self.is_of_epoch_of(other) || !rule!(DEAD_LOCKS))
    }

    /// Whether both are transactions of one epoch.
    #[inline(always)]
    #[must_use]
    pub fn is_of_epoch_of(self, other: Self) -> bool {
        (self.0 ^ other.0) >> Self::EPOCH_SHIFT == 0
    }

    /// The worker of its coordinator, which is also the number of the worker that it asks at every node.
    #[inline(always)]
    #[must_use]
    pub fn worker(self) -> u8 {
        self.0.to_le_bytes()[4]
    }

    /// Another transaction of the same coroutine in the same epoch.
    #[inline(always)]
    #[must_use]
    pub fn with_counter(self, counter: u64) -> Self {
        Self(self.0 & !Self::COUNTER | counter & Self::COUNTER)
    }

    /// An owner that stands for an epoch: no transaction, whose counters begin at 1.
    #[must_use]
    pub fn of_epoch(epoch: u32) -> Self {
        Self::from(TransactionId { epoch, node: 0, worker: 0, coroutine: 0, counter: 0 })
    }
}

impl From<TransactionId> for Owner {
    #[inline]
    fn from(id: TransactionId) -> Self {
        // Epoch 0 does not occur, and a wrapped one must not look free.
        let epoch = u64::from((id.epoch - 1) % (Self::EPOCHS - 1) + 1);
        Self(
            epoch << Self::EPOCH_SHIFT
                | u64::from(id.node & 0x3ff) << 40
                | u64::from(id.worker & 0xff) << 32
                | u64::from(id.coroutine & 0xff) << 24
                | id.counter & Self::COUNTER,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_fields_share_bits() {
        let id = |epoch, node, worker, coroutine, counter| {
            Owner::from(TransactionId { epoch, node, worker, coroutine, counter }).0
        };
        assert_eq!(id(1, 1023, 0, 0, 0) ^ id(1, 0, 0, 0, 0), 1023 << 40);
        assert_eq!(id(1, 0, 255, 0, 0) ^ id(1, 0, 0, 0, 0), 255 << 32);
        assert_eq!(id(1, 0, 0, 255, 0) ^ id(1, 0, 0, 0, 0), 255 << 24);
        assert_eq!(id(1, 0, 0, 0, (1 << 24) + 5), id(1, 0, 0, 0, 5));
        for counter in [6, (1 << 24) + 6] {
            assert_eq!(Owner(id(7, 3, 2, 1, 5)).with_counter(counter).0, id(7, 3, 2, 1, 6));
        }
        for epoch in [1, 2, Owner::EPOCHS - 1, Owner::EPOCHS, 2 * Owner::EPOCHS] {
            assert_ne!(id(epoch, 0, 0, 0, 0), Owner::FREE.0, "epoch {epoch}");
        }
    }

    #[test]
    fn a_lock_keeps_out_others_of_its_epoch() {
        let owner = |epoch, counter| {
            Owner::from(TransactionId { epoch, node: 3, worker: 1, coroutine: 7, counter })
        };
        assert!(owner(2, 5).excludes(owner(2, 6)));
        assert!(!owner(2, 5).excludes(owner(2, 5)), "its own");
        assert!(!owner(2, 5).excludes(owner(3, 5)), "dead");
        assert!(!Owner::FREE.excludes(owner(2, 5)));
        assert!(Owner::of_epoch(2).is_of_epoch_of(owner(2, 9)));
        assert!(!Owner::of_epoch(3).is_of_epoch_of(owner(2, 9)));
    }
}
