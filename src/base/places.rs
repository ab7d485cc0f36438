//! Places for clients that wait to be judged, where judging takes long: by a hash, or by another service.
//!
//! Invariant: one address has half of the places at most, so nobody keeps all others waiting from one machine; but for
//! those behind which many clients are known to be.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;

use crate::base::network::client_of;

/// So many clients may wait.
#[derive(Debug)]
pub struct Places {
    most: usize,
    /// Addresses that may have all places.
    exempt: Vec<IpNet>,
    state: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Addresses that have none are not in here.
    by_address: HashMap<IpAddr, usize>,
}

/// A client's place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    /// Whose it is; `None` for who came through a Unix socket, or from an exempt address.
    address: Option<IpAddr>,
}

impl Places {
    /// Places for `most` clients, all of which an address in one of these networks may have. What is no network is
    /// refused with the configuration.
    pub fn new(most: usize, exempt: &[String]) -> Arc<Places> {
        Arc::new(Places {
            most,
            exempt: exempt.iter().filter_map(|text| text.parse().ok()).collect(),
            state: Mutex::default(),
        })
    }

    /// A place for a client at this address; `None` if there is none, or its address has half of them.
    pub fn take(self: &Arc<Self>, address: Option<SocketAddr>) -> Option<Place> {
        let address = address.map(|address| address.ip().to_canonical());
        let address =
            address.filter(|address| !self.exempt.iter().any(|net| net.contains(address)));
        let address = address.map(client_of);
        let taken = &mut *self.state.lock();
        if taken.all >= self.most {
            return None;
        }
        if let Some(address) = address {
            let own = taken.by_address.get(&address).copied().unwrap_or(0);
            if own >= self.most.div_ceil(2) {
                return None;
            }
            taken.by_address.insert(address, own + 1);
        }
        taken.all += 1;
        Some(Place {
            places: self.clone(),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let taken = &mut *self.places.state.lock();
        taken.all -= 1;
        let Some(address) = self.address else {
            return;
        };
        if let Some(own) = taken.by_address.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Option<SocketAddr> {
        Some(SocketAddr::new(address.parse().expect("an address"), 1))
    }

    #[test]
    fn one_address_leaves_half_of_the_places_to_others() {
        let places = Places::new(5, &["127.0.0.0/8".to_owned()]);
        let balanced: Vec<_> = (0..5)
            .map(|_| places.take(at("::ffff:127.0.0.1")))
            .collect();
        assert!(balanced.iter().all(Option::is_some), "it is exempt");
        drop(balanced);
        let own: Vec<_> = (0..5).map(|_| places.take(at("10.0.0.1"))).collect();
        assert_eq!(own.iter().flatten().count(), 3);
        // The same address, written in another way.
        assert!(places.take(at("::ffff:10.0.0.1")).is_none());
        let others = [places.take(at("10.0.0.2")), places.take(None)];
        assert_eq!(others.iter().flatten().count(), 2);
        assert!(places.take(None).is_none(), "there are five");
        drop(own);
        assert_eq!(places.state.lock().by_address.len(), 1);
        assert!(places.take(at("10.0.0.1")).is_some());
        drop(others);
        assert!(places.state.lock().by_address.is_empty());
        assert_eq!(places.state.lock().all, 0);
    }
}
