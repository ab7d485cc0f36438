//! Disks that stall: a small library between a node and the C library makes its syncs take longer while a file says so.
//!
//! Must not need anything of the binary under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Compiles the library; the environment that loads it into a node whose stalls `file` tells. `None` without a
/// compiler.
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

/// What a disk does to syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Well,
    /// Each sync takes that much longer.
    Slow(Duration),
    /// No sync ends until the disk is something else.
    Frozen,
}

/// The file that tells a node's library.
#[derive(Debug)]
pub(super) struct Stall(pub PathBuf);

impl Stall {
    pub fn set(&self, disk: Disk) {
        let millis = match disk {
            Disk::Well => {
                let _ = std::fs::remove_file(&self.0);
                return;
            }
            Disk::Slow(longer) => longer.as_millis().max(1),
            Disk::Frozen => 0,
        };
        // Renamed, so that no sync reads half a number.
        let new = self.0.with_extension("new");
        std::fs::write(&new, millis.to_string()).expect("a file can be written");
        std::fs::rename(&new, &self.0).expect("a file can be renamed");
    }
}
