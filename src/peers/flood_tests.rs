//! Strangers that open connections as fast as they can, or hold as many as they get, while nodes connect.

use std::collections::VecDeque;
use std::time::Instant;

use tokio::net::TcpSocket;

use super::*;

/// A connection from another address of this machine.
async fn from(address: [u8; 4], to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((address, 0)))?;
    socket.connect(to).await
}

async fn is_let_in(trust: &Trust, incoming: &mut Incoming, address: SocketAddr) -> bool {
    match connect(trust, Some(2), address).await {
        Ok(mut stream) => works(&mut stream, incoming).await.is_some(),
        Err(_) => false,
    }
}

/// Whether the connection of a stranger that was not there before is closed at once.
async fn is_turned_away(address: SocketAddr) -> bool {
    let Ok(mut stream) = from([127, 0, 2, 1], address).await else {
        return false;
    };
    let mut byte = [0];
    // Who is let in has to prove itself first, and hears nothing before.
    let closed = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte)).await;
    matches!(closed, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn a_flood_of_strangers_keeps_no_node_away() {
    let authority = Authority::new("a");
    let (one, two) = (proved(&authority, 1), proved(&authority, 2));
    let (address, mut at_two) = listen(&two.trust).await;
    // From now on it is known.
    assert!(is_let_in(&one.trust, &mut at_two, address).await);
    // More addresses than the share of strangers has room for, none of which takes more than its own part. They say
    // nothing, and stay for a while.
    let flood = tokio::spawn(async move {
        let mut held = VecDeque::new();
        loop {
            for last in 1..=64 {
                held.extend(from([127, 0, 1, last], address).await.ok());
                if held.len() > 1_024 {
                    held.pop_front();
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let started = Instant::now();
    let mut rounds = 0;
    while rounds < 8 {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{rounds} rounds"
        );
        // Nothing is left for strangers then; a moment later there is for a node.
        if is_turned_away(address).await {
            assert!(
                is_let_in(&one.trust, &mut at_two, address).await,
                "round {rounds}"
            );
            rounds += 1;
        }
    }
    flood.abort();
}
