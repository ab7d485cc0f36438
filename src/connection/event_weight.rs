//! What the events of a connection's beginning and end count in their proposals, where events are published over MQTT:
//! the nodes publish them while they apply that, each to a topic of its own.

use crate::base::proto::state;
use crate::codec::QoS;
use crate::connection::broker::Broker;
use crate::connection::options::ConnectionOptions;
use crate::events::{Kind, topic};
use crate::router::Router;

/// Bytes that the proposal of a connection's beginning or end counts beyond its own.
pub(super) fn event_weight(broker: &Broker, options: &ConnectionOptions, kind: Kind) -> usize {
    if !broker.settings.events_over_mqtt {
        return 0;
    }
    let principal = &*options.principal.name;
    weight(&broker.services.router, principal, &options.client_id, kind)
}

/// The same for a client of a principal, whose name is empty if it is nobody's.
fn weight(router: &Router, principal: &str, client_id: &str, kind: Kind) -> usize {
    let name = match principal {
        "" => client_id,
        name => name,
    };
    let event = state::Event {
        kind: kind as u32,
        name: name.to_owned(),
        session: client_id.to_owned(),
        ..Default::default()
    };
    let topic = topic::topic(&event);
    topic.map_or(0, |topic| {
        router.route(&topic, None).logged_weight(QoS::AtLeastOnce)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SessionId;
    use crate::base::limits;
    use crate::connection::context::Context;
    use crate::machine::subscriptions::Queueing;

    const SUBSCRIBERS: u64 = 1_000;

    /// As many connections as are sent an event are told in apply: fewer beginnings and ends share a proposal.
    #[test]
    fn an_event_counts_everybody_who_is_subscribed_to_it() {
        let context = Context::for_tests(false);
        let router = &context.broker.services.router;
        let weight = |kind| weight(router, "", "client", kind);
        assert_eq!(weight(Kind::Connected), 0, "nobody is");
        let durable = Queueing {
            durable: true,
            qos_0: false,
        };
        let filters = ["$events/v1/clients/client/sessions/+/disconnected"];
        for session in 0..SUBSCRIBERS {
            let index = router.subscriptions();
            index.put(SessionId(session), None, durable, &filters);
        }
        let counted = weight(Kind::Disconnected);
        let most = SUBSCRIBERS as usize * limits::LOGGED_DELIVERY_BYTES;
        assert!(counted > most / 2, "{counted}");
        assert_eq!(weight(Kind::Connected), 0, "of the others' ends");
    }
}
