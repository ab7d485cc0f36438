//! What counts as one client, or one peer, among addresses.

use std::net::IpAddr;

/// Length of the network of an IPv6 address that counts as one: what one customer gets.
const IPV6_CLIENT: u8 = 64;

/// What is counted where addresses are: an IPv4 address, also one that is written as IPv6, or the /64 of an IPv6
/// address.
pub fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let mask = u128::MAX << (128 - IPV6_CLIENT);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_is_one_client() {
        let of = |text: &str| client_of(text.parse().expect("an address")).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_ne!(of("2001:db8:1:3::1"), of("2001:db8:1:2::1"));
    }
}
