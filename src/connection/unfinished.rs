//! Connections whose clients have not proved yet who they are, counted by address, so that no address has all places
//! and handshakes of a node.
//!
//! Invariant: an address is in the table as long as one of its connections is.

use std::net::IpAddr;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// How many each address has. What counts as one address is the caller's business.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    of_address: Mutex<FxHashMap<IpAddr, usize>>,
}

/// The place of one of them; it is free when this is dropped.
#[derive(Debug)]
pub(super) struct Place<'u> {
    unfinished: &'u Unfinished,
    address: IpAddr,
}

impl Unfinished {
    /// A place for one more of an address that may have `most`; 0: as many as it likes.
    pub(super) fn take(&self, address: IpAddr, most: usize) -> Option<Place<'_>> {
        let mut of_address = self.of_address.lock();
        let count = of_address.entry(address).or_default();
        if most != 0 && *count >= most {
            return None;
        }
        *count += 1;
        Some(Place {
            unfinished: self,
            address,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut of_address = self.unfinished.of_address.lock();
        match of_address.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(of_address.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_places_and_leaves_the_others_theirs() {
        let unfinished = Unfinished::default();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let held: Vec<_> = (0..9)
            .filter_map(|_| unfinished.take(address(1), 4))
            .collect();
        assert_eq!(held.len(), 4);
        let other = unfinished.take(address(2), 4);
        assert!(other.is_some());
        drop(held);
        assert!(unfinished.take(address(1), 4).is_some());
        let all: Vec<_> = (0..9)
            .filter_map(|_| unfinished.take(address(1), 0))
            .collect();
        assert_eq!(all.len(), 9);
        drop((all, other));
        assert!(unfinished.of_address.lock().is_empty());
    }
}
