//! A check of the data after a run: a statement, and whether it holds.
//!
//! *Not here*: the checks themselves, which the workloads and `replicas` have.

/// A checked statement.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// The statement.
    pub name: String,
    /// Whether it holds.
    pub passed: bool,
    /// The expected and the found values.
    pub detail: String,
    /// Whether it counts what has committed, so that it tells nothing if the outcome of some transactions is unknown.
    #[serde(skip)]
    pub needs_all_outcomes: bool,
}

impl Check {
    /// A statement that holds if `passed`.
    #[must_use]
    pub fn new(name: impl Into<String>, passed: bool, detail: impl Into<String>) -> Self {
        Self { name: name.into(), passed, detail: detail.into(), needs_all_outcomes: false }
    }

    /// The same statement, which counts what has committed.
    #[must_use]
    pub fn of_all_outcomes(self) -> Self {
        Self { needs_all_outcomes: true, ..self }
    }

    /// Two numbers that must be equal.
    #[must_use]
    pub fn equal(name: impl Into<String>, expected: i128, found: i128) -> Self {
        Self::new(name, expected == found, format!("expected {expected}, found {found}"))
    }
}
