//! Ports that nothing listens on, below the range that outgoing connections take theirs from.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// That many free addresses on loopback, none of `taken`. The machine's lock is held, so that no other test takes them.
pub fn free(count: usize, taken: &[SocketAddr]) -> Vec<SocketAddr> {
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).expect("below 10,000");
    let mut found = Vec::new();
    for port in (first..30_000).chain(20_000..first) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !taken.contains(&address) && TcpListener::bind(address).is_ok() {
            found.push(address);
            if found.len() == count {
                return found;
            }
        }
    }
    panic!("no {count} free ports between 20000 and 30000");
}
