//! The import of users from files of other brokers, and of SCRAM verifiers.
//!
//! Invariant: a credential that was imported before changes nothing: whoever is logged in with it goes on, and what was
//! made of it since stays.

use super::status::NodeStatus;
use crate::auth::password::PasswordHash;
use crate::auth::password::file::parse_file;
use crate::auth::scram::{Credentials, LineProblem, Verifier};
use crate::auth::user::{User, UserProblem, is_name};
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::base::time::Millis;
use crate::forward::directory::{Change, Expected, Version};
use crate::http::{AdminError, Identity, ImportAnswer, ImportRequest, UserFormat};
use crate::machine::read;
use crate::telemetry::audit;

/// Lines of a file that are wrong and are named; of others, only their number is told.
const NAMED_LINES: usize = 10;

/// Users that one write of an import changes.
const USERS_AT_ONCE: usize = 200;

impl NodeStatus {
    pub(super) async fn import_users(
        &self,
        request: ImportRequest,
        by: Identity,
    ) -> Result<ImportAnswer, AdminError> {
        let now = self.now();
        let users = parsed(&request)?;
        self.ensure_secret().await?;
        let mut answer = ImportAnswer::default();
        for some in users.chunks(USERS_AT_ONCE) {
            let done = self.import_some(some, request.replace, now, &by).await?;
            answer.added += done.added;
            answer.replaced += done.replaced;
            answer.kept += done.kept;
        }
        tracing::info!(
            added = answer.added,
            replaced = answer.replaced,
            kept = answer.kept,
            "users are imported"
        );
        Ok(answer)
    }

    /// Imports some users: all of them, or none.
    async fn import_some(
        &self,
        users: &[(Box<str>, Credential)],
        replace: bool,
        now: Millis,
        by: &Identity,
    ) -> Result<ImportAnswer, AdminError> {
        let names: Vec<Box<str>> = users.iter().map(|(name, _)| name.clone()).collect();
        let entries = self
            .read(move |backing| -> Vec<Option<DirectoryEntry>> {
                let names = names.iter();
                names
                    .map(|name| read::directory_entry(backing, Kind::User, name))
                    .collect()
            })
            .await?;
        let mut answer = ImportAnswer::default();
        let mut changes = Vec::new();
        for ((name, imported), entry) in users.iter().zip(entries) {
            let (user, expected) = match entry {
                None => {
                    answer.added += 1;
                    let mut user = User {
                        created: now,
                        ..User::default()
                    };
                    imported.give(&mut user, now);
                    (user, Expected::Absent)
                }
                Some(_) if !replace => {
                    answer.kept += 1;
                    continue;
                }
                Some(entry) => {
                    let mut user = User::decode(&entry.value).unwrap_or_default();
                    // Whoever is logged in with the same credential goes on.
                    if !imported.give(&mut user, now) {
                        answer.kept += 1;
                        continue;
                    }
                    answer.replaced += 1;
                    (user, Expected::Version(Version(entry.version)))
                }
            };
            changes.push(Change::put(Kind::User, &**name, expected, user.encode()));
        }
        if !changes.is_empty() {
            let written: Vec<String> = changes.iter().map(|change| change.name.clone()).collect();
            self.broker.services.directory.write(changes).await?;
            for name in &written {
                let details = [("action", "import"), ("name", name.as_str())];
                by.note(audit::Kind::User, &Ok::<(), AdminError>(()), &details);
            }
        }
        Ok(answer)
    }
}

/// What a file says of a user.
enum Credential {
    Password(PasswordHash),
    Verifiers(Vec<Verifier>),
}

impl Credential {
    /// Gives it to a user; tells whether it is another one than it had.
    fn give(&self, user: &mut User, now: Millis) -> bool {
        match self {
            Credential::Password(hash) => user.import_password(hash.clone(), now),
            Credential::Verifiers(verifiers) => user.import_verifiers(verifiers.clone(), now),
        }
    }
}

/// The users of a file.
fn parsed(request: &ImportRequest) -> Result<Vec<(Box<str>, Credential)>, AdminError> {
    let text = request.text.expose();
    let mut users: Vec<(Box<str>, Credential)> = Vec::new();
    match request.format {
        UserFormat::Mosquitto => {
            for (name, hash) in parse_file(text).map_err(|lines| wrong_lines(&lines))? {
                users.push((name.into(), Credential::Password(hash)));
            }
        }
        UserFormat::Scram => {
            let credentials = Credentials::parse(text).map_err(|lines| wrong_lines(&lines))?;
            let mut found: std::collections::BTreeMap<Box<str>, Vec<Verifier>> = Default::default();
            for (name, verifier) in credentials.into_users() {
                found.entry(name).or_default().push(verifier);
            }
            let found = found.into_iter();
            users.extend(found.map(|(name, verifiers)| (name, Credential::Verifiers(verifiers))));
        }
    }
    match users.iter().find(|(name, _)| !is_name(name)) {
        Some((name, _)) => Err(AdminError::Invalid(format!(
            "{name:?}: {}",
            UserProblem::Name
        ))),
        None => Ok(users),
    }
}

fn wrong_lines(lines: &[LineProblem]) -> AdminError {
    let mut text: Vec<String> = lines
        .iter()
        .take(NAMED_LINES)
        .map(|wrong| format!("line {}: {}", wrong.line, wrong.message))
        .collect();
    if let Some(more) = lines
        .len()
        .checked_sub(NAMED_LINES)
        .filter(|more| *more > 0)
    {
        text.push(format!("and {more} more"));
    }
    AdminError::Invalid(text.join("; "))
}
