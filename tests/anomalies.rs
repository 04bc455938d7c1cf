//! Anomalies that concurrent transactions must not show, one script for each in `tests/anomalies/`.
//!
//! Every script names the rules whose removal changes its transcript; `tests/anomalies_mutant.rs` removes them. The same
//! scripts run over the wire in `tests/server/anomalies.rs`.
//!
//! *Source*: the names G0, G1a, G1b, G1c, G-single, G2 and PMP are Adya's (Weak Consistency, 1999); P4 is Berenson's
//! (A Critique of ANSI SQL Isolation Levels, 1995); the read-only anomaly is Fekete's (SIGMOD Record, 2004).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod anomalies {
    pub(crate) mod embedded;
    pub(crate) mod transcript;
}

use std::path::Path;
use std::time::Duration;

use anomalies::embedded::run;
use anomalies::transcript::Script;

/// No statement takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_script_gives_its_transcript() {
    let scripts = Script::all();
    assert!(scripts.len() >= 15, "only {} scripts were found", scripts.len());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("anomalies");
    std::fs::create_dir_all(&folder).unwrap();
    let mut differ = Vec::new();
    for script in scripts {
        let (transcript, wrong) = run(&script, PATIENCE);
        assert!(wrong.is_empty(), "after {}: {wrong:?}", script.name);
        if transcript != script.text {
            std::fs::write(folder.join(format!("{}.script", script.name)), &transcript).unwrap();
            differ.push(format!("{} gives\n{transcript}", script.name));
        }
    }
    assert!(
        differ.is_empty(),
        "the transcripts are in {}\n{}",
        folder.display(),
        differ.join("\n")
    );
}
