//! Disks that stall: a small library between a node and the C library makes its syncs take longer while a file says so.
//!
//! Must not need anything of the binary under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Compiles the library; the environment that loads it into a node whose stalls `file` tells. `None` without a compiler.
pub(super) fn environment(directory: &Path, file: &Path) -> Option<Vec<(String, String)>> {
    let library = directory.join("stall.so");
    if !library.exists() {
        let source = directory.join("stall.c");
        std::fs::write(&source, include_str!("stall.c")).expect("a file can be written");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(&source)
            .output()
            .ok()?;
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "cc: {said}");
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Some(vec![
        ("LD_PRELOAD".into(), text(&library)),
        ("QUORUMQ_TEST_STALL".into(), text(file)),
    ])
}

/// How long each sync of a node takes longer.
#[derive(Debug)]
pub(super) struct Stall(pub PathBuf);

impl Stall {
    pub fn set(&self, longer: Duration) {
        if longer.is_zero() {
            let _ = std::fs::remove_file(&self.0);
            return;
        }
        // Renamed, so that no sync reads half a number.
        let new = self.0.with_extension("new");
        std::fs::write(&new, longer.as_millis().to_string()).expect("a file can be written");
        std::fs::rename(&new, &self.0).expect("a file can be renamed");
    }
}
