//! Of which client most of something is: the majority vote of Boyer and Moore ("MJRTY: A Fast Majority Vote Algorithm",
//! 1981), which needs one name and one number, however many clients there are.
//!
//! Invariant: who has brought more than half of the weight is the candidate, and weighs no more than all that is there.

use crate::base::proto::state::EventMajority;

/// Something of a client is added; `all` is the weight of what is there then.
pub fn vote(candidate: &mut Option<EventMajority>, client: &str, weight: u64, all: u64) {
    let known = candidate.get_or_insert_default();
    if known.name == client {
        known.weight = known.weight.saturating_add(weight);
    } else if known.weight >= weight {
        known.weight -= weight;
    } else {
        *known = EventMajority {
            name: client.to_owned(),
            weight: weight - known.weight,
        };
    }
    known.weight = known.weight.min(all);
}

/// Whether a client is the candidate, and outweighs all others by so much.
pub fn outweighs(candidate: Option<&EventMajority>, client: &str, weight: u64) -> bool {
    candidate.is_some_and(|known| known.name == client && known.weight >= weight)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_there_any_more_weighs_nothing() {
        let mut candidate = None;
        vote(&mut candidate, "a", 100, 100);
        vote(&mut candidate, "a", 100, 50);
        assert!(outweighs(candidate.as_ref(), "a", 50));
        assert!(!outweighs(candidate.as_ref(), "a", 51));
        vote(&mut candidate, "b", 60, 1_000);
        assert!(outweighs(candidate.as_ref(), "b", 10));
        assert!(!outweighs(candidate.as_ref(), "a", 0));
        assert!(!outweighs(None, "a", 0));
    }

    proptest! {
        #[test]
        fn who_has_more_than_half_is_the_candidate(
            votes in prop::collection::vec((0..4_usize, 1..20_u64), 1..60)
        ) {
            const CLIENTS: [&str; 4] = ["a", "b", "c", "d"];
            let mut candidate = None;
            let mut of = [0; 4];
            for (client, weight) in votes {
                of[client] += weight;
                let all = of.iter().sum();
                vote(&mut candidate, CLIENTS[client], weight, all);
                for (name, weight) in CLIENTS.into_iter().zip(of) {
                    if 2 * weight > all {
                        let by = 2 * weight - all;
                        prop_assert!(outweighs(candidate.as_ref(), name, by));
                    }
                }
            }
        }
    }
}
