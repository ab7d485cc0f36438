//! Citations of statements in text and in the sources of tests.

use super::standard::{Number, Standard};

/// The statements that a text cites, in its order.
pub fn in_text(text: &str) -> Vec<Number> {
    let mut found: Vec<Number> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("[MQTT-") {
        // Between two citations there may be marks, but no words.
        let marks: &[char] = &[' ', ',', '`', '\\', '/'];
        let before = rest[..at].trim_end_matches(marks);
        let standard = match found.last() {
            _ if before.ends_with("3.1.1") => Standard::V311,
            Some((standard, _)) if before.is_empty() => *standard,
            _ => Standard::V5,
        };
        let id = &rest[at + 1..];
        let end = id.find(']').unwrap_or(id.len());
        found.push((standard, id[..end].trim_end_matches('\\').to_owned()));
        rest = id[end..].trim_start_matches(']');
    }
    found
}

/// The statements that the tests in a source file cite, with the test's name. Unless the file has `only_tests`, what
/// counts comes after its `#[cfg(test)]`.
pub fn in_source(text: &str, only_tests: bool) -> Vec<(String, Number)> {
    let mut found = Vec::new();
    let mut counts = only_tests;
    // What stands above a function belongs to it.
    let mut above: Vec<Number> = Vec::new();
    let mut marked = false;
    let mut test: Option<String> = None;
    for line in text.lines() {
        let code = line.trim();
        if code == "#[cfg(test)]" {
            counts = true;
        }
        if !counts {
            continue;
        }
        if code.starts_with("//") && line.len() - line.trim_start().len() < 8 && test.is_none() {
            above.extend(in_text(code));
        } else if let Some(name) = function(code) {
            let is_test = marked || is_rule(text, &name);
            marked = false;
            above.extend(in_name(&name));
            test = is_test.then_some(name.clone());
            if is_test {
                found.extend(above.drain(..).map(|number| (name.clone(), number)));
            }
            above.clear();
            if let Some(name) = &test {
                found.extend(
                    in_text(line)
                        .into_iter()
                        .map(|number| (name.clone(), number)),
                );
            }
        } else if code.contains("test") && code.starts_with("#[") {
            marked = true;
        } else if let Some(name) = &test {
            found.extend(
                in_text(line)
                    .into_iter()
                    .map(|number| (name.clone(), number)),
            );
            // The end of a function at the top of its file or module.
            if line == "}" || line == "    }" {
                test = None;
            }
        }
    }
    found
}

/// The name of the function that a line begins.
fn function(code: &str) -> Option<String> {
    let code = code.trim_start_matches("pub ").trim_start_matches("async ");
    let name = code.strip_prefix("fn ")?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(name[..end].to_owned())
}

/// Whether a function is one of the rules that a test of its file shows.
fn is_rule(text: &str, name: &str) -> bool {
    let Some((_, list)) = text.split_once("rules![") else {
        return false;
    };
    let list = list.split(']').next().unwrap_or_default();
    list.split([',', ' ', '\n']).any(|rule| rule == name)
}

/// `mqtt_4_3_3_10_…` cites MQTT-4.3.3-10 of MQTT 5.0, `mqtt311_…` a statement of MQTT 3.1.1.
fn in_name(name: &str) -> Option<Number> {
    let (standard, rest) = match name.strip_prefix("mqtt311_") {
        Some(rest) => (Standard::V311, rest),
        None => (Standard::V5, name.strip_prefix("mqtt_")?),
    };
    let numbers: Vec<&str> = rest
        .split('_')
        .take_while(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    let (last, section) = numbers.split_last()?;
    (section.len() >= 2).then(|| (standard, format!("MQTT-{}-{last}", section.join("."))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v5(id: &str) -> Number {
        (Standard::V5, id.into())
    }

    fn v311(id: &str) -> Number {
        (Standard::V311, id.into())
    }

    #[test]
    fn a_number_is_one_of_mqtt_5_unless_it_says_otherwise() {
        assert_eq!(
            in_text("# [MQTT-1-1] 3.1.1 [MQTT-2-2], [MQTT-3-3] or [MQTT-4-4]"),
            [
                v5("MQTT-1-1"),
                v311("MQTT-2-2"),
                v311("MQTT-3-3"),
                v5("MQTT-4-4")
            ]
        );
    }

    #[test]
    fn names_comments_and_messages_of_tests_cite() {
        let source = "
/// [MQTT-1.1.1-1]
fn helper() {}

/// [MQTT-1.1.1-2]
#[test]
fn first() {
    check(); // [MQTT-1.1.1-3]
}

#[tokio::test]
async fn mqtt311_4_3_3_10_is_kept() {
}

fn rule() {
    assert!(true, \"[MQTT-1.1.1-4]\");
}

#[test]
fn all() {
    show(rules![rule, other]);
}
";
        let wanted = [
            ("first", v5("MQTT-1.1.1-2")),
            ("first", v5("MQTT-1.1.1-3")),
            ("mqtt311_4_3_3_10_is_kept", v311("MQTT-4.3.3-10")),
            ("rule", v5("MQTT-1.1.1-4")),
        ];
        let wanted: Vec<(String, Number)> = wanted
            .map(|(name, number)| (name.to_owned(), number))
            .into();
        assert_eq!(in_source(source, true), wanted);
        assert_eq!(in_source(source, false), []);
    }
}
