//! Our codec beside three others, on the same packets: legal, nearly legal and damaged ones from numbered seeds.
//!
//! The decision must be the same, and a PUBLISH must say the same. Where the decisions differ on purpose, the
//! difference is in a list below with its reason; a difference that is not in a list fails the test, and so does an
//! entry that no packet shows any more. `CODEC_DIFFERENTIAL_CASES` sets how many packets are tried (more than the
//! default find rarer ones; fewer skip the check for stale entries).

mod generator;
mod oracles;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use generator::Generator;
use oracles::{Message, Verdict, protocol_core, rmqtt, rumqttd};
use quorumq::codec::{DecodeError as E, *};

const CASES: u64 = 120_000;

fn cases() -> u64 {
    let set = std::env::var("CODEC_DIFFERENTIAL_CASES").ok();
    set.map_or(CASES, |text| {
        text.parse().expect("CODEC_DIFFERENTIAL_CASES is a number")
    })
}

/// One packet with our decision on it.
struct Case {
    seed: u64,
    version: Version,
    bytes: Vec<u8>,
    ours: Result<Option<Message>, DecodeError>,
    traits: BTreeSet<Trait>,
}

/// What an accepted packet has that one of the others does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trait {
    /// A 3.1 CONNECT.
    Mqisdp,
    /// A 3.1 CONNECT whose user name or password flag is set without the field: the length has precedence (3.1 §3.1).
    MissingCredentials,
    /// Password without user name in 5.0 (§3.1.2.9 allows it).
    PasswordOnly,
    /// Message expiry 0: legal, and expired at once.
    ExpiryZero,
    /// An empty filter: ours is answered with 0x8F, not by closing.
    EmptyFilter,
    /// `$share/` with bad syntax: ours is answered with 0x8F, not by closing.
    BadShare,
    /// AUTH.
    Auth,
    /// DISCONNECT with a reason code.
    DisconnectReason,
    /// 5.0, an empty client id and clean start 0: the server makes an id up (§3.1.3.1).
    EmptyClientId,
    /// A password that is no text; it is binary data (§3.1.3.6).
    BinaryPassword,
}

/// What rmqtt-codec 0.3.1 lets pass and we refuse.
const RMQTT_TOLERATES: &[DecodeError] = &[
    E::AuthenticationDataWithoutMethod,
    E::AuthenticationMethodMissing,
    E::BodyTooLong,
    E::ClientIdMissing, // 3.1 with an empty id
    E::DupWithoutQos,
    E::NoLocalOnShared,
    E::PasswordWithoutUserName,
    E::ReasonCodeNotAllowed, // AUTH 0x00 from a client
    E::ResponseTopicInvalid,
    E::StringHasNul,
    E::SubscriptionIdFromClient,
    E::SubscriptionOptionsReserved, // before 5.0
    E::TopicNameEmpty,              // 5.0 without an alias
    E::TopicNameWildcard,
    E::WillFlagsWithoutWill, // 5.0
    E::WillTopicInvalid,
];

/// Seen with far more packets only.
const RMQTT_TOLERATES_RARELY: &[DecodeError] = &[
    E::PropertyNotAllowed, // a server reference in DISCONNECT from a client
    E::ProtocolLevel,      // MQIsdp with level 4
    E::VariableByteIntegerNotMinimal,
];

/// What rmqtt-codec refuses and we take.
const RMQTT_REFUSES: &[Trait] = &[
    Trait::MissingCredentials,
    Trait::ExpiryZero,
    Trait::EmptyFilter,
    Trait::EmptyClientId,
];

/// What mqtt-protocol-core's parsers let pass and we refuse; some of it its connection layer checks later.
const CORE_TOLERATES: &[DecodeError] = &[
    E::AuthenticationDataWithoutMethod,
    E::BodyTooLong,  // an acknowledgement before 5.0
    E::BodyTooShort, // a PUBLISH without property length
    E::ClientIdMissing,
    E::ConnectFlagReserved,
    E::DupWithoutQos,
    E::HeaderFlags, // its parsers do not see them
    E::NoLocalOnShared,
    E::PacketIdZero,
    E::ReasonCodeNotAllowed, // AUTH 0x00 and an empty AUTH from a client
    E::ResponseTopicInvalid,
    E::StringHasNul,
    E::SubscriptionIdFromClient,
    E::SubscriptionOptionsReserved, // before 5.0
    E::TopicNameEmpty,
    E::TopicNameWildcard,
    E::WillFlagsWithoutWill, // before 5.0
    E::WillTopicInvalid,
];

