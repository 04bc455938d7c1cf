//! The rules of this crate that a test can remove.

gannet_rules::rules! {
    /// A change of the catalog writes all copies of its version.
    ALL_CATALOG_VERSIONS,
    /// A change of a row removes an index entry only if the entry is the row's own. In an index that is not ready, the entry
    /// may be another row's.
    OWN_ENTRIES,
    /// The builds of a lost node are undone.
    LOST_BUILDS,
}
