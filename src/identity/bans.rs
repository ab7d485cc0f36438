//! The bans of the directory, as this node looks them up at each CONNECT.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::RwLock;

use super::applicant::Applicant;
use super::ban::Target;
use super::live::{Live, note_revocation};
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::replica::directory::DirectoryObserver;

#[derive(Default)]
struct Known {
    clients: HashSet<Box<str>>,
    users: HashSet<Box<str>>,
    /// The networks of each version and length: an applicant is looked for once for each of them.
    networks: BTreeMap<(bool, u8), HashSet<IpNet>>,
}

impl Known {
    fn insert(&mut self, target: Target) {
        match target {
            Target::Client(client_id) => drop(self.clients.insert(client_id)),
            Target::User(user) => drop(self.users.insert(user)),
            Target::Network(network) => {
                let shape = (network.addr().is_ipv6(), network.prefix_len());
                self.networks.entry(shape).or_default().insert(network);
            }
        }
    }

    fn remove(&mut self, target: &Target) {
        match target {
            Target::Client(client_id) => drop(self.clients.remove(client_id)),
            Target::User(user) => drop(self.users.remove(user)),
            Target::Network(network) => {
                let shape = (network.addr().is_ipv6(), network.prefix_len());
                if let Some(networks) = self.networks.get_mut(&shape) {
                    networks.remove(network);
                    if networks.is_empty() {
                        self.networks.remove(&shape);
                    }
                }
            }
        }
    }

    fn judge(&self, applicant: Applicant<'_>) -> Option<Target> {
        if self.clients.contains(applicant.client_id) {
            return Some(Target::Client(applicant.client_id.into()));
        }
        if let Some(user) = applicant.user.filter(|user| self.users.contains(*user)) {
            return Some(Target::User(user.into()));
        }
        let address: IpAddr = applicant.address?.to_canonical();
        let mut networks = self.networks.iter();
        networks.find_map(|((is_ipv6, length), networks)| {
            if *is_ipv6 != address.is_ipv6() {
                return None;
            }
            let network = IpNet::new(address, *length).ok()?.trunc();
            networks
                .contains(&network)
                .then_some(Target::Network(network))
        })
    }
}

/// Who may not connect.
pub(super) struct Bans {
    known: RwLock<Known>,
    live: Arc<Live>,
}

impl Bans {
    pub(super) fn new(live: Arc<Live>) -> Bans {
        Bans {
            known: RwLock::default(),
            live,
        }
    }

    /// The ban that concerns an applicant.
    pub(super) fn judge(&self, applicant: Applicant<'_>) -> Option<Target> {
        self.known.read().judge(applicant)
    }
}

/// Puts it into the audit log that a ban has ended connections.
fn note(ended: usize, name: &str) {
    if ended > 0 {
        note_revocation("ban", name, ended);
    }
}

impl DirectoryObserver for Bans {
    fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>) {
        if kind != Kind::Ban {
            return;
        }
        let Ok(target) = name.parse::<Target>() else {
            tracing::error!(name, "a ban concerns nobody that this version knows");
            return;
        };
        match entry {
            Some(_) => {
                self.known.write().insert(target.clone());
                let ban =
                    |applicant: Applicant<'_>| target.concerns(applicant).then(|| target.clone());
                let ended = self.live.end_banned(ban);
                note(ended, name);
            }
            None => self.known.write().remove(&target),
        }
    }

    fn reset(&self, backing: &dyn Backing) {
        let mut known = Known::default();
        read::directory_all(backing, Kind::Ban, |name, _| {
            if let Ok(target) = name.parse() {
                known.insert(target);
            }
        });
        *self.known.write() = known;
        let ended = self.live.end_banned(|applicant| self.judge(applicant));
        note(ended, "bans that were read again");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target() -> impl Strategy<Value = Target> {
        let name = "[ab]{1,2}";
        let address =
            (0u32..4, 0u32..4).prop_map(|(high, low)| IpAddr::V4((high << 30 | low).into()));
        let address6 = (0u128..4).prop_map(|high| IpAddr::V6((high << 126 | 1).into()));
        prop_oneof![
            name.prop_map(|name| Target::Client(name.into())),
            name.prop_map(|name| Target::User(name.into())),
            (address, 0u8..=32).prop_map(|(address, length)| Target::Network(
                IpNet::new(address, length).expect("a length").trunc()
            )),
            (address6, 0u8..=128).prop_map(|(address, length)| Target::Network(
                IpNet::new(address, length).expect("a length").trunc()
            )),
        ]
    }

    proptest! {
        /// As if each ban were looked at.
        #[test]
        fn applicants_are_judged_as_by_each_ban_in_turn(
            targets in prop::collection::vec((target(), any::<bool>()), 0..12),
            client_id in "[ab]{1,2}", user in prop::option::of("[ab]{1,2}"),
            address in prop::option::of((0u32..4, 0u32..4)), address6 in any::<bool>(),
        ) {
            let mut known = Known::default();
            let mut list: Vec<Target> = Vec::new();
            for (target, stays) in targets {
                known.insert(target.clone());
                list.retain(|other| *other != target);
                match stays {
                    true => list.push(target),
                    false => known.remove(&target),
                }
            }
            let address = address.map(|(high, low)| match address6 {
                false => IpAddr::V4((high << 30 | low).into()),
                true => IpAddr::V6((u128::from(high) << 126 | 1).into()),
            });
            let applicant = Applicant { client_id: &client_id, user: user.as_deref(), address };
            let found = known.judge(applicant);
            prop_assert_eq!(found.is_some(), list.iter().any(|target| target.concerns(applicant)));
            if let Some(found) = found {
                prop_assert!(list.contains(&found));
            }
        }
    }
}
