//! The manifests of deploy/k8s and docker-compose.yml: every document is read, and the configuration that a container
//! would start with is judged by the program itself and compared with what the manifest says of it. Neither Kubernetes
//! nor a container engine is needed; `make compose` starts what is described here.

mod compose;
mod container;
mod found;
mod kubernetes;
mod yaml;

use compose::Compose;
use container::Image;
use kubernetes::Manifests;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn the_manifests_of_kubernetes_fit_the_configuration() {
    let problems = Manifests::read(root()).problems();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_compose_file_fits_the_configuration() {
    let problems = Compose::read(root()).problems();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_image_listens_where_it_says() {
    let compose = Compose::read(root());
    let image = Image::read(&compose.dockerfile);
    for key in ["QUORUMQ__MQTT__LISTEN", "QUORUMQ__HTTP__LISTEN"] {
        let port = container::port(&image.environment[key]);
        let is_exposed = port.is_some_and(|port| image.ports.contains(&port));
        assert!(is_exposed, "{key}: {image:?}");
    }
    let creates = format!("useradd --system --uid {} ", image.user);
    assert!(compose.dockerfile.contains(&creates), "{image:?}");
    let starts = "ENTRYPOINT [\"quorumq\"]\nCMD [\"serve\"]\n";
    assert!(compose.dockerfile.contains(starts));
}

/// What must not go unnoticed: something that stands in a manifest, what takes its place, and what is said of it.
const CHANGES: &[(&str, &str, &str, &str)] = &[
    (
        "quorumq.yaml",
        "containerPort: 8080",
        "containerPort: 8081",
        "port http",
    ),
    (
        "quorumq.yaml",
        "containerPort: 7883",
        "containerPort: 7884",
        "port cluster",
    ),
    (
        "quorumq.yaml",
        "containerPort: 8883",
        "containerPort: 1883",
        "port mqtts",
    ),
    (
        "quorumq.yaml",
        "path: /readyz",
        "path: /livez",
        "path of the readinessProbe",
    ),
    (
        "quorumq.yaml",
        "path: /livez\n              port: http",
        "path: /livez\n              port: mqtts",
        "port of the",
    ),
    (
        "quorumq.yaml",
        "mountPath: /identity",
        "mountPath: /identities",
        "quorumq check",
    ),
    (
        "quorumq.yaml",
        "mountPath: /listener",
        "mountPath: /certificates",
        "quorumq check",
    ),
    (
        "quorumq.yaml",
        "mountPath: /var/lib/quorumq",
        "mountPath: /elsewhere",
        "node.data_dir is no volume",
    ),
    (
        "quorumq.yaml",
        "path: 2/tls.key",
        "path: 2/key",
        "files of quorumq-node-2",
    ),
    (
        "quorumq.yaml",
        "0.0.0.0:7883",
        "0.0.0.0:7885",
        "port cluster",
    ),
    (
        "quorumq.yaml",
        "0.0.0.0:8883",
        "127.0.0.1:8884",
        "port mqtts",
    ),
    (
        "quorumq.yaml",
        "QUORUMQ__MQTT__LISTEN",
        "QUORUMQ__MQTT__LISTENS",
        "quorumq check",
    ),
    (
        "quorumq.yaml",
        "127.0.0.1:1883",
        "0.0.0.0:1883",
        "mqtt.listen is not on loopback",
    ),
    (
        "quorumq.yaml",
        "for number in 0 1 2;",
        "for number in 0 1;",
        "cluster.members",
    ),
    (
        "quorumq.yaml",
        "serviceName: quorumq-nodes",
        "serviceName: quorumq",
        "clusterIP",
    ),
    (
        "quorumq.yaml",
        "readOnlyRootFilesystem: true",
        "readOnlyRootFilesystem: false",
        "security context",
    ),
    (
        "quorumq.yaml",
        "drop: [ALL]",
        "drop: [NET_RAW]",
        "security context",
    ),
    (
        "quorumq.yaml",
        "runAsNonRoot: true",
        "runAsNonRoot: false",
        "runAsNonRoot",
    ),
    (
        "quorumq.yaml",
        "runAsUser: 10001",
        "runAsUser: 10002",
        "runAsUser",
    ),
    (
        "quorumq.yaml",
        "type: RuntimeDefault",
        "type: Unconfined",
        "seccompProfile",
    ),
    (
        "quorumq.yaml",
        "defaultMode: 0440",
        "defaultMode: 0444",
        "mode of keys",
    ),
    (
        "quorumq.yaml",
        "terminationGracePeriodSeconds: 30",
        "terminationGracePeriodSeconds: 10",
        "is killed after",
    ),
    (
        "quorumq.yaml",
        "prometheus.io/port: \"8080\"",
        "prometheus.io/port: \"8081\"",
        "port that is scraped",
    ),
    (
        "quorumq.yaml",
        "- port: mqtts",
        "- port: http",
        "network policy",
    ),
    (
        "quorumq.yaml",
        "targetPort: mqtts",
        "targetPort: mqtt",
        "the port of a service",
    ),
    (
        "certificates.yaml",
        "nodes/3\"]",
        "nodes/2\"]",
        "name of quorumq-node-3",
    ),
    (
        "certificates.yaml",
        "server auth, client auth",
        "server auth",
        "usages of",
    ),
    (
        "certificates.yaml",
        "name: quorumq-listeners\n",
        "name: quorumq-listening\n",
        "no issuer",
    ),
    (
        "certificates.yaml",
        "- quorumq\n",
        "- broker\n",
        "does not name",
    ),
    (
        "kustomization.yaml",
        "  - certificates.yaml\n",
        "",
        "resources of the kustomization",
    ),
    ("kustomization.yaml", "count: 3", "count: 5", "replicas"),
];

#[test]
fn a_manifest_that_does_not_fit_is_noticed() {
    let manifests = Manifests::read(root());
    for (file, from, to, wanted) in CHANGES {
        let mut changed = manifests.clone();
        let text = changed.files.get_mut(*file).expect("it is there");
        assert!(text.contains(from), "{file} has no {from:?}");
        // One place: what is there several times must agree.
        *text = text.replacen(from, to, 1);
        let problems = changed.problems();
        let is_noticed = problems.iter().any(|problem| problem.contains(wanted));
        assert!(
            is_noticed,
            "{file}: {to:?} in place of {from:?}: {problems:#?}"
        );
    }
}

#[test]
fn a_compose_file_that_does_not_fit_is_noticed() {
    let compose = Compose::read(root());
    for (from, to, wanted) in [
        ("read_only: true", "read_only: false", "read_only"),
        ("cap_drop: [ALL]", "cap_drop: []", "not confined"),
        (
            "no-new-privileges:true",
            "seccomp:unconfined",
            "security_opt",
        ),
        (
            "\"--http\", \"127.0.0.1:8080\"",
            "\"--http\", \"127.0.0.1:8081\"",
            "port of the healthcheck",
        ),
        ("\"8884:8883\"", "\"8884:1883\"", "ports:"),
        (
            "\"127.0.0.1:8182:8080\"",
            "\"8182:8080\"",
            "probes for everybody",
        ),
        (
            "identity2:/identity:ro",
            "identity3:/identity:ro",
            "cluster.certificate is of",
        ),
        (
            "node2:/var/lib/quorumq",
            "node2:/elsewhere",
            "no volume of its own",
        ),
        ("2=node2:7883", "2=node4:7883", "cluster.members"),
        ("/identity/node.pem", "/identity/other.pem", "quorumq check"),
        ("--cluster compose", "--cluster other", "quorumq check"),
        (
            "stop_grace_period: 20s",
            "stop_grace_period: 5s",
            "it is killed",
        ),
    ] {
        let mut changed = compose.clone();
        assert!(changed.file.contains(from), "there is no {from:?}");
        changed.file = changed.file.replacen(from, to, 1);
        let problems = changed.problems();
        let is_noticed = problems.iter().any(|problem| problem.contains(wanted));
        assert!(is_noticed, "{to:?} in place of {from:?}: {problems:#?}");
    }
}
