//! What of this node's files requests to endpoints may use: secrets, and the certificates of authorities.
//!
//! Whoever may make event subscriptions chooses their URL, and is not whoever may read files of the nodes. So it is the
//! nodes' configuration that says which secret goes where, and where certificates are.
//!
//! Invariant: nothing outside of `events.ca_directory` is read because an event subscription names it, but for what
//! this node's own configuration names.

use std::path::{Component, Path, PathBuf};

use super::secrets::Secrets;
use crate::base::proto::state::EventSubscriptionOptions;
use crate::config::Config;

/// A file of certificates that may not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ca_file must be in events.ca_directory of this node")]
pub(crate) struct ForeignFile;

/// What requests to endpoints may use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    /// Secrets.
    pub(super) secrets: Secrets,
    /// The only place for certificates that event subscriptions name.
    ca_directory: Option<PathBuf>,
    /// The file that this node's configuration names for the event subscription that it declares.
    declared: Option<PathBuf>,
}

impl Files {
    /// What a configuration allows.
    pub(crate) fn new(config: &Config) -> Files {
        let events = &config.events;
        let declared = events.webhook_url.as_str();
        Files {
            secrets: Secrets::new(events.secrets_file.clone(), declared),
            ca_directory: events.ca_directory.clone(),
            declared: events.webhook_ca_file.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn of_secrets(secrets: Secrets) -> Files {
        Files {
            secrets,
            ..Files::default()
        }
    }

    /// The file of the authorities that may vouch for an endpoint; `None`: those of the system.
    ///
    /// # Errors
    /// It is not where such files may be.
    pub(crate) fn authorities(
        &self,
        options: &EventSubscriptionOptions,
    ) -> Result<Option<PathBuf>, ForeignFile> {
        let named = Path::new(&options.ca_file);
        if options.ca_file.is_empty() {
            return Ok(None);
        }
        if self.declared.as_deref() == Some(named) {
            return Ok(Some(named.to_owned()));
        }
        let Some(directory) = &self.ca_directory else {
            return Err(ForeignFile);
        };
        let within = named.strip_prefix(directory).unwrap_or(named);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        match within.components().all(is_plain) {
            true => Ok(Some(directory.join(within))),
            false => Err(ForeignFile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_in_their_directory_or_declared() {
        let files = Files {
            ca_directory: Some("/etc/ca".into()),
            declared: Some("/own/ca.pem".into()),
            ..Files::default()
        };
        let of = |files: &Files, ca_file: &str| {
            files.authorities(&EventSubscriptionOptions {
                ca_file: ca_file.to_owned(),
                ..EventSubscriptionOptions::default()
            })
        };
        for (ca_file, path) in [
            ("a.pem", "/etc/ca/a.pem"),
            ("team/a.pem", "/etc/ca/team/a.pem"),
            ("/etc/ca/a.pem", "/etc/ca/a.pem"),
            ("/own/ca.pem", "/own/ca.pem"),
        ] {
            assert_eq!(of(&files, ca_file), Ok(Some(path.into())), "{ca_file}");
        }
        assert_eq!(of(&files, ""), Ok(None));
        for foreign in [
            "../a.pem",
            "a/../../b",
            "/etc/ca/../shadow",
            "/etc/cab/a.pem",
            "/proc/self/fd/1",
            "/own/other.pem",
        ] {
            assert_eq!(of(&files, foreign), Err(ForeignFile), "{foreign}");
        }
        assert_eq!(of(&Files::default(), "a.pem"), Err(ForeignFile));
    }
}
