//! The administration of users and bans.
//!
//! What is expensive of a password is done by the threads for passwords, and what comes out is written under the
//! condition that the user is what it was when it was read: of two operators at once, one is told so.

use super::identity::Identities;
use super::status::NodeStatus;
use crate::auth::user::{User, UserProblem, is_name};
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::base::time::Millis;
use crate::forward::directory::{Action, Change, DirectoryError, Expected, Version};
use crate::http::{
    AdminError, AdminFuture, BanStatus, Identity, ImportAnswer, ImportRequest, Listed, NewBan,
    NewUser, Page, Secret, UserChange, UserStatus, Users,
};
use crate::identity::ban::{Ban, LONGEST_REASON, Target};
use crate::identity::password::salts;
use crate::identity::users::{DECOY_SECRET, DECOY_SECRET_BYTES};
use crate::machine::read::{self, ListBudget};

/// What a change of a user leaves it with.
#[derive(Clone, Copy)]
enum Gives {
    More,
    /// It takes rights away: that is done in a full directory, too.
    Less,
}

impl From<DirectoryError> for AdminError {
    fn from(error: DirectoryError) -> AdminError {
        match error {
            DirectoryError::Conflict { version: None, .. } => {
                AdminError::Conflict("it was deleted meanwhile".to_owned())
            }
            DirectoryError::Conflict { .. } => {
                AdminError::Conflict("it is there already, or was changed meanwhile".to_owned())
            }
            DirectoryError::Full => AdminError::Conflict(error.to_string()),
            DirectoryError::TooLarge => AdminError::Invalid(error.to_string()),
            DirectoryError::NotCommitted(error) => error.into(),
        }
    }
}

impl From<UserProblem> for AdminError {
    fn from(problem: UserProblem) -> AdminError {
        AdminError::Invalid(problem.to_string())
    }
}

fn internal(error: impl std::fmt::Display) -> AdminError {
    AdminError::Internal(error.to_string())
}

fn status(name: &str, entry: &DirectoryEntry) -> UserStatus {
    // A damaged user is listed, so that it can be deleted.
    let user = User::decode(&entry.value).unwrap_or_default();
    UserStatus {
        name: name.to_owned(),
        version: entry.version,
        ..status_of(&user)
    }
}

fn status_of(user: &User) -> UserStatus {
    UserStatus {
        name: String::new(),
        disabled: user.disabled,
        password: user
            .password
            .as_ref()
            .map_or("", |hash| hash.kind())
            .to_owned(),
        scram: user
            .verifiers
            .iter()
            .map(|verifier| verifier.algorithm().name().to_owned())
            .collect(),
        groups: user.groups.iter().map(ToString::to_string).collect(),
        attributes: user
            .attributes
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        note: user.note.to_string(),
        created_ms: user.created.0,
        password_set_ms: user.password_set.0,
        version: 0,
    }
}

fn ban_status(name: &str, entry: &DirectoryEntry) -> BanStatus {
    let ban = Ban::decode(&entry.value);
    BanStatus {
        target: name.to_owned(),
        reason: ban.reason.to_string(),
        created_ms: ban.created.0,
        expires_at_ms: (entry.expires_at_ms != 0).then_some(entry.expires_at_ms),
    }
}

impl Identities {
    /// The user with this password.
    async fn with_password(
        &self,
        mut user: User,
        password: Secret,
        now: Millis,
    ) -> Result<User, AdminError> {
        let (salts, costs) = (salts().map_err(internal)?, self.costs);
        let hashed = self.pool.run(move || {
            let password = password.expose().as_bytes();
            let set = user.set_password(password, &salts, costs, now);
            set.map(|()| user)
        });
        let hashed = hashed.map_err(|busy| AdminError::Conflict(busy.to_string()))?;
        Ok(hashed.await.map_err(internal)??)
    }

