//! What may be wrong with the manifests of deploy/k8s, as far as one can tell without a cluster.

mod nodes;

use super::container::Image;
use super::found::Found;
use super::yaml::{at, documents, items, named, text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The manifests, as text.
#[derive(Clone)]
pub struct Manifests {
    /// By name of the file.
    pub files: BTreeMap<String, String>,
    pub dockerfile: String,
}

/// What the manifests say.
struct Parsed {
    resources: Vec<Value>,
    kustomization: Value,
    image: Image,
}

impl Manifests {
    pub fn read(root: &Path) -> Manifests {
        let entries = fs::read_dir(root.join("deploy/k8s")).expect("the directory is there");
        let read = |path: &Path| fs::read_to_string(path).expect("it can be read");
        let files = entries.flatten().map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, read(&entry.path()))
        });
        Manifests {
            files: files.collect(),
            dockerfile: read(&root.join("deploy/docker/Dockerfile")),
        }
    }

    fn parse(&self) -> Result<Parsed, String> {
        let mut resources = Vec::new();
        let mut kustomization = Value::Null;
        for (name, content) in &self.files {
            let found = documents(content).map_err(|error| format!("{name}: {error}"))?;
            match (name.as_str(), found.as_slice()) {
                ("kustomization.yaml", [one]) => kustomization = one.clone(),
                _ => resources.extend(found),
            }
        }
        Ok(Parsed {
            resources,
            kustomization,
            image: Image::read(&self.dockerfile),
        })
    }

    /// Everything that is wrong, one text each.
    pub fn problems(&self) -> Vec<String> {
        let parsed = match self.parse() {
            Ok(parsed) => parsed,
            Err(error) => return vec![error],
        };
        let mut found = Found::default();
        parsed.names(self, &mut found);
        parsed.certificates(&mut found);
        parsed.confinement(&mut found);
        match parsed.nodes() {
            Ok(nodes) => {
                for (pod, effective) in nodes {
                    parsed.node(pod, &effective, &mut found);
                }
            }
            Err(error) => found.0.push(error),
        }
        found.0
    }
}

const POD: &str = "/spec/template/spec";
const MOUNTS: &str = "/spec/template/spec/containers/0/volumeMounts";

