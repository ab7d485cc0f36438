//! From the first byte to the opening of a session: CONNECT, and the exchange of AUTH packets that its Authentication
//! Method asks for (MQTT 5.0 §4.12).
//!
//! Invariant: nothing is proposed to the log before the client has proved who it is.

use tokio::net::TcpStream;

use super::broker::Broker;
use super::end::Ended;
use super::opening::{Login, Opening, limits};
use super::options::Identity;
use super::refusal::{NO_QUORUM, Refusal, version_of};
use super::socket::{read_some, write_all};
use crate::auth::{Exchange, Step};
use crate::codec::{
    self, Auth, Connect, DecodeError, Packet, PacketType, PeerLimits, ReasonCode, decode_connect,
    encode, frame,
};
use crate::mailbox::memory::Charge;
use crate::telemetry::labels::DisconnectReason;

/// Bytes of an AUTH beside its authentication data, which has the bound of a CONNECT: the method and reason string.
const AUTH_HEADER_BYTES: u32 = 4 << 10;

/// Reads the CONNECT, sees it authenticated, and proposes the opening of its session. What came after it is left in
/// `unfinished`.
pub(super) async fn open(
    broker: &Broker,
    stream: &TcpStream,
    unfinished: &mut Vec<u8>,
    charge: &mut Charge,
) -> Result<Opening, Refusal> {
    let network = |_| Refusal::silent(Ended::network());
    let mqtt = &broker.settings.mqtt;
    let max_packet_size = mqtt.max_packet_size_bytes.min(mqtt.connect_max_bytes);
    let length = loop {
        read_some(stream, unfinished).await.map_err(network)?;
        charge.set(unfinished.len());
        if broker.settings.outbox.memory.is_exhausted() {
            let text = "the server is short of memory";
            let version = version_of(unfinished);
            return Err(Refusal::no_room(
                version,
                DisconnectReason::NodeMemory,
                text,
            ));
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
    let login = authenticate(broker, stream, unfinished, &connect).await?;
    broker.hand_over(connect.client_id).await;
    Opening::begin(broker, &connect, login)
}

/// Sees that the client proves who it is, where this node or the client asks for it.
async fn authenticate(
    broker: &Broker,
    stream: &TcpStream,
    unfinished: &mut Vec<u8>,
    connect: &Connect<'_>,
) -> Result<Option<Login>, Refusal> {
    let limits = limits(connect);
    let refuse = |reason, text| Refusal::connack(limits, Some(connect.version), reason, text);
    let not_authenticated =
        |reason, text| Refusal::not_authenticated(limits, connect.version, reason, text);
    if !broker.state.accepts_clients() {
        return Err(refuse(ReasonCode::ServerUnavailable, NO_QUORUM));
    }
    let Some(method) = connect.authentication_method else {
        if broker.requires_authentication() {
            let text = "this server asks for extended authentication";
            return Err(not_authenticated(ReasonCode::NotAuthorized, text));
        }
        return Ok(None);
    };
    let begun = broker.begin_authentication(method, connect.client_id, connect.username);
    let exchange = match begun {
        Ok(Some(exchange)) => exchange,
        Ok(None) => {
            // [MQTT-4.12.0-1]
            let text = "this authentication method is not known here";
            return Err(not_authenticated(ReasonCode::BadAuthenticationMethod, text));
        }
        Err(_) => {
            let text = "this node has no random numbers";
            return Err(refuse(ReasonCode::UnspecifiedError, text));
        }
    };
    let mut dialogue = Dialogue {
        stream,
        unfinished,
        limits,
        max_packet_size: broker.settings.mqtt.connect_max_bytes + AUTH_HEADER_BYTES,
        method,
    };
    let data = connect.authentication_data.map(<[u8]>::to_vec);
    match dialogue.run(exchange, data).await {
        Ok(login) => Ok(Some(login)),
        Err(Failed::Closed(ended)) => Err(Refusal::silent(ended)),
        Err(Failed::Refused(reason, text)) => Err(refuse(reason, text)),
        Err(Failed::NotAuthenticated(reason, text)) => Err(not_authenticated(reason, text)),
    }
}

/// Why an authentication has failed.
enum Failed {
    /// The client or the network has ended it.
    Closed(Ended),
    /// The client broke the protocol.
    Refused(ReasonCode, &'static str),
    /// The mechanism says no `[MQTT-4.12.0-4]`.
    NotAuthenticated(ReasonCode, &'static str),
}

/// AUTH packets both ways, before the CONNACK.
struct Dialogue<'a> {
    stream: &'a TcpStream,
    unfinished: &'a mut Vec<u8>,
    limits: PeerLimits,
    max_packet_size: u32,
    method: &'a str,
}

impl Dialogue<'_> {
    async fn run(
        &mut self,
        mut exchange: Exchange,
        mut data: Option<Vec<u8>>,
    ) -> Result<Login, Failed> {
        loop {
            match exchange.step(data.as_deref()) {
                Step::Continue(challenge) => self.send(&challenge).await?,
                Step::Success { identity, data } => {
                    let identity = Identity {
                        method: self.method.into(),
                        name: identity,
                    };
                    return Ok(Login { identity, data });
                }
                Step::Refused(reason, text) => return Err(Failed::NotAuthenticated(reason, text)),
            }
            data = self.receive().await?;
        }
    }

    /// AUTH 0x18 `[MQTT-4.12.0-2]`.
    async fn send(&self, challenge: &[u8]) -> Result<(), Failed> {
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
