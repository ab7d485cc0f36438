//! Certificates of devices and modules: by their thumbprint, or by their name where an authority vouches for them.
//! TLS has shown that the client has the key.

use std::fmt::Write as _;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::base::time::Millis;

/// What is read of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// SHA-1 in lower-case hexadecimal digits.
    sha1: String,
    /// SHA-256 in the same way.
    sha256: String,
    /// The subject's common name, if it has exactly one.
    common_name: Option<String>,
    /// From when on it is valid.
    not_before: Millis,
    /// When it ends.
    not_after: Millis,
}

impl Certificate {
    /// Reads one in DER; `None` when it is none.
    pub fn read(der: &[u8]) -> Option<Certificate> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut names = certificate.subject().iter_common_name();
        let common_name = match (names.next(), names.next()) {
            (Some(only), None) => only.as_str().ok().map(str::to_owned),
            _ => None,
        };
        let millis =
            |seconds: i64| Millis(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000));
        let validity = certificate.validity();
        Some(Certificate {
            sha1: hexadecimal(&Sha1::digest(der)),
            sha256: hexadecimal(&Sha256::digest(der)),
            common_name,
            not_before: millis(validity.not_before.timestamp()),
            not_after: millis(validity.not_after.timestamp()),
        })
    }

    /// Whether this is its thumbprint: SHA-1 or SHA-256, by the number of digits.
    pub fn has_thumbprint(&self, thumbprint: &str) -> bool {
        let own = [&self.sha1, &self.sha256];
        own.into_iter()
            .any(|own| own.eq_ignore_ascii_case(thumbprint))
    }

    /// Whether its subject's common name is the identity's name.
    pub fn is_of(&self, identity: &str) -> bool {
        self.common_name.as_deref() == Some(identity)
    }

    /// The time nearest to `now` at which it is valid: for who asks whether it was ever vouched for.
    pub fn valid_time(&self, now: Millis) -> Millis {
        now.min(self.not_after).max(self.not_before)
    }

    /// Whether it is valid at this time.
    pub fn is_valid_at(&self, now: Millis) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// When it ends.
    pub fn not_after(&self) -> Millis {
        self.not_after
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        change(&mut params);
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.self_signed(&key).expect("it can be signed");
        certificate.der().to_vec()
    }

    #[test]
    fn a_certificate_is_told_by_its_thumbprint_or_its_name() {
        let der = made(|params| {
            params
                .distinguished_name
                .push(DnType::CommonName, "devA/modA");
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        });
        let read = Certificate::read(&der).expect("a certificate");
        assert_eq!((read.sha1.len(), read.sha256.len()), (40, 64));
        assert!(read.has_thumbprint(&read.sha1.to_ascii_uppercase()));
        assert!(read.has_thumbprint(&read.sha256));
        assert!(!read.has_thumbprint("") && !read.has_thumbprint(&read.sha256[..40]));
        assert!(read.is_of("devA/modA") && !read.is_of("devA") && !read.is_of("deva/modA"));
        let (from, to) = (Millis(1_767_225_600_000), Millis(1_798_761_600_000));
        assert_eq!(read.not_after(), to);
        assert!(read.is_valid_at(from) && !read.is_valid_at(Millis(from.0 - 1)));
        assert!(read.is_valid_at(Millis(to.0 - 1)) && !read.is_valid_at(to));
    }

    #[test]
    fn digests_are_those_of_another_implementation() {
        // hashlib.sha1(b"abc"), hashlib.sha256(b"abc")
        assert_eq!(
            hexadecimal(&Sha1::digest(b"abc")),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        assert_eq!(
            hexadecimal(&Sha256::digest(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_certificate_without_one_name_is_nobodys() {
        let none = Certificate::read(&made(|_| ())).expect("a certificate");
        assert!(!none.is_of(""));
        assert!(Certificate::read(b"").is_none());
        let mut longer = made(|_| ());
        longer.push(0);
        assert!(Certificate::read(&longer).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Certificate::read(&bytes);
        }
    }
}
