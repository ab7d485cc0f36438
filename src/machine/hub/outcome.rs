//! What became of the hub's commands, and what a node is to tell of them.

use crate::base::ids::ConnectionId;
use crate::registry::document::IdentityDocument;
use crate::twin::{EncodedSection, Measure, TooLarge, Twin, limits};

/// The answer to one of the hub's commands.
#[derive(Clone, Debug, PartialEq)]
pub enum HubReply {
    /// The identity was created or updated: as it is now.
    Identity(Box<IdentityDocument>),
    /// The identity was deleted.
    Deleted,
    /// The twin was written, or the request had nothing to write: as it is now.
    Twin(Box<Twin>),
    /// What became of a patch of reported properties.
    Reported(Reported),
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An identity that was to be created is there.
    Exists,
    /// There is no such device.
    NoDevice,
    /// The device is there, the module is not.
    NoModule,
    /// The etag is not one of those that the request names.
    Precondition,
    /// There are as many devices as there may be.
    TooManyDevices,
    /// The device has as many modules as it may have.
    TooManyModules,
    /// A section would be larger than it may be.
    TooLarge(TooLarge),
    /// The command is not what this version's nodes propose.
    Invalid,
    /// The log entry has no work left for what the command does: it is to be proposed again.
    Busy,
}

/// What became of a patch of reported properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// They have this version now.
    Patched(u64),
    /// They have not the version that they were to have.
    Precondition,
    /// They would be larger than they may be.
    TooLarge(TooLarge),
    /// The command is not what this version's nodes propose.
    Invalid,
}

impl Reported {
    /// Bytes of one that is remembered.
    pub(super) const BYTES: usize = 9;

    /// For the row in which it is remembered.
    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Reported::Patched(version) => (0, version),
            Reported::Precondition => (1, 0),
            Reported::TooLarge(error) => {
                let kind = match error.measure {
                    Measure::Size => 2,
                    Measure::Values => 4,
                    Measure::TextBytes => 5,
                    Measure::Elements => 6,
                };
                (kind, error.size)
            }
            Reported::Invalid => (3, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = kind;
        bytes[1..].copy_from_slice(&u64::to_be_bytes(number));
        bytes
    }

    /// The inverse of [`Reported::encode`].
    pub(super) fn decode(bytes: &[u8]) -> Option<Reported> {
        let (kind, number) = bytes.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let too_large = |measure: Measure| {
            Reported::TooLarge(TooLarge {
                measure,
                size: number,
                most: measure.most(limits::PROPERTIES_SIZE),
            })
        };
        Some(match kind {
            0 => Reported::Patched(number),
            1 => Reported::Precondition,
            2 => too_large(Measure::Size),
            3 => Reported::Invalid,
            4 => too_large(Measure::Values),
            5 => too_large(Measure::TextBytes),
            6 => too_large(Measure::Elements),
            _ => return None,
        })
    }
}

/// Desired properties were written, and a connection of this node is to hear of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredChanged {
    /// The connection of the identity.
    pub connection: ConnectionId,
    /// Their version now.
    pub version: u64,
    /// What the client is told, if it is told of this write alone.
    pub body: String,
    /// As they were before. With the next one's `after`, this makes one notification of several
    /// ([`crate::twin::folded`]).
    pub before: EncodedSection,
    /// As they are now.
    pub after: EncodedSection,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_answers_are_read_back() {
        let too_large = |measure: Measure| {
            Reported::TooLarge(TooLarge {
                measure,
                size: 99_999,
                most: measure.most(limits::PROPERTIES_SIZE),
            })
        };
        for answer in [
            Reported::Patched(u64::MAX),
            Reported::Precondition,
            too_large(Measure::Size),
            too_large(Measure::Values),
            too_large(Measure::TextBytes),
            too_large(Measure::Elements),
            Reported::Invalid,
        ] {
            let bytes = answer.encode();
            assert_eq!(Reported::decode(&bytes), Some(answer));
            assert_eq!(Reported::decode(&bytes[1..]), None);
        }
        assert_eq!(Reported::decode(&[9; 9]), None);
    }
}
