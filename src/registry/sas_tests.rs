//! Tokens against signatures that another implementation has made.
//!
//! Made with Python: `base64.b64encode(hmac.new(key, (sr + "\n" + se).encode(), hashlib.sha256).digest())`, then
//! `urllib.parse.quote(…, safe="")`; the keys are the bytes 1 to 32 and 2 to 33.

use proptest::prelude::*;

use super::*;

/// Signed by the primary key.
pub(in crate::registry) const OF_DEVICE: &str = "SharedAccessSignature sr=hub.example.com%2Fdevices%2FdevA&sig=3Iqs90emPypZ2pHUAOeq0DQJFEl2bP743YlVUKHP4OM%3D&se=1700000000";

/// The same of a policy, in Node's order.
pub(in crate::registry) const OF_POLICY: &str = "SharedAccessSignature sr=hub.example.com%2Fdevices%2FdevA&sig=3Iqs90emPypZ2pHUAOeq0DQJFEl2bP743YlVUKHP4OM%3D&skn=device&se=1700000000";

/// Lower-case escapes, which are what is signed.
const OF_MODULE: &str = "SharedAccessSignature sr=hub.example.com%2fdevices%2fdevA%2fmodules%2fmodA&sig=6l8ZG9GzbU30uOJKdtKviqp4YrDopWvEnBLb1r65sRE%3d&se=1700000000";

/// Nothing is encoded in `sr`; signed by the secondary key.
const UNENCODED: &str = "SharedAccessSignature sr=hub.example.com/devices/devA&sig=4OMVz0yJ9wVej8c2lGXEA3%2B4TKsqJnzQ8SrtmCMESTk%3D&se=1700000000";

/// For everything of the hub.
const OF_HUB: &str = "SharedAccessSignature se=1700000000&skn=service&sig=FDKb07DiS6oEfjVUalRfKJad31B%2Bqp7cfCe286jkyVQ%3D&sr=hub.example.com";

const NOW: Millis = Millis(1_699_999_999_999);
const DEVICE: [&str; 2] = ["devices", "devA"];
const MODULE: [&str; 4] = ["devices", "devA", "modules", "modA"];

fn key(first: u8) -> Vec<u8> {
    (first..first + 32).collect()
}

fn hosts() -> Hosts {
    Hosts::new(["hub.example.com", "alias.example"])
}

fn signer(text: &str) -> Option<usize> {
    read(text).expect("a token").signer([&key(1), &key(2)])
}

#[test]
fn signatures_of_another_implementation_hold() {
    assert_eq!(signer(OF_DEVICE), Some(0));
    assert_eq!(signer(OF_MODULE), Some(0));
    assert_eq!(signer(UNENCODED), Some(1));
    assert_eq!(signer(OF_POLICY), Some(0));
    assert_eq!(signer(OF_HUB), Some(0));
    let policies = [OF_DEVICE, OF_POLICY, OF_HUB].map(|text| {
        let token = read(text).expect("a token");
        token.policy().map(str::to_owned)
    });
    assert_eq!(
        policies,
        [None, Some("device".into()), Some("service".into())]
    );
}

/// What was sent is what is signed: the same resource written in another way has another signature.
#[test]
fn the_resource_is_signed_as_it_was_sent() {
    for (from, to) in [("%2F", "%2f"), ("%2F", "/"), ("hub.", "HUB."), ("17", "18")] {
        assert_eq!(signer(&OF_DEVICE.replace(from, to)), None, "{to}");
    }
    assert_eq!(
        signer(&OF_DEVICE.replace("%3D", "%3d")),
        Some(0),
        "of the signature it is not"
    );
    assert_eq!(signer(&OF_DEVICE.replace("%3D", "=")), Some(0));
    assert_eq!(signer(&OF_DEVICE.replace("Shared", "shared")), Some(0));
}

#[test]
fn a_key_that_is_none_signs_nothing() {
    let token = Token {
        signature: {
            let mut code = Hmac::<Sha256>::new_from_slice(b"").expect("any length");
            code.update(b"r\n1");
            code.finalize().into_bytes().into()
        },
        ..read("SharedAccessSignature sr=r&se=1&sig=3Iqs90emPypZ2pHUAOeq0DQJFEl2bP743YlVUKHP4OM%3D")
            .expect("a token")
    };
    assert_eq!(token.signer([b"", b""]), None);
}

