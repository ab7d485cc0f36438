//! A connection of a session, as its events name it.

use super::super::schema::event_sequence::Pair;
use crate::base::proto::state;

/// Who a client is, and its session.
pub(in crate::machine) struct Named<'a> {
    /// The authentication name.
    pub name: &'a str,
    pub client_id: &'a str,
    /// The server has just made the client id, which nobody else has ever had.
    pub has_new_id: bool,
}

impl<'a> Named<'a> {
    /// A client has proved to be the principal of its session. Where it belongs to nobody, the client is called by its
    /// client id, never by a user name that nobody has asked for a password.
    pub fn new(row: &'a state::Session, client_id: &'a str) -> Self {
        let name = match row.principal.as_str() {
            "" => client_id,
            name => name,
        };
        Named {
            name,
            client_id,
            has_new_id: row.assigned_client_id,
        }
    }

    pub fn pair(&self) -> Pair<'a> {
        (self.name, self.client_id)
    }
}
