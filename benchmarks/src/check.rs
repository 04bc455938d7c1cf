//! One statement about the data after a run, and whether it holds.

/// A statement that was checked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it does.
    pub passed: bool,
    /// What was expected and found.
    pub detail: String,
}

impl Check {
    /// A statement that holds if `passed`.
    #[must_use]
    pub fn new(name: impl Into<String>, passed: bool, detail: impl Into<String>) -> Self {
        Self { name: name.into(), passed, detail: detail.into() }
    }

    /// Two numbers that must be equal.
    #[must_use]
    pub fn equal(name: impl Into<String>, expected: i128, found: i128) -> Self {
        Self::new(name, expected == found, format!("expected {expected}, found {found}"))
    }
}
