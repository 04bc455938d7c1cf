//! The progress line, on a terminal only.
//!
//! *Invariants*: the line goes to standard error, so that standard output has the report alone. The line is gone when its
//! value is dropped.
//!
//! *Not here*: the text of the line (the harnesses), and reports (`report`).

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on standard error that is rewritten in place; silent if standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A line for a workload.
    ///
    /// # Panics
    /// Never: the style is a constant.
    #[must_use]
    pub fn new(workload: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg} [{elapsed}]")
            .expect("the template is a constant that the library takes");
        bar.set_style(style);
        bar.set_prefix(workload.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    /// Replaces the line's text.
    pub fn say(&self, message: String) {
        self.bar.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
