//! Who may connect: the methods that the listeners ask for, made of the files and services that the configuration
//! names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Notify;
use zeroize::Zeroizing;

use super::identity::Identities;
use crate::auth::certificate::{Certificates, GroupsOf, NameOf};
use crate::auth::chain::Anonymous;
use crate::auth::jwt::Tokens;
use crate::auth::scram::Credentials;
use crate::auth::{Chain, Check};
use crate::config::bounds::LARGEST_USERS_FILE_BYTES;
use crate::config::file::{self, FileError, Guard};
use crate::config::{AuthConfig, AuthenticationMethod, CertificateGroups, CertificateName, Config};
use crate::connection::broker::Chains;
use crate::login::{self, Background, Callback};

/// What is wrong with a file or a service that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsersProblem {
    /// The key that names it.
    pub key: &'static str,
    /// The file of users as the configuration names it.
    pub path: Option<PathBuf>,
    /// The line, counted from 1; `None` when the file can't be read at all.
    pub line: Option<usize>,
    /// What is wrong, in half a sentence.
    pub message: String,
}

impl std::fmt::Display for UsersProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}:", path.display())?,
            None => write!(f, "{}:", self.key)?,
        }
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// What the listeners ask of their clients, and what has to go on for it.
pub(super) struct Made {
    /// What is asked.
    pub(super) chains: Chains,
    /// What runs as long as the node does.
    pub(super) background: Vec<Background>,
    /// Told when something is withdrawn that identities rest on.
    pub(super) withdrawn: Arc<Notify>,
}

/// What the listeners ask of their clients.
///
/// # Errors
/// With everything that is wrong with the files.
pub(super) fn chains(
    config: &Config,
    identities: Option<&Identities>,
) -> Result<Made, Vec<UsersProblem>> {
    let mut methods = Methods {
        config: &config.auth,
        identities,
        made: BTreeMap::new(),
        background: Vec::new(),
        withdrawn: Arc::default(),
    };
    let mut problems = Vec::new();
    let other = Arc::new(methods.default_chain().unwrap_or_else(|found| {
        problems.extend(found);
        Chain::default()
    }));
    let mut chain = |names: &[AuthenticationMethod]| -> Arc<Chain> {
        let made = names.iter().filter_map(|name| match methods.get(*name) {
            Ok(check) => Some(check),
            Err(found) => {
                problems.extend(found);
                None
            }
        });
        Arc::new(Chain::new(made.collect()))
    };
    let named = config.listeners.iter().map(|listener| {
        let chain = match listener.authentication.is_empty() {
            true => other.clone(),
            false => chain(&listener.authentication),
        };
        (listener.name.as_str().into(), chain)
    });
    let chains = Chains::new(named.collect(), other.clone());
    match problems.is_empty() {
        true => Ok(Made {
            chains,
            background: methods.background,
            withdrawn: methods.withdrawn,
        }),
        false => Err(problems),
    }
}

/// Methods that were made: listeners that name the same one share it.
struct Methods<'a> {
    config: &'a AuthConfig,
    /// `None` when the configuration is only checked: nobody is judged then.
    identities: Option<&'a Identities>,
    made: BTreeMap<AuthenticationMethod, Arc<dyn Check>>,
    background: Vec<Background>,
    withdrawn: Arc<Notify>,
}

