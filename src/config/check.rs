//! Rules that one value alone cannot break: they are checked on the whole configuration.

use std::collections::BTreeMap;

use super::auth_rules;
use super::bounds;
use super::event_rules;
use super::event_subscription;
use super::finding::Finding;
use super::http_rules;
use super::hub_rules;
use super::keys::Config;
use super::listener::DEFAULT_LISTENER;
use super::listener_rules;
use super::password_rules;
use super::setting::Address;

/// Every broken rule.
pub fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    timing(config, &mut found);
    members(config, &mut found);
    join(config, &mut found);
    listeners(config, &mut found);
    found.extend(listener_rules::findings(&config.listeners));
    found.extend(auth_rules::findings(config));
    found.extend(http_rules::findings(&config.http));
    found.extend(hub_rules::findings(config));
    found.extend(event_subscription::findings(config));
    sizes(config, &mut found);
    found.extend(password_rules::findings(config));
    cluster_trust(config, &mut found);
    found.extend(event_rules::findings(config));
    found
}

fn add(found: &mut Vec<Finding>, keys: &[&'static str], message: String, hint: String) {
    found.push(Finding {
        keys: keys.to_vec(),
        message,
        hint,
    });
}

fn timing(config: &Config, found: &mut Vec<Finding>) {
    let cluster = &config.cluster;
    if cluster.election_min_ms < cluster.heartbeat_ms.saturating_mul(3) {
        add(
            found,
            &["cluster.election_min_ms", "cluster.heartbeat_ms"],
            format!(
                "{} ms is less than three heartbeats of {} ms: one late heartbeat would start an election",
                cluster.election_min_ms, cluster.heartbeat_ms
            ),
            format!("at least {} ms", cluster.heartbeat_ms.saturating_mul(3)),
        );
    }
    if cluster.election_max_ms <= cluster.election_min_ms {
        add(
            found,
            &["cluster.election_max_ms", "cluster.election_min_ms"],
            format!(
                "{} ms is not more than cluster.election_min_ms ({} ms): all followers would start a campaign at once",
                cluster.election_max_ms, cluster.election_min_ms
            ),
            format!(
                "twice cluster.election_min_ms: {} ms",
                cluster.election_min_ms.saturating_mul(2)
            ),
        );
    }
    if cluster.give_up_ms >= cluster.node_lease_ms {
        add(
            found,
            &["cluster.give_up_ms", "cluster.node_lease_ms"],
            format!(
                "{} ms is not less than cluster.node_lease_ms ({} ms): a session could have two live owners",
                cluster.give_up_ms, cluster.node_lease_ms
            ),
            format!("at most {} ms", cluster.node_lease_ms / 5 * 3),
        );
    }
    if cluster.give_up_ms <= cluster.election_max_ms {
        add(
            found,
            &["cluster.give_up_ms", "cluster.election_max_ms"],
            format!(
                "{} ms is not more than cluster.election_max_ms ({} ms): every election would disconnect the clients",
                cluster.give_up_ms, cluster.election_max_ms
            ),
            format!(
                "at least {} ms, three elections",
                cluster.election_max_ms.saturating_mul(3)
            ),
        );
    }
}

fn members(config: &Config, found: &mut Vec<Finding>) {
    let members = &config.cluster.members;
    let keys = &["cluster.members", "node.id"];
    if members.is_empty() {
        return;
    }
    if !members.iter().any(|member| member.id == config.node.id) {
        let ids: Vec<_> = members.iter().map(|member| member.id.to_string()).collect();
        add(
            found,
            &["node.id", "cluster.members"],
            format!(
                "node {} is not one of cluster.members ({})",
                config.node.id,
                ids.join(", ")
            ),
            "give this node the number of its own entry, or add an entry for it".into(),
        );
    }
    let mut by_id = BTreeMap::new();
    let mut by_address = BTreeMap::new();
    for member in members {
        if member.id == 0 || member.id > bounds::MAX_NODE_ID {
            add(
                found,
                keys,
                format!("the member number {} cannot be used", member.id),
                format!("numbers are 1 to {}", bounds::MAX_NODE_ID),
            );
        }
        if by_id.insert(member.id, &member.address).is_some() {
            add(
                found,
                keys,
                format!("two members have the number {}", member.id),
                "every node has its own number".into(),
            );
        }
        if let Some(other) = by_address.insert(&member.address, member.id) {
            add(
                found,
                keys,
                format!(
                    "members {other} and {} have the same address {}",
                    member.id, member.address
                ),
                "every node has its own address".into(),
            );
        }
        unreachable_address("cluster.members", &member.address, found);
    }
}

fn join(config: &Config, found: &mut Vec<Finding>) {
    let cluster = &config.cluster;
    if cluster.join.is_empty() {
        return;
    }
    if !cluster.members.is_empty() {
        add(
            found,
            &["cluster.join", "cluster.members"],
            "a node either makes a new cluster with cluster.members or joins a running one".into(),
            "remove cluster.members: the cluster tells a new node its members".into(),
        );
    }
    for address in &cluster.join {
        unreachable_address("cluster.join", address, found);
    }
    if cluster.advertise.is_none() && config.advertised().is_unspecified() {
        add(
            found,
            &["cluster.advertise", "cluster.listen"],
            format!(
                "the cluster would be told that this node is at {}, which nobody can reach",
                config.advertised()
            ),
            "write the host name or IP address and the port that the other nodes use".into(),
        );
    }
}

fn unreachable_address(key: &'static str, address: &Address, found: &mut Vec<Finding>) {
    if address.is_unspecified() || address.port() == 0 {
        add(
            found,
            &[key],
            format!("{address} is no address that another node can reach"),
            "write the host name or IP address and the port that the other nodes use".into(),
        );
    }
}

fn listeners(config: &Config, found: &mut Vec<Finding>) {
    if config.mqtt.listen.is_empty() && config.listeners.is_empty() {
        add(
            found,
            &["mqtt.listen"],
            "no address: no client could connect".into(),
            "for example \"127.0.0.1:1883\"".into(),
        );
    }
    let own = config.listeners();
    let mut taken: Vec<(&'static str, &Address)> = Vec::new();
    let all = own
        .iter()
        .filter_map(|listener| {
            let key = match listener.name == DEFAULT_LISTENER {
                true => "mqtt.listen",
                false => "listeners",
            };
            Some((key, listener.address.tcp()?))
        })
        .chain([("cluster.listen", &config.cluster.listen)])
        .chain(config.http.listen.iter().map(|a| ("http.listen", a)))
        .chain(
            config
                .http
                .admin_listen
                .iter()
                .map(|a| ("http.admin_listen", a)),
        )
        .chain(
            config
                .hub
                .https_listen
                .iter()
                .map(|a| ("hub.https_listen", a)),
        );
    for (key, address) in all {
        let clash = taken.iter().find(|(_, other)| collide(other, address));
        if let Some((other_key, other)) = clash {
            add(
                found,
                &[key, other_key],
                format!("{address} is already used by {other_key} ({other})"),
                "give each listener its own port".into(),
            );
        }
        taken.push((key, address));
    }
    if let Some(advertise) = &config.cluster.advertise {
        unreachable_address("cluster.advertise", advertise, found);
    }
}

fn collide(one: &Address, other: &Address) -> bool {
    one.port() != 0
        && one.port() == other.port()
        && (one.host() == other.host() || one.is_unspecified() || other.is_unspecified())
}

/// Nodes prove to each other who they are, unless nobody else can reach them or the operator says so.
fn cluster_trust(config: &Config, found: &mut Vec<Finding>) {
    let cluster = &config.cluster;
    let files = [
        ("cluster.certificate", &cluster.certificate),
        ("cluster.key", &cluster.key),
        ("cluster.ca_file", &cluster.ca_file),
    ];
    let has_any = files.iter().any(|(_, file)| file.is_some());
    for (key, _) in files.iter().filter(|(_, file)| has_any && file.is_none()) {
        add(
            found,
            &[key, "cluster.certificate", "cluster.key", "cluster.ca_file"],
            format!("{key} is missing: nodes need a certificate, its key and the authorities"),
            "set cluster.certificate, cluster.key and cluster.ca_file, or none of them".into(),
        );
    }
    if !has_any && !cluster.crl_files.is_empty() {
        add(
            found,
            &["cluster.crl_files", "cluster.certificate"],
            "cluster.crl_files lists certificates, and nodes have none".into(),
            "set cluster.certificate, cluster.key and cluster.ca_file, or remove it".into(),
        );
    }
    let has_secret = cluster.secret_file.is_some();
    if has_any && has_secret {
        add(
            found,
            &["cluster.secret_file", "cluster.certificate"],
            "nodes prove who they are either by certificates or by a secret".into(),
            "remove cluster.secret_file: certificates are the better of the two".into(),
        );
    }
    let is_proved = has_any || has_secret;
    if is_proved && cluster.insecure {
        add(
            found,
            &[
                "cluster.insecure",
                "cluster.certificate",
                "cluster.secret_file",
            ],
            "cluster.insecure has no meaning where nodes prove who they are".into(),
            "remove it".into(),
        );
    }
    if !is_proved && !cluster.insecure && !cluster.listen.is_loopback() {
        add(
            found,
            &["cluster.listen", "cluster.certificate", "cluster.secret_file", "cluster.insecure"],
            format!(
                "{} is reached from other machines, and whoever reaches it could read and change everything: nodes \
                 must prove who they are",
                cluster.listen
            ),
            "set cluster.certificate, cluster.key and cluster.ca_file (docs/operations.md, Certificates of nodes); or \
             listen on 127.0.0.1; or accept it with cluster.insecure = true"
                .into(),
        );
    }
}

fn sizes(config: &Config, found: &mut Vec<Finding>) {
    let mqtt = &config.mqtt;
    if mqtt.outbox_max_bytes < mqtt.max_packet_size_bytes as usize {
        add(
            found,
            &["mqtt.outbox_max_bytes", "mqtt.max_packet_size_bytes"],
            format!(
                "{} bytes is less than mqtt.max_packet_size_bytes ({}): the largest message would never be delivered",
                mqtt.outbox_max_bytes, mqtt.max_packet_size_bytes
            ),
            format!("at least {} bytes", mqtt.max_packet_size_bytes),
        );
    }
    let outboxes = bounds::CONNECTION_MEMORY_OUTBOXES;
    let least = (outboxes * mqtt.outbox_max_bytes).max(bounds::LEAST_CONNECTION_MEMORY_BYTES);
    if mqtt.connection_memory_bytes != 0 && mqtt.connection_memory_bytes < least {
        add(
            found,
            &["mqtt.connection_memory_bytes", "mqtt.outbox_max_bytes"],
            format!(
                "{} bytes is less than {least}, which is {outboxes} times mqtt.outbox_max_bytes, or 2 MiB: clients that \
                 are only slow would be disconnected",
                mqtt.connection_memory_bytes
            ),
            format!("at least {least} bytes, or 0 for the default"),
        );
    }
    let hint = &mqtt.response_information;
    if hint.len() > bounds::LONGEST_RESPONSE_INFORMATION_BYTES || hint.contains(['\0', '+', '#']) {
        add(
            found,
            &["mqtt.response_information"],
            format!(
                "{hint:?} cannot begin a topic: it is longer than {} bytes, or has U+0000 or a wildcard",
                bounds::LONGEST_RESPONSE_INFORMATION_BYTES
            ),
            "for example \"clients/{client_id}\"".into(),
        );
    }
}
