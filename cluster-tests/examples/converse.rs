//! Holds the conversations of `corpus/` with any broker: `cargo run --example converse 127.0.0.1:1883 [folder…]`.

use cluster_tests::corpus;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .expect("an address")
        .parse()
        .expect("host:port, an IP address");
    let mut folders: Vec<String> = arguments.collect();
    if folders.is_empty() {
        folders = ["connect", "malformed", "publish", "subscribe"]
            .map(String::from)
            .to_vec();
    }
    let (mut held, mut broken) = (0, Vec::new());
    for folder in &folders {
        for path in corpus::files(folder) {
            match catch_unwind(AssertUnwindSafe(|| corpus::hold(&path, &[address]))) {
                Ok(()) => held += 1,
                Err(_) => broken.push(path.display().to_string()),
            }
        }
    }
    println!(
        "{held} conversations held, {} went otherwise:",
        broken.len()
    );
    for path in broken {
        println!("  {path}");
    }
}
