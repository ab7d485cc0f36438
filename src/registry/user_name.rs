//! The user name of a CONNECT that speaks for a device or a module: which hub, which identity, and what else its client
//! tells of itself.
//!
//! `{host}/{device}[/{module}]/?api-version=…[&DeviceClientType=…][&model-id=…]`; some clients leave the question mark
//! out. Host and identifiers are not percent-encoded, and an identifier may have a question mark; values are encoded.

use super::hosts::Hosts;
use super::percent;

/// Longest identifier of a model that is kept, bytes: as long as DTDL lets it be.
const LONGEST_MODEL_ID_BYTES: usize = 2_048;

/// An identity that a client says to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserName<'a> {
    /// The device, or that of the module.
    pub device: &'a str,
    /// The module, if it is one.
    pub module: Option<&'a str>,
    /// The model that its client announces; empty without one.
    pub model_id: String,
}

impl UserName<'_> {
    /// Whether a client identifier is this identity's: `{device}` or `{device}/{module}`.
    pub fn is_client_id(&self, client_id: &str) -> bool {
        match (self.module, client_id.split_once('/')) {
            (None, None) => client_id == self.device,
            (Some(module), Some((device, rest))) => device == self.device && rest == module,
            _ => false,
        }
    }
}

/// Why a user name of the hub can't be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameError {
    /// It has not the parts that it must have, or an empty one.
    #[error("the user name names no identity")]
    Parts,
    /// There is no `api-version`, or an empty one.
    #[error("the user name has no api-version")]
    ApiVersion,
    /// Its `model-id` is not UTF-8, or longer than any is.
    #[error("the user name's model-id can't be read")]
    ModelId,
}

/// Reads a user name. `None`: it is not for the hub.
pub fn read<'a>(text: &'a str, hosts: &Hosts) -> Option<Result<UserName<'a>, UserNameError>> {
    let (host, rest) = text.split_once('/')?;
    hosts.contains(host).then(|| identity(rest))
}

/// Reads a user name as that of a hub of any name. `None`: it is none.
pub fn of_any_hub(text: &str) -> Option<UserName<'_>> {
    let (host, rest) = text.split_once('/')?;
    identity(rest).ok().filter(|_| !host.is_empty())
}

fn identity(text: &str) -> Result<UserName<'_>, UserNameError> {
    let parts: Vec<&str> = text.split('/').collect();
    let (device, module, query) = match *parts {
        [device, query] => (device, None, query),
        [device, module, query] => (device, Some(module), query),
        _ => return Err(UserNameError::Parts),
    };
    if device.is_empty() || module.is_some_and(str::is_empty) {
        return Err(UserNameError::Parts);
    }
    let query = query.strip_prefix('?').unwrap_or(query);
    if value(query, "api-version").is_none_or(str::is_empty) {
        return Err(UserNameError::ApiVersion);
    }
    let model_id = percent::decode(value(query, "model-id").unwrap_or_default());
    let model_id = model_id.filter(|model| model.len() <= LONGEST_MODEL_ID_BYTES);
    Ok(UserName {
        device,
        module,
        model_id: model_id.ok_or(UserNameError::ModelId)?,
    })
}

/// The first value of a name.
fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(of, _)| *of == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts() -> Hosts {
        Hosts::new(["hub.example.com"])
    }

    fn read_one(text: &str) -> Result<UserName<'_>, UserNameError> {
        read(text, &hosts()).expect("it is for the hub")
    }

    /// As the client libraries of Python, Node, C, Go and Java send them.
    #[test]
    fn the_user_names_of_the_client_libraries_are_read() {
        let named = |device, module, model_id: &str| UserName {
            device,
            module,
            model_id: model_id.to_owned(),
        };
        for (text, expected) in [
            (
                "hub.example.com/devA/?api-version=2019-10-01&DeviceClientType=py-iothub-device%2F2.14.0%28python3.12%29",
                named("devA", None, ""),
            ),
            (
                "hub.example.com/devA/modA/?api-version=2021-04-12&DeviceClientType=azure-iot-device%2F1.18.4%20(node%20v20)",
                named("devA", Some("modA"), ""),
            ),
            (
                "hub.example.com/devA/?api-version=2020-09-30&DeviceClientType=iothubclient%2f1.13&model-id=dtmi%3acom%3aexample%3aThermostat%3b1",
                named("devA", None, "dtmi:com:example:Thermostat;1"),
            ),
            (
                "HUB.example.com:8883/devA/api-version=2018-06-30",
                named("devA", None, ""),
            ),
            (
                "hub.example.com/dev?A/?x=1&api-version=any&api-version=&model-id=a&model-id=b",
                named("dev?A", None, "a"),
            ),
            (
                "hub.example.com/?api-version=1/?api-version=1",
                named("?api-version=1", None, ""),
            ),
        ] {
            assert_eq!(read_one(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_user_name_of_the_hub_that_cannot_be_read_says_why() {
        use UserNameError::{ApiVersion, ModelId, Parts};
        let long = format!(
            "hub.example.com/d/?api-version=1&model-id={}",
            "m".repeat(2_049)
        );
        for (text, error) in [
            ("hub.example.com/", Parts),
            ("hub.example.com/devA", Parts),
            ("hub.example.com//?api-version=1", Parts),
            ("hub.example.com/devA//?api-version=1", Parts),
            ("hub.example.com/a/b/c/?api-version=1", Parts),
            ("hub.example.com/devA/", ApiVersion),
            ("hub.example.com/devA/?api-version=", ApiVersion),
            (
                "hub.example.com/devA/?api-version=&api-version=1",
                ApiVersion,
            ),
            ("hub.example.com/devA/?API-VERSION=1", ApiVersion),
            ("hub.example.com/devA/?api-version=1&model-id=%FF", ModelId),
            (&long, ModelId),
        ] {
            assert_eq!(read_one(text), Err(error), "{text}");
        }
    }

    #[test]
    fn other_user_names_are_not_the_hubs() {
        for text in [
            "",
            "/",
            "anna",
            "hub.example.com",
            "other/devA/?api-version=1",
        ] {
            assert_eq!(read(text, &hosts()), None, "{text}");
        }
        assert_eq!(
            read("hub.example.com/d/?api-version=1", &Hosts::default()),
            None
        );
    }

    #[test]
    fn the_client_id_is_the_identity() {
        let is_of = |text, client_id| read_one(text).expect("an identity").is_client_id(client_id);
        let device = "hub.example.com/devA/?api-version=1";
        let module = "hub.example.com/devA/modA/?api-version=1";
        assert!(is_of(device, "devA") && is_of(module, "devA/modA"));
        for (text, client_id) in [
            (device, "deva"),
            (device, ""),
            (device, "devA/modA"),
            (module, "devA"),
            (module, "devA/modA/"),
            (module, "devA/modA/x"),
        ] {
            assert!(!is_of(text, client_id), "{client_id}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            let _ = read(&text, &hosts());
            let _ = read(&format!("hub.example.com/{text}"), &hosts());
        }

        #[test]
        fn what_is_read_is_what_was_written(
            device in "[A-Za-z0-9:.%_?(),=@$'!*-]{1,128}",
            module in proptest::option::of("[A-Za-z0-9:.%_?(),=@$'!*-]{1,128}"),
        ) {
            let client_id = match &module {
                Some(module) => format!("{device}/{module}"),
                None => device.clone(),
            };
            let text = format!("hub.example.com/{client_id}/?api-version=1");
            let found = read_one(&text).expect("an identity");
            prop_assert_eq!((found.device, found.module), (&*device, module.as_deref()));
            prop_assert!(found.is_client_id(&client_id));
        }
    }
}
