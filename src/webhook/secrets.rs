//! The secrets that requests to endpoints need. Rows name them; their values are in a file of each node
//! (`events.secrets_file`), one line each: `name=value`, or `name URL …=value`.
//!
//! Invariant: no value is in a message of an error, in a log line or in a row.
//! Invariant: a secret goes where its line says, else to `events.webhook_url` of this node, and nowhere else, whatever
//! the URL of the event subscription that names it. A key to sign with is no token.

use std::path::PathBuf;

use hyper::header::HeaderValue;
use zeroize::Zeroizing;

use crate::base::proto::state::EventSubscriptionOptions;
use crate::config::file::{self, FileError, Guard};
use crate::events::signature::{KeyError, SigningKey};
use crate::http_client::Url;

/// Largest file, bytes: hundreds of secrets.
const LARGEST_FILE_BYTES: u64 = 64 << 10;

/// Why requests can't prove who sends them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretsError {
    /// There is no file.
    #[error("the secret {0:?} is not there: events.secrets_file is empty on this node")]
    NoFile(String),
    /// The file can't be used.
    #[error("events.secrets_file: {0}")]
    File(#[from] FileError),
    /// It is something else.
    #[error("events.secrets_file is no text")]
    NoText,
    /// There is no such secret.
    #[error("the secret {0:?} is not in events.secrets_file of this node")]
    Absent(String),
    /// It is for other endpoints.
    #[error(
        "the secret {0:?} is not for this URL: events.secrets_file of this node says where it goes"
    )]
    Elsewhere(String),
    /// Its line ends its URL where the query begins that has an `=`.
    #[error(
        "the line of the secret {0:?} in events.secrets_file has a URL with a query: write it without, requests go below it"
    )]
    Query(String),
    /// A key to sign with, whose value nobody else may know.
    #[error("the secret {0:?} is a key to sign with, so it is no token")]
    KeyAsToken(String),
    /// A token that can't stand in a header.
    #[error("the secret {0:?} is no token: it has signs that a header can't have")]
    Token(String),
    /// A key that is none.
    #[error("the secret {0:?} is no key: {1}")]
    Key(String, KeyError),
}

/// What proves who sends a request.
#[derive(Default)]
pub(crate) struct Proof {
    /// The value of `Authorization`.
    pub(super) token: Option<HeaderValue>,
    /// What the request is signed with.
    pub(super) keys: Vec<SigningKey>,
}

/// The file of secrets. It is read for each request, so that a change holds at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets {
    file: Option<PathBuf>,
    /// Where those go whose lines say nothing else.
    declared: Option<Url>,
}

/// A URL that a secret is to go to.
struct Target<'a> {
    url: Option<&'a Url>,
    declared: Option<&'a Url>,
}

impl Secrets {
    /// Those in a file; they go to the declared URL where their lines name none.
    pub(crate) fn new(file: Option<PathBuf>, declared: &str) -> Secrets {
        Secrets {
            file,
            declared: declared.parse().ok(),
        }
    }

    /// What the options of an event subscription name. Reads the file, if they name something.
    ///
    /// # Errors
    /// It is not there, or is not what it should be.
    pub(crate) fn proof(&self, options: &EventSubscriptionOptions) -> Result<Proof, SecretsError> {
        let token = Some(&options.token).filter(|name| !name.is_empty());
        let Some(first) = token.or(options.signing_keys.first()) else {
            return Ok(Proof::default());
        };
        let Some(file) = &self.file else {
            return Err(SecretsError::NoFile(first.clone()));
        };
        let bytes = file::read(file, LARGEST_FILE_BYTES, Guard::Secret)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| SecretsError::NoText)?;
        let url = options.url.parse().ok();
        let target = Target {
            url: url.as_ref(),
            declared: self.declared.as_ref(),
        };
        let token = token.map(|name| bearer(text, name, &target)).transpose()?;
        let keys = options.signing_keys.iter().map(|name| {
            let value = value(text, name, &target)?;
            SigningKey::parse(value).map_err(|error| SecretsError::Key(name.clone(), error))
        });
        Ok(Proof {
            token,
            keys: keys.collect::<Result<_, _>>()?,
        })
    }
}

/// The value of a secret: what follows the first `=` of its line, without white space around it.
fn value<'t>(text: &'t str, name: &str, target: &Target<'_>) -> Result<&'t str, SecretsError> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let mut pairs = lines.filter_map(|line| line.split_once('='));
    let found = pairs.find_map(|(head, value)| {
        let mut words = head.split_whitespace();
        (words.next() == Some(name)).then_some((words, value.trim()))
    });
    let Some((urls, value)) = found.filter(|(_, value)| !value.is_empty()) else {
        return Err(SecretsError::Absent(name.to_owned()));
    };
    // Whoever writes `name https://host/in?a=b=value` does not mean that the value begins with `b`.
    if urls.clone().any(|url| url.contains('?')) {
        return Err(SecretsError::Query(name.to_owned()));
    }
    match target.is_among(urls) {
        true => Ok(value),
        false => Err(SecretsError::Elsewhere(name.to_owned())),
    }
}

impl Target<'_> {
    /// Whether a secret goes there whose line names these URLs. One that is none is for nobody.
    fn is_among<'u>(&self, urls: impl Iterator<Item = &'u str>) -> bool {
        let Some(url) = self.url else {
            return false;
        };
        let mut urls = urls.peekable();
        if urls.peek().is_none() {
            return self.declared == Some(url);
        }
        urls.filter_map(|text| text.parse().ok())
            .any(|above: Url| url.is_at_or_below(&above))
    }
}

