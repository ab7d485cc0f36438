//! Proof by certificates: mutual TLS 1.3, in which both sides show the certificate of a node of this cluster.
//!
//! Neither side looks at host names: a certificate belongs to a node, wherever it runs. The side that connects knows
//! which node it wants and accepts no other's certificate.
//!
//! Invariant: no session is resumed. A resumed session would not look at the certificate again, and would outlive the
//! trust in whoever signed it.
//! Invariant: a stranger is not told which authorities are trusted.
//! Invariant: what is on a list of revoked certificates is trusted in neither direction.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature,
};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    InconsistentKeys, OtherError, RootCertStore, ServerConfig, SignatureScheme, version,
};

use super::name::{NameError, NodeName};
use crate::base::ids::NodeId;
use crate::config::ClusterName;

/// What both sides speak behind TLS.
const PROTOCOL: &[u8] = b"h2";

/// Why certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The node's own certificate names none.
    #[error("cluster.certificate: {0}")]
    Name(#[from] NameError),
    /// It is the certificate of another node.
    #[error("cluster.certificate is of {found}, this node is {own}")]
    OtherNode {
        /// Who this node is.
        own: Box<NodeName>,
        /// Whose certificate it is.
        found: Box<NodeName>,
    },
    /// The others would refuse it.
    #[error("cluster.certificate is not accepted by cluster.ca_file and cluster.crl_files: {0}")]
    Untrusted(Error),
    /// Key and certificate do not fit, or something is wrong with them.
    #[error("cluster.certificate and cluster.key: {0}")]
    Pair(Error),
    /// The key is that of another certificate.
    #[error("cluster.key: it is not the key of cluster.certificate")]
    OtherKey,
    /// An authority can't be used.
    #[error("cluster.ca_file: {0}")]
    Authority(String),
    /// A list of revoked certificates can't be used.
    #[error("cluster.crl_files: {0}")]
    Lists(String),
}

/// Certificates of a peer that are not acceptable.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("the certificate is of {0}, another cluster's node")]
    OtherCluster(NodeName),
    #[error("the certificate is of node {found}, not of node {wanted}")]
    OtherNode { found: NodeId, wanted: NodeId },
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        let error = OtherError(Arc::new(refused));
        Error::InvalidCertificate(CertificateError::Other(error))
    }
}

