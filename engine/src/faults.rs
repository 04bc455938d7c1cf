//! The faults of a participant that a test can inject. Most strike a bucket at one version, so that what came before succeeds.
//!
//! *Not here*: faults of the network, of clocks and of threads, which the simulator makes (`simulation/`).

gannet_rules::faults! {
    /// The first backup of a partition acknowledges updates without applying them.
    DROP_BACKUP_UPDATES,
    /// A backup acknowledges the update that gives a bucket its 65th version, and loses it.
    LOSE_BACKUP_UPDATE,
    /// A backup refuses the update that gives a bucket its 65th version, though it is decided.
    REFUSE_BACKUP,
    /// A primary refuses to validate a bucket at its 64th version, though it knows the bucket.
    REFUSE_VALIDATION,
    /// A primary loses the lock under which a bucket gets its 65th version.
    LOSE_LOCK,
}
