//! Mosquitto's ACL files, read as rules (mosquitto.conf(5), `acl_file`).
//!
//! Mosquitto looks through what stands under the client's user first, denials before the rest, and then through the
//! patterns of everybody, in the same way; what is not found is refused. The rules that are made have that order. Three
//! things differ, all of them towards less:
//!
//! * a user name or client identifier with `/` fits no pattern; Mosquitto takes it as several levels;
//! * a subscription of which nothing may be received is refused; Mosquitto grants it and delivers nothing;
//! * the state store, which Mosquitto does not have, stays closed until a rule opens it.

use super::document::{BrokerMethod, BrokerResource, Document, Effect, PrincipalsText, RuleText};
use crate::topic::{FilterError, check_filter};

/// Why a file is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ImportError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: ImportProblem,
}

/// What is wrong in a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportProblem {
    /// It begins with another word.
    #[error("a line begins with user, topic or pattern")]
    UnknownWord,
    /// A word is missing.
    #[error("there is nothing after {0}")]
    Missing(&'static str),
    /// The access is wrong.
    #[error("access is read, write, readwrite or deny")]
    Access,
    /// The topic is wrong.
    #[error("{0}")]
    Filter(#[from] FilterError),
    /// It would be read as a placeholder.
    #[error("a topic can't hold {{principal.")]
    Placeholder,
}

/// What one user may do, or everybody by patterns.
#[derive(Debug, Default)]
struct Access {
    denied: Vec<String>,
    written: Vec<String>,
    read: Vec<String>,
}

impl Access {
    fn add(&mut self, access: &str, topic: String) -> Result<(), ImportProblem> {
        match access {
            "read" => self.read.push(topic),
            "write" => self.written.push(topic),
            "readwrite" => {
                self.read.push(topic.clone());
                self.written.push(topic);
            }
            "deny" => self.denied.push(topic),
            _ => return Err(ImportProblem::Access),
        }
        Ok(())
    }

    /// Its rules, denials first.
    fn rules(self, description: &str, principals: &PrincipalsText, rules: &mut Vec<RuleText>) {
        let Access {
            denied,
            written,
            read,
        } = self;
        for (effect, publish, subscribe) in [
            (Effect::Deny, denied.clone(), denied),
            (Effect::Allow, written, read),
        ] {
            let resources = [
                (BrokerMethod::Publish, publish),
                (BrokerMethod::Subscribe, subscribe),
            ];
            let resources = resources
                .into_iter()
                .filter(|(_, topics)| !topics.is_empty());
            let broker_resources: Vec<BrokerResource> = resources
                .map(|(method, topics)| BrokerResource::of(method, topics))
                .collect();
            if !broker_resources.is_empty() {
                rules.push(RuleText {
                    description: Some(description.to_owned()),
                    effect,
                    principals: principals.clone(),
                    broker_resources,
                    ..RuleText::default()
                });
            }
        }
    }
}

/// Reads a file.
///
/// # Errors
/// The first line that Mosquitto would not take, or that has no meaning here.
pub fn import(text: &str) -> Result<Document, ImportError> {
    // `None`: lines before the first user, which are for clients without a user name.
    let mut users: Vec<(Option<String>, Access)> = vec![(None, Access::default())];
    let mut current = 0;
    let mut patterns = Access::default();
    for (number, line) in text.lines().enumerate() {
        let wrong = |problem| ImportError {
            line: number + 1,
            problem,
        };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "user" if rest.is_empty() => return Err(wrong(ImportProblem::Missing("user"))),
            "user" => {
                let known = users
                    .iter()
                    .position(|(name, _)| name.as_deref() == Some(rest));
                current = known.unwrap_or_else(|| {
                    users.push((Some(rest.to_owned()), Access::default()));
                    users.len() - 1
                });
            }
            "topic" => {
                let (access, topic) = access_and_topic(rest, "topic").map_err(wrong)?;
                let topic = checked(topic).map_err(wrong)?;
                users[current].1.add(access, topic).map_err(wrong)?;
            }
            "pattern" => {
                let (access, topic) = access_and_topic(rest, "pattern").map_err(wrong)?;
                let topic = with_placeholders(&checked(topic).map_err(wrong)?);
                patterns.add(access, topic).map_err(wrong)?;
            }
            _ => return Err(wrong(ImportProblem::UnknownWord)),
        }
    }
    Ok(document(users, patterns))
}

