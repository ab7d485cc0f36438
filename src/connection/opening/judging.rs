//! What the rules say to a CONNECT, and whose the session is.

use std::sync::Arc;
use std::time::Instant;

use super::{Opening, Place};
use crate::acl::{Facts, Publication};
use crate::auth::Principal;
use crate::base::proto::command;
use crate::codec::{Connect, ReasonCode, Will};
use crate::connection::broker::Broker;
use crate::connection::end::Ended;
use crate::connection::places::NoPlace;
use crate::connection::refusal::Refusal;
use crate::telemetry::labels::{Action, DisconnectReason};

impl Opening {
    /// What the rules judge a client by.
    pub(super) fn facts(principal: &Principal, client_id: &Arc<str>, place: &Place<'_>) -> Facts {
        Facts {
            name: principal.name.clone(),
            method: principal.method.as_str(),
            groups: principal.groups.clone(),
            attributes: principal.attributes.clone(),
            client_id: client_id.clone(),
            address: place.address,
            listener: place.listener.name.as_str().into(),
        }
    }

    /// Sees whether the rules let the client connect, and have its will.
    pub(super) fn judge(&mut self, broker: &Broker, connect: &Connect<'_>) -> Result<(), Refusal> {
        let rights = self.rights.now().clone();
        let publication = |will: &Will<'_>| Publication {
            qos: will.qos,
            retain: will.retain,
        };
        let will = connect.will.as_ref();
        let bounds = &self.options.bounds;
        let text = "the will has a QoS that the client may not use, or is to be retained";
        // [MQTT-3.2.2-12] [MQTT-3.2.2-13]
        match will {
            Some(will) if will.qos > bounds.max_qos => {
                return Err(self.refuse(ReasonCode::QosNotSupported, text));
            }
            Some(will) if will.retain && !bounds.retain => {
                return Err(self.refuse(ReasonCode::RetainNotSupported, text));
            }
            _ => {}
        }
        let has_will = will.is_none_or(|will| rights.will(will.topic).allow(publication(will)));
        let (action, text) = match (rights.may_connect(), has_will) {
            (true, true) => return Ok(()),
            (false, _) => (Action::Connect, "the rules do not let the client connect"),
            (true, false) => (
                Action::Will,
                "the rules do not let the client have this will",
            ),
        };
        broker.metrics.not_authorized.of(action).increment();
        Err(Refusal {
            ended: Ended::close(DisconnectReason::NotAuthorized, text),
            ..self.refuse(ReasonCode::NotAuthorized, text)
        })
    }

    /// Takes a place among the connections of the client's principal.
    pub(super) fn take_place(&mut self, broker: &Broker) -> Result<(), Refusal> {
        let client = self.rights.client();
        let name = &client.facts().name;
        let taken = broker.places.take(name, &client.limits(), Instant::now());
        let is_v5 = self.options.version.is_v5();
        let (reason, text) = match taken {
            Ok(None) => return Ok(()),
            Ok(Some(place)) => {
                self.rights.keep(place);
                return Ok(());
            }
            Err(_) if !is_v5 => (
                ReasonCode::ServerUnavailable,
                "the principal has as many connections as it may have, or makes them too fast",
            ),
            Err(NoPlace::TooMany) => (
                ReasonCode::QuotaExceeded,
                "the principal has as many connections as it may have",
            ),
            Err(NoPlace::TooFast) => (
                ReasonCode::ConnectionRateExceeded,
                "the principal connects more often than it may",
            ),
        };
        Err(Refusal {
            ended: Ended::close(DisconnectReason::TooMany, text),
            ..self.refuse(reason, text)
        })
    }

    /// Who the client has shown to be, for apply.
    pub(super) fn principal(&self) -> Option<command::Principal> {
        let principal = &self.options.principal;
        let proofs = principal.proofs.iter().map(|proof| command::Proof {
            kind: proof.kind.into(),
            name: proof.name.to_string(),
            version: proof.version,
        });
        (!principal.is_anonymous()).then(|| command::Principal {
            name: principal.name.to_string(),
            proofs: proofs.collect(),
        })
    }

    /// The session is another principal's, or what the client's identity rests on has changed. Which of them is not
    /// told.
    pub(super) fn refuse_owner(&self, broker: &Broker) -> Refusal {
        broker
            .metrics
            .not_authorized
            .of(Action::Connect)
            .increment();
        let text =
            "the session belongs to another principal, or the identity is not proved any more";
        Refusal {
            ended: Ended::close(DisconnectReason::NotAuthorized, text),
            ..self.refuse(ReasonCode::NotAuthorized, text)
        }
    }
}
