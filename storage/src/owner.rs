//! Transaction ids, and the lock word that a bucket header stores.
//!
//! ```text
//! Owner, 64 bits:  epoch 14 | node 10 | worker 8 | coroutine 8 | counter 24     0 = free
//! ```
//! The counter's low 24 bits rule out ABA: a coroutine would have to run 16.7 million transactions
//! while a message of its oldest is still unanswered, and a session has one outstanding message.

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
    const COUNTER_BITS: u32 = 24;
}

impl From<TransactionId> for Owner {
    #[inline]
    fn from(id: TransactionId) -> Self {
        let counter = id.counter & ((1 << Self::COUNTER_BITS) - 1);
        // Epoch 0 does not occur, and a wrapped one must not look free.
        let epoch = u64::from((id.epoch - 1) % (Self::EPOCHS - 1) + 1);
        Self(
            epoch << 50
                | u64::from(id.node & 0x3ff) << 40
                | u64::from(id.worker & 0xff) << 32
                | u64::from(id.coroutine & 0xff) << 24
                | counter,
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
        for epoch in [1, 2, Owner::EPOCHS - 1, Owner::EPOCHS, 2 * Owner::EPOCHS] {
            assert_ne!(id(epoch, 0, 0, 0, 0), Owner::FREE.0, "epoch {epoch}");
        }
    }
}