/// Whom this node trusts.
#[derive(Debug)]
struct Authorities {
    cluster: ClusterName,
    roots: Arc<RootCertStore>,
    /// Judges chains of nodes as those of clients, which all of them are, and looks at the lists.
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Authorities {
    fn new(
        cluster: ClusterName,
        certificates: Vec<CertificateDer<'static>>,
        lists: Vec<CertificateRevocationListDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Authorities, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            let added = roots.add(certificate);
            added.map_err(|error| TlsError::Authority(error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .clear_root_hint_subjects()
            .with_crls(lists)
            .build()
            .map_err(|error| match error {
                VerifierBuilderError::InvalidCrl(_) => TlsError::Lists(error.to_string()),
                _ => TlsError::Authority(error.to_string()),
            })?;
        Ok(Authorities {
            cluster,
            roots,
            clients,
            algorithms: provider.signature_verification_algorithms,
        })
    }

    /// The node of this cluster that a certificate names.
    fn node(&self, certificate: &CertificateDer<'_>) -> Result<NodeId, Refused> {
        let name = NodeName::of_certificate(certificate)?;
        match name.cluster == self.cluster {
            true => Ok(name.node),
            false => Err(Refused::OtherCluster(name)),
        }
    }

    /// Judges a chain of somebody who connects.
    fn client(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<NodeId, Error> {
        let (first, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.clients.verify_client_cert(first, others, now)?;
        Ok(self.node(first)?)
    }

    /// Judges a chain of somebody who was connected to. The library's function for that knows no lists.
    fn server(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<NodeId, Error> {
        let (first, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        let parsed = ParsedCertificate::try_from(first)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, others, now, algorithms)?;
        self.client(chain, now)
    }

    fn chain<'c>(
        first: &'c CertificateDer<'c>,
        others: &'c [CertificateDer<'c>],
    ) -> Vec<CertificateDer<'c>> {
        std::iter::once(first).chain(others).cloned().collect()
    }
}

fn signature(
    authorities: &Authorities,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, certificate, signed, &authorities.algorithms)
}

/// TLS 1.2 is not offered, so nobody signs in it.
fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not spoken".to_owned())
}

/// Judges those who connect.
#[derive(Debug)]
struct Clients(Arc<Authorities>);

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain = Authorities::chain(end_entity, intermediates);
        self.0.client(&chain, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature(&self.0, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}

/// Judges the node that was connected to.
#[derive(Debug)]
struct Server {
    authorities: Arc<Authorities>,
    /// `None`: any node of the cluster.
    wanted: Option<NodeId>,
}

impl ServerCertVerifier for Server {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = Authorities::chain(end_entity, intermediates);
        let found = self.authorities.server(&chain, now)?;
        match self.wanted {
            Some(wanted) if wanted != found => Err(Refused::OtherNode { found, wanted }.into()),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature(&self.authorities, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.algorithms.supported_schemes()
    }
}

/// A certificate with its key, and the authorities, ready for use.
pub(super) struct Material {
    authorities: Arc<Authorities>,
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    server: Arc<ServerConfig>,
    /// Seconds since the Unix epoch at which the certificate ends.
    expires_at_s: i64,
}

impl Material {
    /// Puts it together, and judges the node's own certificate as the other nodes will.
    pub fn new(
        own: &NodeName,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
        lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Material, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authorities = Authorities::new(own.cluster.clone(), authorities, lists, &provider)?;
        let authorities = Arc::new(authorities);
        let first = chain.first().ok_or(NameError::Missing)?;
        let found = NodeName::of_certificate(first)?;
        if found != *own {
            return Err(TlsError::OtherNode {
                own: Box::new(own.clone()),
                found: Box::new(found),
            });
        }
        let now = UnixTime::now();
        authorities
            .server(&chain, now)
            .map_err(TlsError::Untrusted)?;
        let expires_at_s = expiry(first)?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(TlsError::Pair)?
            .with_client_cert_verifier(Arc::new(Clients(authorities.clone())))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::OtherKey,
                error => TlsError::Pair(error),
            })?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Material {
            authorities,
            provider,
            chain,
            key,
            server: Arc::new(server),
            expires_at_s,
        })
    }

    /// For connections of others.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// For a connection to `wanted`, or to any node of the cluster.
    pub fn client(&self, wanted: Option<NodeId>) -> Result<Arc<ClientConfig>, Error> {
        let verifier = Server {
            authorities: self.authorities.clone(),
            wanted,
        };
        let mut client = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Arc::new(client))
    }

    /// Which node a verified chain proves.
    pub fn node(&self, chain: &[CertificateDer<'_>]) -> Option<NodeId> {
        self.authorities.node(chain.first()?).ok()
    }

    /// Whether a chain is still trusted, of a node that connected (or was connected to).
    pub fn trusts(&self, chain: &[CertificateDer<'_>], connected: bool) -> bool {
        let now = UnixTime::now();
        let judged = match connected {
            true => self.authorities.client(chain, now),
            false => self.authorities.server(chain, now),
        };
        judged.is_ok()
    }

    /// Seconds since the Unix epoch at which the node's own certificate ends.
    pub fn expires_at_s(&self) -> i64 {
        self.expires_at_s
    }
}

/// When the next certificate of a chain ends, in seconds since the Unix epoch, of those that have not by `now_s`.
pub(super) fn next_end_s(chain: &[CertificateDer<'_>], now_s: i64) -> Option<i64> {
    let ends = chain.iter().filter_map(|one| expiry(one).ok());
    ends.filter(|end_s| *end_s >= now_s).min()
}

fn expiry(certificate: &CertificateDer<'_>) -> Result<i64, NameError> {
    let parsed = x509_parser::parse_x509_certificate(certificate.as_ref());
    let (_, parsed) = parsed.map_err(|_| NameError::Unreadable)?;
    Ok(parsed.validity().not_after.timestamp())
}
