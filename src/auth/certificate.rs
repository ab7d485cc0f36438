//! Client certificates (RFC 5280): who its holder is, by what is written in it.
//!
//! TLS has verified the chain, and that the client has the key. This reads names.
//!
//! Invariant: a name that could be read in two ways is refused: one with control characters, one that is not UTF-8, and
//! a subject with two common names.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use super::{Check, Client, Denial, Method, Principal, Verdict, is_plain};
use crate::base::time::Millis;

/// What of a certificate is the principal's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameOf {
    /// The subject's common name.
    #[default]
    CommonName,
    /// The first DNS name among the subject's alternative names.
    Dns,
    /// The first URI, as SPIFFE has it.
    Uri,
    /// The first e-mail address.
    Email,
    /// The SHA-256 of the certificate in lower-case hexadecimal digits.
    Fingerprint,
}

/// What of a certificate are the principal's groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupsOf {
    /// Nothing.
    #[default]
    Nothing,
    /// The subject's organizations.
    Organization,
    /// The subject's organizational units.
    OrganizationalUnit,
}

/// Client certificates as a method of a chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Certificates {
    /// The name.
    pub name: NameOf,
    /// The groups.
    pub groups: GroupsOf,
    /// Whether the subject's common name, organization and organizational unit, and the fingerprint, are attributes.
    pub attributes: bool,
}

/// Why a certificate names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// It is not one.
    #[error("the certificate can't be read")]
    Malformed,
    /// It has no such name, or several where there may be one, or one with control characters.
    #[error("the certificate has no usable name of the configured kind")]
    Name,
    /// The same of what is to be a group or an attribute.
    #[error("the certificate's subject has no usable organization or organizational unit")]
    Subject,
    /// It has expired since its connection began, or the clock was set.
    #[error("the certificate has expired")]
    Expired,
}

impl Certificates {
    /// Who the holder of a certificate in DER is.
    ///
    /// # Errors
    /// It does not say so.
    pub fn principal(&self, der: &[u8], now: Millis) -> Result<Principal, CertificateError> {
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|_| CertificateError::Malformed)?;
        if !rest.is_empty() {
            return Err(CertificateError::Malformed);
        }
        let end_s = certificate.validity().not_after.timestamp();
        let end_ms = u64::try_from(end_s).unwrap_or(0).saturating_mul(1000);
        if end_ms <= now.0 {
            return Err(CertificateError::Expired);
        }
        let name = self.name_of(&certificate, der)?;
        let subject = certificate.subject();
        let groups = match self.groups {
            GroupsOf::Nothing => Vec::new(),
            GroupsOf::Organization => texts(subject.iter_organization())?,
            GroupsOf::OrganizationalUnit => texts(subject.iter_organizational_unit())?,
        };
        let mut attributes = BTreeMap::new();
        if self.attributes {
            let parts = [
                ("common_name", texts(subject.iter_common_name())?),
                ("organization", texts(subject.iter_organization())?),
                (
                    "organizational_unit",
                    texts(subject.iter_organizational_unit())?,
                ),
                ("fingerprint", vec![fingerprint(der)]),
            ];
            for (name, values) in parts {
                // Rules compare one value; which of several would be meant is not said.
                if let Ok([value]) = <[Box<str>; 1]>::try_from(values) {
                    attributes.insert(name.into(), value);
                }
            }
        }
        Ok(Principal {
            groups,
            attributes,
            expires_at: Some(Millis(end_ms)),
            ..Principal::new(&name, Method::Certificate)
        })
    }

    fn name_of(
        &self,
        certificate: &X509Certificate<'_>,
        der: &[u8],
    ) -> Result<Box<str>, CertificateError> {
        let alternative = |pick: fn(&GeneralName<'_>) -> Option<String>| {
            let extension = certificate.subject_alternative_name().ok().flatten()?;
            extension.value.general_names.iter().find_map(pick)
        };
        let name = match self.name {
            NameOf::Fingerprint => return Ok(fingerprint(der)),
            NameOf::CommonName => {
                let mut names = certificate.subject().iter_common_name();
                match (names.next(), names.next()) {
                    (Some(only), None) => only.as_str().ok().map(str::to_owned),
                    _ => None,
                }
            }
            NameOf::Dns => alternative(|name| match name {
                GeneralName::DNSName(name) => Some((*name).to_owned()),
                _ => None,
            }),
            NameOf::Uri => alternative(|name| match name {
                GeneralName::URI(name) => Some((*name).to_owned()),
                _ => None,
            }),
            NameOf::Email => alternative(|name| match name {
                GeneralName::RFC822Name(name) => Some((*name).to_owned()),
                _ => None,
            }),
        };
        let name = name.filter(|name| is_plain(name));
        name.map(Into::into).ok_or(CertificateError::Name)
    }
}

fn texts<'a>(
    values: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>,
) -> Result<Vec<Box<str>>, CertificateError> {
    values
        .map(|value| {
            let text = value.as_str().ok().filter(|text| is_plain(text));
            text.map(Into::into).ok_or(CertificateError::Subject)
        })
        .collect()
}

