//! Handshakes: their share of memory, and who is listened to.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::auth::{Chain, Check, Method, Verdict};
use crate::connection::context::Context;
use crate::transport::{Incoming, Peer};

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

/// Both ends of a connection.
async fn accepted() -> (TcpStream, Accepted) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (stream, _) = accepted.expect("it connects");
    let established = Incoming::of_tcp(stream).establish(|_| true).await;
    let accepted = established.expect("there is no handshake");
    (client.expect("it connects"), accepted)
}

/// A node that takes clients.
fn serving() -> Arc<Broker> {
    let broker = Context::for_tests(false).broker;
    broker.state.set_registered(true);
    let hour = Duration::from_secs(3600);
    broker.state.contact().hold_until(elapsed_now().plus(hour));
    broker
}

/// Why the handshake of a client that sends this is refused.
async fn refusal(broker: &Broker, sent: &[u8]) -> DisconnectReason {
    let (mut client, mut accepted) = accepted().await;
    client.write_all(sent).await.expect("it is open");
    let mut charge = Charge::new(&broker.settings.handshake_memory, 0);
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

/// A whole CONNECT with a client identifier of so many bytes.
fn connect_of_length(client_id: u16) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05\x02\0\0\0".to_vec();
    body.extend_from_slice(&client_id.to_be_bytes());
    body.resize(body.len() + usize::from(client_id), b'c');
    let length = body.len();
    let mut packet = vec![0x10, (length % 128) as u8 | 0x80, (length / 128) as u8];
    packet.append(&mut body);
    packet
}

/// Before anybody is asked who the client is, and before anything of it is in the log.
#[tokio::test]
async fn who_has_too_long_a_name_is_refused() {
    // Whoever gets as far as that is told that this node has no quorum.
    let broker = Context::for_tests(false).broker;
    let longest = broker.settings.mqtt.max_client_id_bytes as u16;
    for (length, reason) in [(longest, 0x88), (longest + 1, 0x85)] {
        let (mut client, mut accepted) = accepted().await;
        let sent = connect_of_length(length);
        client.write_all(&sent).await.expect("it is open");
        let mut charge = Charge::new(&broker.settings.handshake_memory, 0);
        let opened = open(&broker, &mut accepted, &mut Vec::new(), &mut charge).await;
        let refused = opened.err().expect("it is refused").packet;
        assert_eq!(refused.get(3), Some(&reason), "{length} bytes");
    }
}

/// Lets in who shows the password `good`.
struct Shows(Method);

impl Check for Shows {
    fn method(&self) -> Method {
        self.0
    }

    fn judge(&self, client: &Client<'_>) -> Verdict {
        match client.password {
            Some(b"good") => Verdict::Accepted(Box::new(Principal::new("device", self.0))),
            _ => Verdict::Refused(Denial::new("wrong")),
        }
    }
}

/// A CONNECT of MQTT 3.1.1, or of MQTT 5, with a password.
fn connect_as(level: u8, client_id: &str, user_name: &str, password: &str) -> Vec<u8> {
    let mut body = b"\0\x04MQTT".to_vec();
    body.extend([level, 0xC2, 0, 60]);
    body.extend((level == 5).then_some(0));
    for field in [client_id, user_name, password] {
        body.extend((field.len() as u16).to_be_bytes());
        body.extend(field.as_bytes());
    }
    let mut packet = vec![0x10, body.len() as u8];
    assert!(body.len() < 128);
    packet.append(&mut body);
    packet
}

/// With what code a client that sends this is refused by a listener that lets in who shows the password `good`.
async fn code(broker: &Broker, method: Method, packet: Vec<u8>) -> Option<u8> {
    let origin = Arc::new(Origin {
        chain: Arc::new(Chain::new(vec![Arc::new(Shows(method))])),
        ..(*Origin::for_tests()).clone()
    });
    let (_client, mut accepted) = accepted().await;
    let found = frame::next(&packet, 1 << 20);
    let found = found.expect("it is not too large").expect("it is whole");
    let connect = decode_connect(found).expect("a CONNECT");
    let mut charge = Charge::new(&broker.settings.handshake_memory, 0);
    let rest = &mut Vec::new();
    let judged = log_in(broker, &mut accepted, &origin, rest, &mut charge, &connect).await;
    judged.err().map(|refusal| refusal.packet[3])
}

