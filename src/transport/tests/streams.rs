//! Streams over sockets: what is sent comes back, whatever carries it.

use std::io;
use std::sync::Arc;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::authority::Authority;
use crate::config::{self, Transport};
use crate::transport::{
    Accepted, EstablishError, Incoming, Listening, Peer, Socket, listener, tls_of,
};

/// A listener on a free port that sends back what it gets. Returns where it listens.
async fn echo(config: config::Listener) -> std::net::SocketAddr {
    serve(config, echo_all).await
}

/// A listener on a free port, and what it does with each connection. Returns where it listens.
async fn serve<T: Future<Output = ()> + Send>(
    config: config::Listener,
    with: impl Fn(Accepted) -> T + Clone + Send + 'static,
) -> std::net::SocketAddr {
    let port = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = port.local_addr().expect("bound");
    drop(port);
    let config = config::Listener {
        address: address.to_string().parse().expect("an address"),
        ..config
    };
    let listening = Listening::open(config, false, Arc::default())
        .await
        .expect("a free port");
    tokio::spawn(async move {
        loop {
            let incoming = listening.accept().await.expect("a connection");
            let with = with.clone();
            tokio::spawn(async move {
                if let Ok(accepted) = incoming.establish(|_| true).await {
                    with(accepted).await;
                }
            });
        }
    });
    address
}

