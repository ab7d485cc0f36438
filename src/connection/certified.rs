//! Connections whose clients have shown a certificate or a token: they are judged again when certificates, lists of
//! revoked ones, or the keys of issuers were read again, and when a certificate of their own ends.
//!
//! Invariant: a connection outlives its client's certificate by no more than the time that its task takes to wake up,
//! whatever its client has been let in by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::end::Ended;
use super::origin::Origin;
use crate::auth::Principal;
use crate::base::ids::ConnectionId;
use crate::codec::ReasonCode;
use crate::mailbox::Mailbox;
use crate::telemetry::audit::{self, Event, Kind, Outcome};
use crate::transport::tls::next_end;

/// How often the wall clock is looked at for an end that is further away: it may have been set meanwhile.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The connections of a node whose clients have shown a certificate or a token.
#[derive(Debug)]
pub(crate) struct Certified {
    /// How often they were to be judged.
    round: AtomicU64,
    connections: Mutex<FxHashMap<ConnectionId, Arc<Mailbox>>>,
}

impl Default for Certified {
    fn default() -> Certified {
        Certified {
            // Each connection is judged once at its beginning: the files may have been read again since its handshake.
            round: AtomicU64::new(1),
            connections: Mutex::default(),
        }
    }
}

impl Certified {
    /// What certificates or tokens are judged by has been read again: every connection judges its own.
    pub(crate) fn judge_again(&self) {
        self.round.fetch_add(1, Ordering::Release);
        for mailbox in self.connections.lock().values() {
            mailbox.offer_again();
        }
    }

    /// Keeps a connection in mind, if its client has shown a certificate, or a token that a key has signed.
    pub(super) fn register(
        self: &Arc<Certified>,
        mailbox: &Arc<Mailbox>,
        origin: &Arc<Origin>,
        principal: &Principal,
    ) -> Option<Registration> {
        let tls = origin.peer.tls.as_ref();
        let certificates = tls.map_or(&[][..], |tls| &tls.certificates);
        if certificates.is_empty() && principal.key.is_none() {
            return None;
        }
        let connection = mailbox.connection;
        let mut connections = self.connections.lock();
        connections.insert(connection, mailbox.clone());
        Some(Registration {
            certified: self.clone(),
            connection,
            origin: origin.clone(),
            judged: 0,
            end: End::next(certificates),
        })
    }
}

/// The end of one of a client's certificates.
struct End {
    at: SystemTime,
    /// When to look whether it has come.
    check: Instant,
}

impl End {
    /// The next one, from now on.
    fn next(certificates: &[CertificateDer<'_>]) -> Option<End> {
        next_end(certificates, SystemTime::now()).map(End::at)
    }

    fn at(at: SystemTime) -> End {
        let left = at.duration_since(SystemTime::now()).unwrap_or_default();
        // The check must not come before the end.
        let left = left.saturating_add(Duration::from_millis(1));
        End {
            at,
            check: Instant::now() + left.min(CLOCK_CHECK_INTERVAL),
        }
    }
}

/// One of these connections; it is forgotten with this value.
pub(super) struct Registration {
    certified: Arc<Certified>,
    connection: ConnectionId,
    origin: Arc<Origin>,
    judged: u64,
    end: Option<End>,
}

impl Registration {
    /// When [`Registration::check`] has something to do, if nothing is read again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.end.as_ref()?.check)
    }

    /// Judges the certificate, if that is due, and what the principal rests on.
    ///
    /// # Errors
    /// It is not valid any more.
    pub(super) fn check(&mut self, principal: &Principal, now: Instant) -> Result<(), Ended> {
        if principal.is_withdrawn() {
            let text = "the key that has signed the client's token is withdrawn";
            note(&self.origin, principal, text);
            return Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text).without_will());
        }
        let round = self.certified.round.load(Ordering::Acquire);
        let looked_at = self.end.take_if(|end| end.check <= now);
        let has_ended = match looked_at {
            Some(end) if end.at > SystemTime::now() => {
                self.end = Some(End::at(end.at));
                false
            }
            looked_at => looked_at.is_some(),
        };
        if self.judged == round && !has_ended {
            return Ok(());
        }
        self.judged = round;
        if has_ended {
            // The chain may do without the one that has ended.
            let client = self.origin.peer.tls.as_ref();
            self.end = client.and_then(|client| End::next(&client.certificates));
        }
        let (Some(client), Some(server)) = (&self.origin.peer.tls, &self.origin.listener.tls)
        else {
            return Ok(());
        };
        match server.loaded().judge(&client.certificates) {
            Ok(()) => Ok(()),
            Err(error) => {
                let peer = &self.origin.peer;
                tracing::info!(address = %peer, %error, "a client's certificate is not valid any more");
                let text = "the client's certificate is not valid any more";
                note(&self.origin, principal, text);
                let ended = Ended::not_authenticated(ReasonCode::NotAuthorized, text);
                // As with a token that has expired, nobody has taken the will from the client.
                Err(match has_expired(&error) {
                    true => ended,
                    false => ended.without_will(),
                })
            }
        }
    }
}

