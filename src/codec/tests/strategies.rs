//! Random packets: one bag of parts, and every packet that can be made of it.

use std::borrow::Cow;
use std::num::{NonZeroU16, NonZeroU32};

use proptest::prelude::*;

use super::super::*;

/// What packets are made of. `presence` decides which optional fields are there.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) version: Version,
    pub(super) id: PacketId,
    qos: QoS,
    presence: u32,
    number: u32,
    small: NonZeroU16,
    topic: String,
    texts: [String; 4],
    data: [Vec<u8>; 2],
    users: Vec<(String, String)>,
    codes: Vec<u8>,
    filters: Vec<(String, u8)>,
    order: Vec<usize>,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "[^\0]{0,12}",
        1 => "[a-z]{60,70}",
        1 => "[^\0]{120,140}",
    ]
}

fn topic() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z/]{1,20}", "[^\0+#]{1,12}"]
}

fn filter() -> impl Strategy<Value = (String, u8)> {
    let name = prop_oneof![
        "[a-c+#/]{1,8}",
        r"\$share/[a-b+]{0,2}/?[a-b#/]{0,4}",
        text()
    ];
    (name, any::<u8>())
}

pub(super) fn parts() -> impl Strategy<Value = Parts> {
    let scalars = (
        prop::sample::select(super::VERSIONS.as_slice()),
        any::<NonZeroU16>(),
        0..3_u8,
        any::<u32>(),
        any::<u32>(),
        any::<NonZeroU16>(),
    );
    let fields = (
        topic(),
        prop::array::uniform4(text()),
        prop::array::uniform2(prop::collection::vec(any::<u8>(), 0..200)),
        prop::collection::vec((text(), text()), 0..4),
        prop::collection::vec(any::<u8>(), 1..5),
        prop::collection::vec(filter(), 1..5),
        Just((0..8).collect::<Vec<usize>>()).prop_shuffle(),
    );
    (scalars, fields).prop_map(
        |(
            (version, id, qos, presence, number, small),
            (topic, texts, data, users, codes, filters, order),
        )| Parts {
            version,
            id,
            qos: QoS::from_bits(qos).expect("0 to 2"),
            presence,
            number,
            small,
            topic,
            texts,
            data,
            users,
            codes,
            filters,
            order,
        },
    )
}

/// User properties as [`UserProperties::from_pairs`] takes them.
pub(super) type Pairs<'a> = Vec<(&'a str, &'a str)>;

impl Parts {
    fn has(&self, bit: u32) -> bool {
        self.presence & 1 << bit != 0
    }

    fn when<T>(&self, bit: u32, value: T) -> Option<T> {
        self.has(bit).then_some(value)
    }

    fn v5<T>(&self, bit: u32, value: T) -> Option<T> {
        self.when(bit, value).filter(|_| self.version.is_v5())
    }

