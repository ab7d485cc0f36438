//! Who wants to connect.

use std::net::IpAddr;

/// Who wants to connect, as far as it says.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// Client identifier; empty when the server is to assign one.
    pub client_id: &'a str,
    /// Name of the principal if one is proved, else the user name of CONNECT.
    pub user: Option<&'a str>,
    /// Where it is; `None` for a Unix socket.
    pub address: Option<IpAddr>,
}

impl Applicant<'_> {
    /// It shows no password, so whatever name it gives is not counted.
    pub(super) fn nameless(self) -> Self {
        Applicant { user: None, ..self }
    }
}
