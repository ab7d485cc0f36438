//! Addresses that a request from the configuration is not sent to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of clouds' metadata services that are not link-local.
const METADATA: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether an address means something to this machine's surroundings only and is no place for a service: link-local
/// (RFC 3927, RFC 4291 §2.5.6), where clouds have their metadata services, unspecified, broadcast, multicast. Such an
/// address in IPv6 clothing is one, too.
pub fn is_local_only(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if METADATA.contains(&address) {
        return true;
    }
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => {
            let segments = address.segments();
            // NAT64 (RFC 6052) and IPv4-compatible addresses have an IPv4 address at their end.
            let is_translated = segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
            let is_compatible = segments[..6] == [0; 6] && !address.is_loopback();
            let [.., a, b] = segments;
            let [a, b, c, d] = ((u32::from(a) << 16) | u32::from(b)).to_be_bytes();
            let inner = Ipv4Addr::new(a, b, c, d);
            address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local()
                || (is_translated || is_compatible) && is_local_v4(inner)
        }
    }
}

fn is_local_v4(address: Ipv4Addr) -> bool {
    let is_this_network = address.octets()[0] == 0;
    address.is_link_local() || address.is_broadcast() || address.is_multicast() || is_this_network
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_refused_in_every_clothing() {
        for text in [
            "169.254.169.254",
            "169.254.0.1",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
        ] {
            assert!(is_local_only(text.parse().expect("an address")), "{text}");
        }
        for text in [
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "fd00::1",
            "2001:db8::1",
        ] {
            assert!(!is_local_only(text.parse().expect("an address")), "{text}");
        }
    }
}
