//! From the first byte to the opening of a session: CONNECT, and the exchange of AUTH packets that its Authentication
//! Method asks for (MQTT 5.0 §4.12).
//!
//! Invariant: nothing is proposed to the log before the client has proved who it is.
//! Invariant: what handshakes make the node hold stays within their own share of its memory. When that is used up, a
//! CONNECT passes only if it needs nothing of it, as most do.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::broker::Broker;
use super::end::Ended;
use super::hub;
use super::login_report;
use super::opening::{Login, Opening, Place, limits};
use super::origin::Origin;
use super::rate::lower;
use super::refusal::{Refusal, unavailable, version_of};
use super::socket::{read_some, write_all};
use crate::auth::{Client, Denial, ENTROPY_BYTES, Exchange, Principal, Step};
use crate::base::time::elapsed_now;
use crate::codec::{
    self, Auth, Connect, DecodeError, Packet, PacketType, PeerLimits, ReasonCode, decode_connect,
    encode, frame,
};
use crate::identity::Applicant;
use crate::mailbox::memory::Charge;
use crate::telemetry::audit::Kind;
use crate::telemetry::labels::DisconnectReason;
use crate::transport::{Accepted, Stream};

/// Why a handshake for which there is no room is refused.
const NO_MEMORY: &str = "the server is short of memory";

/// Why a device is refused that other nodes let in.
const NO_SUCH_HUB: &str = "this node serves no hub of the name in the user name";

/// Bytes of an AUTH beside its authentication data, which has the bound of a CONNECT: the method and reason string.
const AUTH_HEADER_BYTES: u32 = 4 << 10;

/// Reads the CONNECT, sees it authenticated, and proposes the opening of its session. What came after it is left in
/// `unfinished`.
pub(super) async fn open(
    broker: &Broker,
    accepted: &mut Accepted,
    unfinished: &mut Vec<u8>,
    charge: &mut Charge,
) -> Result<Opening, Refusal> {
    let network = |_| Refusal::silent(Ended::network());
    let mqtt = &broker.settings.mqtt;
    let max_packet_size = mqtt.max_packet_size_bytes.min(mqtt.connect_max_bytes);
    let of_listener = accepted.listener.config.max_packet_size_bytes;
    let max_packet_size = lower(max_packet_size, of_listener);
    let length = loop {
        let stream = &mut accepted.stream;
        read_some(stream, unfinished).await.map_err(network)?;
        if !has_room(broker, charge, unfinished.len() + stream.held_bytes()) {
            let version = version_of(unfinished);
            let cause = DisconnectReason::NodeMemory;
            return Err(Refusal::no_room(version, cause, NO_MEMORY));
        }
        if unfinished
            .first()
            .is_some_and(|first| *first != PacketType::Connect.first_byte())
        {
            return Err(Refusal::not_connect());
        }
        match frame::next(unfinished, max_packet_size) {
            Ok(Some(found)) => break found.length,
            Ok(None) => {}
            Err(error) => return Err(Refusal::too_large(unfinished, error)),
        }
    };
    let bytes = take(unfinished, length);
    let found = match frame::next(&bytes, max_packet_size) {
        Ok(Some(found)) => found,
        // Not reached: the same bytes were a frame above.
        Ok(None) => return Err(Refusal::silent(Ended::network())),
        Err(error) => return Err(Refusal::silent(error.into())),
    };
    let connect = decode_connect(found).map_err(|error| Refusal::malformed(found, error))?;
    if connect.client_id.len() > mqtt.max_client_id_bytes {
        return Err(too_long(&connect));
    }
    let origin = broker.origin(accepted, connect.authentication_method);
    let login = log_in(broker, accepted, &origin, unfinished, charge, &connect).await?;
    accepted.peer.forget_unverified();
    let principal = &login.principal.name;
    broker.hand_over(connect.client_id, principal).await;
    let place = Place {
        address: accepted.peer.address.map(|address| address.ip()),
        listener: &accepted.listener.config,
    };
    Opening::begin(broker, &connect, login, &place)
}

