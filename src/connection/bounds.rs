//! What one client may use up: the configuration, the listener's bounds below it, and the rules' for the principal.
//!
//! Invariant: they are found out at CONNECT and stay for as long as the connection does, because its client was told. A
//! bound can only be lower than the configuration's.

use crate::acl::Limits;
use crate::codec::QoS;
use crate::config::MqttConfig;

/// What one client may use up.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientBounds {
    /// Bytes of the largest packet that it may send.
    pub(super) packet_bytes: u32,
    /// Messages with QoS 1 and 2 that it may send before they are acknowledged.
    pub(super) receive_maximum: u16,
    /// Messages of its queue that may be under way to it.
    pub(super) in_flight: u16,
    /// Subscriptions of its session.
    pub(super) subscriptions: u64,
    /// Bytes in its session's queue.
    pub(super) queue_bytes: u64,
    /// Seconds that its session may outlive its connection.
    pub(super) session_expiry_s: u32,
    /// Sessions of its principal in the cluster; 0: no bound.
    pub(super) sessions: u64,
    /// The highest QoS that it may publish with.
    pub(super) max_qos: QoS,
    /// Whether it may have messages retained.
    pub(super) retain: bool,
    /// Messages and bytes that it may send per second; 0: no bound.
    pub(super) rate_in: (u32, u64),
    /// Messages and bytes that it is sent per second; 0: no bound.
    pub(super) rate_out: (u32, u64),
}

impl ClientBounds {
    /// The bounds of a client.
    pub(super) fn new(config: &MqttConfig, limits: &Limits) -> ClientBounds {
        fn lower<T: Ord>(config: T, limit: Option<T>) -> T {
            match limit {
                Some(limit) => config.min(limit),
                None => config,
            }
        }
        // 0 is no bound.
        let lower_rate = |config: u64, limit: Option<u64>| match (config, limit) {
            (0, limit) => limit.unwrap_or(0),
            (config, limit) => lower(config, limit.filter(|limit| *limit > 0)),
        };
        let messages = |config: u32, limit: Option<u32>| {
            let rate = lower_rate(config.into(), limit.map(u64::from));
            u32::try_from(rate).unwrap_or(u32::MAX)
        };
        let in_flight = limits.in_flight.map(|most| most.max(1));
        ClientBounds {
            packet_bytes: lower(config.max_packet_size_bytes, limits.packet_bytes),
            receive_maximum: lower(config.receive_maximum, in_flight),
            in_flight: lower(config.max_inflight, in_flight),
            subscriptions: lower(config.max_subscriptions, limits.subscriptions),
            queue_bytes: lower(config.queue_max_bytes, limits.queue_bytes),
            session_expiry_s: lower(config.session_expiry_max_s, limits.session_expiry_s),
            sessions: limits.sessions.unwrap_or(0),
            max_qos: QoS::from_number(limits.max_qos.unwrap_or(2).into()),
            retain: limits.retain.unwrap_or(true),
            rate_in: (
                messages(config.client_message_rate, limits.messages_in_per_s),
                lower_rate(config.client_byte_rate, limits.bytes_in_per_s),
            ),
            rate_out: (
                messages(0, limits.messages_out_per_s),
                lower_rate(0, limits.bytes_out_per_s),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lowers_what_is_configured_and_nothing_else() {
        let config = crate::config::Config::default().mqtt;
        let free = ClientBounds::new(&config, &Limits::default());
        assert_eq!(free.packet_bytes, config.max_packet_size_bytes);
        assert_eq!((free.max_qos, free.retain), (QoS::ExactlyOnce, true));
        assert_eq!((free.rate_in, free.rate_out), ((0, 0), (0, 0)));
        let limits = Limits {
            packet_bytes: Some(u32::MAX),
            in_flight: Some(3),
            max_qos: Some(1),
            messages_in_per_s: Some(5),
            session_expiry_s: Some(60),
            ..Limits::default()
        };
        let bounds = ClientBounds::new(&config, &limits);
        assert_eq!(bounds.packet_bytes, config.max_packet_size_bytes);
        assert_eq!((bounds.receive_maximum, bounds.in_flight), (3, 3));
        assert_eq!((bounds.max_qos, bounds.rate_in), (QoS::AtLeastOnce, (5, 0)));
        assert_eq!(bounds.session_expiry_s, 60);
    }
}
