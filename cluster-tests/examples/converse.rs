//! Holds the conversations of `corpus/` with any broker:
//! `cargo run --example converse NAME HOST:PORT[,HOST:PORT…] [folder[/name]…]`.
//!
//! NAME picks the `unlike` lines that count: `quorumq`, `mosquitto`.

use cluster_tests::corpus;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "converse NAME HOST:PORT[,HOST:PORT…] [folder[/name]…]";
    let broker = arguments.next().expect(usage);
    let nodes = arguments.next().expect(usage);
    let nodes: Vec<_> = nodes
        .split(',')
        .map(|address| address.parse().expect("host:port, an IP address"))
        .collect();
    let picked: Vec<String> = arguments.collect();
    let report = corpus::hold_all(&broker, &picked, &nodes);
    println!("{}", report.summary());
    if !report.complaints().is_empty() {
        std::process::exit(1);
    }
}
