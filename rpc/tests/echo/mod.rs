//! The handler in the tests of endpoints: an echo that increments every byte, so no request passes for its answer. The
//! count of requests tells a test whether each request ran once.

use gannet_rpc::{Handler, ResponseWriter};

/// The status of every answer.
pub(crate) const STATUS: u16 = 9;

/// Answers with the payload, every byte incremented, and counts the requests.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) handled: u64,
}

impl Handler for Echo {
    type Prepared = ();

    fn prepare(&self, _: u16, _: &[u8]) {}

    fn prefetch(&self, (): &()) {}

    fn prefetch_next(&self, (): &()) {}

    fn handle(&mut self, (): (), payload: &[u8], response: &mut ResponseWriter<'_>) {
        self.handled += 1;
        response.push_with(payload.len(), |out| {
            for (answer, asked) in out.iter_mut().zip(payload) {
                *answer = asked.wrapping_add(1);
            }
            (STATUS, payload.len())
        });
    }
}