    /// Sees to it that there is what verifiers of unknown users are made up of. Only the first user has it made.
    async fn ensure_secret(&self) -> Result<(), AdminError> {
        let mut secret = vec![0; DECOY_SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(internal)?;
        let change = Change::put(Kind::Secret, DECOY_SECRET, Expected::Absent, secret);
        match self.directory.write(vec![change]).await {
            Ok(_) | Err(DirectoryError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl NodeStatus {
    async fn entry(&self, kind: Kind, name: String) -> Result<Option<DirectoryEntry>, AdminError> {
        self.read(move |backing| read::directory_entry(backing, kind, &name))
            .await
    }

    async fn page<T: Send + 'static>(
        &self,
        kind: Kind,
        page: Page,
        entry: fn(&str, &DirectoryEntry) -> T,
    ) -> Result<Listed<T>, AdminError> {
        self.read(move |backing| {
            let budget = ListBudget::default();
            let (rows, next) =
                read::directory_page(backing, kind, &page.after, page.size(), budget);
            let entries = rows.iter().map(|(name, row)| entry(name, row)).collect();
            Listed { entries, next }
        })
        .await
    }

    /// Writes a user. Its status has the version that it has got.
    async fn put_user(
        &self,
        name: String,
        user: &User,
        expected: Expected,
        gives: Gives,
    ) -> Result<UserStatus, AdminError> {
        let change = vec![Change::put(
            Kind::User,
            name.clone(),
            expected,
            user.encode(),
        )];
        let directory = &self.broker.services.directory;
        let version = match gives {
            Gives::More => directory.write(change).await?,
            Gives::Less => directory.revoke(change).await?,
        };
        tracing::info!(user = name, disabled = user.disabled, "a user is written");
        Ok(UserStatus {
            name,
            version: version.0,
            ..status_of(user)
        })
    }

    async fn add_user(&self, new: NewUser) -> Result<UserStatus, AdminError> {
        if !is_name(&new.name) {
            return Err(UserProblem::Name.into());
        }
        let user = User {
            disabled: new.disabled,
            groups: new.groups.into_iter().map(Into::into).collect(),
            attributes: boxed(new.attributes),
            note: new.note.into(),
            created: self.now(),
            ..User::default()
        };
        user.check()?;
        if self.entry(Kind::User, new.name.clone()).await?.is_some() {
            return Err(AdminError::Conflict("there is such a user".to_owned()));
        }
        let user = self
            .identities
            .with_password(user, new.password, self.now())
            .await?;
        self.ensure_secret().await?;
        let expected = Expected::Absent;
        self.put_user(new.name, &user, expected, Gives::More).await
    }

    pub(super) async fn ensure_secret(&self) -> Result<(), AdminError> {
        let name = DECOY_SECRET.to_owned();
        match self.entry(Kind::Secret, name).await? {
            Some(_) => Ok(()),
            None => self.identities.ensure_secret().await,
        }
    }

    async fn change_user(
        &self,
        name: String,
        change: UserChange,
    ) -> Result<Option<UserStatus>, AdminError> {
        let Some(entry) = self.entry(Kind::User, name.clone()).await? else {
            return Ok(None);
        };
        if change
            .version
            .is_some_and(|version| version != entry.version)
        {
            let text = format!("the user has version {}", entry.version);
            return Err(AdminError::Conflict(text));
        }
        let mut user = User::decode(&entry.value).map_err(internal)?;
        let gives = match change.only_disables() {
            true => Gives::Less,
            false => Gives::More,
        };
        if let Some(disabled) = change.disabled {
            user.disabled = disabled;
        }
        if let Some(groups) = change.groups {
            user.groups = groups.into_iter().map(Into::into).collect();
        }
        if let Some(attributes) = change.attributes {
            user.attributes = boxed(attributes);
        }
        if let Some(note) = change.note {
            user.note = note.into();
        }
        user.check()?;
        if let Some(password) = change.password {
            let now = self.now();
            user = self.identities.with_password(user, password, now).await?;
        }
        let expected = Expected::Version(Version(entry.version));
        let put = self.put_user(name, &user, expected, gives);
        put.await.map(Some)
    }

    /// Deletes an entry; tells whether it was there.
    async fn delete_entry(&self, kind: Kind, name: String) -> Result<bool, AdminError> {
        let Some(entry) = self.entry(kind, name.clone()).await? else {
            return Ok(false);
        };
        let expected = Expected::Version(Version(entry.version));
        let change = Change::delete(kind, name.clone(), expected);
        self.broker.services.directory.write(vec![change]).await?;
        tracing::info!(
            kind = kind.name(),
            name,
            "an entry of the directory is deleted"
        );
        if kind == Kind::User && !self.broker.services.identity.users.exist() {
            tracing::warn!(
                name,
                "the last user is deleted: listeners without `authentication` let everybody in from now on, where \
                 auth.scram_file is not set"
            );
        }
        Ok(true)
    }

    async fn put_ban(&self, new: NewBan) -> Result<BanStatus, AdminError> {
        let target: Target =
            new.target
                .parse()
                .map_err(|problem: crate::identity::ban::TargetProblem| {
                    AdminError::Invalid(problem.to_string())
                })?;
        if new.reason.len() > LONGEST_REASON || new.reason.chars().any(char::is_control) {
            let text = format!("a reason has at most {LONGEST_REASON} bytes of plain text");
            return Err(AdminError::Invalid(text));
        }
        let ban = Ban {
            reason: new.reason.into(),
            created: self.now(),
        };
        // Its end is counted in log time, whatever this node's clock shows.
        let expires_in_ms = match new.seconds {
            Some(0) => return Err(AdminError::Invalid("a ban lasts a second at least".into())),
            Some(seconds) => Some(seconds.saturating_mul(1000)),
            None => None,
        };
        let name = target.to_string();
        let change = Change {
            kind: Kind::Ban,
            name: name.clone(),
            expected: Expected::Anything,
            action: Action::Put {
                value: ban.encode().into(),
                expires_in_ms,
                keeps_version: false,
            },
        };
        self.broker.services.directory.revoke(vec![change]).await?;
        tracing::info!(banned = name, reason = &*ban.reason, "a ban is written");
        // Another operator may have removed it, or it may be over already.
        let entry = self.entry(Kind::Ban, name.clone()).await.ok().flatten();
        let expires_at_ms = match entry {
            Some(entry) => Some(entry.expires_at_ms).filter(|end| *end != 0),
            None => expires_in_ms.map(|life| ban.created.plus(life).0),
        };
        Ok(BanStatus {
            target: name,
            reason: ban.reason.to_string(),
            created_ms: ban.created.0,
            expires_at_ms,
        })
    }
}

fn boxed(
    texts: std::collections::BTreeMap<String, String>,
) -> std::collections::BTreeMap<Box<str>, Box<str>> {
    let texts = texts.into_iter();
    texts
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

impl Users for NodeStatus {
    fn list(&self, page: Page) -> AdminFuture<'_, Listed<UserStatus>> {
        Box::pin(self.page(Kind::User, page, status))
    }

    fn show(&self, name: String) -> AdminFuture<'_, Option<UserStatus>> {
        Box::pin(async move {
            let entry = self.entry(Kind::User, name.clone()).await?;
            Ok(entry.map(|entry| status(&name, &entry)))
        })
    }

    fn add(&self, user: NewUser) -> AdminFuture<'_, UserStatus> {
        Box::pin(self.add_user(user))
    }

    fn change(&self, name: String, change: UserChange) -> AdminFuture<'_, Option<UserStatus>> {
        Box::pin(self.change_user(name, change))
    }

    fn delete(&self, name: String) -> AdminFuture<'_, bool> {
        Box::pin(self.delete_entry(Kind::User, name))
    }

    fn import(&self, request: ImportRequest, by: Identity) -> AdminFuture<'_, ImportAnswer> {
        Box::pin(self.import_users(request, by))
    }

    fn bans(&self, page: Page) -> AdminFuture<'_, Listed<BanStatus>> {
        Box::pin(self.page(Kind::Ban, page, ban_status))
    }

    fn ban(&self, ban: NewBan) -> AdminFuture<'_, BanStatus> {
        Box::pin(self.put_ban(ban))
    }

    fn unban(&self, target: String) -> AdminFuture<'_, bool> {
        // As it is written, or as it is kept.
        let name = target
            .parse::<Target>()
            .map_or(target, |target| target.to_string());
        Box::pin(self.delete_entry(Kind::Ban, name))
    }
}
