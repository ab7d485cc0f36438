//! Which addresses this node connects to when it looks for another node.
//!
//! Whoever may add members, and whoever owns the name that a member has, makes nodes open connections to an address of
//! their choice. What no member is ever at is refused: link-local addresses, where clouds have their metadata services,
//! and services of this machine, unless the cluster itself is there. The connection speaks the protocol of nodes and
//! nothing else, and what comes back is never shown to who asked.
//!
//! Invariant: judged is the address that is connected to, and not another resolution of the same name.

use std::net::{IpAddr, SocketAddr};

use super::names::Names;
use crate::base::local_only::is_local_only;
use crate::config::{Address, Config};

/// Why an address is no place for a member.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// It is no address.
    #[error("{0:?} is not host:port")]
    Malformed(String),
    /// Nobody listens there.
    #[error("the port is 0")]
    NoPort,
    /// The name has no address.
    #[error("{0:?} is no name that can be resolved here")]
    Unresolved(String),
    /// Other services are there.
    #[error("{0} is link-local, or of a metadata service: no node is there")]
    LinkLocal(IpAddr),
    /// It is reached by this machine only.
    #[error("{0} is this machine alone, and cluster.advertise of this node is not")]
    Loopback(IpAddr),
    /// It is several machines, or none.
    #[error("{0} is no address of one machine")]
    NotOne(IpAddr),
}

/// Where nodes of this cluster may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    allows_loopback: bool,
    allows_link_local: bool,
    /// Addresses of the configuration: who is there is there.
    named: Vec<Address>,
    names: Names,
}

impl Default for Reach {
    /// For a cluster on this machine.
    fn default() -> Reach {
        Reach {
            allows_loopback: true,
            allows_link_local: false,
            named: Vec::new(),
            names: Names::default(),
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

impl Reach {
    /// What the configuration says.
    pub fn of(config: &Config) -> Reach {
        let own = config.advertised();
        let members = config.cluster.members.iter();
        let members = members.map(|member| member.address.clone());
        let own_ip = own.host().parse::<IpAddr>().ok();
        Reach {
            // Where it listens on every interface, others may have the addresses of this machine.
            allows_loopback: own.is_loopback() || own.is_unspecified(),
            allows_link_local: own_ip.is_some_and(is_link_local),
            named: members.chain(config.cluster.join.iter().cloned()).collect(),
            names: Names::default(),
        }
    }

    fn judge(&self, ip: IpAddr) -> Result<(), ReachError> {
        let ip = ip.to_canonical();
        let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        if ip.is_unspecified() || ip.is_multicast() || is_broadcast {
            return Err(ReachError::NotOne(ip));
        }
        let is_allowed = self.allows_link_local && is_link_local(ip);
        if is_local_only(ip) && !is_allowed {
            return Err(ReachError::LinkLocal(ip));
        }
        if ip.is_loopback() && !self.allows_loopback {
            return Err(ReachError::Loopback(ip));
        }
        Ok(())
    }

    /// The addresses of a host at which a node may be.
    ///
    /// # Errors
    /// There are none, or one of them is no place for a member.
    pub(super) async fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ReachError> {
        let found = self.names.resolve(host, port).await;
        let found = found.ok_or_else(|| ReachError::Unresolved(host.to_owned()))?;
        let mut named = self.named.iter();
        if !named.any(|named| named.host() == host && named.port() == port) {
            found.iter().try_for_each(|found| self.judge(found.ip()))?;
        }
        Ok(found)
    }

    /// Somebody has proved to be at one of these addresses, to which the host was resolved.
    pub(super) fn remember(&self, host: &str, port: u16, addresses: &[SocketAddr]) {
        self.names.remember(host, port, addresses);
    }

    /// Checks the address that a new member is said to be at. Its name may be another's when it is connected to: then
    /// it is judged again.
    ///
    /// # Errors
    /// It is no place for a member.
    pub async fn check(&self, text: &str) -> Result<(), ReachError> {
        let malformed = |_| ReachError::Malformed(text.to_owned());
        let address: Address = text.parse().map_err(malformed)?;
        match address.port() {
            0 => Err(ReachError::NoPort),
            port => self.resolve(address.host(), port).await.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(own: &str) -> Reach {
        let mut config = Config::default();
        config.cluster.advertise = Some(own.parse().expect("an address"));
        Reach::of(&config)
    }

    #[test]
    fn no_member_is_where_no_node_can_be() {
        for (ip, own, is_fine) in [
            ("10.0.0.1", "10.0.0.9:1", true),
            ("2001:db8::1", "10.0.0.9:1", true),
            ("127.0.0.1", "127.0.0.1:1", true),
            ("127.0.0.1", "0.0.0.0:1", true),
            ("127.0.0.1", "10.0.0.9:1", false),
            ("::1", "10.0.0.9:1", false),
            ("::ffff:127.0.0.1", "10.0.0.9:1", false),
            ("169.254.169.254", "127.0.0.1:1", false),
            ("::ffff:169.254.169.254", "127.0.0.1:1", false),
            ("fe80::1", "127.0.0.1:1", false),
            ("169.254.7.7", "169.254.7.8:1", true),
            ("fd00:ec2::254", "127.0.0.1:1", false),
            ("100.100.100.200", "127.0.0.1:1", false),
            ("168.63.129.16", "127.0.0.1:1", false),
            ("64:ff9b::a9fe:a9fe", "127.0.0.1:1", false),
            ("2002:a9fe:a9fe::1", "127.0.0.1:1", false),
            ("0.1.2.3", "127.0.0.1:1", false),
            ("0.0.0.0", "127.0.0.1:1", false),
            ("::", "127.0.0.1:1", false),
            ("224.0.0.1", "127.0.0.1:1", false),
            ("ff02::1", "127.0.0.1:1", false),
            ("255.255.255.255", "127.0.0.1:1", false),
        ] {
            let judged = reach(own).judge(ip.parse().expect("an address"));
            assert_eq!(judged.is_ok(), is_fine, "{ip} {judged:?}");
        }
    }

    #[tokio::test]
    async fn an_address_is_a_host_and_a_port() {
        let mut reach = reach("10.0.0.1:7883");
        for wrong in [
            "",
            "10.0.0.2",
            "http://10.0.0.2:1/",
            "10.0.0.2:0",
            "10.0.0.2:65536",
            "a b:1",
        ] {
            assert!(reach.check(wrong).await.is_err(), "{wrong}");
        }
        assert_eq!(reach.check("10.0.0.2:7883").await, Ok(()));
        assert!(reach.check("169.254.1.1:7883").await.is_err());
        reach.named = vec!["169.254.1.1:7883".parse().expect("an address")];
        assert_eq!(reach.check("169.254.1.1:7883").await, Ok(()));
        assert!(reach.check("169.254.1.1:80").await.is_err());
    }
}
