//! What the rules say to a CONNECT, and whose the session is.

use std::sync::Arc;
use std::time::Instant;

use super::{Opening, Place};
use crate::acl::{Facts, Publication};
use crate::auth::{Denial, Principal};
use crate::base::proto::command;
use crate::base::time::elapsed_now;
use crate::codec::{Connect, ReasonCode, Will};
use crate::connection::broker::Broker;
use crate::connection::end::Ended;
use crate::connection::hub::confinement;
use crate::connection::places::NoPlace;
use crate::connection::refusal::Refusal;
use crate::machine::hub;
use crate::registry::IdentityId;
use crate::telemetry::labels::{Action, DisconnectReason, HubRefusal};

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
        if let Some(will) = will {
            self.rights.keep_will(will);
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
        let topic = will
            .filter(|_| action == Action::Will)
            .map(|will| will.topic);
        self.rights.deny(action, topic, &broker.metrics);
        Err(Refusal {
            ended: Ended::close(DisconnectReason::NotAuthorized, text),
            ..self.refuse(ReasonCode::NotAuthorized, text)
        })
    }

    /// Judges the client once more when its session is open. Rules and users may have changed since it was judged, and
    /// this node has applied everything that is in the log before the session: who would be refused by that does not
    /// come in, however far behind this node was when it judged.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn judge_again(&mut self) -> Result<(), &'static str> {
        let options = &self.options;
        if options.principal.is_anonymous() && !options.origin.chain.is_open() {
            return Err("this server asks for authentication");
        }
        if !self.rights.now().may_connect() {
            return Err("the rules do not let the client connect");
        }
        match self.rights.may_have_will() {
            true => Ok(()),
            false => Err("the rules do not let the client have this will"),
        }
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

    /// Whether a topic is of devices and modules alone, and the client is none.
    pub(super) fn is_reserved(&self, broker: &Broker, topic: &str) -> bool {
        confinement::is_identities(broker, &self.rights, topic)
    }

    /// Whether the client identifier is that of a device or a module.
    fn is_of_identity(&self, broker: &Broker) -> bool {
        let id = IdentityId::of_client_id(&self.options.client_id).ok();
        id.is_some_and(|id| hub::read::identity(&*broker.services.backing, &id).is_some())
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
    pub(super) async fn refuse_owner(&self, broker: &Broker) -> Refusal {
        if let (Some(hub), Some(_)) = (&broker.services.hub, self.rights.hub()) {
            broker
                .metrics
                .hub_refused
                .of(HubRefusal::Changed)
                .increment();
            let delay = hub.refused(&self.options.client_id, None, elapsed_now());
            tokio::time::sleep(delay).await;
            let denial = Denial::new("the identity has changed meanwhile");
            return Refusal::not_authenticated(self.options.limits, self.options.version, &denial);
        }
        let is_of_identity = self.is_of_identity(broker);
        if broker.services.hub.is_none() && is_of_identity {
            // It is a device, for all that this node knows. It would never come again after 5, and other nodes let it
            // in.
            let text = "the client id is a device's or module's, and this node has no hub";
            return self.refuse(ReasonCode::ServerUnavailable, text);
        }
        if is_of_identity {
            let refused = &broker.metrics.hub_refused;
            refused.of(HubRefusal::Reserved).increment();
        }
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
