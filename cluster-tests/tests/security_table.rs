//! The table of docs/security.md is current, whole, and names tests that exist.

use cluster_tests::security::{Security, page_path};

#[test]
fn the_table_is_current() {
    let page = std::fs::read_to_string(page_path()).expect("docs/security.md can be read");
    let made = Security::read().in_page(&page);
    assert!(
        page == made,
        "docs/security.md is not current, run make security"
    );
}

#[test]
fn every_cell_names_a_test() {
    let security = Security::read();
    let problems = security.problems();
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}
