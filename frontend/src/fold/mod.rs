//! What is computed where the rows are: each primary sends the states of its groups, or the rows that pass a filter, instead of all its rows.
//!
//! ```text
//! program       what the plan wants of the rows, as bytes      participant   runs a program for groups at a primary
//! expressions   expressions as bytes                           partial       states of groups, as rows
//! environment   of expressions where the rows are              filter        the rows that pass a filter
//! ```
//! *Invariant*: a program for groups that meets an error, or a value that would take long, gives up. The statement then reads the rows itself, and
//! reports the error if there is one.
//!
//! *Source*: `docs/sql.md`, "Aggregates" and "Filters"; `docs/protocol.md`, "Folds".
//!
//! *Not here*: the operator that sends programs and merges states (`execute/fold`), and the scan that sends a filter (`execute/filtered`).

mod environment;
mod expressions;
pub(crate) mod filter;
pub(crate) mod partial;
mod participant;
mod program;

pub(crate) use expressions::is_portable;
pub(crate) use participant::read;
pub(crate) use program::Program;
