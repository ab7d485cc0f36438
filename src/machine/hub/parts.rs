//! Which rows of twins a scan looks into: what it does not need costs it no decoding.

use crate::machine::schema::Part;

/// Some parts of a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinParts(u8);

impl TwinParts {
    /// All of them.
    pub const ALL: TwinParts = TwinParts(u8::MAX);

    fn of(parts: &[Part]) -> TwinParts {
        let bits = parts.iter().map(|part| 1 << *part as u8);
        TwinParts(bits.fold(0, |all, bit: u8| all | bit))
    }

    /// Those that have what these paths of a twin lead to, but for whether it is connected ([`super::read::complete`]).
    pub fn of_paths<'p, S: AsRef<str> + 'p>(paths: impl Iterator<Item = &'p [S]>) -> TwinParts {
        let parts = paths.map(of_path);
        TwinParts(parts.fold(0, |all, parts| all | parts.0))
    }

    pub(super) fn has(self, part: Part) -> bool {
        self.0 & (1 << part as u8) != 0
    }
}

fn of_path<S: AsRef<str>>(path: &[S]) -> TwinParts {
    let mut names = path.iter().map(AsRef::as_ref);
    let (root, next) = (names.next(), names.next());
    match (root, next) {
        (Some("deviceId" | "moduleId" | "cloudToDeviceMessageCount"), _) => TwinParts(0),
        (Some("tags"), _) => TwinParts::of(&[Part::Tags]),
        (Some("properties"), Some("desired")) => TwinParts::of(&[Part::Desired]),
        (Some("properties"), Some("reported")) => TwinParts::of(&[Part::Reported]),
        (Some("properties"), _) => TwinParts::of(&[Part::Desired, Part::Reported]),
        (Some("etag" | "version"), _) => TwinParts::of(&[Part::Head]),
        (Some("modelId"), _) => TwinParts::of(&[Part::Activity]),
        // Reported properties tell when they were written.
        (Some("lastActivityTime"), _) => TwinParts::of(&[Part::Reported, Part::Activity]),
        // A session of an identity that had the same name before does not count.
        (
            Some(
                "authenticationType" | "capabilities" | "connectionState" | "deviceEtag" | "status"
                | "statusReason" | "statusUpdateTime" | "x509Thumbprint",
            ),
            _,
        ) => TwinParts::of(&[Part::Identity]),
        _ => TwinParts::ALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_have_a_bit() {
        for part in Part::ALL {
            assert!(TwinParts::ALL.has(part) && TwinParts::of(&[part]).has(part));
            assert!(!TwinParts::of(&[]).has(part));
        }
    }
}
