//! Aggregates that are computed where the rows are: each primary sends the states of its groups instead of its rows.
//!
//! ```text
//! program       what the plan wants of the rows, as bytes      participant   runs a program at a primary
//! expressions   expressions as bytes                           partial       states of groups, as rows
//! ```
//! *Invariant*: a program that meets an error, or a value that would take long, gives up. The statement then reads the rows itself, and
//! reports the error if there is one.
//!
//! *Source*: `docs/sql.md`, "Aggregates"; `docs/protocol.md`, "Folds".
//!
//! *Not here*: the operator that sends programs and merges states (`execute/fold`).

mod expressions;
pub(crate) mod partial;
mod participant;
mod program;

pub(crate) use expressions::is_portable;
pub(crate) use participant::read;
pub(crate) use program::Program;