    pub(super) fn pairs(&self) -> Pairs<'_> {
        let users = if self.version.is_v5() {
            self.users.as_slice()
        } else {
            &[]
        };
        users
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect()
    }

    /// A property list of a PUBLISH in any order; with `from_server` it has subscription identifiers.
    pub(super) fn properties(&self, from_server: bool) -> PublishPropertiesBuf {
        let mut list = PublishPropertiesBuf::new();
        if !self.version.is_v5() {
            return list;
        }
        let format = if self.has(0) {
            PayloadFormat::Utf8
        } else {
            PayloadFormat::Bytes
        };
        let identifier = NonZeroU32::new(self.number % MAX_REMAINING_LENGTH + 1).expect("above 0");
        let users = self
            .users
            .iter()
            .map(|(name, value)| Property::UserProperty(name, value));
        for place in &self.order {
            let property = match place {
                0 => self.when(1, Property::PayloadFormatIndicator(format)),
                1 => self.when(2, Property::MessageExpiryInterval(self.number)),
                2 => self.when(3, Property::TopicAlias(self.small)),
                3 => self.when(4, Property::ResponseTopic(&self.topic)),
                4 => self.when(5, Property::CorrelationData(&self.data[0])),
                5 => self.when(6, Property::ContentType(&self.texts[0])),
                6 if from_server => self.when(7, Property::SubscriptionIdentifier(identifier)),
                _ => users.clone().next(),
            };
            if let Some(property) = property {
                list.push(property).expect("short fields");
            }
            if *place == 7 {
                for user in users.clone().skip(1) {
                    list.push(user).expect("short fields");
                }
            }
        }
        list
    }

    pub(super) fn publish<'a>(&'a self, properties: &'a PublishPropertiesBuf) -> Publish<'a> {
        let properties = properties.as_properties().expect("legal");
        Publish {
            dup: self.has(8) && self.qos != QoS::AtMostOnce,
            qos: self.qos,
            retain: self.has(9),
            topic: if self.has(10) && properties.topic_alias().is_some() {
                ""
            } else {
                &self.topic
            },
            packet_id: (self.qos != QoS::AtMostOnce).then_some(self.id),
            properties,
            payload: &self.data[1],
        }
    }

    pub(super) fn connect<'a>(
        &'a self,
        pairs: &'a Pairs<'a>,
        will: &'a PublishPropertiesBuf,
    ) -> Connect<'a> {
        let client_id = if self.version == Version::V31 {
            &self.topic
        } else {
            &self.texts[0]
        };
        let will_properties = will.as_properties().expect("legal");
        let username = self.when(11, self.texts[1].as_str());
        let method = self.v5(12, self.texts[2].as_str());
        Connect {
            version: self.version,
            clean_start: self.has(13) || client_id.is_empty(),
            keep_alive: self.small.get(),
            client_id,
            will: self.when(
                14,
                Will {
                    qos: self.qos,
                    retain: self.has(9),
                    topic: &self.topic,
                    payload: &self.data[1],
                    delay: self.v5(15, self.number).unwrap_or(0),
                    properties: will_properties,
                },
            ),
            username,
            password: self
                .when(16, self.data[0].as_slice())
                .filter(|_| username.is_some() || self.version.is_v5()),
            session_expiry: self.v5(17, self.number),
            receive_maximum: self.v5(18, self.small),
            maximum_packet_size: self.v5(19, NonZeroU32::from(self.small)),
            topic_alias_maximum: self.v5(20, self.small.get()).unwrap_or(0),
            request_response_information: self.v5(21, ()).is_some(),
            request_problem_information: self.v5(22, ()).is_none(),
            authentication_method: method,
            authentication_data: method.and(self.v5(23, self.data[0].as_slice())),
            user_properties: UserProperties::from_pairs(pairs),
        }
    }

    /// The will's properties: no alias, no subscription identifier.
    pub(super) fn will_properties(&self) -> PublishPropertiesBuf {
        let mut parts = self.clone();
        parts.presence &= !(1 << 3);
        parts.properties(false)
    }

    pub(super) fn connack<'a>(&'a self, pairs: &'a Pairs<'a>) -> ConnAck<'a> {
        let mut connack = ConnAck::accepted(self.has(0) && self.version != Version::V31);
        if !self.version.is_v5() {
            return connack;
        }
        if self.has(24) {
            connack = ConnAck::refused(ReasonCode::ServerBusy);
        }
        let method = self.v5(12, self.texts[2].as_str());
        connack.properties = ConnAckProperties {
            session_expiry: self.when(1, self.number),
            receive_maximum: self.when(2, self.small),
            maximum_qos: self
                .when(3, self.qos)
                .filter(|qos| *qos != QoS::ExactlyOnce),
            retain_available: self.when(4, self.has(25)),
            maximum_packet_size: self.when(5, NonZeroU32::from(self.small)),
            assigned_client_id: self.when(6, &self.texts[0]),
            topic_alias_maximum: self.when(7, self.small.get()),
            reason_string: self.when(8, &self.texts[1]),
            user_properties: UserProperties::from_pairs(pairs),
            wildcard_subscription_available: self.when(9, self.has(26)),
            subscription_identifier_available: self.when(10, self.has(27)),
            shared_subscription_available: self.when(11, self.has(28)),
            server_keep_alive: self.when(13, self.small.get()),
            response_information: self.when(14, &self.texts[3]),
            server_reference: self.when(15, &self.texts[1]),
            authentication_method: method,
            authentication_data: method.and(self.v5(23, self.data[0].as_slice())),
        };
        connack
    }

    pub(super) fn reason_string(&self) -> Option<&str> {
        self.v5(0, self.texts[0].as_str())
    }

    /// One of `allowed`, 0x00 before MQTT 5.0.
    fn code(&self, allowed: &[u8]) -> ReasonCode {
        let code = if self.version.is_v5() {
            allowed[self.codes[0] as usize % allowed.len()]
        } else {
            0
        };
        ReasonCode::from_u8(code).expect("the lists are of codes")
    }

    pub(super) fn ack<'a>(&'a self, pairs: &'a Pairs<'a>, release: bool) -> Ack<'a> {
        let codes: &[u8] = if release {
            &[0, 0x92]
        } else {
            &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]
        };
        Ack {
            packet_id: self.id,
            reason: self.code(codes),
            reason_string: self.reason_string(),
            user_properties: UserProperties::from_pairs(pairs),
        }
    }

    pub(super) fn requests(&self) -> Vec<FilterRequest<'_>> {
        let request = |(filter, bits): &'_ (String, u8)| {
            let mut options = SubscriptionOptions {
                qos: QoS::from_bits(bits % 3).expect("0 to 2"),
                ..SubscriptionOptions::default()
            };
            if self.version.is_v5() {
                options.no_local = bits & 4 != 0 && !filter.starts_with(check::SHARE_PREFIX);
                options.retain_as_published = bits & 8 != 0;
                options.retain_handling = match bits >> 6 {
                    0 => RetainHandling::SendIfNew,
                    1 => RetainHandling::DoNotSend,
                    _ => RetainHandling::SendAtSubscribe,
                };
            }
            options
        };
        self.filters
            .iter()
            .map(|pair| FilterRequest {
                filter: &pair.0,
                options: request(pair),
            })
            .collect()
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.filters
            .iter()
            .map(|(filter, _)| filter.as_str())
            .collect()
    }

    pub(super) fn subscribe<'a>(
        &'a self,
        pairs: &'a Pairs<'a>,
        requests: &'a [FilterRequest<'a>],
    ) -> Subscribe<'a> {
        Subscribe {
            packet_id: self.id,
            subscription_id: NonZeroU32::new(self.number % (MAX_REMAINING_LENGTH + 1))
                .and_then(|id| self.v5(1, id)),
            user_properties: UserProperties::from_pairs(pairs),
            filters: Filters::from_slice(requests),
        }
    }

    pub(super) fn unsubscribe<'a>(
        &'a self,
        pairs: &'a Pairs<'a>,
        names: &'a [&'a str],
    ) -> Unsubscribe<'a> {
        Unsubscribe {
            packet_id: self.id,
            user_properties: UserProperties::from_pairs(pairs),
            filters: UnsubscribeFilters::from_slice(names),
        }
    }

    /// One code per number in `codes`, out of `allowed`.
    fn codes(&self, allowed: &[u8]) -> Cow<'static, [ReasonCode]> {
        let pick = |code: &u8| {
            ReasonCode::from_u8(allowed[*code as usize % allowed.len()]).expect("a code")
        };
        self.codes.iter().map(pick).collect()
    }

    pub(super) fn suback<'a>(&'a self, pairs: &'a Pairs<'a>) -> SubAck<'a> {
        let v5: &[u8] = &[
            0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
        ];
        SubAck {
            packet_id: self.id,
            reasons: self.codes(if self.version.is_v5() {
                v5
            } else {
                &[0, 1, 2, 0x80]
            }),
            reason_string: self.reason_string(),
            user_properties: UserProperties::from_pairs(pairs),
        }
    }

    pub(super) fn unsuback<'a>(&'a self, pairs: &'a Pairs<'a>) -> UnsubAck<'a> {
        let codes = self.codes(&[0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]);
        UnsubAck {
            packet_id: self.id,
            reasons: if self.version.is_v5() {
                codes
            } else {
                Cow::Borrowed(&[])
            },
            reason_string: self.reason_string(),
            user_properties: UserProperties::from_pairs(pairs),
        }
    }

    pub(super) fn disconnect<'a>(
        &'a self,
        pairs: &'a Pairs<'a>,
        from_server: bool,
    ) -> Disconnect<'a> {
        let codes: &[u8] = if from_server {
            &[0, 0x87, 0x8E, 0x9C, 0xA2]
        } else {
            &[0, 4, 0x80, 0x81, 0x93, 0x99]
        };
        Disconnect {
            reason: self.code(codes),
            session_expiry: self.v5(1, self.number).filter(|_| !from_server),
            reason_string: self.reason_string(),
            server_reference: self.v5(2, self.texts[1].as_str()).filter(|_| from_server),
            user_properties: UserProperties::from_pairs(pairs),
        }
    }

    pub(super) fn auth<'a>(&'a self, pairs: &'a Pairs<'a>, from_server: bool) -> Auth<'a> {
        Auth {
            reason: self.code(if from_server {
                &[0, 0x18]
            } else {
                &[0x18, 0x19]
            }),
            method: &self.texts[1],
            data: self.when(1, self.data[0].as_slice()),
            reason_string: self.reason_string(),
            user_properties: UserProperties::from_pairs(pairs),
        }
    }

    /// A packet a client sends, CONNECT excepted: the wire bytes of one kind of them.
    pub(super) fn client_bytes(&self, kind: u8) -> Vec<u8> {
        let (pairs, list) = (self.pairs(), self.properties(false));
        let (requests, names) = (self.requests(), self.names());
        let (version, limits) = (self.version, PeerLimits::NONE);
        let mut out = Vec::new();
        let size = match kind % 10 {
            0 => client::publish(&mut out, version, &self.publish(&list)),
            1 => encode::puback(&mut out, version, &self.ack(&pairs, false), limits),
            2 => encode::pubrec(&mut out, version, &self.ack(&pairs, false), limits),
            3 => encode::pubrel(&mut out, version, &self.ack(&pairs, true), limits),
            4 => encode::pubcomp(&mut out, version, &self.ack(&pairs, true), limits),
            5 => client::subscribe(&mut out, version, &self.subscribe(&pairs, &requests)),
            6 => client::unsubscribe(&mut out, version, &self.unsubscribe(&pairs, &names)),
            7 => client::disconnect(&mut out, version, &self.disconnect(&pairs, false), limits),
            8 if version.is_v5() => {
                client::auth(&mut out, version, &self.auth(&pairs, false), limits)
            }
            _ => Ok(client::pingreq(&mut out)),
        };
        assert_eq!(size, Ok(out.len()));
        out
    }

    /// A packet a server sends: the wire bytes of one kind of them.
    pub(super) fn server_bytes(&self, kind: u8) -> Vec<u8> {
        let (pairs, list) = (self.pairs(), self.properties(true));
        let (version, limits) = (self.version, PeerLimits::NONE);
        let mut out = Vec::new();
        let size = match kind % 7 {
            0 => encode::connack(&mut out, version, &self.connack(&pairs), limits),
            1 => encode::suback(&mut out, version, &self.suback(&pairs), limits),
            2 => encode::unsuback(&mut out, version, &self.unsuback(&pairs), limits),
            3 if version.is_v5() => {
                encode::disconnect(&mut out, version, &self.disconnect(&pairs, true), limits)
            }
            4 if version.is_v5() => {
                encode::auth(&mut out, version, &self.auth(&pairs, true), limits)
            }
            5 => client::publish(&mut out, version, &self.publish(&list)),
            _ => Ok(encode::pingresp(&mut out)),
        };
        assert_eq!(size, Ok(out.len()));
        out
    }

    /// A CONNECT.
    pub(super) fn connect_bytes(&self) -> Vec<u8> {
        let (pairs, will) = (self.pairs(), self.will_properties());
        let mut out = Vec::new();
        client::connect(&mut out, &self.connect(&pairs, &will)).expect("short fields");
        out
    }
}
