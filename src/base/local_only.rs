//! Addresses that mean something to the surroundings of one machine alone: nobody is sent there by a name that another
//! owns, or an operator has mistyped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of clouds' metadata services that are not link-local.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
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
            // Site-local addresses (RFC 3879) are not used any more.
            let is_site_local = address.segments()[0] & 0xffc0 == 0xfec0;
            address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local()
                || is_site_local
                || translated(address).is_some_and(is_local_v4)
        }
    }
}

/// The IPv4 address that packets to an IPv6 address end at, where a translator or a tunnel takes them.
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let inner = |a: u16, b: u16| Ipv4Addr::from((u32::from(a) << 16) | u32::from(b));
    match address.segments() {
        // NAT64 (RFC 6052), with a prefix of a network's own (RFC 8215), and IPv4-compatible addresses.
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0x64, 0xff9b, 1, _, _, _, a, b] => Some(inner(a, b)),
        [0, 0, 0, 0, 0, 0, a, b] if !address.is_loopback() => Some(inner(a, b)),
        // 6to4 (RFC 3056), Teredo (RFC 4380), ISATAP (RFC 5214).
        [0x2002, a, b, ..] => Some(inner(a, b)),
        [0x2001, 0, .., a, b] => Some(inner(!a, !b)),
        [.., 0 | 0x200, 0x5efe, a, b] => Some(inner(a, b)),
        _ => None,
    }
}

fn is_local_v4(address: Ipv4Addr) -> bool {
    let is_this_network = address.octets()[0] == 0;
    address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        || is_this_network
        || METADATA.contains(&IpAddr::V4(address))
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
            "168.63.129.16",
            "192.0.0.192",
            "2002:a9fe:a9fe::1",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b::a83f:8110",
            "2001:0:53aa:64c::5601:5601",
            "2001:db8::5efe:a9fe:a9fe",
            "fec0::1",
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
            "2002:808:808::1",
            "64:ff9b::808:808",
        ] {
            assert!(!is_local_only(text.parse().expect("an address")), "{text}");
        }
    }
}
