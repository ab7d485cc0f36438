//! The nodes that the pods would be: what each would serve with, and whether the manifest fits it.

use super::super::container::{Effective, Host, listeners, port, value};
use super::super::found::Found;
use super::super::yaml::{at, items, named, text};
use super::{MOUNTS, POD, Parsed};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Pods that make the cluster, and one that joins it.
const PODS: [usize; 4] = [0, 1, 2, 3];

impl Parsed {
    /// The environment of a pod's container.
    pub(super) fn environment(&self, pod: &str) -> BTreeMap<String, String> {
        let mut environment = self.image.environment.clone();
        for variable in items(self.container(), "/env") {
            let field = text(variable, "/valueFrom/fieldRef/fieldPath");
            let value = match field {
                "metadata.name" => pod,
                _ => text(variable, "/value"),
            };
            environment.insert(text(variable, "/name").to_owned(), value.to_owned());
        }
        environment
    }

    /// Makes what the secrets hold with the program itself, as docs/operations.md tells, and has each pod's command
    /// judge its configuration. Returns what each node would serve with.
    pub(super) fn nodes(&self) -> Result<Vec<(usize, Effective)>, String> {
        let host = Host::new();
        let pod = at(self.set(), POD);
        let cluster = self
            .environment("")
            .remove("QUORUMQ__CLUSTER__NAME")
            .unwrap_or_default();
        for directory in ["nodes", "listeners"] {
            host.quorumq(&["certificates", "ca", "--directory", directory])?;
        }
        for source in items(named(pod, "/volumes", "identity"), "/projected/sources") {
            let secret = text(source, "/secret/name");
            let id = secret.trim_start_matches("quorumq-node-");
            let node = ["certificates", "node", "--directory", "nodes", "--id", id];
            host.quorumq(&[&node[..], &["--cluster", &cluster]].concat())?;
            for item in items(source, "/secret/items") {
                let to = host.path("identity").join(text(item, "/path"));
                host.put(&secret_file(&host, "nodes", id, text(item, "/key")), &to)?;
            }
        }
        let node = [
            "certificates",
            "node",
            "--directory",
            "listeners",
            "--id",
            "1",
        ];
        host.quorumq(&[&node[..], &["--host", "quorumq"]].concat())?;
        for key in ["tls.crt", "tls.key", "ca.crt"] {
            host.put(
                &secret_file(&host, "listeners", "1", key),
                &host.path("listener").join(key),
            )?;
        }
        let mounts: Vec<(String, PathBuf)> = items(self.set(), MOUNTS)
            .iter()
            .map(|mount| {
                (
                    text(mount, "/mountPath").to_owned(),
                    host.path(text(mount, "/name")),
                )
            })
            .collect();
        let script = text(self.container(), "/args/0");
        let name = text(self.set(), "/metadata/name");
        let check = |pod| {
            let environment = self.environment(&format!("{name}-{pod}"));
            let effective = host.check(script, &environment, &mounts)?;
            let data = host.path("data").display().to_string();
            match value(&effective, "node.data_dir").contains(&data) {
                true => Ok((pod, effective)),
                false => Err("node.data_dir is no volume".to_owned()),
            }
        };
        PODS.map(check).into_iter().collect()
    }

    /// What a node would serve with, and what the manifest says of it.
    pub(super) fn node(&self, pod: usize, effective: &Effective, found: &mut Found) {
        found.same(
            "node.id",
            value(effective, "node.id"),
            &(pod + 1).to_string(),
        );
        for key in ["mqtt.listen", "http.admin_listen"] {
            let address = value(effective, key);
            let is_local = address.contains("127.0.0.1:");
            found.holds(is_local, format!("{key} is not on loopback: {address}"));
        }
        self.ports(effective, found);
        self.membership(pod, effective, found);
        self.end(effective, found);
    }