/// Takes the first bytes out of what has come, so that no copy of them stays there: they may have a password.
fn take(unfinished: &mut Vec<u8>, length: usize) -> Zeroizing<Vec<u8>> {
    let rest = unfinished.split_off(length);
    Zeroizing::new(std::mem::replace(unfinished, rest))
}

/// The client identifier is longer than it may be `[MQTT-3.1.3-8]`.
fn too_long(connect: &Connect<'_>) -> Refusal {
    let reason = ReasonCode::ClientIdentifierNotValid;
    let text = "the client identifier is longer than mqtt.max_client_id_bytes";
    Refusal::connack(limits(connect), Some(connect.version), reason, text)
}

/// Charges what is held of a client's handshake. Returns whether there is room for it.
pub(super) fn has_room(broker: &Broker, charge: &mut Charge, held: usize) -> bool {
    charge.set(held);
    let settings = &broker.settings;
    let is_small = charge.bytes() == 0;
    !settings.outbox.memory.is_exhausted()
        && (is_small || !settings.handshake_memory.is_exhausted())
}

/// Lets the client try to log in, or refuses it: who is banned or has failed too often is not asked at all.
async fn log_in(
    broker: &Broker,
    accepted: &mut Accepted,
    origin: &Arc<Origin>,
    unfinished: &mut Vec<u8>,
    charge: &mut Charge,
    connect: &Connect<'_>,
) -> Result<Login, Refusal> {
    if let Some(hub) = &broker.services.hub
        && let Some(claim) = hub.claim(connect.username)
    {
        return hub::login::log_in(broker, hub, origin, connect, claim).await;
    }
    let (limits, version) = (limits(connect), connect.version);
    let refuse = |reason, text| Err(Refusal::connack(limits, Some(version), reason, text));
    if !broker.state.accepts_clients() {
        return refuse(ReasonCode::ServerUnavailable, unavailable(&broker.state));
    }
    let client = Client {
        user_name: connect.username,
        password: connect.password,
        ..origin.client(connect.client_id)
    };
    let applicant = Applicant {
        client_id: connect.client_id,
        user: connect.username,
        address: client.address.map(|address| address.ip()),
    };
    let identity = &broker.services.identity;
    let mut attempt = Attempt {
        broker,
        origin,
        connect,
        client,
        applicant,
        claimed: None,
    };
    let mut judged = match identity.approach(applicant, elapsed_now()) {
        Ok(()) if origin.shows_unverified_certificate() => {
            let detail = "no authority of the listener vouches for the certificate";
            Err(Failed::NotAuthenticated(Denial::new(detail)))
        }
        Ok(()) => authenticate(&mut attempt, accepted, unfinished, charge).await,
        Err(denial) => Err(Failed::NotAuthenticated(denial)),
    };
    let user = attempt.claimed.as_deref().or(connect.username);
    let (applicant, client) = (Applicant { user, ..applicant }, with_name(client, user));
    if let Ok(login) = &judged
        && let Err(denial) = count(broker, applicant, &login.principal)
    {
        judged = Err(Failed::NotAuthenticated(denial));
    }
    match judged {
        Ok(login) => {
            login_report::accepted(Kind::LogIn, &client, &login.principal);
            Ok(login)
        }
        Err(Failed::Closed(ended)) => Err(Refusal::silent(ended)),
        Err(Failed::Refused(reason, text)) => refuse(reason, text),
        Err(Failed::NotAuthenticated(denial)) => {
            login_report::denied(Kind::LogIn, broker, &client, &denial);
            if denial.is_final() && hub::login::is_for_another_node(broker, connect) {
                tokio::time::sleep(hub::login::ANOTHER_NODES_PAUSE).await;
                return refuse(ReasonCode::ServerUnavailable, NO_SUCH_HUB);
            }
            let told = delay(broker, applicant, denial).await;
            Err(Refusal::not_authenticated(limits, version, &told))
        }
    }
}

