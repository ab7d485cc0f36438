//! What the configuration says of the proofs between nodes.

use std::path::{Path, PathBuf};

use super::name::NodeName;
use super::reach::Reach;
use crate::base::ids::NodeId;
use crate::config::Config;

/// What is proved, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nothing: everybody who reaches the port is believed.
    Open,
    /// `cluster.certificate`, `cluster.key`, `cluster.ca_file` and `cluster.crl_files`.
    Certificates {
        /// The node's chain, its own certificate first.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
        /// Who signs nodes' certificates.
        authorities: PathBuf,
        /// What those have revoked.
        lists: Vec<PathBuf>,
    },
    /// `cluster.secret_file`.
    Secret(PathBuf),
}

impl Source {
    /// Its files, each with the key that names it.
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        match self {
            Source::Open => Vec::new(),
            Source::Certificates {
                certificate,
                key,
                authorities,
                lists,
            } => {
                let lists = lists.iter().map(|list| ("cluster.crl_files", &**list));
                let others: [(_, &Path); 3] = [
                    ("cluster.certificate", certificate),
                    ("cluster.key", key),
                    ("cluster.ca_file", authorities),
                ];
                others.into_iter().chain(lists).collect()
            }
            Source::Secret(file) => vec![("cluster.secret_file", file)],
        }
    }

    /// Its files, for people.
    pub fn describe(&self) -> String {
        let files = self.files();
        let names = files.iter().map(|(_, path)| path.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    }
}

/// What [`Trust`] is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who this node is.
    pub own: NodeName,
    /// The cluster's UUID.
    pub cluster: String,
    /// What is proved.
    pub source: Source,
    /// Where the other nodes may be.
    pub reach: Reach,
}

impl Settings {
    /// What the configuration says. It has been checked: all three of the certificate's files are there, or none.
    pub fn of(config: &Config) -> Settings {
        let cluster = &config.cluster;
        let files = (&cluster.certificate, &cluster.key, &cluster.ca_file);
        let source = match (files, &cluster.secret_file) {
            ((Some(certificate), Some(key), Some(authorities)), _) => Source::Certificates {
                certificate: certificate.clone(),
                key: key.clone(),
                authorities: authorities.clone(),
                lists: cluster.crl_files.clone(),
            },
            (_, Some(file)) => Source::Secret(file.clone()),
            _ => Source::Open,
        };
        Settings {
            own: NodeName {
                cluster: cluster.name.clone(),
                node: NodeId(config.node.id),
            },
            cluster: cluster.identity().to_string(),
            source,
            reach: Reach::of(config),
        }
    }
}
