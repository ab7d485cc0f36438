//! What follows from the keys: addresses, identities and sizes that are not written down.

use uuid::Uuid;

use super::keys::{ClusterConfig, Config, RuntimeConfig, StoreConfig};
use super::listener::Listener;
use super::machine;
use super::setting::{Address, AuthenticationMethod};

impl Config {
    /// Where clients connect: a listener for each address of `mqtt.listen`, and the configured listeners.
    pub fn listeners(&self) -> Vec<Listener> {
        let addresses = self.mqtt.listen.iter().cloned();
        let listeners = self.listeners.iter().cloned();
        addresses
            .map(Listener::of_address)
            .chain(listeners)
            .collect()
    }

    /// The listeners that other machines reach and that let everybody in: always, or as long as there is no user.
    pub fn listeners_for_everybody(&self) -> Vec<Listener> {
        let has_file = self.auth.scram_file.is_some();
        let lets_everybody_in = |listener: &Listener| match &*listener.authentication {
            [] => !has_file,
            methods => methods.contains(&AuthenticationMethod::Anonymous),
        };
        let is_reached = |listener: &Listener| {
            let address = listener.address.tcp();
            address.is_some_and(|address| !address.is_loopback())
        };
        let mut all = self.listeners();
        all.retain(|listener| is_reached(listener) && lets_everybody_in(listener));
        all
    }

    /// Whether this node is a cluster of its own.
    pub fn is_single_node(&self) -> bool {
        self.cluster.members.is_empty() && self.cluster.join.is_empty()
    }

    /// Where the other nodes reach this node: `cluster.advertise`, else its own entry in `cluster.members`, else
    /// `cluster.listen`.
    pub fn advertised(&self) -> &Address {
        let own = || {
            let members = self.cluster.members.iter();
            members
                .filter(|member| member.id == self.node.id)
                .map(|member| &member.address)
                .next()
        };
        self.cluster
            .advertise
            .as_ref()
            .or_else(own)
            .unwrap_or(&self.cluster.listen)
    }
}

impl Config {
    /// The name of the namespace in events.
    pub fn event_namespace(&self) -> &str {
        match self.events.namespace.as_str() {
            "" => self.cluster.name.as_str(),
            namespace => namespace,
        }
    }

    /// Where events come from.
    pub fn event_source(&self) -> String {
        match self.events.source.as_str() {
            "" => format!("/namespaces/{}", self.event_namespace()),
            source => source.to_owned(),
        }
    }
}

impl ClusterConfig {
    /// The identity of the cluster: `cluster.id`, or a UUID (version 5) derived from `cluster.name`.
    pub fn identity(&self) -> Uuid {
        self.id.unwrap_or_else(|| {
            let name = format!("quorumq-cluster:{}", self.name);
            Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes())
        })
    }
}

impl StoreConfig {
    /// Memory for metadata of keys, bytes: the configured one, or a small part of what this process may use.
    pub fn metadata_cache(&self) -> usize {
        let most = 256 << 20;
        match self.metadata_cache_bytes {
            0 => (machine::memory_bytes() / 64).min(most) as usize,
            bytes => bytes,
        }
    }
}

impl RuntimeConfig {
    /// The number of worker threads to start: the configured one, or one per core.
    pub fn threads(&self) -> usize {
        match self.worker_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// Memory for clients, bytes: the configured one, or a quarter of what this process may use.
    pub fn client_memory(&self) -> usize {
        match self.client_memory_bytes {
            0 => usize::try_from(machine::memory_bytes() / 4).unwrap_or(usize::MAX),
            bytes => bytes,
        }
    }
}
