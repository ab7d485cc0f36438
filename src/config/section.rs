//! Sections of the configuration.

use std::ops::RangeInclusive;

use super::setting::{Input, SettingError};

/// One section, as the reference page sees it.
pub struct Section {
    /// Its name in TOML.
    pub name: &'static str,
    /// What its keys have in common.
    pub doc: &'static str,
}

/// One key of a section's struct.
pub(super) struct SectionKey<S> {
    /// Full name, `section.key`.
    pub(super) name: &'static str,
    /// What it means and when to change it.
    pub(super) doc: &'static str,
    /// Unit of a number, empty for everything else.
    pub(super) unit: &'static str,
    /// The kind of value.
    pub(super) kind: &'static str,
    /// Smallest and largest number that is accepted.
    pub(super) range: Option<RangeInclusive<u64>>,
    pub(super) set: fn(&mut S, &Input<'_>) -> Result<(), SettingError>,
    pub(super) show: fn(&S) -> String,
}