/// The SHA-256 of a certificate in lower-case hexadecimal digits.
pub fn fingerprint(der: &[u8]) -> Box<str> {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(der) {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.into()
}

impl Check for Certificates {
    fn method(&self) -> Method {
        Method::Certificate
    }

    fn judge(&self, client: &Client<'_>) -> Verdict {
        let Some(own) = client.certificates.first() else {
            return Verdict::NotApplicable;
        };
        match self.principal(own, client.now) {
            Ok(principal) => Verdict::Accepted(Box::new(principal)),
            Err(error) => Verdict::Refused(Denial::new(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};
    use rustls::pki_types::CertificateDer;

    use super::*;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        change(&mut params);
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.self_signed(&key).expect("it can be signed");
        certificate.der().clone()
    }

    fn text(text: &str) -> rcgen::string::Ia5String {
        text.try_into().expect("it is ASCII")
    }

    fn full() -> CertificateDer<'static> {
        made(|params| {
            let subject = &mut params.distinguished_name;
            subject.push(DnType::CommonName, "press 7");
            subject.push(DnType::OrganizationName, "plant");
            subject.push(DnType::OrganizationalUnitName, "line 2");
            params.subject_alt_names = vec![
                SanType::Rfc822Name(text("press@plant")),
                SanType::DnsName(text("press.plant")),
                SanType::DnsName(text("other.plant")),
                SanType::URI(text("spiffe://plant/press")),
            ];
            params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        })
    }

    fn name(of: NameOf, der: &[u8]) -> Result<String, CertificateError> {
        let certificates = Certificates {
            name: of,
            ..Certificates::default()
        };
        let principal = certificates.principal(der, Millis(0))?;
        Ok(principal.name.to_string())
    }

    #[test]
    fn the_name_is_where_the_configuration_says() {
        let der = full();
        assert_eq!(name(NameOf::CommonName, &der).as_deref(), Ok("press 7"));
        assert_eq!(name(NameOf::Dns, &der).as_deref(), Ok("press.plant"));
        assert_eq!(
            name(NameOf::Uri, &der).as_deref(),
            Ok("spiffe://plant/press")
        );
        assert_eq!(name(NameOf::Email, &der).as_deref(), Ok("press@plant"));
        let print = name(NameOf::Fingerprint, &der).expect("every certificate has one");
        assert_eq!((print.len(), &*print), (64, &*fingerprint(&der)));
        let bare = made(|_| {});
        for of in [NameOf::CommonName, NameOf::Dns, NameOf::Uri, NameOf::Email] {
            assert_eq!(name(of, &bare), Err(CertificateError::Name), "{of:?}");
        }
    }

    #[test]
    fn groups_attributes_and_expiry_come_along() {
        let certificates = Certificates {
            groups: GroupsOf::OrganizationalUnit,
            attributes: true,
            ..Certificates::default()
        };
        let der = full();
        let principal = certificates
            .principal(&der, Millis(0))
            .expect("all is there");
        assert_eq!(principal.groups, ["line 2".into()]);
        assert_eq!(
            principal.attributes.get("organization").map(|text| &**text),
            Some("plant")
        );
        assert_eq!(principal.attributes.len(), 4);
        let end = principal.expires_at.expect("certificates end");
        assert_eq!(end, Millis(1_893_456_000_000));
        assert_eq!(
            certificates.principal(&der, end),
            Err(CertificateError::Expired)
        );
    }

    #[test]
    fn names_that_could_be_read_in_two_ways_are_refused() {
        for bad in ["a\0b", "a\nb", "\u{7f}"] {
            let der = made(|params| params.distinguished_name.push(DnType::CommonName, bad));
            assert_eq!(
                name(NameOf::CommonName, &der),
                Err(CertificateError::Name),
                "{bad:?}"
            );
        }
        let long = "x".repeat(1025);
        let der = made(|params| params.distinguished_name.push(DnType::CommonName, long));
        assert_eq!(name(NameOf::CommonName, &der), Err(CertificateError::Name));
        let mut twice = full().to_vec();
        twice.push(0);
        assert_eq!(
            name(NameOf::CommonName, &twice),
            Err(CertificateError::Malformed)
        );
    }

    #[test]
    fn no_certificate_is_for_another_method() {
        let certificates = Certificates::default();
        let judged = certificates.judge(&Client::default());
        assert!(matches!(judged, Verdict::NotApplicable));
        let client = Client {
            certificates: &[CertificateDer::from(vec![1, 2, 3])],
            ..Client::default()
        };
        assert!(matches!(certificates.judge(&client), Verdict::Refused(_)));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(place: proptest::sample::Index, byte: u8, any: Vec<u8>) {
            static GOOD: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| full().to_vec());
            let mut der = GOOD.clone();
            let place = place.index(der.len());
            der[place] = byte;
            for of in [NameOf::CommonName, NameOf::Dns, NameOf::Uri, NameOf::Email] {
                let _ = name(of, &der);
                let _ = name(of, &any);
            }
        }
    }
}
