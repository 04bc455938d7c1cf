//! The parts of sessions and values that a server of a wire protocol uses beside the interface of programs.
//!
//! | use | names |
//! |---|---|
//! | rows on their way to a client | [`Row`], [`Rest`], [`Takes`]; of a session `take_large`, `take_rest`, `cursor_columns` |
//! | the memory that they hold | [`Charge`], [`row_bytes`], [`HELD_BYTES_MAX`]; of a session `charged`, `take_result` |
//! | values as text | [`ArrayWriter`], [`for_each_element`], [`copy_line`], [`numeric_from_text`], [`too_many_digits`] |
//! | values in binary | [`fit_date`], [`fit_timestamp`], [`unsigned_zero`] |
//! | long texts and values, computed on another thread | of a session `split_aside`, `computed` |
//! | settings of a session | [`parse_duration`]; of a session `keep_settings`, `refuse_without_lease` |
//! | the end of a statement before its result | of a `CancelHandle` `requested`, `is_requested`, `obstacle`, `give_up`, `reset` |
//!
//! The documentation of `Session` and `CancelHandle` leaves these methods out: a program that called them would get in the way of
//! the session.

pub use crate::array::{Writer as ArrayWriter, for_each as for_each_element};
pub use crate::aside::HELD_BYTES_MAX;
pub use crate::execute::copy::line as copy_line;
pub use crate::execute::{Row, row_bytes};
pub use crate::memory::Charge;
pub use crate::session::{Rest, Takes};
pub use crate::settings::duration as parse_duration;
pub use crate::text::time::{fit_date, fit_timestamp};
pub use crate::text::{numeric_from_text, too_many_digits, unsigned_zero};
