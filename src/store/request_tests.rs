use proptest::prelude::*;

use super::super::resp3::{push_array, push_blob};
use super::*;

const STAMPED: Properties<'_> = Properties {
    timestamp: Some("1696374425000:0:CLIENT"),
    fencing_token: None,
    high_priority: false,
};

fn payload(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    push_array(&mut out, words.len());
    words.iter().for_each(|word| push_blob(&mut out, word));
    out
}

/// The error of a request with a timestamp, its words separated by spaces.
fn error(words: &str) -> StoreError {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    parse(&payload(&words), &STAMPED).unwrap_err()
}

fn action(words: &str) -> (Condition, Option<u64>) {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    match parse(&payload(&words), &STAMPED) {
        Ok(Request::Write(Write {
            action:
                WriteAction::Set {
                    condition,
                    expire_ms,
                    ..
                },
            ..
        })) => (condition, expire_ms),
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn set_options_come_in_any_order() {
    use Condition::{Nex, None as Always, Nx};
    assert_eq!(action("SET k v"), (Always, None));
    assert_eq!(action("SET k v NX"), (Nx, None));
    assert_eq!(action("SET k v NEX"), (Nex, None));
    assert_eq!(action("SET k v PX 10"), (Always, Some(10)));
    assert_eq!(action("SET k v NEX PX 10"), (Nex, Some(10)));
    assert_eq!(action("SET k v PX 10 NX"), (Nx, Some(10)));
}

#[test]
fn set_options_are_each_there_once_and_nx_and_nex_exclude_each_other() {
    for words in [
        "SET k v NX NX",
        "SET k v NX NEX",
        "SET k v NEX NX",
        "SET k v NEX NEX",
        "SET k v PX 1 PX 1",
        "SET k v NX NEX PX 1",
        "SET k v NX PX 1 NX PX 1",
    ] {
        assert_eq!(error(words), StoreError::Syntax, "{words}");
    }
}

#[test]
fn nex_has_no_argument_of_its_own() {
    assert_eq!(error("SET k v NEX v"), StoreError::Syntax);
    assert_eq!(error("SET k v NEX v PX 10"), StoreError::Syntax);
}

#[test]
fn px_is_a_decimal_of_at_least_one() {
    for px in [
        "0",
        "-1",
        "+1",
        "1.5",
        "x",
        "",
        "1e3",
        "18446744073709551616",
    ] {
        assert_eq!(
            error(&format!("SET k v PX {px}")),
            StoreError::Syntax,
            "{px:?}"
        );
    }
    assert_eq!(error("SET k v PX"), StoreError::Syntax);
    assert_eq!(error("SET k v PX NX"), StoreError::Syntax);
    assert_eq!(
        action("SET k v PX 18446744073709551615"),
        (Condition::None, Some(u64::MAX))
    );
}

#[test]
fn verbs_in_lower_case_are_unknown() {
    for words in [
        "set k v",
        "get k",
        "del k",
        "vdel k v",
        "keynotify k",
        "Set k v",
        "PING",
        "SETX k v",
    ] {
        assert_eq!(error(words), StoreError::UnknownCommand, "{words}");
    }
}

#[test]
fn options_in_lower_case_are_syntax_errors() {
    for words in [
        "SET k v nx",
        "SET k v nex",
        "SET k v px 10",
        "KEYNOTIFY k stop",
    ] {
        assert_eq!(error(words), StoreError::Syntax, "{words}");
    }
}

#[test]
fn every_verb_has_its_number_of_arguments() {
    for words in [
        "SET",
        "SET k",
        "GET",
        "GET k k",
        "DEL",
        "DEL k k",
        "VDEL",
        "VDEL k",
        "VDEL k v v",
        "KEYNOTIFY",
        "KEYNOTIFY k STOP x",
        "SCAN",
        "SCAN p t x",
        "GET 1 2 3 4 5 6 7 8 9",
    ] {
        assert_eq!(error(words), StoreError::WrongNumberOfArguments, "{words}");
    }
}

#[test]
fn a_zero_length_key_is_an_error() {
    for words in [
        &[&b"SET"[..], b"", b"v"][..],
        &[b"GET", b""],
        &[b"DEL", b""],
        &[b"VDEL", b"", b"v"],
        &[b"KEYNOTIFY", b""],
        &[b"KEYNOTIFY", b"", b"STOP"],
    ] {
        assert_eq!(
            parse(&payload(words), &STAMPED),
            Err(StoreError::EmptyKey),
            "{words:?}"
        );
    }
}

#[test]
fn an_empty_value_and_any_bytes_are_legal() {
    let words: &[&[u8]] = &[b"SET", b"\r\n\0\xff", b""];
    let payload = payload(words);
    let Ok(Request::Write(write)) = parse(&payload, &STAMPED) else {
        panic!("refused");
    };
    assert_eq!(write.key, b"\r\n\0\xff");
    assert!(matches!(write.action, WriteAction::Set { value: b"", .. }));
}

#[test]
fn a_payload_that_is_no_array_of_blobs_is_a_syntax_error() {
    for payload in [&b""[..], b"GET k", b"*2\r\n$3\r\nGET\r\n", b"*1\r\n:1\r\n"] {
        assert_eq!(parse(payload, &STAMPED), Err(StoreError::Syntax));
    }
}

#[test]
fn set_alone_requires_a_timestamp() {
    let none = Properties::default();
    let set: &[&[u8]] = &[b"SET", b"k", b"v"];
    assert_eq!(
        parse(&payload(set), &none),
        Err(StoreError::MissingTimestamp)
    );
    for words in [
        &[&b"GET"[..], b"k"][..],
        &[b"DEL", b"k"],
        &[b"VDEL", b"k", b"v"],
        &[b"KEYNOTIFY", b"k"],
        &[b"SCAN", b"*"],
    ] {
        assert!(parse(&payload(words), &none).is_ok(), "{words:?}");
        assert!(parse(&payload(words), &STAMPED).is_ok(), "{words:?}");
    }
}

#[test]
fn malformed_timestamps_and_tokens_are_refused_on_writes() {
    for text in [
        "",
        "1:2",
        "x:1:n",
        "1:2147483648:n",
        "1:1:",
        "99999999999999999999:0:n",
    ] {
        for properties in [
            Properties {
                timestamp: Some(text),
                ..STAMPED
            },
            Properties {
                fencing_token: Some(text),
                ..STAMPED
            },
        ] {
            for words in [
                &[&b"SET"[..], b"k", b"v"][..],
                &[b"DEL", b"k"],
                &[b"VDEL", b"k", b"v"],
            ] {
                assert_eq!(
                    parse(&payload(words), &properties),
                    Err(StoreError::MalformedTimestamp),
                    "{properties:?}"
                );
            }
            let get: &[&[u8]] = &[b"GET", b"k"];
            assert!(parse(&payload(get), &properties).is_ok());
        }
    }
}

#[test]
fn syntax_is_judged_before_timestamps() {
    let none = Properties::default();
    let set: &[&[u8]] = &[b"SET", b"k", b"v", b"BAD"];
    assert_eq!(parse(&payload(set), &none), Err(StoreError::Syntax));
    let set: &[&[u8]] = &[b"SET", b"", b"v"];
    assert_eq!(parse(&payload(set), &none), Err(StoreError::EmptyKey));
}

#[test]
fn keynotify_and_scan_forms() {
    let words: &[&[u8]] = &[b"KEYNOTIFY", b"k", b"STOP"];
    assert_eq!(
        parse(&payload(words), &STAMPED),
        Ok(Request::KeyNotify {
            key: b"k",
            stop: true
        })
    );
    let words: &[&[u8]] = &[b"SCAN", b"a*", b"token"];
    assert_eq!(
        parse(&payload(words), &STAMPED),
        Ok(Request::Scan {
            pattern: b"a*",
            token: Some(b"token")
        })
    );
}

#[test]
fn properties_with_dollar_names_and_empty_values_are_legal() {
    let collected = Properties::collect([
        ("__srcId", "c"),
        ("__ts", "1:2:c"),
        ("__protVer", "1.0"),
        ("$partition", "c"),
        ("$high_priority", ""),
        ("__ft", "3:4:StateStore"),
        ("aio-persistence", "true"),
        ("__ts", "9:9:c"),
    ]);
    assert_eq!(
        collected,
        Properties {
            timestamp: Some("1:2:c"),
            fencing_token: Some("3:4:StateStore"),
            high_priority: true,
        }
    );
}

proptest! {
    #[test]
    fn arbitrary_words_never_panic(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![&b"SET"[..], b"GET", b"VDEL", b"SCAN", b"KEYNOTIFY", b"NX", b"NEX", b"PX", b"1", b"STOP", b""])
                .prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..5),
        ], 1..9),
        timestamp in prop::option::of("[0-9:a]{0,12}"),
    ) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let properties = Properties { timestamp: timestamp.as_deref(), ..Properties::default() };
        let _ = parse(&payload(&words), &properties);
    }
}