    /// The container's ports are those at which the node listens; probes and metrics are asked for at that of HTTP.
    fn ports(&self, effective: &Effective, found: &mut Found) {
        let of = |address: &str| port(address).map(u64::from);
        let number = |name: &str| self.container_port(&name.into());
        let cluster = of(value(effective, "cluster.listen"));
        let http = of(value(effective, "http.listen"));
        let clients: Vec<_> = listeners(effective).into_iter().map(of).collect();
        found.same("port cluster", number("cluster"), cluster);
        found.same("port http", number("http"), http);
        found.same("port mqtts", vec![number("mqtts")], clients);
        for (probe, path) in [
            ("startupProbe", "/livez"),
            ("livenessProbe", "/livez"),
            ("readinessProbe", "/readyz"),
        ] {
            let get = at(self.container(), &format!("/{probe}/httpGet"));
            found.same(&format!("path of the {probe}"), text(get, "/path"), path);
            let port = self.container_port(&get["port"]);
            found.same(&format!("port of the {probe}"), port, http);
        }
        let annotations = at(self.set(), "/spec/template/metadata/annotations");
        let scraped = annotations["prometheus.io/port"].as_str();
        let scraped = scraped.and_then(|port| port.parse().ok());
        found.same("port that is scraped", scraped, http);
        let path = &annotations["prometheus.io/path"];
        found.same("path that is scraped", path, &json!("/metrics"));
    }

    /// A node has time to hand over and to send its clients away.
    fn end(&self, effective: &Effective, found: &mut Found) {
        let drain = value(effective, "shutdown.drain_s").parse();
        let sleep = items(self.container(), "/lifecycle/preStop/exec/command").last();
        let sleep = sleep
            .and_then(Value::as_str)
            .and_then(|word| word.parse().ok());
        let needed = drain.unwrap_or(u64::MAX).saturating_add(sleep.unwrap_or(0));
        let grace = at(
            self.set(),
            "/spec/template/spec/terminationGracePeriodSeconds",
        )
        .as_u64();
        let is_enough = grace.is_some_and(|grace| grace > needed);
        let what = format!("a pod is killed after {grace:?} s, it needs {needed}");
        found.holds(is_enough, what);
    }

    /// The first three make the cluster; later ones join it.
    fn membership(&self, pod: usize, effective: &Effective, found: &mut Found) {
        let set = self.set();
        let (name, service) = (text(set, "/metadata/name"), text(set, "/spec/serviceName"));
        let headless = self
            .of_kind("Service")
            .find(|one| at(one, "/metadata/name") == service);
        let headless = headless.unwrap_or(&Value::Null);
        found.same(
            "clusterIP of the pods' service",
            text(headless, "/spec/clusterIP"),
            "None",
        );
        let early = at(headless, "/spec/publishNotReadyAddresses");
        found.same("names of nodes that are not ready", early, &json!(true));
        let port = self.container_port(&"cluster".into()).unwrap_or(0);
        let address = |pod: usize| format!("\"{name}-{pod}.{service}:{port}\"");
        let first = at(set, "/spec/replicas")
            .as_u64()
            .and_then(|count| usize::try_from(count).ok());
        let first = first.unwrap_or(0);
        found.same(
            "replicas",
            &set["spec"]["replicas"],
            at(&self.kustomization, "/replicas/0/count"),
        );
        let all = (0..first).map(address).collect::<Vec<_>>().join(", ");
        let members =
            (0..first).map(|pod| format!("{{ id = {}, address = {} }}", pod + 1, address(pod)));
        let members = members.collect::<Vec<_>>().join(", ");
        let (members, join) = match pod < first {
            true => (format!("[{members}]"), "[]".to_owned()),
            false => ("[]".to_owned(), format!("[{all}]")),
        };
        found.same(
            "cluster.members",
            value(effective, "cluster.members"),
            &members,
        );
        found.same("cluster.join", value(effective, "cluster.join"), &join);
        if pod >= first {
            let advertised = format!("\"{}\"", value(effective, "cluster.advertise"));
            found.same("cluster.advertise", advertised, address(pod));
        }
    }
}

/// What the program has made of what a secret has under this key.
fn secret_file(host: &Host, directory: &str, id: &str, key: &str) -> PathBuf {
    let name = match key {
        "tls.crt" => format!("node-{id}.pem"),
        "tls.key" => format!("node-{id}.key"),
        _ => "ca.pem".to_owned(),
    };
    host.path(directory).join(name)
}
