//! What is wrong with a manifest.

/// One text for each problem.
#[derive(Default)]
pub struct Found(pub Vec<String>);

impl Found {
    pub fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: T, wanted: T) {
        if found != wanted {
            self.0.push(format!("{what}: {found:?}, not {wanted:?}"));
        }
    }

    pub fn holds(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.0.push(what.into());
        }
    }
}
