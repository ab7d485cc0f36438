//! Who may connect: the methods that the listeners ask for, made of the files and services that the configuration
//! names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::identity::Identities;
use crate::auth::certificate::{Certificates, GroupsOf, NameOf};
use crate::auth::chain::Anonymous;
use crate::auth::jwt::Tokens;
use crate::auth::scram::Credentials;
use crate::auth::{Chain, Check};
use crate::config::bounds::LARGEST_USERS_FILE_BYTES;
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

/// What the listeners ask of their clients, and what has to go on for it as long as the node runs.
///
/// # Errors
/// With everything that is wrong with the files.
pub(super) fn chains(
    config: &Config,
    identities: Option<&Identities>,
) -> Result<(Chains, Vec<Background>), Vec<UsersProblem>> {
    let mut methods = Methods {
        config: &config.auth,
        identities,
        made: BTreeMap::new(),
        background: Vec::new(),
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
        true => Ok((chains, methods.background)),
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
            match login::issuer(config) {
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
    let text = read(path).map_err(|error| vec![problem(None, error.to_string())])?;
    Credentials::parse(&text).map_err(|lines| {
        let lines = lines.into_iter();
        lines
            .map(|wrong| problem(Some(wrong.line), wrong.message))
            .collect()
    })
}

/// Why a file of users can't be used at all.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("can't be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is larger than {LARGEST_USERS_FILE_BYTES} bytes")]
    TooLarge,
    #[error("is not UTF-8 text")]
    NotUtf8,
}

fn read(path: &Path) -> Result<String, ReadError> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(LARGEST_USERS_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_USERS_FILE_BYTES {
        return Err(ReadError::TooLarge);
    }
    String::from_utf8(bytes).map_err(|_| ReadError::NotUtf8)
}

/// Logs who may connect, and warns of a file that every user of the machine can read.
pub fn announce(config: &AuthConfig) {
    use std::os::unix::fs::PermissionsExt;
    let Some(path) = &config.scram_file else {
        return;
    };
    tracing::info!(file = %path.display(), "clients must log in with SCRAM-SHA-256");
    let mode = std::fs::metadata(path).map(|data| data.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o004 != 0) {
        tracing::warn!(
            file = %path.display(),
            "every user of this machine can read the file of users and try passwords against it"
        );
    }
}
