//! A certificate and the key that belongs to it.

use std::path::PathBuf;

use serde::Serialize;
use toml::de::DeValue;

use super::read::{Input, Setting, SettingError, items};

/// Files of a certificate and of its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CertificatePair {
    /// PEM: the certificate, and behind it those that lead to the CA.
    pub certificate: PathBuf,
    /// PEM: the private key.
    pub key: PathBuf,
}

impl CertificatePair {
    fn read(value: &DeValue<'_>) -> Result<CertificatePair, SettingError> {
        let expected = "{ certificate = \"file.pem\", key = \"file.pem\" }";
        let DeValue::Table(table) = value else {
            return Err(SettingError::unexpected(expected, &Input::Toml(value)));
        };
        let (mut certificate, mut key) = (None, None);
        for (name, value) in table.iter() {
            let input = Input::Toml(value.get_ref());
            match name.get_ref().as_ref() {
                "certificate" => certificate = Some(PathBuf::read(&input)?),
                "key" => key = Some(PathBuf::read(&input)?),
                other => {
                    let found = format!("the key {other:?}");
                    return Err(SettingError::Unexpected { expected, found });
                }
            }
        }
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(CertificatePair { certificate, key }),
            _ => Err(SettingError::Incomplete { expected }),
        }
    }
}

impl Setting for Vec<CertificatePair> {
    const KIND: &'static str = "list of { certificate, key }";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        items(input, CertificatePair::read)
    }

    fn show(&self) -> String {
        let pairs: Vec<_> = self
            .iter()
            .map(|pair| {
                let (certificate, key) = (pair.certificate.show(), pair.key.show());
                format!("{{ certificate = {certificate}, key = {key} }}")
            })
            .collect();
        format!("[{}]", pairs.join(", "))
    }
}

impl Setting for Vec<PathBuf> {
    const KIND: &'static str = "path, or a list of paths";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        let paths: Vec<String> = Setting::read(input)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }

    fn show(&self) -> String {
        let paths: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", paths.join(", "))
    }
}
