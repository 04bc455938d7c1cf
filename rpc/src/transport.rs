//! The traits of a transport: batches of datagrams, which may be lost, doubled or reordered.
//!
//! | transport | a doorbell is |
//! |---|---|
//! | `memory.rs` | a release store of a ring's tail for each destination |
//! | `udp.rs` | one sendmmsg |
//! | `verbs.rs` | one post of a list of SENDs |
//!
//! A [`Port`] is one worker's part of a transport. A thread opens it, and the thread that drives the worker splits it into its two
//! halves. The halves are separate values, so that a received packet can be read in place while its response is being sent.

/// One worker's part of a transport, before it is on the worker's thread.
pub trait Port: Send + 'static {
    /// The sending half.
    type Sender: PacketSender;
    /// The receiving half.
    type Receiver: PacketReceiver;

    /// Whether a poll of the receiving half is a system call. Other polls read words of memory.
    const POLL_IS_SYSTEM_CALL: bool;

    /// The two halves, on the thread that they stay on.
    fn split(self) -> (Self::Sender, Self::Receiver);
}

/// The sending half, owned by one worker.
pub trait PacketSender {
    /// Largest packet in bytes, header included.
    fn mtu(&self) -> usize;

    /// Whether packets need a checksum, because the medium may change their bits.
    fn wants_checksum(&self) -> bool;

    /// How long a round trip takes at least before a loss is likelier than a delay, in nanoseconds.
    fn retransmit_floor_ns(&self) -> u64;

    /// Whether packets are lost because too many are under way, so that after a loss fewer are sent.
    fn loses_by_congestion(&self) -> bool {
        false
    }

    /// Whether packets are lost on the way at all, so that later answers tell of it.
    fn loses_packets(&self) -> bool {
        self.loses_by_congestion()
    }

    /// Whether a further packet may have the batch sent before the doorbell is rung.
    fn is_full(&self) -> bool {
        false
    }

    /// Adds a packet for `destination`'s peer worker to the present batch. It may be dropped.
    fn queue(&mut self, destination: u16, packet: &[u8]);

    /// Sends the batch.
    fn ring_doorbell(&mut self);

    /// Packets that found no room since the endpoint started.
    fn dropped(&self) -> u64;

    /// Another incarnation of a node has come, which tells where its peer worker is. Transports whose addresses last need not look.
    ///
    /// # Errors
    /// Why nothing can be sent to it.
    fn reconnect(&mut self, _node: u16, _told: &str) -> Result<(), String> {
        Ok(())
    }
}

/// The receiving half, owned by one worker.
pub trait PacketReceiver {
    /// Receives a batch of packets and returns how many; they stay in place until `release`.
    fn poll(&mut self) -> usize;

    /// Packet `index` of the batch.
    fn packet(&self, index: usize) -> &[u8];

    /// Gives the buffers of the batch back.
    fn release(&mut self);

    /// Whether a packet waits that was taken from the network, or that a waker announced: then a thread
    /// must not sleep. Transports of threads that never sleep need not tell.
    fn has_packets(&self) -> bool {
        false
    }

    /// What was dropped since the endpoint started, before it became a packet.
    fn refused(&self) -> Refused {
        Refused::default()
    }
}

/// What a transport received and did not deliver, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Not in the transport's format: another program's, or another version's.
    pub foreign: u64,
    /// Not sealed with the cluster's key, or changed on the way.
    pub unauthentic: u64,
}
