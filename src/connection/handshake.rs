//! From the first byte to the opening of a session: CONNECT, and the exchange of AUTH packets that its Authentication
//! Method asks for (MQTT 5.0 §4.12).
//!
//! Invariant: nothing is proposed to the log before the client has proved who it is.
//! Invariant: what handshakes make the node hold stays within their own share of its memory. When that is used up, a
//! CONNECT passes only if it needs nothing of it, as most do.

use std::sync::Arc;

use super::broker::Broker;
use super::end::Ended;
use super::login_report;
use super::opening::{Login, Opening, Place, limits};
use super::origin::Origin;
use super::refusal::{NO_QUORUM, Refusal, version_of};
use super::socket::{read_some, write_all};
use crate::auth::scram::claimed_user;
use crate::auth::{Client, Denial, ENTROPY_BYTES, Exchange, Step};
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
    let bytes: Vec<u8> = unfinished.drain(..length).collect();
    let found = match frame::next(&bytes, max_packet_size) {
        Ok(Some(found)) => found,
        // Not reached: the same bytes were a frame above.
        Ok(None) => return Err(Refusal::silent(Ended::network())),
        Err(error) => return Err(Refusal::silent(error.into())),
    };
    let connect = decode_connect(found).map_err(|error| Refusal::malformed(found, error))?;
    let origin = broker.origin(accepted, connect.authentication_method);
    let login = log_in(broker, accepted, &origin, unfinished, charge, &connect).await?;
    let principal = &login.principal.name;
    broker.hand_over(connect.client_id, principal).await;
    let place = Place {
        address: accepted.peer.address.map(|address| address.ip()),
        listener: &accepted.listener.config,
    };
    Opening::begin(broker, &connect, login, &place)
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
    let (limits, version) = (limits(connect), connect.version);
    let refuse = |reason, text| Err(Refusal::connack(limits, Some(version), reason, text));
    if !broker.state.accepts_clients() {
        return refuse(ReasonCode::ServerUnavailable, NO_QUORUM);
    }
    let client = Client {
        user_name: connect.username,
        password: connect.password,
        ..origin.client(connect.client_id)
    };
    let claimed = connect.authentication_data.and_then(claimed_user);
    let applicant = Applicant {
        client_id: connect.client_id,
        user: claimed.as_deref().or(connect.username),
        address: client.address.map(|address| address.ip()),
    };
    let identity = &broker.services.identity;
    let judged = match identity.admit(applicant, elapsed_now()) {
        Ok(()) => {
            authenticate(
                broker, accepted, origin, unfinished, charge, connect, &client,
            )
            .await
        }
        Err(denial) => Err(Failed::NotAuthenticated(denial)),
    };
    match judged {
        Ok(login) => {
            if !login.principal.is_anonymous() {
                identity.succeeded(applicant, elapsed_now());
            }
            login_report::accepted(Kind::LogIn, &client, &login.principal);
            Ok(login)
        }
        Err(Failed::Closed(ended)) => Err(Refusal::silent(ended)),
        Err(Failed::Refused(reason, text)) => refuse(reason, text),
        Err(Failed::NotAuthenticated(denial)) => {
            login_report::denied(Kind::LogIn, broker, &client, &denial);
            delay(broker, applicant, &denial).await;
            Err(Refusal::not_authenticated(limits, version, &denial))
        }
    }
}

/// Sees that the client proves who it is, as its listener asks for.
async fn authenticate(
    broker: &Broker,
    accepted: &mut Accepted,
    origin: &Arc<Origin>,
    unfinished: &mut Vec<u8>,
    charge: &mut Charge,
    connect: &Connect<'_>,
    client: &Client<'_>,
) -> Result<Login, Failed> {
    let Some(method) = connect.authentication_method else {
        let judged = origin.chain.judge(client).await;
        let principal = judged.map_err(Failed::NotAuthenticated)?;
        return Ok(Login {
            principal,
            origin: origin.clone(),
            data: Vec::new(),
        });
    };
    let mut entropy = [0; ENTROPY_BYTES];
    if getrandom::fill(&mut entropy).is_err() {
        let text = "this node has no random numbers";
        return Err(Failed::Refused(ReasonCode::UnspecifiedError, text));
    }
    let client = Client { entropy, ..*client };
    let Some(exchange) = origin.chain.begin(method, &client) else {
        // [MQTT-4.12.0-1]
        let text = "this authentication method is not known here";
        let reason = ReasonCode::BadAuthenticationMethod;
        return Err(Failed::NotAuthenticated(Denial::plain(reason, text)));
    };
    let mut dialogue = Dialogue {
        broker,
        stream: &mut accepted.stream,
        origin,
        connect_bytes: charge.bytes().saturating_sub(unfinished.len()),
        unfinished,
        charge,
        limits: limits(connect),
        max_packet_size: broker.settings.mqtt.connect_max_bytes + AUTH_HEADER_BYTES,
        method,
    };
    let data = connect.authentication_data.map(<[u8]>::to_vec);
    dialogue.run(exchange, data).await
}

