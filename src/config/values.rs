//! What follows from the keys: addresses, identities and sizes that are not written down.

use uuid::Uuid;

use super::keys::{ClusterConfig, Config, RuntimeConfig};
use super::listener::Listener;
use super::machine;
use super::setting::Address;

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

impl ClusterConfig {
    /// The identity of the cluster: `cluster.id`, or a UUID (version 5) derived from `cluster.name`.
    pub fn identity(&self) -> Uuid {
        self.id.unwrap_or_else(|| {
            let name = format!("quorumq-cluster:{}", self.name);
            Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes())
        })
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
