//! Which certificate a client gets: by the server name that it asks for (SNI).

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

thread_local! {
    /// The server name of the last client hello on this thread. The library shows it nowhere else when a connection is
    /// driven without buffers of its own; whoever feeds it takes the name in the same call.
    static LAST_NAME: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// Takes the name that the client hello of the last call on this thread asked for.
pub(super) fn take_name() -> Option<Box<str>> {
    LAST_NAME.take()
}

/// The certificates of a listener, in the order of its configuration.
#[derive(Debug)]
pub(super) struct Certificates(pub(super) Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        LAST_NAME.set(hello.server_name().map(Into::into));
        let name = hello.server_name().and_then(|name| {
            let name = ServerName::try_from(name);
            name.ok()
        });
        let can_sign = |key: &&Arc<CertifiedKey>| {
            let schemes = hello.signature_schemes();
            key.key.choose_scheme(schemes).is_some()
        };
        let fits = |key: &&Arc<CertifiedKey>| match &name {
            Some(name) => is_for(key, name),
            None => true,
        };
        let all = self.0.iter();
        all.clone()
            .filter(can_sign)
            .find(fits)
            .or_else(|| all.clone().find(can_sign))
            .or_else(|| self.0.first())
            .cloned()
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let certificate = key.cert.first().map(ParsedCertificate::try_from);
    certificate.is_some_and(|certificate| {
        certificate.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
    })
}
