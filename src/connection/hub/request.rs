//! A request of a device or a module that is not answered yet.

/// A request of a device or a module on its way, by its number among those of its connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct HubRequest {
    pub(super) number: u64,
    /// It has QoS 1, so it is one of the messages that the receive maximum bounds `[MQTT-3.3.4-7]`.
    pub(in crate::connection) counts: bool,
}
