use proptest::prelude::*;

use super::*;

fn version() -> Hlc {
    Hlc::of_store(1_696_374_425_000, 1)
}

/// Payload and `__ts` of a reply.
fn wire(reply: &Reply) -> (String, Option<String>) {
    let mut out = Vec::new();
    reply.write_payload(&mut out);
    (
        String::from_utf8(out).unwrap(),
        reply.timestamp().map(Hlc::to_string),
    )
}

fn with_version(payload: &str) -> (String, Option<String>) {
    (
        payload.to_owned(),
        Some("001696374425000:00001:StateStore".to_owned()),
    )
}

fn without_version(payload: &str) -> (String, Option<String>) {
    (payload.to_owned(), None)
}

#[test]
fn set_is_answered_with_ok_and_the_new_version() {
    let reply = Reply::Set { version: version() };
    assert_eq!(wire(&reply), with_version("+OK\r\n"));
}

#[test]
fn set_refused_by_nx_or_nex_is_answered_with_minus_one_and_the_stored_version() {
    let reply = Reply::NotSet { version: version() };
    assert_eq!(wire(&reply), with_version(":-1\r\n"));
}

#[test]
fn get_is_answered_with_the_value_its_crlf_and_its_version() {
    let value = |value: &'static str| Reply::Value {
        value: Bytes::from_static(value.as_bytes()),
        version: version(),
    };
    assert_eq!(wire(&value("1234")), with_version("$4\r\n1234\r\n"));
    assert_eq!(wire(&value("")), with_version("$0\r\n\r\n"));
}

#[test]
fn get_of_an_absent_key_has_no_version() {
    assert_eq!(wire(&Reply::NoValue), without_version("$-1\r\n"));
}

#[test]
fn del_and_vdel_are_answered_with_the_version_of_the_deleted_value() {
    let reply = Reply::Deleted { version: version() };
    assert_eq!(wire(&reply), with_version(":1\r\n"));
    assert_eq!(wire(&Reply::NothingToDelete), without_version(":0\r\n"));
    assert_eq!(wire(&Reply::ValueDiffers), without_version(":-1\r\n"));
}

#[test]
fn keynotify_is_answered_with_ok_or_zero() {
    assert_eq!(wire(&Reply::Notify), without_version("+OK\r\n"));
    assert_eq!(wire(&Reply::NotWatched), without_version(":0\r\n"));
}

#[test]
fn scan_is_answered_with_one_or_two_elements() {
    let keys = vec![Bytes::from_static(b"a"), Bytes::from_static(b"bc")];
    let page = |token| Reply::Page {
        keys: keys.clone(),
        token,
    };
    assert_eq!(
        wire(&page(None)),
        without_version("*1\r\n*2\r\n$1\r\na\r\n$2\r\nbc\r\n")
    );
    assert_eq!(
        wire(&page(Some(Bytes::from_static(b"tok")))),
        without_version("*2\r\n*2\r\n$1\r\na\r\n$2\r\nbc\r\n$3\r\ntok\r\n")
    );
    let empty = Reply::Page {
        keys: Vec::new(),
        token: None,
    };
    assert_eq!(wire(&empty), without_version("*1\r\n*0\r\n"));
}

#[test]
fn errors_have_the_words_clients_compare_with() {
    let texts = [
        "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized",
        "a fencing token is required for this request",
        "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized",
        "the request fencing token is a lower version than the fencing token protecting the resource",
        "the quota has been exceeded",
        "syntax error",
        "not authorized",
        "unknown command",
        "wrong number of arguments",
        "missing timestamp",
        "malformed timestamp",
        "the key length is zero",
        "the answer is larger than the client's maximum packet size",
    ];
    assert_eq!(texts.len(), StoreError::ALL.len());
    for (error, text) in StoreError::ALL.into_iter().zip(texts) {
        assert_eq!(
            wire(&Reply::Error(error)),
            without_version(&format!("-ERR {text}\r\n"))
        );
    }
}

fn any_version() -> impl Strategy<Value = Hlc> {
    (
        any::<u64>(),
        0u32..=crate::base::hlc::MAX_COUNTER,
        prop_oneof![Just("StateStore".to_owned()), "[a-z]{1,5}"],
    )
        .prop_map(|(wall_ms, counter, node)| Hlc {
            wall_ms,
            counter,
            node: crate::base::hlc::NodeName::new(&node).expect("letters are a node id"),
        })
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..9).prop_map(Bytes::from)
}

fn any_reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        any_version().prop_map(|version| Reply::Set { version }),
        any_version().prop_map(|version| Reply::NotSet { version }),
        any_version().prop_map(|version| Reply::Deleted { version }),
        (any_bytes(), any_version()).prop_map(|(value, version)| Reply::Value { value, version }),
        prop::sample::select(vec![
            Reply::NoValue,
            Reply::NothingToDelete,
            Reply::ValueDiffers,
            Reply::Notify,
            Reply::NotWatched,
        ]),
        prop::sample::select(StoreError::ALL.to_vec()).prop_map(Reply::Error),
        (
            prop::collection::vec(any_bytes(), 0..4),
            prop::option::of(any_bytes())
        )
            .prop_map(|(keys, token)| Reply::Page { keys, token }),
    ]
}

proptest! {
    #[test]
    fn remembered_replies_are_the_same(reply in any_reply()) {
        let mut out = Vec::new();
        reply.encode(&mut out);
        prop_assert_eq!(Reply::decode(Bytes::from(out)), Ok(reply));
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..40), number in 0u8..15, foreign in any::<bool>()) {
        let _ = Reply::decode(Bytes::from(bytes.clone()));
        if let Some(first) = bytes.first_mut() {
            *first = number | if foreign { 128 } else { 0 };
        }
        let _ = Reply::decode(Bytes::from(bytes));
    }
}

#[test]
fn a_remembered_set_takes_13_bytes() {
    let mut out = Vec::new();
    Reply::Set {
        version: Hlc::of_store(0x0102, 3),
    }
    .encode(&mut out);
    assert_eq!(out, [1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3]);
}