async fn echo_all(mut accepted: Accepted) {
    let stream = &mut accepted.stream;
    let mut buffer = vec![0; 9_000];
    let name = accepted.peer.to_string();
    let mut greeted = false;
    loop {
        stream.readable().await.expect("open");
        let read = match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let mut slices = vec![&buffer[..read / 2], &buffer[read / 2..read]];
        if !std::mem::replace(&mut greeted, true) && buffer.starts_with(b"who") {
            slices = vec![name.as_bytes()];
        }
        let mut left = slices.concat();
        while !left.is_empty() || stream.is_unsent() {
            stream.writable().await.expect("open");
            let half = left.len() / 2;
            let slices = [
                io::IoSlice::new(&left[..half]),
                io::IoSlice::new(&left[half..]),
            ];
            let written = match left.is_empty() {
                true => stream.flush().map(|()| 0),
                false => stream.try_write_vectored(&slices),
            };
            match written {
                Ok(written) => drop(left.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
    stream.close();
    stream.shutdown();
}

fn tls_listener(authority: &Authority, transport: Transport) -> config::Listener {
    config::Listener {
        transport,
        certificates: vec![authority.server("localhost", 1)],
        ..config::Listener::default()
    }
}

async fn tls_client(
    authority: &Authority,
    address: std::net::SocketAddr,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let connector = TlsConnector::from(Arc::new(authority.client_config(None)));
    let name = ServerName::try_from("localhost").expect("a name");
    connector.connect(name, stream).await.expect("a handshake")
}

#[tokio::test]
async fn bytes_come_back_over_tls_and_its_end_is_told() {
    let authority = Authority::new();
    let address = echo(tls_listener(&authority, Transport::Tls)).await;
    let client = tls_client(&authority, address).await;
    let sent: Vec<u8> = (0..400_000u32).map(|number| number as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(client);
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await.expect("open");
        writer.flush().await.expect("open");
        writer
    });
    let mut read = vec![0; expected.len()];
    reader.read_exact(&mut read).await.expect("it comes back");
    assert!(read == expected);
    let mut writer = writing.await.expect("no panic");
    writer.shutdown().await.expect("open");
    // An end without close_notify would be an error here.
    assert_eq!(reader.read(&mut read).await.expect("close_notify"), 0);
}

/// A record that is wrong takes back nothing of what was proved before it.
#[tokio::test]
async fn what_comes_before_a_record_that_is_wrong_is_read() {
    let authority = Authority::new();
    let (told, mut reads) = tokio::sync::mpsc::unbounded_channel();
    let read = move |mut accepted: Accepted| {
        let told = told.clone();
        async move {
            let mut buffer = [0; 100];
            loop {
                accepted.stream.readable().await.expect("open");
                let read = accepted.stream.try_read(&mut buffer);
                let is_over = matches!(read, Ok(0));
                match read {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    read => told
                        .send(read.map(|read| buffer[..read].to_vec()))
                        .expect("the test waits"),
                }
                if is_over {
                    break;
                }
            }
        }
    };
    let address = serve(tls_listener(&authority, Transport::Tls), read).await;
    let client = tls_client(&authority, address).await;
    let (mut socket, mut session) = client.into_inner();
    let mut sent = Vec::new();
    let mut writer = session.writer();
    io::Write::write_all(&mut writer, b"\xe0\0").expect("there is room");
    session.write_tls(&mut sent).expect("a record");
    sent.extend_from_slice(b"\x17\x03\x03\0\x20");
    sent.resize(sent.len() + 32, 0);
    socket.write_all(&sent).await.expect("open");
    let first = reads.recv().await.expect("it is read");
    assert_eq!(first.expect("it was proved"), b"\xe0\0");
    let second = reads.recv().await.expect("it is read");
    assert_eq!(second.expect("it is over"), b"");
}

#[tokio::test]
async fn a_proxy_header_tells_the_address() {
    let address = echo(config::Listener {
        proxy_protocol: true,
        ..config::Listener::default()
    })
    .await;
    let mut client = TcpStream::connect(address).await.expect("it listens");
    let sent = b"PROXY TCP4 192.0.2.1 198.51.100.2 5000 1883\r\nwho";
    for byte in sent {
        client.write_all(&[*byte]).await.expect("open");
    }
    let mut name = [0; 14];
    client.read_exact(&mut name).await.expect("an answer");
    assert_eq!(&name, b"192.0.2.1:5000");
    let mut stranger = TcpStream::connect(address).await.expect("it listens");
    stranger
        .write_all(b"\x10\x0d\0\x04MQTT")
        .await
        .expect("open");
    assert!(!matches!(stranger.read(&mut name).await, Ok(1..)));
}

#[tokio::test]
async fn a_websocket_over_tls_carries_bytes_in_frames_of_any_size() {
    use tungstenite::Message;
    use tungstenite::client::IntoClientRequest as _;
    use tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
    let authority = Authority::new();
    let address = echo(tls_listener(&authority, Transport::Wss)).await;
    let config = Arc::new(authority.client_config(None));
    let talk = move || {
        let socket = std::net::TcpStream::connect(address).expect("it listens");
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(config, name).expect("valid");
        let stream = rustls::StreamOwned::new(tls, socket);
        let mut request = "ws://localhost/mqtt".into_client_request().expect("a URL");
        let name = "mqtt".parse().expect("a name");
        request.headers_mut().insert("Sec-WebSocket-Protocol", name);
        let (mut client, answer) = tungstenite::client(request, stream).expect("an upgrade");
        assert_eq!(answer.headers()["Sec-WebSocket-Protocol"], "mqtt");
        let mut back = Vec::new();
        for length in [1, 125, 126, 70_000] {
            client.send(Message::binary(vec![7; length])).expect("open");
            client.send(Message::Ping("hello".into())).expect("open");
            let mut has_pong = false;
            back.clear();
            while back.len() < length || !has_pong {
                match client.read().expect("open") {
                    Message::Binary(bytes) => back.extend_from_slice(&bytes),
                    Message::Pong(payload) => has_pong = payload == "hello",
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(back.len(), length);
        }
        let close = CloseFrame {
            code: CloseCode::Normal,
            reason: "".into(),
        };
        client.close(Some(close)).expect("open");
        let closed = loop {
            match client.read() {
                Ok(Message::Close(frame)) => break frame,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(closed.expect("a code").code, CloseCode::Normal);
    };
    tokio::task::spawn_blocking(talk)
        .await
        .expect("it goes well");
}

#[tokio::test]
async fn text_is_refused_with_its_code() {
    let address = echo(config::Listener {
        transport: Transport::Ws,
        ..config::Listener::default()
    })
    .await;
    let talk = move || {
        use tungstenite::client::IntoClientRequest as _;
        let socket = std::net::TcpStream::connect(address).expect("it listens");
        let mut request = "ws://localhost/mqtt".into_client_request().expect("a URL");
        let name = "mqtt".parse().expect("a name");
        request.headers_mut().insert("Sec-WebSocket-Protocol", name);
        let (mut client, _) = tungstenite::client(request, socket).expect("an upgrade");
        client
            .send(tungstenite::Message::text("text"))
            .expect("open");
        match client.read().expect("a close") {
            tungstenite::Message::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 1003),
            other => panic!("{other:?}"),
        }
        let socket = std::net::TcpStream::connect(address).expect("it listens");
        let refused = tungstenite::client("ws://localhost/mqtt", socket);
        assert!(refused.is_err(), "without the subprotocol");
    };
    tokio::task::spawn_blocking(talk)
        .await
        .expect("it goes well");
}

#[tokio::test]
async fn a_handshake_has_no_more_memory_than_there_is() {
    let authority = Authority::new();
    let config = tls_listener(&authority, Transport::Tls);
    let tls = tls_of(&config, false).expect("good files");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let incoming = Incoming {
        socket: Socket::Tcp(accepted.expect("it connects").0),
        peer: Peer::default(),
        listener: Arc::new(listener::Listener {
            config,
            tls,
            ..listener::Listener::default()
        }),
    };
    let refused = incoming.establish(|held| held < 1_000).await;
    assert!(matches!(refused, Err(EstablishError::NoRoom)));
}
