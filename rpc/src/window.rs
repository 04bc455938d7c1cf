//! The congestion window: how many packets of requests may be under way to a node.
//!
//! Where packets are lost because too many meet, as in an incast of all nodes to one, every message
//! that is lost takes half a packet from the window, and eight windows of answers add a packet to it: at
//! the few packets that each of many senders may have, more would overrun the queue again at once. An
//! overrun queue loses many packets together, which takes most of the window; a network that loses a share
//! p of all packets, whatever is sent, leaves a window of 1 / (4 p) packets. As long as later messages are
//! answered it keeps eight: the network still delivers, and with fewer no later answer would tell of a loss. A
//! message that seems lost no longer counts as under way, and is sent again only when the window has room:
//! otherwise everybody would repeat everything at once, into the same queue.
//!
//! A message whose answer is late seems lost, too: a thread on the way may have waited for its core. A
//! response says whether it answers the first packet or the repetition. If it answers the first, nothing
//! was lost, and the window grows by what the message took from it.
//!
//! Round trips are no signal here, unlike in Swift, whose windows follow a target of delay: over
//! sockets they consist of the time that threads wait for a core and for their turn, and a window that
//! shrinks with it puts fewer packets into a datagram, which makes the receiver slower still.
//!
//! *Source*: Mathis, Relentless Congestion Control (PFLDNeT 2009), its abstract: a window shrinks by what was
//! lost. Kumar et al., Swift (SIGCOMM 2020), its abstract: windows against incasts of RPCs.
//!
//! *Invariants*: at least a packet may be under way, and at most [`CREDITS`].

/// Most packets of requests that may be under way to a node, from one worker.
pub(crate) const CREDITS: usize = 64;
/// What an endpoint begins with where losses tell of congestion.
const CREDITS_FIRST: u32 = 16;
/// Parts of a packet that are told apart.
const PARTS: u32 = 256;
/// Packets that a window keeps whatever was lost, as long as later ones are answered.
const CREDITS_ANSWERED: u32 = 8;
/// What a lost message takes.
const PARTS_OF_LOSS: u32 = PARTS / 2;

/// The window of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    packets: usize,
    /// The same in parts of a packet; none where the window is fixed.
    parts: Option<u32>,
}

impl Window {
    /// Follows losses if they tell of congestion; otherwise as large as it may be.
    pub(crate) fn new(follows_losses: bool) -> Self {
        let parts = follows_losses.then_some(CREDITS_FIRST * PARTS);
        let packets = if follows_losses { CREDITS_FIRST as usize } else { CREDITS };
        Self { packets, parts }
    }

    /// Packets that may be under way.
    #[inline(always)]
    pub(crate) fn packets(&self) -> usize {
        self.packets
    }

    /// One of the messages that are timed was answered, which one in eight is.
    #[inline]
    pub(crate) fn grow(&mut self) {
        if let Some(parts) = self.parts {
            self.set(parts + PARTS * PARTS / parts);
        }
    }

    /// A message seems lost, because of a later answer or because there was none for long.
    pub(crate) fn cut(&mut self, has_later_answer: bool) {
        let least = if has_later_answer { CREDITS_ANSWERED * PARTS } else { PARTS };
        if let Some(parts) = self.parts {
            self.set(parts.saturating_sub(PARTS_OF_LOSS).max(least.min(parts)));
        }
    }

    /// A message that seemed lost is answered: as it was sent again, or as it was sent first.
    pub(crate) fn learn(&mut self, was_lost: bool) {
        if let (Some(parts), false) = (self.parts, was_lost) {
            self.set(parts + PARTS_OF_LOSS);
        }
    }

    fn set(&mut self, parts: u32) {
        let most = u32::try_from(CREDITS).unwrap_or(u32::MAX) * PARTS;
        let parts = parts.clamp(PARTS, most);
        self.packets = (parts / PARTS) as usize;
        self.parts = Some(parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_windows_of_answers_add_a_packet_and_two_losses_take_one() {
        let mut window = Window::new(true);
        // 8 windows of 16 answers, of which 16 are timed; what does not divide is cut off.
        (0..16).for_each(|_| window.grow());
        assert_eq!(window.packets(), 16, "not quite");
        window.grow();
        assert_eq!(window.packets(), 17);
        (0..10).for_each(|_| window.cut(true));
        assert_eq!(window.packets(), 12);
        (0..100).for_each(|_| window.cut(true));
        assert_eq!(window.packets(), 8, "later ones are answered");
        (0..100).for_each(|_| window.cut(false));
        window.cut(true);
        assert_eq!(window.packets(), 1, "something may always be under way");
        (0..10_000).for_each(|_| window.grow());
        assert_eq!(window.packets(), CREDITS);
    }

    #[test]
    fn a_cut_for_nothing_is_taken_back() {
        let mut window = Window::new(true);
        (0..6).for_each(|_| window.cut(false));
        assert_eq!(window.packets(), 13);
        (0..6).for_each(|_| window.learn(false));
        assert_eq!(window.packets(), 16);
        window.cut(false);
        window.learn(true);
        assert_eq!(window.packets(), 15, "something was lost");
    }

    #[test]
    fn a_share_of_losses_leaves_a_window() {
        // 1 of 10 messages is lost: of 80 answers 10 are timed, and 8 messages are lost.
        let mut window = Window::new(true);
        for _ in 0..1_000 {
            (0..10).for_each(|_| window.grow());
            (0..8).for_each(|_| window.cut(false));
        }
        (0..10).for_each(|_| window.grow());
        assert!((2..=4).contains(&window.packets()), "{}", window.packets());
    }

    #[test]
    fn a_fixed_window_stays() {
        let mut window = Window::new(false);
        window.cut(false);
        window.grow();
        assert_eq!(window.packets(), CREDITS);
    }
}
