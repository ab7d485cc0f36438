//! Which addresses a node may be asked to connect to, when somebody adds a member over HTTP.
//!
//! Whoever may add members makes this node open connections to an address of their choice. What no member is ever at is
//! refused: link-local addresses, where clouds have their metadata services, and services of this machine, unless the
//! cluster itself is on loopback. The connection speaks the protocol of nodes and nothing else, and what comes back is
//! never shown to who asked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::Address;

/// Addresses of metadata services that are not link-local: AWS (IPv6), Alibaba Cloud, Oracle Cloud.
const METADATA: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// Why an address is no place for a member.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum JoinAddressError {
    #[error("{0:?} is not host:port")]
    Malformed(String),
    #[error("the port is 0")]
    NoPort,
    #[error("{0:?} is no name that can be resolved here")]
    Unresolved(String),
    #[error("{0} is link-local, or of a metadata service: no node is there")]
    LinkLocal(IpAddr),
    #[error("{0} is this machine alone, and cluster.advertise of this node is not")]
    Loopback(IpAddr),
    #[error("{0} is no address of one machine")]
    NotOne(IpAddr),
}

fn judge(ip: IpAddr, own_is_loopback: bool) -> Result<(), JoinAddressError> {
    let ip = ip.to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if is_link_local || METADATA.contains(&ip) {
        return Err(JoinAddressError::LinkLocal(ip));
    }
    if ip.is_unspecified() || ip.is_multicast() || is_broadcast {
        return Err(JoinAddressError::NotOne(ip));
    }
    if ip.is_loopback() && !own_is_loopback {
        return Err(JoinAddressError::Loopback(ip));
    }
    Ok(())
}

/// Checks all addresses of the host that a new member is said to be at.
///
/// # Errors
/// One of them is no place for a member. A member of the configuration is where it is.
pub(super) async fn check(
    text: &str,
    own: &Address,
    members: &[Address],
) -> Result<(), JoinAddressError> {
    let malformed = |_| JoinAddressError::Malformed(text.to_owned());
    let address: Address = text.parse().map_err(malformed)?;
    if address.port() == 0 {
        return Err(JoinAddressError::NoPort);
    }
    if members.contains(&address) {
        return Ok(());
    }
    let unresolved = || JoinAddressError::Unresolved(address.host().to_owned());
    let resolved = tokio::net::lookup_host((address.host(), address.port())).await;
    let mut is_resolved = false;
    for found in resolved.map_err(|_| unresolved())? {
        is_resolved = true;
        judge(found.ip(), own.is_loopback())?;
    }
    is_resolved.then_some(()).ok_or_else(unresolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_member_is_where_no_node_can_be() {
        for (ip, own_is_loopback, is_fine) in [
            ("10.0.0.1", false, true),
            ("2001:db8::1", false, true),
            ("127.0.0.1", true, true),
            ("127.0.0.1", false, false),
            ("::1", false, false),
            ("::ffff:127.0.0.1", false, false),
            ("169.254.169.254", true, false),
            ("::ffff:169.254.169.254", true, false),
            ("fe80::1", true, false),
            ("fd00:ec2::254", true, false),
            ("100.100.100.200", true, false),
            ("0.0.0.0", true, false),
            ("::", true, false),
            ("224.0.0.1", true, false),
            ("ff02::1", true, false),
            ("255.255.255.255", true, false),
        ] {
            let judged = judge(ip.parse().expect("an address"), own_is_loopback);
            assert_eq!(judged.is_ok(), is_fine, "{ip} {judged:?}");
        }
    }

    #[tokio::test]
    async fn an_address_is_a_host_and_a_port() {
        let own: Address = "10.0.0.1:7883".parse().expect("an address");
        for wrong in [
            "",
            "10.0.0.2",
            "http://10.0.0.2:1/",
            "10.0.0.2:0",
            "10.0.0.2:65536",
            "a b:1",
        ] {
            assert!(check(wrong, &own, &[]).await.is_err(), "{wrong}");
        }
        assert_eq!(check("10.0.0.2:7883", &own, &[]).await, Ok(()));
        let local: Address = "169.254.1.1:7883".parse().expect("an address");
        assert!(check("169.254.1.1:7883", &own, &[]).await.is_err());
        assert_eq!(check("169.254.1.1:7883", &own, &[local]).await, Ok(()));
    }
}
