use proptest::prelude::*;

use super::*;

fn hlc(text: &str) -> Hlc {
    Hlc::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn text_is_padded_to_15_and_5_digits() {
    let mut out = Vec::new();
    hlc("1696374425000:1:StateStore").write_text(&mut out);
    assert_eq!(out, b"001696374425000:00001:StateStore");
    assert_eq!(
        hlc("0:0:n").to_string(),
        "000000000000000:00000:n",
        "zero has all its digits"
    );
}

#[test]
fn unpadded_and_padded_input_are_the_same() {
    assert_eq!(
        hlc("1696374425000:1:CLIENT"),
        hlc("001696374425000:00001:CLIENT")
    );
}

#[test]
fn node_id_is_not_empty_and_has_no_colon() {
    for text in ["1:2:", "1:2:a:b", "1:2::", "1:2:a\0"] {
        assert_eq!(Hlc::parse(text), Err(HlcError::Node), "{text:?}");
    }
    let longest = format!("1:2:{}", "n".repeat(MAX_NODE_NAME_BYTES));
    assert!(Hlc::parse(&longest).is_ok());
    assert_eq!(Hlc::parse(&format!("{longest}n")), Err(HlcError::Node));
}

#[test]
fn numbers_that_do_not_fit_are_malformed() {
    assert_eq!(hlc("18446744073709551615:0:n").wall_ms, u64::MAX);
    assert_eq!(Hlc::parse("18446744073709551616:0:n"), Err(HlcError::Wall));
    assert_eq!(hlc("1:2147483647:n").counter, MAX_COUNTER);
    for counter in [
        "2147483648",
        "4294967296",
        "18446744073709551616",
        "-1",
        "+1",
        "",
        " 1",
        "1a",
    ] {
        assert_eq!(
            Hlc::parse(&format!("1:{counter}:n")),
            Err(HlcError::Counter),
            "{counter:?}"
        );
    }
    for wall in [
        "",
        "-1",
        "+1",
        "x",
        "1.5",
        "99999999999999999999999999999999",
    ] {
        assert_eq!(
            Hlc::parse(&format!("{wall}:1:n")),
            Err(HlcError::Wall),
            "{wall:?}"
        );
    }
    for text in ["", "1", "1:2", ":"] {
        assert_eq!(Hlc::parse(text), Err(HlcError::Shape), "{text:?}");
    }
}

#[test]
fn order_is_wall_then_counter_then_node_id() {
    let rising = [
        "1:9:z",
        "2:0:z",
        "2:1:StateStore",
        "2:1:a",
        "2:1:b",
        "2:2:a",
    ];
    for pair in rising.windows(2) {
        assert!(hlc(pair[0]) < hlc(pair[1]), "{pair:?}");
    }
}

#[test]
fn drift_of_exactly_a_minute_is_accepted() {
    let clock = Millis(1_000_000);
    assert!(!hlc("1060000:0:n").is_too_far_ahead_of(clock));
    assert!(hlc("1060001:0:n").is_too_far_ahead_of(clock));
    assert!(!hlc("1:0:n").is_too_far_ahead_of(clock), "behind is fine");
    assert!(!hlc("18446744073709551615:0:n").is_too_far_ahead_of(Millis::NEVER));
}

#[test]
fn version_of_the_page_example() {
    let request = hlc("1696374425000:0:CLIENT");
    let version = next_version(None, Some(&request), Millis(1_696_374_425_000));
    assert_eq!(version, hlc("1696374425000:1:StateStore"));
}

#[test]
fn counter_follows_the_request_when_the_store_clock_wins() {
    let request = hlc("100:7:CLIENT");
    let previous = hlc("150:90:StateStore");
    let version = next_version(Some(&previous), Some(&request), Millis(200));
    assert_eq!(version, hlc("200:8:StateStore"));
    assert_eq!(
        next_version(Some(&previous), None, Millis(200)),
        hlc("200:0:StateStore")
    );
}

#[test]
fn counter_follows_the_highest_of_the_winning_wall_clock() {
    let at = |previous: &str, request: &str, clock| {
        next_version(Some(&hlc(previous)), Some(&hlc(request)), Millis(clock))
    };
    assert_eq!(
        at("300:5:StateStore", "100:9:c", 200),
        hlc("300:6:StateStore")
    );
    assert_eq!(
        at("100:9:StateStore", "300:5:c", 200),
        hlc("300:6:StateStore")
    );
    assert_eq!(
        at("300:5:StateStore", "300:9:c", 200),
        hlc("300:10:StateStore")
    );
    assert_eq!(
        at("200:5:StateStore", "100:9:c", 200),
        hlc("200:6:StateStore")
    );
}

#[test]
fn a_used_up_counter_moves_to_the_next_millisecond() {
    let full = hlc("300:2147483647:c");
    assert_eq!(
        next_version(None, Some(&full), Millis(200)),
        hlc("301:0:StateStore")
    );
    assert_eq!(
        next_version(None, Some(&full), Millis(400)),
        hlc("400:0:StateStore")
    );
}

fn any_hlc() -> impl Strategy<Value = Hlc> {
    (
        0u64..2_000,
        prop_oneof![0u32..4, MAX_COUNTER - 2..=MAX_COUNTER],
        "[a-zA-Z]{1,3}",
    )
        .prop_map(|(wall_ms, counter, node)| Hlc {
            wall_ms,
            counter,
            node: NodeName::new(&node).expect("letters are a node id"),
        })
}

proptest! {
    #[test]
    fn versions_exceed_previous_and_request(
        previous in proptest::option::of(any_hlc()),
        request in proptest::option::of(any_hlc()),
        clock in 0u64..2_000,
    ) {
        let version = next_version(previous.as_ref(), request.as_ref(), Millis(clock));
        prop_assert!(previous.is_none_or(|previous| version > previous));
        prop_assert!(request.is_none_or(|request| version > request));
        prop_assert!(version.wall_ms >= clock && version.counter <= MAX_COUNTER);
    }

    #[test]
    fn text_round_trips(value in any_hlc()) {
        let mut out = Vec::new();
        value.write_text(&mut out);
        let text = String::from_utf8(out).unwrap();
        prop_assert_eq!(&text, &value.to_string());
        prop_assert_eq!(Hlc::parse(&text), Ok(value));
    }

    #[test]
    fn parsing_never_panics(text in ".{0,40}") {
        let _ = Hlc::parse(&text);
    }
}
