//! Loads any broker with publishers and durable subscribers that cut their own connections, and judges what they saw:
//! `cargo run --example deliver 127.0.0.1:1883[,127.0.0.1:1884…] [messages] [cuts of a thousand] [seed]`.

use cluster_tests::delivery::load::{Load, Shape};
use cluster_tests::delivery::trial;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let nodes: Vec<SocketAddr> = arguments
        .first()
        .expect("an address")
        .split(',')
        .map(|address| address.parse().expect("host:port, an IP address"))
        .collect();
    let number = |index: usize, default: u64| -> u64 {
        arguments
            .get(index)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (messages, cuts, seed) = (number(1, 2000), number(2, 5), number(3, 1));
    let shape = Shape {
        cuts,
        ..Shape::new(&format!("deliver-{}", std::process::id()), seed)
    };
    let load = Load::start(&nodes, &shape);
    let messages = usize::try_from(messages).expect("a number of messages fits");
    load.wait_progress(messages, Duration::from_secs(300));
    let record = load.stop();
    println!("seed {seed}: {:?}", trial::TrialResult::of(&record));
    let mut rules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for violation in trial::violations(&record) {
        let rule = violation.split(':').next().unwrap_or_default().to_owned();
        rules.entry(rule).or_default().push(violation);
    }
    for (rule, lines) in rules {
        println!("{} violations of {rule}; the first ones:", lines.len());
        for line in lines.iter().take(5) {
            println!("  {line}");
        }
    }
}
