//! What one client may use up: the configuration, the listener's bounds below it, and the rules' for the principal.
//!
//! Invariant: they are found out at CONNECT and stay for as long as the connection does, because its client was told. A
//! bound can only be lower than the configuration's.

use super::rate::lower;
use crate::acl::Limits;
use crate::codec::QoS;
use crate::config::{Listener, MqttConfig};

/// What one client may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Seconds of the longest keep-alive that it may ask for; 0: no bound.
    max_keep_alive_s: u16,
}

impl ClientBounds {
    /// Seconds that a session may outlive its connection whose client asks for so many. One of a device or a module may
    /// as long as that: some libraries subscribe once in the life of their process, and there are no more sessions than
    /// identities.
    pub(super) fn session_expiry(&self, asked_s: u32, is_of_hub: bool) -> u32 {
        match is_of_hub {
            true => asked_s,
            false => asked_s.min(self.session_expiry_s),
        }
    }

    /// The keep-alive, in seconds, of a client that asks for this one; 0 is none.
    pub(super) fn keep_alive(&self, asked_s: u16) -> u16 {
        lower(asked_s, self.max_keep_alive_s)
    }

    /// The bounds of a client whose principal has these limits, at a listener that has none.
    pub(super) fn new(config: &MqttConfig, limits: &Limits) -> ClientBounds {
        fn least<T: Ord>(config: T, limit: Option<T>) -> T {
            match limit {
                Some(limit) => config.min(limit),
                None => config,
            }
        }
        // 0 is no bound.
        let lower_rate = |config: u64, limit: Option<u64>| match (config, limit) {
            (0, limit) => limit.unwrap_or(0),
            (config, limit) => least(config, limit.filter(|limit| *limit > 0)),
        };
        let messages = |config: u32, limit: Option<u32>| {
            let rate = lower_rate(config.into(), limit.map(u64::from));
            u32::try_from(rate).unwrap_or(u32::MAX)
        };
        let in_flight = limits.in_flight.map(|most| most.max(1));
        ClientBounds {
            packet_bytes: least(config.max_packet_size_bytes, limits.packet_bytes),
            receive_maximum: least(config.receive_maximum, in_flight),
            in_flight: least(config.max_inflight, in_flight),
            subscriptions: least(config.max_subscriptions, limits.subscriptions),
            queue_bytes: least(config.queue_max_bytes, limits.queue_bytes),
            session_expiry_s: least(config.session_expiry_max_s, limits.session_expiry_s),
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
            max_keep_alive_s: config.max_keep_alive_s,
        }
    }

    /// The same at this listener.
    #[must_use]
    pub(super) fn at(self, listener: &Listener) -> ClientBounds {
        let rate_in = (listener.client_message_rate, listener.client_byte_rate);
        let rate_out = (listener.delivery_message_rate, listener.delivery_byte_rate);
        let max_qos = QoS::from_number(listener.max_qos.into());
        ClientBounds {
            packet_bytes: lower(self.packet_bytes, listener.max_packet_size_bytes),
            receive_maximum: lower(self.receive_maximum, listener.receive_maximum),
            in_flight: lower(self.in_flight, listener.max_inflight),
            subscriptions: lower_limit(self.subscriptions, listener.max_subscriptions),
            queue_bytes: lower_limit(self.queue_bytes, listener.queue_max_bytes),
            session_expiry_s: self.session_expiry_s.min(listener.session_expiry_max_s),
            sessions: lower(self.sessions, listener.max_sessions),
            max_qos: self.max_qos.min(max_qos),
            retain: self.retain && listener.retain,
            rate_in: lower_rates(self.rate_in, rate_in),
            rate_out: lower_rates(self.rate_out, rate_out),
            max_keep_alive_s: lower(self.max_keep_alive_s, listener.max_keep_alive_s),
        }
    }
}

/// The lower of a limit, which may be 0, and a listener's bound, of which 0 is none.
fn lower_limit(limit: u64, bound: u64) -> u64 {
    match bound {
        0 => limit,
        bound => limit.min(bound),
    }
}

/// The lower of messages and bytes per second each, of which 0 is no bound.
fn lower_rates(one: (u32, u64), other: (u32, u64)) -> (u32, u64) {
    (lower(one.0, other.0), lower(one.1, other.1))
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

    /// A listener with a bound of each kind.
    fn listener(bound: u16, qos: u16) -> Listener {
        Listener {
            client_message_rate: bound.into(),
            client_byte_rate: bound.into(),
            delivery_message_rate: bound.into(),
            delivery_byte_rate: bound.into(),
            max_packet_size_bytes: bound.into(),
            max_qos: qos,
            retain: qos > 1,
            session_expiry_max_s: bound.into(),
            max_keep_alive_s: bound,
            receive_maximum: bound,
            max_inflight: bound,
            max_sessions: bound.into(),
            max_subscriptions: bound.into(),
            queue_max_bytes: bound.into(),
            ..Listener::default()
        }
    }

    #[test]
    fn a_listener_lowers_each_bound_and_raises_none() {
        let config = crate::config::Config::default().mqtt;
        let free = ClientBounds::new(&config, &Limits::default());
        assert_eq!(free.at(&Listener::default()), free, "no bound of its own");
        assert_eq!((free.keep_alive(0), free.keep_alive(90)), (0, 90));
        let low = free.at(&listener(200, 0));
        let rate = (200, 200);
        let expected = ClientBounds {
            packet_bytes: 200,
            receive_maximum: 200,
            in_flight: 200,
            subscriptions: 200,
            queue_bytes: 200,
            session_expiry_s: 200,
            sessions: 200,
            max_qos: QoS::AtMostOnce,
            retain: false,
            rate_in: rate,
            rate_out: rate,
            max_keep_alive_s: 200,
        };
        assert_eq!(low, expected);
        assert_eq!((low.keep_alive(0), low.keep_alive(90)), (200, 90));
        assert_eq!(low.at(&listener(300, 2)), low);
        // What the rules forbid altogether stays forbidden.
        let limits = Limits {
            subscriptions: Some(0),
            queue_bytes: Some(0),
            ..Limits::default()
        };
        let none = ClientBounds::new(&config, &limits).at(&listener(200, 2));
        assert_eq!((none.subscriptions, none.queue_bytes), (0, 0));
    }
}
