//! Nodes whose wall clocks are wrong, by libfaketime.

use crate::cluster::{Cluster, Plan};
use crate::skip::skip;
use std::path::Path;

const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
];

/// A cluster whose nodes' clocks are that many seconds off; `None` where clocks cannot be changed and that is allowed.
pub fn skewed(offsets_s: [i32; 3]) -> Option<Plan> {
    let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
    let Some(library) = library else {
        skip("libfaketime is not installed (Debian package faketime)");
        return None;
    };
    let mut plan = Plan::default();
    for (node, offset) in offsets_s.into_iter().enumerate() {
        for (name, value) in [
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME", format!("{offset:+}s")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DONT_RESET", "1".to_owned()),
        ] {
            plan.environment.push((node, name.to_owned(), value));
        }
    }
    Some(plan)
}

/// Starts a stopped node again with a clock that is that many seconds off.
pub fn start_with_offset(cluster: &mut Cluster, node: usize, offset_s: i32) {
    let environment = &mut cluster.nodes[node].environment;
    environment.retain(|(name, _)| name != "FAKETIME");
    environment.push(("FAKETIME".to_owned(), format!("{offset_s:+}s")));
    cluster.start_node(node);
}
