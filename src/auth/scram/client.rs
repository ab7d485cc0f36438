//! The client's side, for the command line.

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::message::{ServerFirst, escape, signed};
use super::{
    Algorithm, Key, LEAST_ITERATIONS, MOST_ITERATIONS, base64, prepare, prepare_password, xor,
};

/// No channel binding, no authorization identity.
const GS2_HEADER: &str = "n,,";

/// Random bytes of the client's nonce.
const NONCE_BYTES: usize = 18;

/// Why a client gives a log-in up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// SASLprep refuses the user name or the password.
    #[error("the user name or the password has characters that SASLprep (RFC 4013) refuses")]
    Unusable,
    /// The server's message does not fit the grammar or this exchange.
    #[error("the server's answer is not one of SCRAM")]
    Malformed,
    /// Few iterations would make the password easy to guess for whoever pretends to be the server; many are an attack
    /// on this machine.
    #[error("the server asks for {0} iterations")]
    Iterations(u32),
    /// The server does not know the password's verifier: it is not the one it should be.
    #[error("the server could not prove that it knows this user")]
    Unproved,
}

/// A log-in from the client's side: [`Client::first`], [`Client::answer`], [`Client::verify`], in this order.
pub struct Client {
    algorithm: Algorithm,
    password: Zeroizing<String>,
    nonce: String,
    bare: String,
    /// What the server must sign with, and its signature.
    expected: Option<Key>,
}

impl Client {
    /// Begins a log-in by SCRAM-SHA-256 with fresh random bytes.
    ///
    /// # Errors
    /// [`ServerError::Unusable`].
    pub fn new(
        user: &str,
        password: &str,
        entropy: &[u8; crate::auth::ENTROPY_BYTES],
    ) -> Result<Client, ServerError> {
        Client::by(Algorithm::Sha256, user, password, entropy)
    }

    /// The same by any of the mechanisms.
    ///
    /// # Errors
    /// [`ServerError::Unusable`].
    pub fn by(
        algorithm: Algorithm,
        user: &str,
        password: &str,
        entropy: &[u8; crate::auth::ENTROPY_BYTES],
    ) -> Result<Client, ServerError> {
        let nonce = base64(&entropy[..NONCE_BYTES]);
        Client::with_nonce(algorithm, user, password, nonce)
    }

    pub(super) fn with_nonce(
        algorithm: Algorithm,
        user: &str,
        password: &str,
        nonce: String,
    ) -> Result<Client, ServerError> {
        let user = prepare(user).ok_or(ServerError::Unusable)?;
        let password = prepare_password(password).ok_or(ServerError::Unusable)?;
        Ok(Client {
            algorithm,
            bare: format!("n={},r={nonce}", escape(&user)),
            password,
            nonce,
            expected: None,
        })
    }

    /// `client-first-message`, for CONNECT.
    pub fn first(&self) -> String {
        format!("{GS2_HEADER}{}", self.bare)
    }

    /// `client-final-message`, the answer to the server's challenge.
    ///
    /// # Errors
    /// A challenge that is no answer to [`Client::first`].
    pub fn answer(&mut self, challenge: &[u8]) -> Result<String, ServerError> {
        let text = std::str::from_utf8(challenge).map_err(|_| ServerError::Malformed)?;
        let first = ServerFirst::parse(text).ok_or(ServerError::Malformed)?;
        if first.nonce.len() == self.nonce.len() || !first.nonce.starts_with(&self.nonce) {
            return Err(ServerError::Malformed);
        }
        if !(LEAST_ITERATIONS..=MOST_ITERATIONS).contains(&first.iterations) {
            return Err(ServerError::Iterations(first.iterations));
        }
        let algorithm = self.algorithm;
        let salted = algorithm.salted_password(&self.password, &first.salt, first.iterations);
        let client_key = algorithm.client_key(&salted);
        let header = base64(GS2_HEADER.as_bytes());
        let without_proof = format!("c={header},r={}", first.nonce);
        let signed = signed(&self.bare, text, &without_proof);
        let stored_key = algorithm.hash(&[&client_key]);
        let signature = algorithm.hmac(&stored_key, &[signed.as_bytes()]);
        let server_key = algorithm.server_key(&salted);
        self.expected = Some(algorithm.hmac(&server_key, &[signed.as_bytes()]));
        let proof = base64(&xor(&client_key, &signature));
        Ok(format!("{without_proof},p={proof}"))
    }

    /// Checks the server's last word, which came with CONNACK.
    ///
    /// # Errors
    /// A server that could not sign: it must not be trusted.
    pub fn verify(&self, last: &[u8]) -> Result<(), ServerError> {
        let signature = std::str::from_utf8(last)
            .ok()
            .and_then(|text| {
                let signature = text.strip_prefix("v=")?.split(',').next()?;
                self.algorithm.key_from_base64(signature)
            })
            .ok_or(ServerError::Malformed)?;
        match &self.expected {
            Some(expected) if bool::from(expected.ct_eq(&signature)) => Ok(()),
            _ => Err(ServerError::Unproved),
        }
    }
}
