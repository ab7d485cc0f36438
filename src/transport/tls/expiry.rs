//! Until when certificates are valid.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

/// A certificate that expires within this time is named: long enough to get another one without haste.
pub(crate) const EXPIRES_SOON: Duration = Duration::from_secs(30 * 24 * 3_600);

fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let seconds = certificate.validity().not_after.timestamp();
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// When the first of these certificates expires; `None` if none of them can be read.
pub(crate) fn earliest_expiry(certificates: &[CertificateDer<'_>]) -> Option<SystemTime> {
    certificates.iter().filter_map(expiry).min()
}

/// From when on the next of these certificates is not valid any more, of those that are at `now`.
pub(crate) fn next_end(certificates: &[CertificateDer<'_>], now: SystemTime) -> Option<SystemTime> {
    // Their last second is whole.
    let ends = certificates.iter().filter_map(expiry);
    let ends = ends.map(|last| last + Duration::from_secs(1));
    ends.filter(|end| *end > now).min()
}
