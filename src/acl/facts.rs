//! What is known of a client, or of who asks over HTTP, when it is judged.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A client as rules see it. While it is connected, only a re-authentication changes some of it: groups, attributes,
/// and how the name was proved. Who asks over HTTP has a name, a method and an address, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The principal's name; empty when nobody has asked for one.
    pub name: Arc<str>,
    /// How the name was proved, in the configuration's words.
    pub method: &'static str,
    /// The principal's groups.
    pub groups: Vec<Box<str>>,
    /// The principal's attributes.
    pub attributes: BTreeMap<Box<str>, Box<str>>,
    /// The client identifier.
    pub client_id: Arc<str>,
    /// The far end's address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// The listener's name.
    pub listener: Arc<str>,
}
