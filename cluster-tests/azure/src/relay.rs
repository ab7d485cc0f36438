//! What stands in front of the nodes where Azure has a service of Kubernetes: one address, and a connection goes to the
//! first node that answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};

/// The first byte of CONNACK.
const CONNACK: u8 = 0x20;

/// The Reason Codes of the CONNACKs that have passed, one for each log-in that was answered.
type Answers = Arc<Mutex<Vec<u8>>>;

pub struct Relay {
    port: u16,
    answers: Answers,
}

impl Relay {
    /// Passes connections on to the first of `nodes` that answers, until the process ends.
    pub async fn start(nodes: Vec<SocketAddr>) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let answers = Answers::default();
        let noted = answers.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (nodes, noted) = (nodes.clone(), noted.clone());
                tokio::spawn(async move {
                    for node in nodes {
                        if let Ok(far) = TcpStream::connect(node).await {
                            // How it ends is the client's business.
                            let _ = pass(near, far, &noted).await;
                            return;
                        }
                    }
                });
            }
        });
        Relay { port, answers }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the log-ins so far were answered.
    pub fn answers(&self) -> Vec<u8> {
        self.answers.lock().expect("nobody panics with it").clone()
    }
}

/// Carries bytes both ways until one side ends.
async fn pass(near: TcpStream, far: TcpStream, answers: &Answers) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = near.into_split();
    let (mut from_node, mut to_node) = far.into_split();
    let answered = async {
        // The fixed header, whose length takes one byte, or two of an answer with many properties.
        let mut head = [0; 5];
        from_node.read_exact(&mut head).await?;
        let code = match head {
            [CONNACK, length, _, code, _] if length < 0x80 => Some(code),
            [CONNACK, _, _, _, code] => Some(code),
            _ => None,
        };
        answers.lock().expect("nobody panics with it").extend(code);
        to_client.write_all(&head).await?;
        copy(&mut from_node, &mut to_client).await
    };
    tokio::select! {
        ended = copy(&mut from_client, &mut to_node) => ended,
        ended = answered => ended,
    }
    .map(|_| ())
}