#[test]
fn a_token_is_for_everything_below_its_path_by_whole_segments() {
    let check = |sr: &str, path: &[&str]| {
        let text = OF_DEVICE.replace("hub.example.com%2Fdevices%2FdevA", sr);
        read(&text).expect("a token").check(&hosts(), path, NOW)
    };
    for sr in [
        "hub.example.com",
        "hub.example.com/",
        "HUB.example.com:8883%2Fdevices",
        "alias.example%2FDEVICES%2fdeva",
        "hub.example.com/devices/devA/",
        "hub.example.com/devices/dev%41",
    ] {
        assert_eq!(check(sr, &DEVICE), Ok(()), "{sr}");
        assert_eq!(check(sr, &MODULE), Ok(()), "{sr}");
    }
    let module = "hub.example.com/devices/devA/modules/modA";
    assert_eq!(check(module, &MODULE), Ok(()));
    for sr in [
        "",
        "/",
        "other.example/devices/devA",
        "hub.example.com/devices/dev",
        "hub.example.com/devices/devAA",
        "hub.example.com/devices//devA",
        "hub.example.com//devices/devA",
        "hub.example.com/devices/devA//",
        "hub.example.com%252Fdevices%252FdevA",
        "hub.example.com/twins/devA",
        "hub.example.com/devices/devA/modules/mod",
        module,
    ] {
        assert_eq!(check(sr, &DEVICE), Err(SasError::Scope), "{sr}");
    }
    assert_eq!(
        check("hub.example.com/%FF", &DEVICE),
        Err(SasError::Malformed)
    );
}

#[test]
fn a_token_ends_when_its_second_begins() {
    let token = read(OF_DEVICE).expect("a token");
    assert_eq!(token.expires_at(), Millis(1_700_000_000_000));
    assert_eq!(token.check(&hosts(), &DEVICE, NOW), Ok(()));
    let end = token.expires_at();
    assert_eq!(token.check(&hosts(), &DEVICE, end), Err(SasError::Expired));
}

#[test]
fn what_is_no_token_is_refused() {
    let good = OF_DEVICE;
    let cases = [
        String::new(),
        "password".to_owned(),
        "SharedAccessSignature ".to_owned(),
        good.replace("SharedAccessSignature", "Bearer"),
        good.replace("sr=", "s="),
        good.replace("sig=", "s="),
        good.replace("se=", "s="),
        good.replace("se=", "se=+"),
        good.replace("se=1700000000", "se="),
        good.replace("se=17", "se=99999999999999999999"),
        good.replace("se=1700000000", "se=18446744073709551615"),
        good.replace("sig=3", "sig=33"),
        good.replace("%3D", ""),
        good.replace("sig=", "sig=%FF"),
        format!("{good}&se=1700000001"),
        format!("{good}&sr=hub.example.com"),
        format!("{good}&"),
        format!("{good}&skn=%FF"),
        "SharedAccessSignaturé sr".to_owned(),
    ];
    for text in cases {
        assert_eq!(read(&text), Err(SasError::Malformed), "{text}");
    }
    let more = format!("{good}&other=1&skn=");
    assert_eq!(read(&more).expect("a token").policy(), None);
}

#[test]
fn keys_are_base64_of_16_to_64_bytes() {
    let text = |bytes: usize| STANDARD.encode(vec![0; bytes]);
    for (bytes, is_one) in [(15, false), (16, true), (64, true), (65, false), (0, false)] {
        assert_eq!(key_from_base64(&text(bytes)).is_some(), is_one, "{bytes}");
    }
    assert_eq!(key_from_base64("no base64 at all"), None);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        for text in [text.clone(), format!("{SCHEME}{text}"), format!("{OF_DEVICE}{text}")] {
            if let Ok(token) = read(&text) {
                let _ = token.check(&hosts(), &DEVICE, NOW);
            }
        }
    }

    /// No other text than the one that was signed has the signature.
    #[test]
    fn a_token_that_was_changed_does_not_hold(at in 0usize..200, byte in 0x20u8..0x7F) {
        let end = OF_DEVICE.find("&sig").expect("it has one");
        let start = SCHEME.len() + "sr=".len();
        let mut changed = OF_DEVICE.as_bytes().to_vec();
        let at = start + at % (end - start);
        prop_assume!(changed[at] != byte && byte != b'&');
        changed[at] = byte;
        let changed = String::from_utf8(changed).expect("ASCII");
        if let Ok(token) = read(&changed) {
            prop_assert_eq!(token.signer([&key(1), &key(2)]), None);
        }
    }
}
