//! Rules of events: what their names must be like.

use super::finding::Finding;
use super::keys::Config;

/// Characters of a name in events.
const NAME_CHARACTERS: usize = 128;

/// Every broken rule.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let is_printable = |text: &str| text.chars().all(|c| !c.is_whitespace() && !c.is_control());
    let events = &config.events;
    if events.namespace.chars().count() > NAME_CHARACTERS || !is_printable(&events.namespace) {
        found.push(Finding {
            keys: vec!["events.namespace"],
            message: "this is no name of a namespace".to_owned(),
            hint: format!("at most {NAME_CHARACTERS} characters, without white space"),
        });
    }
    if !is_printable(&events.source) {
        found.push(Finding {
            keys: vec!["events.source"],
            message: "this is no URI reference".to_owned(),
            hint: "a path such as /namespaces/factory, without white space".to_owned(),
        });
    }
    found
}
