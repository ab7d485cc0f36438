//! The ids of devices and modules.

use std::fmt;

/// Characters of an id.
const MOST: usize = 128;

/// An id breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an id has 1 to {MOST} of the ASCII letters, the digits and - : . % _ * ? ! ( ) , = @ $ ', and does not begin with $"
)]
pub struct InvalidId;

/// The id of a device, or of a module of one. Ids are compared with their case.
///
/// It displays as the client id of the identity: `{device}` or `{device}/{module}`. No id has a `/`, so no two
/// identities have one client id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityId {
    device: String,
    /// Empty for a device.
    module: String,
}

fn is_valid(id: &str) -> bool {
    // `+` and `#` would be legal but for MQTT, whose topic names have neither.
    let may_be_in_id =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-:.%_*?!(),=@$'".contains(&byte);
    (1..=MOST).contains(&id.len()) && id.bytes().all(may_be_in_id) && !id.starts_with('$')
}

impl IdentityId {
    /// A device.
    ///
    /// # Errors
    /// The id breaks a rule.
    pub fn device(device: &str) -> Result<IdentityId, InvalidId> {
        match is_valid(device) {
            true => Ok(IdentityId {
                device: device.to_owned(),
                module: String::new(),
            }),
            false => Err(InvalidId),
        }
    }

    /// A module.
    ///
    /// # Errors
    /// One of the ids breaks a rule.
    pub fn module(device: &str, module: &str) -> Result<IdentityId, InvalidId> {
        match is_valid(device) && is_valid(module) {
            true => Ok(IdentityId {
                device: device.to_owned(),
                module: module.to_owned(),
            }),
            false => Err(InvalidId),
        }
    }

    /// As commands and keys of rows have it: no module is an empty text.
    ///
    /// # Errors
    /// One of the ids breaks a rule.
    pub fn of_parts(device: &str, module: &str) -> Result<IdentityId, InvalidId> {
        match module {
            "" => IdentityId::device(device),
            module => IdentityId::module(device, module),
        }
    }

    /// The identity that has this client id.
    ///
    /// # Errors
    /// None has.
    pub fn of_client_id(client_id: &str) -> Result<IdentityId, InvalidId> {
        match client_id.split_once('/') {
            Some((device, module)) => IdentityId::module(device, module),
            None => IdentityId::device(client_id),
        }
    }

    /// The id of the device.
    pub fn device_id(&self) -> &str {
        &self.device
    }

    /// The id of the module, if it is one.
    pub fn module_id(&self) -> Option<&str> {
        (!self.module.is_empty()).then_some(&*self.module)
    }

    /// Whether it is a module.
    pub fn is_module(&self) -> bool {
        !self.module.is_empty()
    }

    /// The device that a module is of; a device itself.
    #[must_use]
    pub fn of_device(&self) -> IdentityId {
        IdentityId {
            device: self.device.clone(),
            module: String::new(),
        }
    }

    /// As commands and keys of rows have it.
    pub fn parts(&self) -> (&str, &str) {
        (&self.device, &self.module)
    }
}

impl fmt::Display for IdentityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        match self.module_id() {
            Some(module) => write!(f, "/{module}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_characters_that_they_may_have_and_no_others() {
        for character in (0..=0x17F).filter_map(char::from_u32) {
            let id = format!("a{character}");
            let legal = character.is_ascii_alphanumeric() || "-:.%_*?!(),=@$'".contains(character);
            assert_eq!(IdentityId::device(&id).is_ok(), legal, "{character:?}");
            assert_eq!(IdentityId::module("d", &id).is_ok(), legal, "{character:?}");
        }
        assert!(IdentityId::device("$a").is_err());
        assert!(IdentityId::module("d", "$edgeAgent").is_err());
        assert!(IdentityId::device("A$").is_ok());
    }

    #[test]
    fn ids_have_one_to_128_characters() {
        for (length, legal) in [(0, false), (1, true), (128, true), (129, false)] {
            let id = "x".repeat(length);
            assert_eq!(IdentityId::device(&id).is_ok(), legal, "{length}");
            assert_eq!(IdentityId::module("d", &id).is_ok(), legal, "{length}");
        }
    }

    #[test]
    fn a_client_id_names_one_identity() {
        for id in [
            IdentityId::device("d").expect("an id"),
            IdentityId::module("d", "m").expect("an id"),
        ] {
            assert_eq!(IdentityId::of_client_id(&id.to_string()), Ok(id.clone()));
            let (device, module) = id.parts();
            assert_eq!(IdentityId::of_parts(device, module), Ok(id.clone()));
        }
        for other in ["", "/", "d/", "/m", "d/m/x", "d/m/", "$d"] {
            assert_eq!(IdentityId::of_client_id(other), Err(InvalidId), "{other}");
        }
    }
}