fn with_name<'a>(client: Client<'a>, user_name: Option<&'a str>) -> Client<'a> {
    Client {
        user_name,
        ..client
    }
}

/// Counts a log-in that has succeeded.
fn count(broker: &Broker, applicant: Applicant<'_>, principal: &Principal) -> Result<(), Denial> {
    let (identity, now) = (&broker.services.identity, elapsed_now());
    identity.succeeded(applicant, principal, now)?;
    identity.count_log_in(applicant, principal, now)
}

/// A client that tries to log in.
struct Attempt<'a> {
    broker: &'a Broker,
    origin: &'a Arc<Origin>,
    connect: &'a Connect<'a>,
    client: Client<'a>,
    applicant: Applicant<'a>,
    /// The name that it claims in its exchange of AUTH packets; that of its CONNECT says nothing then.
    claimed: Option<Box<str>>,
}

impl Attempt<'_> {
    /// Looks at the name that the client claims, before there is a verdict.
    ///
    /// # Errors
    /// Who has that name is banned, or has failed too often.
    fn claim(&mut self, name: Option<&str>) -> Result<(), Failed> {
        let Some(name) = name.filter(|_| self.claimed.is_none()) else {
            return Ok(());
        };
        self.claimed = Some(name.into());
        let applicant = Applicant {
            user: Some(name),
            ..self.applicant
        };
        let identity = &self.broker.services.identity;
        let admitted = identity.admit(applicant, elapsed_now());
        admitted.map_err(Failed::NotAuthenticated)
    }
}

/// Sees that the client proves who it is, as its listener asks for.
async fn authenticate(
    attempt: &mut Attempt<'_>,
    accepted: &mut Accepted,
    unfinished: &mut Vec<u8>,
    charge: &mut Charge,
) -> Result<Login, Failed> {
    let (origin, connect) = (attempt.origin, attempt.connect);
    let Some(method) = connect.authentication_method else {
        let (identity, applicant) = (&attempt.broker.services.identity, attempt.applicant);
        let listens = || identity.listen(applicant, elapsed_now());
        let judged = origin.chain.judge(&attempt.client, &listens).await;
        let principal = judged.map_err(Failed::NotAuthenticated)?;
        return Ok(Login {
            principal,
            origin: origin.clone(),
            data: Vec::new(),
            hub: None,
        });
    };
    let mut entropy = [0; ENTROPY_BYTES];
    if getrandom::fill(&mut entropy).is_err() {
        let text = "this node has no random numbers";
        return Err(Failed::Refused(ReasonCode::UnspecifiedError, text));
    }
    let client = Client {
        entropy,
        ..attempt.client
    };
    let Some(exchange) = origin.chain.begin(method, &client) else {
        // [MQTT-4.12.0-1]
        let text = "this authentication method is not known here";
        let reason = ReasonCode::BadAuthenticationMethod;
        return Err(Failed::NotAuthenticated(Denial::plain(reason, text)));
    };
    let mut dialogue = Dialogue {
        stream: &mut accepted.stream,
        connect_bytes: charge.bytes().saturating_sub(unfinished.len()),
        unfinished,
        charge,
        limits: limits(connect),
        max_packet_size: attempt.broker.settings.mqtt.connect_max_bytes + AUTH_HEADER_BYTES,
        method,
        attempt,
    };
    let data = connect.authentication_data.map(<[u8]>::to_vec);
    dialogue.run(exchange, data).await
}

/// Counts a log-in that has failed, and has its answer wait, the longer the more there were: whoever guesses gets slow.
/// Returns what the client is told.
async fn delay(broker: &Broker, applicant: Applicant<'_>, denial: Denial) -> Denial {
    let identity = &broker.services.identity;
    match identity.failed(applicant, denial.guess, elapsed_now()) {
        Ok(wait) => {
            tokio::time::sleep(wait).await;
            denial
        }
        Err(too_often) => too_often,
    }
}

