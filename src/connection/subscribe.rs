//! SUBSCRIBE and UNSUBSCRIBE.

use super::end::Ended;
use super::requests::Request;
use super::retained::Feed;
use super::{Connection, Flow};
use crate::base::ids::{LogIndex, NodeId};
use crate::base::proto::command;
use crate::codec::{QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe, encode};
use crate::mailbox::RequestId;
use crate::session::delivery;
use crate::topic::Filter;

impl Connection {
    pub(super) fn handle_subscribe(&mut self, subscribe: &Subscribe<'_>) -> Result<Flow, Ended> {
        if self.is_busy() {
            return Ok(Flow::Stall);
        }
        let mut reasons = Vec::new();
        let mut subscriptions = Vec::new();
        let mut feeds = Vec::new();
        for request in subscribe.filters.iter() {
            let reason = match Filter::parse(request.filter) {
                Err(_) => ReasonCode::TopicFilterInvalid,
                Ok(_) => match request.options.qos {
                    QoS::AtMostOnce => ReasonCode::Success,
                    QoS::AtLeastOnce => ReasonCode::GrantedQos1,
                    QoS::ExactlyOnce => ReasonCode::GrantedQos2,
                },
            };
            if (reason as u8) < 0x80 {
                feeds.push(Feed {
                    filter: request.filter.into(),
                    qos: request.options.qos,
                    no_local: request.options.no_local,
                    retain_handling: request.options.retain_handling as u8,
                    identifier: subscribe.subscription_id.map_or(0, |id| id.get()),
                    index: 0,
                    from: Vec::new(),
                });
                subscriptions.push(command::Subscription {
                    filter: request.filter.to_owned(),
                    qos: request.options.qos as u32,
                    no_local: request.options.no_local,
                    retain_as_published: request.options.retain_as_published,
                    retain_handling: request.options.retain_handling as u32,
                    identifier: subscribe.subscription_id.map_or(0, |id| id.get()),
                });
            }
            reasons.push(reason);
        }
        let packet_id = subscribe.packet_id;
        if subscriptions.is_empty() {
            let _ = encode::suback(
                &mut self.acks,
                self.terms.version,
                &SubAck::new(packet_id, &reasons),
                self.terms.limits,
            );
            return Ok(Flow::Continue);
        }
        let command = command::Subscribe {
            client_id: self.terms.client_id.to_string(),
            connection: self.mailbox.connection.0,
            subscriptions,
        };
        let request = Request::Subscribe {
            packet_id,
            reasons: reasons.into(),
            feeds,
        };
        let flow = self.propose(command::command::Kind::Subscribe(command), request);
        self.subscribing += u32::from(flow == Flow::Continue);
        Ok(flow)
    }

    /// The subscription is committed and effective here; it must be so on every live node before the SUBACK, so that
    /// no message that is accepted after it passes the subscriber by (P6).
    pub(super) fn subscribed(&mut self, request_id: RequestId, index: LogIndex, new: &[bool]) {
        self.subscribing -= 1;
        if let Some(Request::Subscribe { feeds, .. }) = self.requests.get_mut(request_id) {
            let mut new = new.iter();
            feeds.retain_mut(|feed| {
                feed.index = index.0;
                let is_new = new.next().is_some_and(|new| *new);
                let is_shared =
                    Filter::parse(&feed.filter).is_ok_and(|filter| filter.share.is_some());
                delivery::sends_retained(feed.retain_handling, is_new, is_shared)
            });
        }
        let others: Vec<NodeId> = self
            .broker
            .view
            .live_nodes()
            .into_iter()
            .map(|(node, _)| node)
            .filter(|node| *node != self.broker.node)
            .collect();
        if others.is_empty() {
            self.acknowledge_subscribe(request_id);
        } else {
            let index = self.broker.view.applied();
            self.broker
                .router
                .peers()
                .await_applied(&others, index, &self.mailbox, request_id);
        }
    }

    pub(super) fn acknowledge_subscribe(&mut self, request_id: RequestId) {
        if let Some(Request::Subscribe {
            packet_id,
            reasons,
            feeds,
        }) = self.requests.remove(request_id)
        {
            self.feeds.extend(feeds);
            // One reason code per filter always fits where the request did.
            let _ = encode::suback(
                &mut self.acks,
                self.terms.version,
                &SubAck::new(packet_id, &reasons),
                self.terms.limits,
            );
        }
    }

    pub(super) fn handle_unsubscribe(
        &mut self,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<Flow, Ended> {
        if self.is_busy() {
            return Ok(Flow::Stall);
        }
        let command = command::Unsubscribe {
            client_id: self.terms.client_id.to_string(),
            connection: self.mailbox.connection.0,
            filters: unsubscribe.filters.iter().map(str::to_owned).collect(),
        };
        let request = Request::Unsubscribe {
            packet_id: unsubscribe.packet_id,
        };
        Ok(self.propose(command::command::Kind::Unsubscribe(command), request))
    }

    pub(super) fn acknowledge_unsubscribe(&mut self, request_id: RequestId, removed: &[bool]) {
        if let Some(Request::Unsubscribe { packet_id }) = self.requests.remove(request_id) {
            let reasons: Vec<_> = removed
                .iter()
                .map(|removed| {
                    if *removed {
                        ReasonCode::Success
                    } else {
                        ReasonCode::NoSubscriptionExisted
                    }
                })
                .collect();
            let _ = encode::unsuback(
                &mut self.acks,
                self.terms.version,
                &UnsubAck::new(packet_id, &reasons),
                self.terms.limits,
            );
        }
    }
}