impl Parsed {
    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.resources.iter().filter(move |one| one["kind"] == kind)
    }

    fn set(&self) -> &Value {
        self.of_kind("StatefulSet").next().unwrap_or(&Value::Null)
    }

    fn container(&self) -> &Value {
        at(self.set(), "/spec/template/spec/containers/0")
    }

    /// The number of the container's port that is meant by number or by name.
    fn container_port(&self, meant: &Value) -> Option<u64> {
        let ports = items(self.container(), "/ports").iter();
        let mut ports =
            ports.filter(|port| &port["name"] == meant || &port["containerPort"] == meant);
        ports.next()?["containerPort"].as_u64()
    }

    /// Everything has a name, and what is named is there.
    fn names(&self, manifests: &Manifests, found: &mut Found) {
        for one in &self.resources {
            let is_named = ["/apiVersion", "/kind", "/metadata/name"]
                .iter()
                .all(|pointer| !text(one, pointer).is_empty());
            found.holds(is_named, format!("a document without a name: {one}"));
        }
        let listed = items(&self.kustomization, "/resources").iter();
        let listed: BTreeSet<_> = listed.filter_map(Value::as_str).collect();
        let mut files: BTreeSet<_> = manifests.files.keys().map(String::as_str).collect();
        files.remove("kustomization.yaml");
        found.same("resources of the kustomization", listed, files);
        let set = self.set();
        let name = text(set, "/metadata/name");
        found.same(
            "pods that are scaled",
            text(&self.kustomization, "/replicas/0/name"),
            name,
        );
        let labels = at(set, "/spec/template/metadata/labels");
        for (kind, pointer) in [
            ("Service", "/spec/selector"),
            ("PodDisruptionBudget", "/spec/selector/matchLabels"),
            ("NetworkPolicy", "/spec/podSelector/matchLabels"),
            ("StatefulSet", "/spec/selector/matchLabels"),
        ] {
            for one in self.of_kind(kind) {
                found.same(&format!("pods of a {kind}"), at(one, pointer), labels);
            }
        }
        for service in self.of_kind("Service") {
            for port in items(service, "/spec/ports") {
                let target = at(port, "/targetPort");
                let target = if target.is_null() {
                    &port["port"]
                } else {
                    target
                };
                let is_there = self.container_port(target) == port["port"].as_u64();
                found.holds(
                    is_there,
                    format!("no container has the port of a service: {port}"),
                );
            }
        }
        let mut open = BTreeSet::new();
        for policy in self.of_kind("NetworkPolicy") {
            for rule in items(policy, "/spec/ingress") {
                for port in items(rule, "/ports") {
                    let port = text(port, "/port");
                    let from = if rule["from"].is_null() {
                        "everybody"
                    } else {
                        "pods"
                    };
                    open.insert(format!("{port} for {from}"));
                }
            }
        }
        let wanted = ["mqtts for everybody", "cluster for pods"].map(str::to_owned);
        found.same("ports that the network policy opens", open, wanted.into());
    }

    /// cert-manager is told to make what the pods mount, and each certificate names its node.
    fn certificates(&self, found: &mut Found) {
        let made = self.of_kind("Certificate");
        let made: BTreeMap<_, _> = made
            .map(|one| (text(one, "/spec/secretName"), one))
            .collect();
        let issuers: BTreeSet<_> = self
            .of_kind("Issuer")
            .map(|one| text(one, "/metadata/name"))
            .collect();
        for issuer in made.values().map(|one| text(one, "/spec/issuerRef/name")) {
            found.holds(
                issuers.contains(issuer),
                format!("no issuer is called {issuer:?}"),
            );
        }
        for secret in self
            .of_kind("Issuer")
            .map(|one| text(one, "/spec/ca/secretName"))
        {
            let is_made = secret.is_empty() || made.contains_key(secret);
            found.holds(
                is_made,
                format!("no certificate makes the secret {secret:?}"),
            );
        }
        let pod = at(self.set(), POD);
        let name = self
            .environment("")
            .remove("QUORUMQ__CLUSTER__NAME")
            .unwrap_or_default();
        for source in items(named(pod, "/volumes", "identity"), "/projected/sources") {
            let secret = text(source, "/secret/name");
            let number = secret.trim_start_matches("quorumq-node-");
            let certificate = made.get(secret).copied().unwrap_or(&Value::Null);
            let what = |of: &str| format!("{of} of {secret}");
            let uri = json!([format!("quorumq://{name}/nodes/{number}")]);
            found.same(&what("name"), at(certificate, "/spec/uris"), &uri);
            let usages = json!(["digital signature", "server auth", "client auth"]);
            found.same(&what("usages"), at(certificate, "/spec/usages"), &usages);
            let files = ["tls.crt", "tls.key", "ca.crt"];
            let files = files.map(|key| json!({"key": key, "path": format!("{number}/{key}")}));
            found.same(&what("files"), items(source, "/secret/items"), &files);
        }
        let listener = text(named(pod, "/volumes", "listener"), "/secret/secretName");
        let certificate = made.get(listener).copied().unwrap_or(&Value::Null);
        let names = items(certificate, "/spec/dnsNames");
        for service in self
            .of_kind("Service")
            .filter(|one| at(one, "/spec/clusterIP").is_null())
        {
            let service = at(service, "/metadata/name");
            found.holds(
                names.contains(service),
                format!("{listener} does not name {service}"),
            );
        }
    }

    /// As docs/operations.md and the Dockerfile have it: not root, no capability, a root that is only read.
    fn confinement(&self, found: &mut Found) {
        let pod = at(self.set(), POD);
        let user: Value = self.image.user.parse::<u64>().unwrap_or(0).into();
        found.holds(user != json!(0), "the image runs as root");
        let context = at(pod, "/securityContext");
        for name in ["runAsUser", "runAsGroup", "fsGroup"] {
            found.same(name, &context[name], &user);
        }
        found.same("runAsNonRoot", &context["runAsNonRoot"], &json!(true));
        found.same(
            "seccompProfile",
            &context["seccompProfile"],
            &json!({"type": "RuntimeDefault"}),
        );
        let wanted = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        });
        found.same(
            "security context",
            at(self.container(), "/securityContext"),
            &wanted,
        );
        found.same("containers", items(pod, "/containers").len(), 1);
        let token = &pod["automountServiceAccountToken"];
        found.same("token of a service account", token, &json!(false));
        for mount in items(self.set(), MOUNTS) {
            let is_read_only = mount["readOnly"] == json!(true);
            let wanted = mount["name"] != "data";
            found.same(
                &format!("read only: {}", mount["name"]),
                is_read_only,
                wanted,
            );
        }
        // In octal digits, as Kubernetes reads them: YAML 1.1.
        for mode in [
            at(named(pod, "/volumes", "listener"), "/secret/defaultMode"),
            at(named(pod, "/volumes", "identity"), "/projected/defaultMode"),
        ] {
            found.same("mode of keys", mode, &json!(440));
        }
    }
}
