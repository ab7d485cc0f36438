//! The flags that set configuration, shared by `serve` and `check`.

use std::path::PathBuf;

use clap::Args;

use crate::config::{self, Flag, Loaded, Origin, Problem, Problems, Sources};
use crate::node::authentication::{self, UsersProblem};

/// Where configuration comes from besides the environment.
#[derive(Args)]
pub struct Settings {
    /// TOML file; see docs/configuration.md.
    #[arg(short, long, value_name = "FILE", env = "QUORUMQ_CONFIG")]
    config: Option<PathBuf>,

    /// Set one key, for example mqtt.receive_maximum=100. Repeatable; the last one wins.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = Flag::parse_set)]
    set: Vec<Flag>,

    /// Number of this node (node.id).
    #[arg(long, value_name = "N")]
    node_id: Option<String>,

    /// Directory of this node's data (node.data_dir).
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,

    /// Where MQTT clients connect, comma separated (mqtt.listen).
    #[arg(long, value_name = "HOST:PORT")]
    mqtt_listen: Option<String>,

    /// Where probes, metrics and administration are served; "" for nowhere (http.listen).
    #[arg(long, value_name = "HOST:PORT")]
    http_listen: Option<String>,

    /// Where the other nodes connect (cluster.listen).
    #[arg(long, value_name = "HOST:PORT")]
    cluster_listen: Option<String>,

    /// The voters of the cluster (cluster.members).
    #[arg(long, value_name = "ID=HOST:PORT,…")]
    cluster_members: Option<String>,

    /// Nodes of a running cluster to join, comma separated (cluster.join).
    #[arg(long, value_name = "HOST:PORT")]
    cluster_join: Option<String>,

    /// error, warn, info, debug or trace (log.level).
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// text or json (log.format).
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl Settings {
    /// The file that was named, if any.
    pub fn file(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// Reads and checks everything.
    ///
    /// # Errors
    /// All problems at once.
    pub fn load(self) -> Result<Loaded, Problems> {
        let direct = [
            ("--node-id", "node.id", self.node_id),
            ("--data-dir", "node.data_dir", self.data_dir),
            ("--mqtt-listen", "mqtt.listen", self.mqtt_listen),
            ("--http-listen", "http.listen", self.http_listen),
            ("--cluster-listen", "cluster.listen", self.cluster_listen),
            ("--cluster-members", "cluster.members", self.cluster_members),
            ("--cluster-join", "cluster.join", self.cluster_join),
            ("--log-level", "log.level", self.log_level),
            ("--log-format", "log.format", self.log_format),
        ];
        let mut flags = self.set;
        flags.extend(direct.into_iter().filter_map(|(flag, key, value)| {
            Some(Flag {
                flag: flag.to_owned(),
                key: key.to_owned(),
                value: value?,
            })
        }));
        let loaded = config::load(&Sources::of_process(self.config, flags))?;
        users(&loaded)?;
        Ok(loaded)
    }
}

/// Reads the files of users and keys, too: their problems are problems of the configuration.
fn users(loaded: &Loaded) -> Result<(), Problems> {
    let Err(found) = authentication::check(&loaded.config) else {
        return Ok(());
    };
    let explain = |problem: UsersProblem| match (problem.line, problem.path.clone()) {
        (Some(line), Some(path)) => Problem {
            origin: Origin::File { path, line },
            key: problem.key.into(),
            message: problem.message,
            hint: Some("`quorumq password USER` makes a line from a password".into()),
        },
        _ => Problem {
            origin: loaded.origins[problem.key].clone(),
            key: problem.key.into(),
            message: match problem.path {
                Some(_) => problem.to_string(),
                None => problem.message,
            },
            hint: None,
        },
    };
    Err(Problems(found.into_iter().map(explain).collect()))
}
