//! The page about conformance is current, and every statement that a peer can see is shown.

use cluster_tests::conformance::{Conformance, page};

#[test]
fn the_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md");
    let text = std::fs::read_to_string(path).expect("docs/conformance.md can be read");
    let made = page(&Conformance::read());
    let differs = made
        .lines()
        .zip(text.lines())
        .find(|(made, text)| made != text);
    assert!(
        text == made,
        "docs/conformance.md is not current, run make conformance; {differs:?}"
    );
}

#[test]
fn every_statement_a_peer_can_see_is_shown_or_explained() {
    let gaps = Conformance::read().gaps();
    assert!(gaps.is_empty(), "{} gaps:\n{}", gaps.len(), gaps.join("\n"));
}