/// Whether nothing is wrong with a certificate but its time.
fn has_expired(error: &rustls::Error) -> bool {
    use rustls::CertificateError::{Expired, ExpiredContext};
    use rustls::Error::InvalidCertificate;
    matches!(error, InvalidCertificate(Expired | ExpiredContext { .. }))
}

/// Puts it into the audit log that a connection is ended.
fn note(origin: &Origin, principal: &Principal, reason: &str) {
    let client = origin.client("");
    audit::record(&Event {
        principal: Some(&*principal.name).filter(|name| !name.is_empty()),
        method: Some(principal.method.as_str()),
        address: client.address,
        listener: Some(client.listener),
        reason: Some(reason),
        ..Event::new(Kind::Revocation, Outcome::Accepted)
    });
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.certified.connections.lock().remove(&self.connection);
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use crate::config::{CertificatePair, ClientCertificates};
    use crate::connection::context::Context;
    use crate::peers::authority::{Authority, Files, Subject};
    use crate::transport::tls::{Files as TlsFiles, ServerTls};
    use crate::transport::{Listener, Peer, TlsPeer};

    /// A client with these certificates, at a listener that asks for them; what it has been let in by does not matter.
    fn origin(authority: &Authority, chain: &[CertificateDer<'static>]) -> Arc<Origin> {
        let directory = tempfile::tempdir().expect("a directory");
        let files = Files::in_directory(directory.path());
        files.put_certificate(authority, &Subject::node("test", 1));
        files.put_authorities(&[authority]);
        let files = TlsFiles {
            certificates: vec![CertificatePair {
                certificate: files.certificate,
                key: files.key,
            }],
            client_certificates: ClientCertificates::Optional,
            client_ca_file: Some(files.authorities),
            crl_files: Vec::new(),
            asks_everybody: false,
        };
        let tls = TlsPeer {
            certificates: chain.to_vec(),
            unverified: Vec::new(),
            server_name: None,
        };
        Arc::new(Origin {
            peer: Peer {
                address: None,
                tls: Some(Arc::new(tls)),
            },
            listener: Arc::new(Listener::for_tests(ServerTls::load(files, &["mqtt"]).ok())),
            chain: Arc::default(),
            method: None,
        })
    }

    fn certificate(authority: &Authority, valid_for: Option<Duration>) -> CertificateDer<'static> {
        let mut subject = Subject::node("test", 2);
        subject.valid_for = valid_for;
        let (pem, _) = authority.sign(&subject);
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_clients_certificate_although_nothing_is_read_again() {
        let context = Context::for_tests(false);
        let certified = Arc::new(Certified::default());
        let nobody = Principal::anonymous();
        let authority = Authority::new("clients");
        let short = certificate(&authority, Some(Duration::from_secs(1)));
        let long = certificate(&authority, None);
        // The second has one in its chain that it does not need.
        let unneeded = vec![long, certificate(&authority, Some(Duration::from_secs(3)))];
        for (chain, ends) in [(vec![short], true), (unneeded, false)] {
            let origin = origin(&authority, &chain);
            let registered = certified.register(&context.mailbox, &origin, &nobody);
            let mut registered = registered.expect("it has a certificate");
            assert!(registered.check(&nobody, Instant::now()).is_ok());
            let deadline = registered.deadline().expect("it ends");
            assert!(deadline <= Instant::now() + Duration::from_secs(5));
            tokio::time::sleep_until(deadline).await;
            assert_eq!(registered.check(&nobody, Instant::now()).is_err(), ends);
            if !ends {
                let next = registered.deadline().expect("the other ends, too");
                assert!(next > Instant::now() + Duration::from_secs(50));
            }
        }
    }
}