/// Why an authentication has failed.
enum Failed {
    /// The client or the network has ended it.
    Closed(Ended),
    /// The client broke the protocol.
    Refused(ReasonCode, &'static str),
    /// The mechanism says no `[MQTT-4.12.0-4]`.
    NotAuthenticated(Denial),
}

/// AUTH packets both ways, before the CONNACK.
struct Dialogue<'a, 'c> {
    attempt: &'a mut Attempt<'c>,
    stream: &'a mut Stream,
    /// What the CONNECT takes meanwhile, about.
    connect_bytes: usize,
    unfinished: &'a mut Vec<u8>,
    charge: &'a mut Charge,
    limits: PeerLimits,
    max_packet_size: u32,
    method: &'a str,
}

impl Dialogue<'_, '_> {
    async fn run(
        &mut self,
        mut exchange: Exchange,
        data: Option<Vec<u8>>,
    ) -> Result<Login, Failed> {
        let mut step = exchange.step(data.as_deref());
        loop {
            self.attempt.claim(exchange.claimed())?;
            step = match step {
                Step::Pending(later) => later.await,
                Step::Continue(challenge) => {
                    self.send(&challenge).await?;
                    let answer = self.receive().await?;
                    exchange.step(answer.as_deref())
                }
                Step::Success { principal, data } => {
                    return Ok(Login {
                        principal: Arc::new(*principal),
                        origin: self.attempt.origin.clone(),
                        data,
                        hub: None,
                    });
                }
                Step::Refused(denial) => return Err(Failed::NotAuthenticated(denial)),
            };
        }
    }

    /// AUTH 0x18 `[MQTT-4.12.0-2]`.
    async fn send(&mut self, challenge: &[u8]) -> Result<(), Failed> {
        let data = Some(challenge).filter(|data| !data.is_empty());
        let packet = Auth::new(ReasonCode::ContinueAuthentication, self.method, data);
        let mut bytes = Vec::new();
        encode::auth(&mut bytes, codec::Version::V5, &packet, self.limits).map_err(|_| {
            let text = "AUTH is larger than the client accepts";
            Failed::Refused(ReasonCode::PacketTooLarge, text)
        })?;
        let sent = write_all(self.stream, &bytes).await;
        sent.map_err(|_| Failed::Closed(Ended::network()))
    }

    /// The data of the client's AUTH 0x18. Nothing but AUTH and DISCONNECT may come here `[MQTT-3.1.2-30]`.
    async fn receive(&mut self) -> Result<Option<Vec<u8>>, Failed> {
        let refused = |error: DecodeError| Failed::Refused(error.reason(), error.text());
        loop {
            if let Some(found) =
                frame::next(self.unfinished, self.max_packet_size).map_err(refused)?
            {
                let length = found.length;
                let packet = codec::decode(codec::Version::V5, found).map_err(refused)?;
                let data = self.handle(&packet)?;
                drop(take(self.unfinished, length));
                return Ok(data);
            }
            let read = read_some(self.stream, self.unfinished).await;
            read.map_err(|_| Failed::Closed(Ended::network()))?;
            let held = self.connect_bytes + self.unfinished.len();
            if !has_room(self.attempt.broker, self.charge, held) {
                return Err(Failed::Refused(ReasonCode::QuotaExceeded, NO_MEMORY));
            }
        }
    }

    fn handle(&self, packet: &Packet<'_>) -> Result<Option<Vec<u8>>, Failed> {
        let text = match packet {
            Packet::Auth(auth) if auth.method != self.method => {
                // [MQTT-4.12.0-5]
                "AUTH names another method than CONNECT"
            }
            Packet::Auth(auth) if auth.reason == ReasonCode::ContinueAuthentication => {
                return Ok(auth.data.map(<[u8]>::to_vec));
            }
            Packet::Auth(_) => "a re-authentication before the CONNACK",
            Packet::Disconnect(_) => {
                let text = "the client disconnected";
                return Err(Failed::Closed(Ended::close(DisconnectReason::Client, text)));
            }
            _ => "only AUTH and DISCONNECT may come before the CONNACK",
        };
        Err(Failed::Refused(ReasonCode::ProtocolError, text))
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