fn bearer(text: &str, name: &str, target: &Target<'_>) -> Result<HeaderValue, SecretsError> {
    let value = value(text, name, target)?;
    if SigningKey::parse(value).is_ok() {
        return Err(SecretsError::KeyAsToken(name.to_owned()));
    }
    let shown = Zeroizing::new(format!("Bearer {value}"));
    let token = HeaderValue::from_str(&shown);
    let mut token = token.map_err(|_| SecretsError::Token(name.to_owned()))?;
    token.set_sensitive(true);
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const FILE: &str = "# secrets\n\ntoken-1 = abc=d \nbad=a\u{1}b\nempty=\n#hidden=x\n\
                        key=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";

    const URL: &str = "https://events.example/in?tenant=1";

    fn options(token: &str, keys: &[&str]) -> EventSubscriptionOptions {
        EventSubscriptionOptions {
            url: URL.to_owned(),
            token: token.to_owned(),
            signing_keys: keys.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn secrets_are_lines_of_a_file_that_others_cannot_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secrets");
        write(&path, FILE).expect("it is written");
        set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode is set");
        let secrets = Secrets::new(Some(path.clone()), URL);
        let proof = secrets.proof(&options("token-1", &["key", "key"]));
        let proof = proof.expect("they are there");
        let token = proof.token.expect("a token");
        assert_eq!(token.to_str().ok(), Some("Bearer abc=d"));
        assert!(token.is_sensitive());
        assert_eq!(proof.keys.len(), 2);
        for absent in ["empty", "hidden", "#hidden", "other"] {
            let found = secrets.proof(&options(absent, &[]));
            assert!(matches!(found, Err(SecretsError::Absent(_))), "{absent}");
        }
        let found = secrets.proof(&options("bad", &[]));
        assert!(matches!(found, Err(SecretsError::Token(_))));
        let found = secrets.proof(&options("", &["token-1"]));
        let error = found.err().expect("it is no key");
        assert!(!error.to_string().contains("abc"), "{error}");
        set_permissions(&path, Permissions::from_mode(0o644)).expect("its mode is set");
        let found = secrets.proof(&options("token-1", &[]));
        assert!(matches!(found, Err(SecretsError::File(_))));
    }

    /// Whoever may make event subscriptions can't have a secret sent to a URL of its own choice.
    #[test]
    fn a_secret_goes_where_its_line_says_and_nowhere_else() {
        let text = "own=1\nteam https://a.example/in http://127.0.0.1:8080 x=2\n\
                    none nonsense=3\n\
                    key https://a.example/=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";
        let declared: Url = URL.parse().expect("a URL");
        let goes = |name: &str, url: &str| {
            let url: Option<Url> = url.parse().ok();
            let target = Target {
                url: url.as_ref(),
                declared: Some(&declared),
            };
            match value(text, name, &target) {
                Ok(_) => true,
                Err(SecretsError::Elsewhere(found)) if found == name => false,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(goes("own", URL));
        for url in [
            "https://a.example/in",
            "https://A.example:443/in/deep?x=y",
            "https://a.example/in?x",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1:8080/any",
        ] {
            assert!(goes("team", url), "{url}");
            assert!(!goes("own", url) && !goes("none", url), "{url}");
        }
        for url in [
            URL,
            "http://a.example/in",
            "https://a.example:444/in",
            "https://a.example/inn",
            "https://a.example/",
            "https://a.example/in/../out",
            "https://a.example/in/%2E%2e/out",
            "https://a.example/in/..%2fout",
            "https://a.example/in/..%5Cout",
            "https://a.example/in/..\\out",
            "https://a.example/in/..;/out",
            "https://a.example/in/..%3b/out",
            "https://a.example.evil/in",
            "http://127.0.0.1:80800/",
            "nonsense",
        ] {
            assert!(!goes("team", url), "{url}");
        }
        let url: Url = "https://a.example/b".parse().expect("a URL");
        let target = Target {
            url: Some(&url),
            declared: None,
        };
        let found = bearer(text, "key", &target);
        assert!(matches!(found, Err(SecretsError::KeyAsToken(_))));
        assert!(value(text, "key", &target).is_ok(), "it signs");
    }

    /// The first `=` of a line ends the URL, and what follows in it would be sent as a part of the value.
    #[test]
    fn a_line_whose_url_has_a_query_is_refused() {
        let text = "ops https://a.example/in?tenant=1=secret\n\
                    team https://a.example/in?x http://127.0.0.1:8080 x=2\n";
        let url: Url = "https://a.example/in?tenant=1".parse().expect("a URL");
        let target = Target {
            url: Some(&url),
            declared: Some(&url),
        };
        for name in ["ops", "team"] {
            let found = value(text, name, &target);
            let error = found.expect_err("it may mean anything");
            assert!(matches!(error, SecretsError::Query(_)), "{error}");
            assert!(!error.to_string().contains("1=secret"), "{error}");
        }
    }

    #[test]
    fn who_needs_none_needs_no_file() {
        let none = Secrets::default();
        let proof = none.proof(&options("", &[])).expect("nothing is named");
        assert!(proof.token.is_none() && proof.keys.is_empty());
        let missing = none.proof(&options("a", &[]));
        assert!(matches!(missing, Err(SecretsError::NoFile(_))));
    }
}
