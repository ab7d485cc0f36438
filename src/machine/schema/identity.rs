//! Rows of identities, each of which has several parts: `0x40 | device | 00 | part u8`, and `0x41 | device | 00 |
//! module | 00 | part u8` → `state.IdentityPart`.
//!
//! A part that says no more than a new identity would has no row. Ids have no zero byte, so keys are in the byte order
//! of device and module, and the parts of one identity are together.

use super::table::{Range, Table, key, rest};
use crate::base::proto::state;

/// What a row of an identity is about. The number is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    /// The identity itself. There is always this row.
    Identity = 0,
    /// Counters of the twin. There is always this row.
    Head = 1,
    /// The tags.
    Tags = 2,
    /// The desired properties.
    Desired = 3,
    /// The reported properties.
    Reported = 4,
    /// What is known of its connections.
    Activity = 5,
}

impl Part {
    /// Every part, in the order of keys.
    pub const ALL: [Part; 6] = [
        Part::Identity,
        Part::Head,
        Part::Tags,
        Part::Desired,
        Part::Reported,
        Part::Activity,
    ];

    /// The last part of an identity.
    pub const LAST: Part = Part::Activity;

    fn of_number(number: u8) -> Option<Part> {
        Part::ALL.into_iter().find(|part| *part as u8 == number)
    }
}

/// The table of devices.
pub enum Device {}

/// The table of modules.
pub enum Module {}

/// Splits a text and the zero behind it off the front.
fn take_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let at = bytes.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&bytes[..at]).ok()?;
    Some((text, &bytes[at + 1..]))
}

fn only_part(bytes: &[u8]) -> Option<Part> {
    match bytes {
        [number] => Part::of_number(*number),
        _ => None,
    }
}

impl Table for Device {
    const ORDINAL: u8 = 0x40;
    type Key<'a> = (&'a str, Part);
    type Row = state::IdentityPart;

    fn encode((device, part): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[device.as_bytes(), &[0, part as u8]])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (device, part) = take_text(rest::<Self>(key)?)?;
        Some((device, only_part(part)?))
    }
}

impl Table for Module {
    const ORDINAL: u8 = 0x41;
    type Key<'a> = (&'a str, &'a str, Part);
    type Row = state::IdentityPart;

    fn encode((device, module, part): Self::Key<'_>) -> Vec<u8> {
        let (device, module) = (device.as_bytes(), module.as_bytes());
        key::<Self>(&[device, &[0], module, &[0, part as u8]])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (device, module) = take_text(rest::<Self>(key)?)?;
        let (module, part) = take_text(module)?;
        Some((device, module, only_part(part)?))
    }
}

impl Device {
    /// All rows of one device.
    pub fn of(device: &str) -> Range<Self> {
        let device = device.as_bytes();
        Range::new(key::<Self>(&[device, &[0]]), key::<Self>(&[device, &[1]]))
    }
}

impl Module {
    /// All rows of one module.
    pub fn of(device: &str, module: &str) -> Range<Self> {
        let (device, module) = (device.as_bytes(), module.as_bytes());
        let end = |last: u8| key::<Self>(&[device, &[0], module, &[last]]);
        Range::new(end(0), end(1))
    }

    /// All rows of the modules of one device.
    pub fn of_device(device: &str) -> Range<Self> {
        let device = device.as_bytes();
        Range::new(key::<Self>(&[device, &[0]]), key::<Self>(&[device, &[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        for part in Part::ALL {
            let key = Device::encode(("d", part));
            assert_eq!(Device::decode(&key), Some(("d", part)));
            let key = Module::encode(("d", "m", part));
            assert_eq!(Module::decode(&key), Some(("d", "m", part)));
        }
        for damaged in ["d", "d\0", "d\0\x06", "d\0\0x"] {
            let key = [&[0x40], damaged.as_bytes()].concat();
            assert_eq!(Device::decode(&key), None, "{damaged:?}");
        }
        assert_eq!(Module::decode(b"\x41d\0m"), None);
    }

    #[test]
    fn the_rows_of_an_identity_are_one_range() {
        let first = |device| Device::encode((device, Part::Identity));
        let last = |device| Device::encode((device, Part::Activity));
        let range = Device::of("d");
        assert!(has(&range, &first("d")) && has(&range, &last("d")));
        assert!(
            !has(&range, &last("c")) && !has(&range, &first("d!")) && !has(&range, &first("e"))
        );
        assert!(last("d") < first("d!") && last("d!") < first("da"));
        let last = |module| Module::encode(("d", module, Part::Activity));
        let range = Module::of("d", "m");
        assert!(has(&range, &last("m")) && !has(&range, &last("m1")) && !has(&range, &last("l")));
        let range = Module::of_device("d");
        assert!(has(&range, &last("m")) && has(&range, &last("~")));
        assert!(!has(&range, &Module::encode(("d!", "m", Part::Identity))));
    }
}
