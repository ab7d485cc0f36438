//! What clients may do with the topics of a hub: devices and modules with their own, everybody else with none.
//!
//! Invariant: this does not depend on whether this node has a hub: sessions and their subscriptions are those of the
//! cluster, and what is published here reaches devices that are connected to other nodes.

use crate::codec::{QoS, RetainHandling, SubscriptionOptions};
use crate::connection::broker::Broker;
use crate::connection::context::Context;
use crate::connection::rights::ClientRights;
use crate::machine::hub::{PREFIX, has_devices};
use crate::registry::messages;
use crate::topic::{Filter, is_own};

use super::topics;

/// What a filter is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::connection) struct Granted {
    /// The highest QoS.
    qos: QoS,
    /// The client does not get its own messages by it, whatever it has asked for.
    no_local: bool,
    /// It gets retained messages by it, if it asks for them. Of the hub there are none: what a former version has
    /// retained below [`PREFIX`] is nobody's answer.
    sends_retained: bool,
}

impl Granted {
    /// What is left of what the client asks for.
    pub(in crate::connection) fn limit(self, asked: SubscriptionOptions) -> SubscriptionOptions {
        SubscriptionOptions {
            qos: asked.qos.min(self.qos),
            no_local: asked.no_local || self.no_local,
            retain_handling: match self.sends_retained {
                true => asked.retain_handling,
                false => RetainHandling::DoNotSend,
            },
            ..asked
        }
    }
}

/// What a filter that is written as `text` is granted; `None` when it is refused, which is counted.
pub(in crate::connection) fn subscribe(
    context: &mut Context,
    text: &str,
    filter: &Filter<'_>,
) -> Option<Granted> {
    let metrics = &context.broker.metrics;
    let no_local = match context.rights.hub() {
        Some(hub) => hub.topics.subscription(text),
        None => (!topics::is_reserved_filter(filter.inner)).then_some(false),
    };
    let Some(no_local) = no_local else {
        context.rights.refuse_subscribe(filter, metrics);
        return None;
    };
    let qos = match context.rights.hub() {
        Some(_) => QoS::AtLeastOnce,
        None => context.rights.subscribe(filter, metrics)?,
    };
    Some(Granted {
        qos,
        no_local,
        sends_retained: !filter.inner.starts_with(PREFIX),
    })
}

/// Why a client may not publish to a topic, whatever the rules say: it is the broker's own, or the hub's.
#[inline]
pub(in crate::connection) fn reserved(context: &Context, topic: &str) -> Option<&'static str> {
    if is_own(topic) {
        return Some("the topic is the broker's own");
    }
    is_identities(&context.broker, &context.rights, topic)
        .then_some("the topic is for devices and modules of the hub alone")
}

/// Whether a topic is where devices and modules publish, and the client is none. A node that is configured without a
/// hub asks the state whether there are any.
pub(in crate::connection) fn is_identities(
    broker: &Broker,
    rights: &ClientRights,
    topic: &str,
) -> bool {
    let services = &broker.services;
    messages::publisher(topic).is_some()
        && rights.hub().is_none()
        && (services.hub.is_some() || has_devices(&*services.backing))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::proto::state;
    use crate::connection::hub::identity::HubIdentity;
    use crate::connection::hub::shared::Hub;
    use crate::machine::hub::rows_of_meta;
    use crate::registry::IdentityId;
    use crate::telemetry::labels::Action;

    fn client(has_hub: bool, identity: Option<&str>) -> Context {
        let mut context = Context::for_tests(false);
        let broker = Arc::get_mut(&mut context.broker).expect("no other connection");
        broker.services.hub = has_hub.then(Hub::for_tests);
        let identity = identity.map(|id| {
            let id = IdentityId::of_client_id(id).expect("an id");
            Arc::new(HubIdentity::new(id, 1, &[], String::new(), 0))
        });
        let of = context.rights.client().clone();
        *context.rights = ClientRights::of(of, identity);
        context
    }

    fn granted(context: &mut Context, text: &str) -> Option<(QoS, bool)> {
        let filter = Filter::parse(text).expect("a filter");
        let granted = subscribe(context, text, &filter);
        granted.map(|granted| (granted.qos, granted.no_local))
    }

    #[test]
    fn an_identity_gets_its_own_filters_with_qos_1_and_without_its_own_messages() {
        let mut module = client(true, Some("d/m"));
        let own = "devices/d/modules/m/#";
        assert_eq!(granted(&mut module, own), Some((QoS::AtLeastOnce, true)));
        let answers = "$iothub/twin/res/#";
        assert_eq!(
            granted(&mut module, answers),
            Some((QoS::AtLeastOnce, false))
        );
        let refused = ["#", "$iothub/#", "$share/g/devices/d/modules/m/#", "a"];
        for filter in refused {
            assert_eq!(granted(&mut module, filter), None, "{filter}");
        }
        let metrics = &module.broker.metrics.not_authorized;
        assert_eq!(metrics.of(Action::Subscribe).get(), refused.len() as u64);
    }

    /// Whether this node has a hub makes no difference where the cluster has devices.
    #[test]
    fn other_clients_have_nothing_of_the_hub() {
        let all = Some((QoS::ExactlyOnce, false));
        for (has_hub, has_devices) in [(true, false), (false, true), (false, false)] {
            let mut context = client(has_hub, None);
            if has_devices {
                let rows = rows_of_meta(state::Meta {
                    devices: 1,
                    ..Default::default()
                });
                let broker = Arc::get_mut(&mut context.broker).expect("no other connection");
                broker.services.backing = Arc::new(rows);
            }
            for filter in ["$iothub/#", "$share/g/$iothub/twin/res/#"] {
                assert_eq!(granted(&mut context, filter), None, "{filter}");
            }
            for filter in ["#", "devices/#", "$SYS/#"] {
                assert_eq!(granted(&mut context, filter), all, "{filter}");
            }
            assert!(reserved(&context, "$iothub/x").is_some());
            let telemetry = reserved(&context, "devices/d/messages/events/");
            assert_eq!(telemetry.is_some(), has_hub || has_devices);
            assert!(reserved(&context, "$SYS/x").is_some());
            assert!(reserved(&context, "devices/d/messages/devicebound/").is_none());
        }
        let device = client(true, Some("d"));
        assert!(reserved(&device, "devices/d/messages/events/").is_none());
        assert!(reserved(&device, "$SYS/x").is_some());
    }

    /// What somebody retained below `$iothub/` once would look like an answer.
    #[test]
    fn nothing_retained_is_sent_for_the_filters_of_the_hub() {
        let mut device = client(true, Some("d"));
        for (text, expected) in [
            ("$iothub/twin/res/#", false),
            ("$iothub/twin/PATCH/properties/desired/#", false),
            ("devices/d/messages/devicebound/#", true),
        ] {
            let filter = Filter::parse(text).expect("a filter");
            let granted = subscribe(&mut device, text, &filter).expect("its own");
            assert_eq!(granted.sends_retained, expected, "{text}");
        }
    }
}
