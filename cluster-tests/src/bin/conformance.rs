//! Writes `docs/conformance.md` to the standard output, and what is not shown to the standard error.

use cluster_tests::conformance::{Conformance, page};

fn main() {
    let conformance = Conformance::read();
    for gap in conformance.gaps() {
        eprintln!("{gap}");
    }
    print!("{}", page(&conformance));
}
