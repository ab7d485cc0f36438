//! A rule of the configuration that is broken.

/// A rule that is broken.
pub struct Finding {
    /// The keys it concerns, the one to change first.
    pub keys: Vec<&'static str>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}