/// Libraries of devices never come again after 5. A node that is to serve their hub, and does not yet, lets them find
/// another one, whatever its listener asks for.
#[tokio::test]
async fn a_device_that_comes_to_a_node_without_its_hub_comes_again() {
    use crate::base::proto::state;
    use crate::machine::hub::rows_of_meta;
    let token = "SharedAccessSignature sr=a";
    let device = "other.example.com/devA/?api-version=2021-04-12";
    let module = "other.example.com/devA/modA/?api-version=2021-04-12";
    for (hub, devices) in [
        (None, 1),
        (Some(hub::shared::Hub::named("hub.example.com", true)), 1),
        (None, 0),
    ] {
        let mut broker = serving();
        let services = &mut Arc::get_mut(&mut broker)
            .expect("nobody else has it")
            .services;
        services.hub = hub;
        services.backing = Arc::new(rows_of_meta(state::Meta {
            devices,
            ..state::Meta::default()
        }));
        let refused = if devices > 0 {
            (Some(3), Some(0x88))
        } else {
            (Some(5), Some(0x87))
        };
        for (client_id, user) in [("devA", device), ("devA/modA", module)] {
            for method in [Method::Password, Method::Jwt] {
                let old = code(&broker, method, connect_as(4, client_id, user, token)).await;
                let new = code(&broker, method, connect_as(5, client_id, user, token)).await;
                assert_eq!((old, new), refused, "{user}");
            }
            // Who is let in by the listener's own rules was no device, whatever it is called.
            let good = connect_as(4, client_id, user, "good");
            assert_eq!(code(&broker, Method::Password, good).await, None, "{user}");
            let guess = connect_as(4, client_id, user, "bad");
            assert_eq!(code(&broker, Method::Password, guess).await, Some(5));
        }
        // Others go the ordinary way, also those that look alike.
        for (client_id, user) in [("devA", "anna"), ("devB", device), ("devA", "a/devA/?x=1")] {
            let old = connect_as(4, client_id, user, token);
            assert_eq!(
                code(&broker, Method::Password, old).await,
                Some(5),
                "{user}"
            );
        }
    }
}

/// A CONNECT of `jwt` with a password.
fn connect_with(password: &[u8]) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05\xC2\0\0\0\0\x01c\0\x03jwt\0".to_vec();
    body.push(password.len() as u8);
    body.extend(password);
    let mut packet = vec![0x10, body.len() as u8];
    packet.append(&mut body);
    packet
}

/// Why a client of the user name `jwt` is refused that comes from 192.0.2.`host`.
async fn log_in_at(
    broker: &Broker,
    method: Method,
    host: u8,
    password: &[u8],
) -> Option<&'static str> {
    let origin = Arc::new(Origin {
        peer: Peer {
            address: Some(([192, 0, 2, host], 9).into()),
            ..Peer::default()
        },
        chain: Arc::new(Chain::new(vec![Arc::new(Shows(method))])),
        ..(*Origin::for_tests()).clone()
    });
    let (_client, mut accepted) = accepted().await;
    let packet = connect_with(password);
    let found = frame::next(&packet, 1 << 20);
    let found = found.expect("it is not too large").expect("it is whole");
    let connect = decode_connect(found).expect("a CONNECT");
    let mut charge = Charge::new(&broker.settings.handshake_memory, 0);
    let rest = &mut Vec::new();
    let judged = log_in(broker, &mut accepted, &origin, rest, &mut charge, &connect).await;
    judged.err().map(|refusal| refusal.ended.text)
}

/// A name may fail three times.
#[tokio::test]
async fn clients_with_tokens_may_share_a_user_name() {
    for (method, refused) in [
        (Method::Jwt, None),
        (Method::Certificate, None),
        (Method::Http, Some("too many log-ins have failed")),
    ] {
        let broker = serving();
        let known = log_in_at(&broker, method, 99, b"good").await;
        assert_eq!(known, None);
        for host in 1..=4 {
            let told = log_in_at(&broker, method, host, b"junk").await;
            assert_eq!(told, Some("the client is not authenticated"), "{method}");
        }
        let told = log_in_at(&broker, method, 5, b"good").await;
        assert_eq!(told, refused, "{method}");
        let told = log_in_at(&broker, method, 99, b"good").await;
        assert_eq!(told, None, "{method}: where it is known");
    }
}

/// The same name is guessed at another listener.
#[tokio::test]
async fn guessed_passwords_do_not_lock_out_who_shows_tokens() {
    let broker = serving();
    for host in 1..=4 {
        let told = log_in_at(&broker, Method::Password, host, b"junk").await;
        assert!(told.is_some());
    }
    let told = log_in_at(&broker, Method::Password, 5, b"good").await;
    assert_eq!(told, Some("too many log-ins have failed"));
    let told = log_in_at(&broker, Method::Jwt, 5, b"good").await;
    assert_eq!(told, None);
}
