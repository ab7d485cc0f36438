//! The name of a node in its certificate: a URI among the subject's alternative names (RFC 5280, 4.2.1.6),
//! `quorumq://CLUSTER/nodes/ID`.
//!
//! Invariant: a name has one spelling. What is not spelt so is no name, so two texts never mean one node.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

use crate::base::ids::NodeId;
use crate::config::ClusterName;
use crate::config::bounds::MAX_NODE_ID;

const SCHEME: &str = "quorumq://";
const NODES: &str = "/nodes/";

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// `cluster.name`.
    pub cluster: ClusterName,
    /// `node.id`.
    pub node: NodeId,
}

/// Why a certificate names no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is no X.509 certificate.
    #[error("the certificate can't be read")]
    Unreadable,
    /// No alternative name has the scheme.
    #[error("the certificate has no URI {SCHEME}CLUSTER{NODES}ID among its alternative names")]
    Missing,
    /// It would prove several nodes.
    #[error("the certificate names more than one node")]
    Several,
    /// It has the scheme, and is not spelt as a name.
    #[error("{0:?} is not {SCHEME}CLUSTER{NODES}ID")]
    Malformed(String),
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{NODES}{}", self.cluster, self.node)
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<NodeName, NameError> {
        let parse = || {
            let (cluster, node) = text.strip_prefix(SCHEME)?.split_once(NODES)?;
            let name = NodeName {
                cluster: cluster.parse().ok()?,
                node: NodeId(node.parse().ok()?),
            };
            let is_node = (1..=MAX_NODE_ID).contains(&name.node.0);
            (is_node && name.to_string() == text).then_some(name)
        };
        parse().ok_or_else(|| {
            // A certificate of a stranger is the source: its text reaches the log.
            NameError::Malformed(text.chars().take(200).collect())
        })
    }
}

impl NodeName {
    /// The one node that a certificate names. Names of other schemes are passed over.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<NodeName, NameError> {
        let parsed = x509_parser::parse_x509_certificate(certificate.as_ref());
        let (rest, parsed) = parsed.map_err(|_| NameError::Unreadable)?;
        if !rest.is_empty() {
            return Err(NameError::Unreadable);
        }
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| NameError::Unreadable)?
            .ok_or(NameError::Missing)?;
        let mut uris = names.value.general_names.iter().filter_map(|name| {
            let GeneralName::URI(uri) = name else {
                return None;
            };
            uri.starts_with(SCHEME).then_some(*uri)
        });
        let name = uris.next().ok_or(NameError::Missing)?.parse()?;
        match uris.next() {
            None => Ok(name),
            Some(_) => Err(NameError::Several),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let name: NodeName = "quorumq://prod-1.eu/nodes/12".parse().expect("a name");
        assert_eq!(
            (name.cluster.as_str(), name.node),
            ("prod-1.eu", NodeId(12))
        );
        assert_eq!(name.to_string(), "quorumq://prod-1.eu/nodes/12");
        for wrong in [
            "",
            "quorumq://",
            "quorumq://a/nodes/",
            "quorumq://a/nodes/0",
            "quorumq://a/nodes/01",
            "quorumq://a/nodes/+1",
            "quorumq://a/nodes/-1",
            "quorumq://a/nodes/1/",
            "quorumq://a/nodes/1 ",
            "quorumq://a/nodes/1?x",
            "quorumq://a/nodes/100000",
            "quorumq://a/nodes/18446744073709551616",
            "quorumq://a/nodes/1/nodes/2",
            "quorumq://a/b/nodes/1",
            "quorumq:///nodes/1",
            "quorumq://a%41/nodes/1",
            "QUORUMQ://a/nodes/1",
            "quorumq://a/Nodes/1",
            "https://a/nodes/1",
        ] {
            let refused = wrong.parse::<NodeName>();
            assert!(matches!(refused, Err(NameError::Malformed(_))), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_and_no_certificate_makes_it_panic(text in "\\PC{0,60}", bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = text.parse::<NodeName>();
            let _ = format!("quorumq://{text}/nodes/{text}").parse::<NodeName>();
            let certificate = CertificateDer::from(bytes);
            proptest::prop_assert!(NodeName::of_certificate(&certificate).is_err());
        }
    }
}
