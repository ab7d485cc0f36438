//! Connections whose clients have shown a certificate: they are judged again when certificates, or lists of revoked
//! ones, were read again.
//!
//! Invariant: a connection outlives its client's certificate by no more than the time that its task takes to wake up,
//! whatever its client has been let in by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::end::Ended;
use super::origin::Origin;
use crate::base::ids::ConnectionId;
use crate::codec::ReasonCode;
use crate::mailbox::Mailbox;

/// The connections of a node whose clients have shown a certificate.
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
    /// What certificates are judged by has been read again: every connection judges its own.
    pub(crate) fn judge_again(&self) {
        self.round.fetch_add(1, Ordering::Release);
        for mailbox in self.connections.lock().values() {
            mailbox.offer_again();
        }
    }

    /// Keeps a connection in mind, if its client has shown a certificate.
    pub(super) fn register(
        self: &Arc<Certified>,
        mailbox: &Arc<Mailbox>,
        origin: &Arc<Origin>,
    ) -> Option<Registration> {
        let tls = origin.peer.tls.as_ref()?;
        if tls.certificates.is_empty() {
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
        })
    }
}

/// One of these connections; it is forgotten with this value.
pub(super) struct Registration {
    certified: Arc<Certified>,
    connection: ConnectionId,
    origin: Arc<Origin>,
    judged: u64,
}

impl Registration {
    /// Judges the certificate, if that is due.
    ///
    /// # Errors
    /// It is not valid any more.
    pub(super) fn check(&mut self) -> Result<(), Ended> {
        let round = self.certified.round.load(Ordering::Acquire);
        if self.judged == round {
            return Ok(());
        }
        self.judged = round;
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
                Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text))
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.certified.connections.lock().remove(&self.connection);
    }
}