/// Seen with far more packets only.
const CORE_TOLERATES_RARELY: &[DecodeError] = &[
    E::PropertyNotAllowed, // a server reference in DISCONNECT from a client
    E::PropertyRepeated,   // a subscription identifier in SUBSCRIBE
    E::VariableByteIntegerNotMinimal,
    E::WillQosInvalid, // before 5.0
];

/// What mqtt-protocol-core refuses and we take.
const CORE_REFUSES: &[Trait] = &[Trait::Mqisdp, Trait::PasswordOnly, Trait::BadShare];

/// What rumqttd refuses and we take. What it lets pass is not listed: it checks little.
const RUMQTTD_REFUSES: &[Trait] = &[
    Trait::Mqisdp,
    Trait::Auth,
    Trait::DisconnectReason,
    Trait::BinaryPassword,
];

fn message(publish: &Publish<'_>) -> Message {
    let users = publish.properties.user_properties();
    Message {
        flags: (publish.dup, publish.qos as u8, publish.retain),
        topic: publish.topic.to_owned(),
        packet_id: publish.packet_id.map(u16::from),
        payload: publish.payload.to_vec(),
        users: users
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}

fn connect_traits(connect: &Connect<'_>, bytes: &[u8]) -> BTreeSet<Trait> {
    // Flags stand behind header, name and level; the bodies here are shorter than 16,384 bytes.
    let header = if bytes[1] < 0x80 { 2 } else { 3 };
    let flags = bytes[header + 2 + connect.version.protocol_name().len() + 1];
    let found = [
        (Trait::Mqisdp, connect.version == Version::V31),
        (
            Trait::MissingCredentials,
            flags & 0x80 != 0 && connect.username.is_none(),
        ),
        (
            Trait::MissingCredentials,
            flags & 0x40 != 0 && connect.password.is_none(),
        ),
        (
            Trait::PasswordOnly,
            connect.version == Version::V5 && flags & 0xC0 == 0x40,
        ),
        (
            Trait::ExpiryZero,
            connect
                .will
                .is_some_and(|will| will.properties.message_expiry() == Some(0)),
        ),
        (
            Trait::EmptyClientId,
            connect.client_id.is_empty() && !connect.clean_start,
        ),
        (
            Trait::BinaryPassword,
            connect
                .password
                .is_some_and(|password| check::utf8(password).is_err()),
        ),
    ];
    found
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| name)
        .collect()
}

fn packet_traits(packet: &Packet<'_>, frame: Frame<'_>) -> BTreeSet<Trait> {
    let filters = match packet {
        Packet::Subscribe(subscribe) => subscribe
            .filters
            .iter()
            .map(|request| request.filter)
            .collect(),
        Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().collect(),
        _ => Vec::new(),
    };
    let bad_share = filters
        .iter()
        .any(|filter| check::topic_filter(filter) == Err(FilterError::Share));
    let found = [
        (
            Trait::ExpiryZero,
            matches!(packet, Packet::Publish(p) if p.properties.message_expiry() == Some(0)),
        ),
        (Trait::EmptyFilter, filters.contains(&"")),
        (Trait::BadShare, bad_share),
        (Trait::Auth, matches!(packet, Packet::Auth(_))),
        (
            Trait::DisconnectReason,
            matches!(packet, Packet::Disconnect(_)) && !frame.body.is_empty(),
        ),
    ];
    found
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| name)
        .collect()
}

/// The packet of a seed: every other one 5.0, every fifth a CONNECT.
fn case(seed: u64) -> Option<Case> {
    let version = if seed & 1 == 0 {
        Version::V5
    } else {
        Version::V311
    };
    let connect = seed.is_multiple_of(5);
    let bytes = Generator::new(seed, version.is_v5()).packet(connect);
    let frame = frame::next(&bytes, MAX_PACKET_SIZE)
        .expect("header is written well")
        .expect("packet is whole");
    let mut traits = BTreeSet::new();
    let ours = if connect {
        // Damage may turn a CONNECT of one version into one of another, which the others were not asked for.
        if sniff_version(frame).is_some_and(|sniffed| sniffed.is_v5() != version.is_v5()) {
            return None;
        }
        decode_connect(frame).map(|connect| {
            traits = connect_traits(&connect, &bytes);
            None
        })
    } else {
        decode(version, frame).map(|packet| {
            traits = packet_traits(&packet, frame);
            if let Packet::Publish(publish) = &packet {
                Some(message(publish))
            } else {
                None
            }
        })
    };
    Some(Case {
        seed,
        version,
        ours,
        traits,
        bytes: bytes.clone(),
    })
}

/// Another codec and how it is known to differ.
struct Peer {
    name: &'static str,
    /// What it lets pass and we refuse; `None` if that is not worth a list.
    tolerates: Option<&'static [DecodeError]>,
    /// Such violations as the default number of packets does not show.
    tolerates_rarely: &'static [DecodeError],
    /// What it refuses and we take.
    refuses: &'static [Trait],
}

