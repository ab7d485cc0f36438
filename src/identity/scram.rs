//! Logging in by SCRAM as a user of the directory, or of `auth.scram_file`.

use std::sync::Arc;

use super::users::{DirectoryUsers, FileAndDirectory};
use crate::auth::scram::{Algorithm, Credentials, Server, Users};
use crate::auth::{Check, Client, Mechanism, Method, Verdict};

/// The method of a chain, with a mechanism for each hash.
pub struct ScramCheck {
    users: Arc<DirectoryUsers>,
    file: Option<Arc<Credentials>>,
    servers: Vec<(Algorithm, Server)>,
}

impl ScramCheck {
    /// Whoever is in the directory, or in the file, can log in.
    pub fn new(users: Arc<DirectoryUsers>, file: Option<Arc<Credentials>>) -> ScramCheck {
        let all: Arc<dyn Users> = match &file {
            None => users.clone(),
            Some(file) => Arc::new(FileAndDirectory {
                file: file.clone(),
                directory: users.clone(),
            }),
        };
        let servers =
            Algorithm::ALL.map(|algorithm| (algorithm, Server::new(algorithm, all.clone())));
        ScramCheck {
            users,
            file,
            servers: servers.into(),
        }
    }
}

impl Check for ScramCheck {
    fn method(&self) -> Method {
        Method::Scram
    }

    fn judge(&self, _client: &Client<'_>) -> Verdict {
        Verdict::NotApplicable
    }

    /// A method that nobody can log in with is not known here.
    fn mechanism(&self, name: &str) -> Option<&dyn Mechanism> {
        let mut servers = self.servers.iter();
        let (algorithm, server) = servers.find(|(algorithm, _)| algorithm.name() == name)?;
        let is_in_file = self.file.as_ref().is_some_and(|file| file.has(*algorithm));
        (is_in_file || self.users.exist()).then_some(server)
    }
}
