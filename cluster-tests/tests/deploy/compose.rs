//! What may be wrong with docker-compose.yml, as far as one can tell without an engine.

use super::container::{Effective, Host, Image, listeners, port, value};
use super::found::Found;
use super::yaml::{at, documents, items, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Services that are nodes.
const NODES: [&str; 3] = ["node1", "node2", "node3"];

/// The file, and what it builds on.
#[derive(Clone)]
pub struct Compose {
    pub file: String,
    pub dockerfile: String,
}

impl Compose {
    pub fn read(root: &Path) -> Compose {
        let read = |path: &str| fs::read_to_string(root.join(path)).expect("it can be read");
        Compose {
            file: read("docker-compose.yml"),
            dockerfile: read("deploy/docker/Dockerfile"),
        }
    }

    /// Everything that is wrong, one text each.
    pub fn problems(&self) -> Vec<String> {
        let parsed = documents(&self.file).and_then(|found| match found.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(format!("{} documents", found.len())),
        });
        let document = match parsed {
            Ok(document) => document,
            Err(error) => return vec![error],
        };
        let image = Image::read(&self.dockerfile);
        let host = Host::new();
        let mut found = Vec::new();
        if let Err(error) = certificates(&document, &host) {
            found.push(error);
        }
        for (index, name) in NODES.into_iter().enumerate() {
            let service = at(&document, &format!("/services/{name}"));
            let judged = Node {
                name,
                index,
                service,
                image: &image,
            }
            .judge(&document, &host);
            let judged = judged.unwrap_or_else(|error| vec![error]);
            found.extend(
                judged
                    .into_iter()
                    .map(|problem| format!("{name}: {problem}")),
            );
        }
        found
    }
}

/// The environment of a service.
fn environment(service: &Value) -> BTreeMap<String, String> {
    let variables = service["environment"].as_object().into_iter().flatten();
    let variables = variables.map(|(name, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        (name.clone(), value)
    });
    variables.collect()
}

/// Volumes of a service: name, path inside, options.
fn volumes(service: &Value) -> Vec<(&str, &str, &str)> {
    let volumes = items(service, "/volumes").iter().filter_map(Value::as_str);
    let volumes = volumes.filter_map(|volume| {
        let (name, rest) = volume.split_once(':')?;
        let (path, options) = rest.split_once(':').unwrap_or((rest, ""));
        Some((name, path, options))
    });
    volumes.collect()
}

/// Runs the script that makes the certificates.
fn certificates(document: &Value, host: &Host) -> Result<(), String> {
    let service = at(document, "/services/certificates");
    if service["cap_drop"] != json!(["ALL"]) || service["network_mode"] != "none" {
        return Err("who makes certificates is not confined".to_owned());
    }
    for (name, path, _) in volumes(service) {
        // The script puts a number behind /identity.
        if path != format!("/{name}") {
            return Err(format!("{name} is at {path}"));
        }
        fs::create_dir(host.path(name)).map_err(|error| error.to_string())?;
    }
    let mounts = ["authority", "identity"].map(|name| (format!("/{name}"), host.path(name)));
    let script = text(service, "/command/0").replace("$$", "$");
    let hosts = ("QUORUMQ_HOSTS".to_owned(), "broker.example.org".to_owned());
    host.make(&script, &BTreeMap::from([hosts]), &mounts)
}

struct Node<'a> {
    name: &'a str,
    index: usize,
    service: &'a Value,
    image: &'a Image,
}

impl Node<'_> {
    /// What is wrong with it.
    fn judge(&self, document: &Value, host: &Host) -> Result<Vec<String>, String> {
        let mut variables = self.image.environment.clone();
        variables.extend(environment(self.service));
        let volumes = volumes(self.service);
        let mounts: Vec<(String, PathBuf)> = volumes
            .iter()
            .map(|(name, path, _)| ((*path).to_owned(), host.path(name)))
            .collect();
        let effective = host.check("exec quorumq serve", &variables, &mounts)?;
        let mut found = Found::default();
        for (name, _, _) in &volumes {
            let is_declared = document["volumes"].get(name).is_some();
            found.holds(is_declared, format!("the volume {name} is not declared"));
        }
        let data = host.path(self.name).display().to_string();
        let is_own = value(&effective, "node.data_dir").contains(&data);
        found.holds(is_own, "its data is in no volume of its own");
        self.confinement(&mut found);
        self.membership(&effective, &mut found);
        self.ports(&effective, &mut found);
        let grace = text(self.service, "/stop_grace_period").trim_end_matches('s');
        let drain = value(&effective, "shutdown.drain_s").parse::<u64>();
        let is_enough = grace
            .parse::<u64>()
            .is_ok_and(|grace| drain.is_ok_and(|drain| grace > drain));
        found.holds(is_enough, format!("it is killed after {grace} s"));
        Ok(found.0)
    }

    /// Not root, no capability, a root that is only read, and the identity of no other node.
    fn confinement(&self, found: &mut Found) {
        for (key, wanted) in [
            ("read_only", json!(true)),
            ("cap_drop", json!(["ALL"])),
            ("cap_add", Value::Null),
            ("privileged", Value::Null),
            ("user", Value::Null),
            ("security_opt", json!(["no-new-privileges:true"])),
        ] {
            found.same(key, &self.service[key], &wanted);
        }
        let volumes = volumes(self.service).into_iter();
        let identities = volumes.filter(|(name, _, _)| name.starts_with("identity"));
        let identities: Vec<_> = identities.collect();
        let own = format!("identity{}", self.index + 1);
        let wanted = vec![(own.as_str(), "/identity", "ro")];
        found.same("identities", identities, wanted);
    }

    /// The members are the services.
    fn membership(&self, effective: &Effective, found: &mut Found) {
        let id = (self.index + 1).to_string();
        found.same("node.id", value(effective, "node.id"), &id);
        found.same("hostname", text(self.service, "/hostname"), self.name);
        let port = port(value(effective, "cluster.listen")).unwrap_or(0);
        let members = (1..).zip(NODES);
        let members =
            members.map(|(id, name)| format!("{{ id = {id}, address = \"{name}:{port}\" }}"));
        let members = format!("[{}]", members.collect::<Vec<_>>().join(", "));
        found.same(
            "cluster.members",
            value(effective, "cluster.members"),
            &members,
        );
    }

    /// What is published are the listener's port and that of probes, which this machine alone reaches.
    fn ports(&self, effective: &Effective, found: &mut Found) {
        let http = port(value(effective, "http.listen"));
        let inside = listeners(effective).into_iter().map(port);
        let inside: Vec<_> = inside.chain([http]).collect();
        let published = items(self.service, "/ports")
            .iter()
            .filter_map(Value::as_str);
        let published: Vec<_> = published.collect();
        let seen = published.iter().map(|place| port(place)).collect();
        found.same("ports", seen, inside);
        let mut probes = published.iter().filter(|place| port(place) == http);
        let is_local = probes.all(|place| place.starts_with("127.0.0.1:"));
        found.holds(is_local, format!("probes for everybody: {published:?}"));
        for key in ["mqtt.listen", "http.admin_listen"] {
            let address = value(effective, key);
            let is_local = address.contains("127.0.0.1:");
            found.holds(is_local, format!("{key} is not on loopback: {address}"));
        }
        let test = items(self.service, "/healthcheck/test").last();
        let asks = test.and_then(Value::as_str).and_then(port);
        found.same("port of the healthcheck", asks, http);
    }
}
