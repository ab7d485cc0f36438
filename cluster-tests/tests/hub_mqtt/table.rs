//! Every transport with every way of a device to say who it is: the cells of the table in docs/security.md.

use crate::back_end::{Hub, KEYS, token};
use crate::certificates::Identity;
use crate::device::{connect, own_token};
use cluster_tests::cluster::Plan;
use cluster_tests::line::{Place, Transport};
use cluster_tests::security::{Shown, of_code};
use cluster_tests::wire::{Connect, V5};
use serde_json::json;
use std::net::TcpListener;
use std::path::Path;
use tempfile::TempDir;

const PART: &str = "Devices of a hub";

/// A device with keys, and one with a certificate.
const DEVICE: &str = "by-key";
const CERTIFIED: &str = "by-certificate";

/// Listeners of all transports, which ask their clients for a password.
struct Listeners {
    ports: [u16; 4],
    server: Identity,
    files: TempDir,
}

impl Listeners {
    fn new() -> Listeners {
        let files = TempDir::new().expect("a temporary directory can be made");
        let held = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = held.each_ref().map(|listener| {
            let address = listener.local_addr();
            address.expect("it is bound").port()
        });
        Listeners {
            ports,
            server: Identity::self_signed(files.path(), "localhost", |_| ()),
            files,
        }
    }

    fn pair(&self) -> String {
        let Identity { certificate, key } = &self.server;
        format!("[{{ certificate = {certificate:?}, key = {key:?} }}]")
    }

    fn socket(&self) -> std::path::PathBuf {
        self.files.path().join("socket")
    }

    fn toml(&self) -> String {
        let mut text = "[[listeners]]\nname = \"plain\"\naddress = \"{mqtt}\"\n".to_owned();
        for (transport, port) in ["tcp", "tls", "ws", "wss"].iter().zip(self.ports) {
            text += &format!(
                "[[listeners]]\nname = \"{transport}\"\naddress = \"127.0.0.1:{port}\"\n\
                 transport = \"{transport}\"\nauthentication = [\"password\"]\n"
            );
            if matches!(*transport, "tls" | "wss") {
                text += &format!("certificates = {}\n", self.pair());
            }
        }
        let socket = self.socket();
        let socket = socket.display();
        text + &format!(
            "[[listeners]]\nname = \"unix\"\naddress = \"unix:{socket}\"\nauthentication = [\"password\"]\n"
        )
    }

    fn place(&self, transport: Transport, shown: Option<&Identity>) -> Place {
        let at = Transport::ALL.iter().position(|one| *one == transport);
        let port = at
            .and_then(|at| self.ports.get(at))
            .copied()
            .unwrap_or_default();
        Place {
            socket: self.socket(),
            identity: shown.map(|shown| (shown.certificate.clone(), shown.key.clone())),
            ..Place::new(transport, port)
        }
    }
}

fn told(place: &Place, connect: &Connect) -> String {
    place.code(connect).map_or("refused".to_owned(), of_code)
}

#[test]
fn every_transport_asks_every_device() {
    let listeners = Listeners::new();
    let mut hub = Hub::start_with(Plan {
        size: 1,
        extra: listeners.toml(),
        ..Plan::default()
    });
    let files: &Path = listeners.files.path();
    let own = Identity::self_signed(files, "own", |_| ());
    let another = Identity::self_signed(files, "another", |_| ());
    hub.create(DEVICE);
    let thumbprints =
        json!({ "primaryThumbprint": own.thumbprint("-sha256"), "secondaryThumbprint": null });
    hub.create_with(
        CERTIFIED,
        &json!({ "type": "selfSigned", "x509Thumbprint": thumbprints }),
    );
    let path = format!("/devices/{DEVICE}");
    let device = |password: &str| connect(V5, DEVICE, password);
    let rows = [
        (
            "a client that is no device, and nobody",
            Connect::v5("nobody"),
        ),
        ("a device's own token", device(&own_token(DEVICE))),
        (
            "a token that another key has signed",
            device(&token(&path, b"another key than the identity's", None, 60)),
        ),
        ("an expired token", device(&token(&path, KEYS[0], None, 0))),
        (
            "a token for another device",
            device(&token("/devices/other", KEYS[0], None, 60)),
        ),
        (
            "a device with a certificate, a token",
            connect(V5, CERTIFIED, &own_token(CERTIFIED)),
        ),
    ];
    let certified = Connect {
        password: None,
        ..connect(V5, CERTIFIED, "")
    };
    let mut shown = Shown::by("every_transport_asks_every_device");
    for transport in Transport::ALL {
        let mut see = |who: &str, certificate: Option<&Identity>, connect: &Connect| {
            let place = listeners.place(transport, certificate);
            shown.saw(PART, transport.name(), who, told(&place, connect));
        };
        for (who, connect) in &rows {
            see(who, None, connect);
        }
        if transport.has_tls() {
            see("a device's own certificate", Some(&own), &certified);
            see("another certificate", Some(&another), &certified);
        }
    }
    // Its keys would be read on the way.
    let node = &mut hub.cluster.nodes[0];
    assert!(node.terminate().success());
    for (key, value) in [
        ("HTTPS_CERTIFICATES", listeners.pair()),
        ("ALLOW_PLAINTEXT", "false".to_owned()),
    ] {
        let name = format!("QUORUMQ__HUB__{key}");
        node.environment.push((name, value));
    }
    hub.cluster.start_node(0);
    hub.cluster.wait_ready();
    for transport in Transport::ALL {
        let outcome = told(
            &listeners.place(transport, None),
            &device(&own_token(DEVICE)),
        );
        let who = "a device's own token, without `hub.allow_plaintext`";
        shown.saw(PART, transport.name(), who, outcome);
    }
    shown.finish();
}
