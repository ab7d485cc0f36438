//! The event subscription `config`, as `events.webhook_*` declares it, and what is wrong with it.

use super::finding::Finding;
use super::keys::Config;
use crate::base::proto::state::EventSubscriptionOptions;
use crate::events::options::{check, defaults};
use crate::http_client::Url;

/// The name of the event subscription that a configuration declares.
pub const DECLARED: &str = "config";

impl Config {
    /// Who deliveries say that they come from.
    pub fn event_origin(&self) -> String {
        match self.events.origin.as_str() {
            "" => self.cluster.name.as_str().to_owned(),
            origin => origin.to_owned(),
        }
    }

    /// The event subscription that it declares; `None`: it declares none.
    pub fn event_subscription(&self) -> Option<EventSubscriptionOptions> {
        let events = &self.events;
        if events.webhook_url.is_empty() {
            return None;
        }
        let key = Some(&events.webhook_signing_key).filter(|name| !name.is_empty());
        let ca_file = events.webhook_ca_file.as_ref();
        Some(EventSubscriptionOptions {
            url: events.webhook_url.clone(),
            schema: events.webhook_schema.number(),
            mode: events.webhook_mode.number(),
            types: events.webhook_types.clone(),
            token: events.webhook_token.clone(),
            signing_keys: key.cloned().into_iter().collect(),
            handshake: events.webhook_handshake.number(),
            ca_file: ca_file.map_or_else(String::new, |path| path.display().to_string()),
            plain_http: events.webhook_plain_http,
            ttl_min: events.ttl_min,
            max_attempts: events.max_attempts,
            max_events: events.batch_max_events,
            max_bytes: events.batch_max_bytes,
            timeout_s: events.timeout_s,
            rate_per_min: events.rate_per_min,
            origin: self.event_origin(),
            ..defaults()
        })
    }
}

/// Every broken rule.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |key: &'static str, message: String, hint: &str| {
        found.push(Finding {
            keys: vec![key],
            message,
            hint: hint.to_owned(),
        });
    };
    let origin = config.event_origin();
    if origin.is_empty() || origin.bytes().any(|byte| !(0x21..0x7f).contains(&byte)) {
        let message = format!("{origin:?} can't stand in a header");
        add(
            "events.origin",
            message,
            "a host name such as events.example",
        );
    }
    let Some(options) = config.event_subscription() else {
        return found;
    };
    if let Err(error) = Url::of_endpoint(&options.url, options.plain_http) {
        let hint = "an address such as https://events.example/quorumq";
        add("events.webhook_url", error.to_string(), hint);
    }
    if let Err(error) = check(DECLARED, &options) {
        let hint = "see docs/events.md, Webhooks";
        add("events.webhook_url", error.to_string(), hint);
    }
    let events = &config.events;
    let needs_secrets = !events.webhook_token.is_empty() || !events.webhook_signing_key.is_empty();
    if needs_secrets && events.secrets_file.is_none() {
        let message = "the secrets that the webhook names are nowhere".to_owned();
        add(
            "events.secrets_file",
            message,
            "a file with lines such as name=value",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::{EventMode, EventSchema};

    fn declared(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        config.events.webhook_url = "https://events.example/quorumq".to_owned();
        change(&mut config);
        config
    }

    #[test]
    fn a_url_declares_an_event_subscription_with_the_defaults() {
        assert!(Config::default().event_subscription().is_none());
        let config = declared(|_| ());
        assert!(findings(&config).is_empty());
        let expected = EventSubscriptionOptions {
            url: config.events.webhook_url.clone(),
            origin: "quorumq".to_owned(),
            ..defaults()
        };
        assert_eq!(config.event_subscription(), Some(expected));
    }

    #[test]
    fn what_could_not_be_sent_is_found_before_the_node_starts() {
        type Spoil = fn(&mut Config);
        let wrong: [(Spoil, &str); 6] = [
            (
                |config| config.events.webhook_url = "http://a.example/".to_owned(),
                "events.webhook_url",
            ),
            (
                |config| config.events.webhook_url = "x".to_owned(),
                "events.webhook_url",
            ),
            (
                |config| config.events.webhook_types = vec!["x".to_owned()],
                "events.webhook_url",
            ),
            (
                |config| config.events.webhook_token = "a".to_owned(),
                "events.secrets_file",
            ),
            (
                |config| config.events.origin = "a b".to_owned(),
                "events.origin",
            ),
            (
                |config| {
                    config.events.webhook_schema = EventSchema::EventGrid;
                    config.events.webhook_mode = EventMode::Binary;
                },
                "events.webhook_url",
            ),
        ];
        for (change, key) in wrong {
            let found = findings(&declared(change));
            assert_eq!(found.len(), 1, "{key}");
            assert_eq!(found[0].keys, [key]);
        }
    }
}
