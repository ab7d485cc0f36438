//! Sections of the configuration.

/// One section, as the reference page sees it.
pub struct Section {
    /// Its name in TOML.
    pub name: &'static str,
    /// What its keys have in common.
    pub doc: &'static str,
}
