//! Writes the table of `docs/security.md` into it, and what is wrong with it to the standard error.

use cluster_tests::security::{Security, page_path};

fn main() -> std::io::Result<()> {
    let security = Security::read();
    for problem in security.problems() {
        eprintln!("{problem}");
    }
    let page = std::fs::read_to_string(page_path())?;
    std::fs::write(page_path(), security.in_page(&page))
}