/// A line without an access gives both; a topic with blanks needs one.
fn access_and_topic<'a>(
    rest: &'a str,
    word: &'static str,
) -> Result<(&'a str, &'a str), ImportProblem> {
    match rest.split_once(' ') {
        Some((access, topic)) => Ok((access, topic.trim())),
        None if rest.is_empty() => Err(ImportProblem::Missing(word)),
        None => Ok(("readwrite", rest)),
    }
}

fn checked(topic: &str) -> Result<String, ImportProblem> {
    check_filter(topic)?;
    match topic.contains("{principal.") {
        true => Err(ImportProblem::Placeholder),
        false => Ok(topic.to_owned()),
    }
}

fn with_placeholders(topic: &str) -> String {
    topic
        .replace("%c", "{principal.client_id}")
        .replace("%u", "{principal.name}")
}

fn document(users: Vec<(Option<String>, Access)>, patterns: Access) -> Document {
    let everybody = PrincipalsText::default();
    let connect = BrokerResource {
        topics: None,
        ..BrokerResource::of(BrokerMethod::Connect, Vec::new())
    };
    let mut rules = vec![RuleText {
        description: Some("Mosquitto's file says nothing of who may connect".to_owned()),
        broker_resources: vec![connect],
        ..RuleText::default()
    }];
    for (user, access) in users {
        let (description, principals) = match user {
            Some(name) => {
                let description = format!("user {name}");
                let names = Some(vec![name]);
                let principals = PrincipalsText {
                    names,
                    ..PrincipalsText::default()
                };
                (description, principals)
            }
            None => {
                let methods = Some(vec!["anonymous".to_owned()]);
                let principals = PrincipalsText {
                    methods,
                    ..PrincipalsText::default()
                };
                ("clients without a user name".to_owned(), principals)
            }
        };
        access.rules(&description, &principals, &mut rules);
    }
    patterns.rules("patterns", &everybody, &mut rules);
    Document {
        default: Effect::Deny,
        rules,
        limits: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::acl::{Facts, Publication, Rights, Rules, Share};
    use crate::codec::QoS;

    const FILE: &str = "\
# a comment
topic read open/#

user bob
topic deny bob/secret
topic bob/#
topic write out/my topic
user ann
topic read ann/+
user bob
topic read more

pattern readwrite clients/%c/#
pattern deny users/%u/locked
pattern write users/%u/#
";

    fn rights(name: &str, client_id: &str) -> Rights {
        let document = import(FILE).expect("a file of Mosquitto's");
        let rules = Arc::new(Rules::compile(&document, 1).expect("rules"));
        let facts = Facts {
            name: name.into(),
            method: if name.is_empty() {
                "anonymous"
            } else {
                "password"
            },
            client_id: client_id.into(),
            ..Facts::default()
        };
        Rights::new(&rules, &facts)
    }

    #[test]
    fn a_file_means_what_it_means_to_mosquitto() {
        let publication = Publication {
            qos: QoS::AtLeastOnce,
            retain: true,
        };
        let writes = |name, topic: &str| rights(name, "c").publish(topic).allow(publication);
        let reads = |name, topic: &str| rights(name, "c").may_receive(topic, Share::None);
        assert!(rights("bob", "c").may_connect());
        assert!(writes("bob", "bob/x") && reads("bob", "bob/x") && reads("bob", "more"));
        assert!(!writes("bob", "bob/secret") && !reads("bob", "bob/secret"));
        assert!(writes("bob", "out/my topic") && !reads("bob", "out/my topic"));
        assert!(reads("ann", "ann/x") && !writes("ann", "ann/x") && !reads("ann", "bob/x"));
        assert!(
            reads("", "open/x") && !reads("bob", "open/x"),
            "lines before the first user"
        );
        assert!(writes("", "clients/c/x") && !writes("", "clients/d/x"));
        assert!(writes("ann", "users/ann/x") && !writes("ann", "users/ann/locked"));
        assert!(!writes("ann", "users/bob/x") && !writes("", "users//x"));
        assert!(!rights("+", "#").publish("users/bob/x").allow(publication));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line) in [
            ("user", 1),
            ("topic", 1),
            ("\ntopic maybe a/b", 2),
            ("topic read a/#/b", 1),
            ("acl read a", 1),
            ("topic read {principal.name}", 1),
        ] {
            assert_eq!(
                import(text).map_err(|error| error.line),
                Err(line),
                "{text}"
            );
        }
    }
}
