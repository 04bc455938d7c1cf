//! How many packets of requests may be under way to a node: credits that follow what the network bears.
//!
//! Where packets are lost because too many meet, as in an incast of all nodes to one, a loss halves
//! the window, and eight windows of answers add a packet to it: at the few packets that each of many
//! senders may have, more would overrun the queue again at once. What was sent before the last cut
//! does not cut again: one overrun queue loses many packets together. A message that seems lost no
//! longer counts as under way, and is sent again only when the window has room: otherwise everybody
//! would repeat everything at once, into the same queue.
//!
//! A message whose answer is late seems lost too: a thread on the way may have waited for its core. A
//! response says whether it answers what was sent first or what was sent again. If it answers the
//! first, nothing was lost, and the window is again what it was before the cut.
//!
//! Round trips are no signal here, unlike in Swift, whose windows follow a target of delay: over
//! sockets they consist of the time that threads wait for a core and for their turn, and a window that
//! shrinks with it makes datagrams carry fewer packets, which makes the receiver slower still.
//!
//! *Source*: Kumar et al., Swift (SIGCOMM 2020), its abstract: additive increase, multiplicative
//! decrease, against incasts of RPCs.
//!
//! *Invariants*: at least a packet may be under way, and at most [`CREDITS`].

/// Most packets of requests that may be under way to a node, from one worker.
pub(crate) const CREDITS: usize = 64;
/// What an endpoint begins with where losses tell of congestion.
const CREDITS_FIRST: u32 = 16;
/// Parts of a packet that are told apart.
const PARTS: u32 = 256;

/// The window of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    packets: usize,
    /// The same in parts of a packet; none where the window is fixed.
    parts: Option<u32>,
    /// When it was last cut.
    cut_at_ns: u64,
    /// Its parts before cuts of which it is not known whether anything was lost.
    before: Option<u32>,
}

impl Window {
    /// Follows losses if they tell of congestion; otherwise as large as it may be.
    pub(crate) fn new(follows_losses: bool) -> Self {
        let parts = follows_losses.then_some(CREDITS_FIRST * PARTS);
        let packets = if follows_losses { CREDITS_FIRST as usize } else { CREDITS };
        Self { packets, parts, cut_at_ns: 0, before: None }
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

    /// A message that was sent at `sent_at_ns` seems lost.
    pub(crate) fn cut(&mut self, sent_at_ns: u64, now_ns: u64) {
        if let Some(parts) = self.parts
            && sent_at_ns >= self.cut_at_ns
        {
            self.cut_at_ns = now_ns;
            self.before = self.before.max(Some(parts));
            self.set(parts / 2);
        }
    }

    /// A message that seemed lost is answered: as it was sent again, or as it was sent first.
    pub(crate) fn learn(&mut self, was_lost: bool) {
        if let (Some(before), Some(parts), false) = (self.before.take(), self.parts, was_lost) {
            self.set(before.max(parts));
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
    fn eight_windows_of_answers_add_a_packet_and_a_loss_halves() {
        let mut window = Window::new(true);
        // 8 windows of 16 answers, of which 16 are timed; what does not divide is cut off.
        (0..16).for_each(|_| window.grow());
        assert_eq!(window.packets(), 16, "not quite");
        window.grow();
        assert_eq!(window.packets(), 17);
        window.cut(100, 200);
        assert_eq!(window.packets(), 8);
        window.cut(199, 300);
        assert_eq!(window.packets(), 8, "it was under way when the window was cut");
        for sent_at_ns in [300, 400, 500, 600, 700] {
            window.cut(sent_at_ns, sent_at_ns + 50);
        }
        assert_eq!(window.packets(), 1, "something may always be under way");
        (0..10_000).for_each(|_| window.grow());
        assert_eq!(window.packets(), CREDITS);
    }

    #[test]
    fn a_cut_for_nothing_is_taken_back() {
        let mut window = Window::new(true);
        window.cut(100, 200);
        window.cut(200, 300);
        assert_eq!(window.packets(), 4);
        window.learn(false);
        assert_eq!(window.packets(), 16);
        window.cut(300, 400);
        window.learn(true);
        window.learn(false);
        assert_eq!(window.packets(), 8, "something was lost");
    }

    #[test]
    fn a_fixed_window_stays() {
        let mut window = Window::new(false);
        window.cut(100, 200);
        window.grow();
        assert_eq!(window.packets(), CREDITS);
    }
}