/// Counts a log-in that has failed, and has its answer wait, the longer the more there were: whoever guesses gets slow.
async fn delay(broker: &Broker, applicant: Applicant<'_>, denial: &Denial) {
    // Others say that it may come again.
    if denial.reason == ReasonCode::NotAuthorized {
        let identity = &broker.services.identity;
        tokio::time::sleep(identity.failed(applicant, elapsed_now())).await;
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
struct Dialogue<'a> {
    broker: &'a Broker,
    stream: &'a mut Stream,
    origin: &'a Arc<Origin>,
    /// What the CONNECT takes meanwhile, about.
    connect_bytes: usize,
    unfinished: &'a mut Vec<u8>,
    charge: &'a mut Charge,
    limits: PeerLimits,
    max_packet_size: u32,
    method: &'a str,
}

impl Dialogue<'_> {
    async fn run(
        &mut self,
        mut exchange: Exchange,
        data: Option<Vec<u8>>,
    ) -> Result<Login, Failed> {
        let mut step = exchange.step(data.as_deref());
        loop {
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
                        origin: self.origin.clone(),
                        data,
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
                self.unfinished.drain(..length);
                return Ok(data);
            }
            let read = read_some(self.stream, self.unfinished).await;
            read.map_err(|_| Failed::Closed(Ended::network()))?;
            let held = self.connect_bytes + self.unfinished.len();
            if !has_room(self.broker, self.charge, held) {
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
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::connection::context::Context;
    use crate::transport::Incoming;

    /// A whole CONNECT, with as many bytes of a user name.
    fn connect(user_name: u16) -> Vec<u8> {
        let mut body = b"\0\x04MQTT\x05\x82\0\0\0\0\x01c".to_vec();
        body.extend_from_slice(&user_name.to_be_bytes());
        body.resize(body.len() + usize::from(user_name), b'u');
        let length = body.len();
        let mut packet = vec![0x10, (length % 128) as u8 | 0x80, (length / 128) as u8];
        packet.append(&mut body);
        packet
    }

    /// Why the handshake of a client that sends this is refused.
    async fn refusal(broker: &Broker, sent: &[u8]) -> DisconnectReason {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut client = client.expect("it connects");
        let (stream, _) = accepted.expect("it connects");
        client.write_all(sent).await.expect("it is open");
        let mut charge = Charge::new(&broker.settings.handshake_memory, 0);
        let established = Incoming::of_tcp(stream).establish(|_| true).await;
        let mut accepted = established.expect("there is no handshake");
        let opened = open(broker, &mut accepted, &mut Vec::new(), &mut charge).await;
        opened.err().expect("this node has no quorum").ended.cause
    }

    #[tokio::test]
    async fn handshakes_have_a_share_of_their_own() {
        let broker = Context::for_tests(false).broker;
        let settings = &broker.settings;
        let (small, large) = (connect(200), connect(9_000));
        assert_eq!(refusal(&broker, &large).await, DisconnectReason::Refused);
        let attack = Charge::new(&settings.handshake_memory, usize::MAX / 2);
        assert_eq!(refusal(&broker, &large).await, DisconnectReason::NodeMemory);
        assert_eq!(refusal(&broker, &small).await, DisconnectReason::Refused);
        assert_eq!(settings.outbox.memory.excess(), 0, "no connection ends");
        drop(attack);
        assert_eq!(refusal(&broker, &large).await, DisconnectReason::Refused);
    }
}