impl Peer {
    /// Compares our decisions with the peer's, both ways. All differences that are not listed are reported, each with
    /// its first packet.
    fn compare(&self, verdict: impl Fn(&Case) -> Verdict) {
        let mut unlisted = BTreeMap::new();
        let (mut tolerated, mut refused) = (HashSet::new(), BTreeSet::new());
        let mut accepted_by_both = 0_u64;
        for case in (0..cases()).filter_map(case) {
            let context = || format!("seed {}: {:?} {:02X?}", case.seed, case.version, case.bytes);
            let difference = match (&case.ours, verdict(&case)) {
                (Ok(ours), Verdict::Accepted(theirs)) => {
                    accepted_by_both += 1;
                    let other =
                        matches!((ours, &theirs), (Some(ours), Some(theirs)) if ours != theirs);
                    other.then(|| format!("reads something else: {theirs:?}"))
                }
                (Ok(_), verdict) => {
                    let reasons = case
                        .traits
                        .iter()
                        .filter(|found| self.refuses.contains(found));
                    let reasons = reasons.collect::<Vec<_>>();
                    if let [only] = reasons.as_slice() {
                        refused.insert(**only);
                    }
                    reasons
                        .is_empty()
                        .then(|| format!("{verdict:?}, and we accept it"))
                }
                (Err(error), Verdict::Accepted(_)) => {
                    tolerated.insert(*error);
                    let listed = |list: &[DecodeError]| {
                        list.contains(error) || self.tolerates_rarely.contains(error)
                    };
                    (!self.tolerates.is_none_or(listed))
                        .then(|| format!("accepts it, and we say {error:?}"))
                }
                (Err(_), Verdict::Refused | Verdict::Panicked) => None,
            };
            if let Some(difference) = difference {
                unlisted.entry(difference).or_insert_with(context);
            }
        }
        assert!(unlisted.is_empty(), "{}: {unlisted:#?}", self.name);
        assert!(
            accepted_by_both > cases() / 3,
            "{}: most packets are legal",
            self.name
        );
        if cases() >= CASES {
            let stale = self
                .tolerates
                .unwrap_or_default()
                .iter()
                .filter(|error| !tolerated.contains(error));
            assert_eq!(
                stale.collect::<Vec<_>>(),
                Vec::<&DecodeError>::new(),
                "{} refuses these by now",
                self.name
            );
            let stale = self.refuses.iter().filter(|found| !refused.contains(found));
            assert_eq!(
                stale.collect::<Vec<_>>(),
                Vec::<&Trait>::new(),
                "{} takes these by now",
                self.name
            );
        }
    }
}

#[test]
fn rmqtt_codec_decides_alike() {
    let peer = Peer {
        name: "rmqtt-codec",
        tolerates: Some(RMQTT_TOLERATES),
        tolerates_rarely: RMQTT_TOLERATES_RARELY,
        refuses: RMQTT_REFUSES,
    };
    peer.compare(|case| rmqtt(case.version, &case.bytes));
}

#[test]
fn mqtt_protocol_core_decides_alike() {
    let peer = Peer {
        name: "mqtt-protocol-core",
        tolerates: Some(CORE_TOLERATES),
        tolerates_rarely: CORE_TOLERATES_RARELY,
        refuses: CORE_REFUSES,
    };
    peer.compare(|case| {
        let frame = frame::next(&case.bytes, MAX_PACKET_SIZE)
            .expect("decoded before")
            .expect("decoded before");
        protocol_core(case.version, frame)
    });
}

#[test]
fn rumqttd_takes_what_we_take() {
    let peer = Peer {
        name: "rumqttd",
        tolerates: None,
        tolerates_rarely: &[],
        refuses: RUMQTTD_REFUSES,
    };
    peer.compare(|case| rumqttd(case.version, &case.bytes));
}

/// The reason why rumqttd's codec is not ours (docs/adr/0001): three bytes from any client end the task that reads
/// them.
#[test]
fn three_bytes_panic_rumqttd_and_are_a_protocol_error_here() {
    for bytes in [[0x20, 1, 0], [0xB0, 1, 0]] {
        assert_eq!(
            rumqttd(Version::V5, &bytes),
            Verdict::Panicked,
            "{bytes:02X?}"
        );
        let frame = frame::next(&bytes, MAX_PACKET_SIZE)
            .expect("a header")
            .expect("a packet");
        assert_eq!(
            decode(Version::V5, frame),
            Err(DecodeError::PacketFromWrongSide)
        );
    }
}
