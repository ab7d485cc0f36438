//! What a look-up costs.

use std::sync::Arc;

use super::tests::{owner, router};
use crate::base::ids::SessionId;
use crate::base::limits::LOGGED_DELIVERY_BYTES;
use crate::codec::QoS;
use crate::machine::subscriptions::{Queueing, SubscriptionIndex};
use crate::mailbox::WakeList;

/// A topic that many filters of few clients match, or nearly match, costs its publisher what looking it up costs.
#[test]
fn a_look_up_of_many_filters_is_work() {
    const LEVELS: usize = 12;
    let filters = |end: &'static str| {
        (0..1_u32 << LEVELS).map(move |bits| {
            let level = |at| match bits >> at & 1 {
                0 => "a/",
                _ => "+/",
            };
            let levels: String = (0..LEVELS).map(level).collect();
            format!("{levels}{end}")
        })
    };
    for (end, matches) in [("#", 1 << LEVELS), ("x", 0)] {
        let index: Arc<SubscriptionIndex> = Arc::default();
        let router = router(&index);
        let filters: Vec<String> = filters(end).collect();
        let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
        index.put(
            SessionId(1),
            Some(owner(1, 1)),
            Queueing::default(),
            &filters,
        );
        let topic = format!("{}b", "a/".repeat(LEVELS));
        let route = router.route(&topic, None);
        assert_eq!(route.found.straight, matches);
        let looked_at = route.found.looked_at;
        assert!(looked_at > 1 << LEVELS, "{looked_at}");
        assert!(route.look_up_work() >= (1 << LEVELS) / 8);
        let weight = route.logged_weight(QoS::AtLeastOnce);
        assert!(weight > (1 << LEVELS) * LOGGED_DELIVERY_BYTES);
        let again = router.route(&topic, None);
        assert_eq!(again.look_up_work(), 0, "it is known");
        assert_eq!(
            again.logged_weight(QoS::AtLeastOnce),
            matches * LOGGED_DELIVERY_BYTES
        );
        let mut batch = router.batch();
        let other = format!("{}c", "a/".repeat(LEVELS));
        let message = crate::router::Message {
            publisher: None,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: &other,
            properties: &[],
            expiry: None,
            direct: false,
            payload: b"x",
        };
        batch.deliver(
            &message,
            std::iter::empty(),
            false,
            &mut WakeList::default(),
        );
        assert!(batch.take_work() >= (1 << LEVELS) / 8);
        batch.deliver(
            &message,
            std::iter::empty(),
            false,
            &mut WakeList::default(),
        );
        assert!(batch.take_work() < 10, "the same topic again");
    }
}

/// Whoever publishes with so many topics that apply can't remember them all pays for looking each of them up again.
#[test]
fn a_topic_that_may_be_forgotten_counts_again() {
    let index: Arc<SubscriptionIndex> = Arc::default();
    let router = router(&index);
    let filters: Vec<String> = (0..500).map(|group| format!("$share/{group}/#")).collect();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    index.put(
        SessionId(1),
        Some(owner(1, 1)),
        Queueing::default(),
        &filters,
    );
    let routes: Vec<_> = (0..5_000)
        .map(|topic: u32| router.route(&topic.to_string(), None))
        .collect();
    let weight = |range: std::ops::Range<usize>| {
        let weights = routes[range].iter();
        weights
            .map(|route| route.logged_weight(QoS::AtLeastOnce))
            .sum::<usize>()
    };
    let first = weight(0..5_000);
    assert_eq!(weight(4_990..5_000), 10 * weight(4_999..5_000));
    assert!(weight(4_999..5_000) * 5_000 < first, "what is remembered");
    assert_eq!(weight(0..4_000), first / 5_000 * 4_000);
}