impl Methods<'_> {
    fn get(&mut self, name: AuthenticationMethod) -> Result<Arc<dyn Check>, Vec<UsersProblem>> {
        if let Some(made) = self.made.get(&name) {
            return Ok(made.clone());
        }
        let check: Arc<dyn Check> = match name {
            AuthenticationMethod::Anonymous => Arc::new(Anonymous),
            AuthenticationMethod::Certificate => Arc::new(certificates(self.config)),
            AuthenticationMethod::Scram => {
                let file = self.file()?;
                match self.identities {
                    Some(identities) => identities.scram(file),
                    None => Arc::new(Anonymous),
                }
            }
            AuthenticationMethod::Password => match self.identities {
                Some(identities) => identities.password(),
                None => Arc::new(Anonymous),
            },
            AuthenticationMethod::Jwt => Arc::new(self.tokens()?),
            AuthenticationMethod::Http => {
                let names = certificates(self.config).name;
                let callback = Callback::new(self.config, names);
                let callback =
                    callback.map_err(|error| vec![problem("auth.http_url", error.to_string())])?;
                Arc::new(callback)
            }
        };
        self.made.insert(name, check.clone());
        Ok(check)
    }

    /// What is asked where a listener says nothing of it.
    fn default_chain(&self) -> Result<Chain, Vec<UsersProblem>> {
        let file = self.file()?;
        let chain = |identities: &Identities| identities.default_chain(file);
        Ok(self.identities.map(chain).unwrap_or_default())
    }

    /// The users of a file.
    fn file(&self) -> Result<Option<Arc<Credentials>>, Vec<UsersProblem>> {
        let path = self.config.scram_file.as_deref();
        Ok(path.map(users).transpose()?.map(Arc::new))
    }

    fn tokens(&mut self) -> Result<Tokens, Vec<UsersProblem>> {
        let (mut issuers, mut problems) = (Vec::new(), Vec::new());
        for config in &self.config.jwt {
            match login::issuer(config, &self.withdrawn) {
                Ok((issuer, background)) => {
                    issuers.push(issuer);
                    self.background.push(background);
                }
                Err(error) => problems.push(problem("auth.jwt", error.to_string())),
            }
        }
        match problems.is_empty() {
            true => Ok(Tokens::new(issuers)),
            false => Err(problems),
        }
    }
}

fn problem(key: &'static str, message: String) -> UsersProblem {
    UsersProblem {
        key,
        path: None,
        line: None,
        message,
    }
}

/// How names are read from certificates.
fn certificates(config: &AuthConfig) -> Certificates {
    Certificates {
        name: match config.certificate_name {
            CertificateName::CommonName => NameOf::CommonName,
            CertificateName::Dns => NameOf::Dns,
            CertificateName::Uri => NameOf::Uri,
            CertificateName::Email => NameOf::Email,
            CertificateName::Fingerprint => NameOf::Fingerprint,
        },
        groups: match config.certificate_groups {
            CertificateGroups::None => GroupsOf::Nothing,
            CertificateGroups::Organization => GroupsOf::Organization,
            CertificateGroups::OrganizationalUnit => GroupsOf::OrganizationalUnit,
        },
        attributes: config.certificate_attributes,
    }
}

/// Checks the files that the configuration names.
///
/// # Errors
/// With everything that is wrong with them.
pub fn check(config: &Config) -> Result<(), Vec<UsersProblem>> {
    chains(config, None).map(|_| ())
}

fn users(path: &Path) -> Result<Credentials, Vec<UsersProblem>> {
    let problem = |line, message| UsersProblem {
        key: "auth.scram_file",
        path: Some(path.to_owned()),
        line,
        message,
    };
    let text = read(path).map_err(|error| vec![problem(None, error)])?;
    Credentials::parse(&text).map_err(|lines| {
        let lines = lines.into_iter();
        lines
            .map(|wrong| problem(Some(wrong.line), wrong.message))
            .collect()
    })
}

/// The text of a file of users: whoever reads it can try passwords against it, and whoever writes it lets users in.
fn read(path: &Path) -> Result<Zeroizing<String>, String> {
    let bytes = file::read(path, LARGEST_USERS_FILE_BYTES, Guard::Key);
    // Its name is told with the problem.
    let bytes = bytes.map_err(|error| match error {
        FileError::Io { error, .. } => format!("can't be read: {error}"),
        error => error.to_string(),
    })?;
    let text = std::str::from_utf8(&bytes).map_err(|_| "is not UTF-8 text".to_owned())?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Logs who may connect.
pub fn announce(config: &AuthConfig) {
    if let Some(path) = &config.scram_file {
        tracing::info!(file = %path.display(), "clients must log in with SCRAM-SHA-256");
    }
}
