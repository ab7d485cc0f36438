//! Azure IoT Operations' own client, unmodified, against three nodes. It brings packages that nothing else needs, so it is
//! a program of another workspace, `cluster-tests/azure`, which starts the nodes, too: `scripts/test` builds it.

use cluster_tests::script::Guarded;
use cluster_tests::skip::skip;
use std::process::Command;

/// Where `scripts/test` says that the program is.
const PROGRAM: &str = "QUORUMQ_AZURE";

#[track_caller]
fn run(part: &str) {
    let Some(program) = std::env::var_os(PROGRAM) else {
        return skip(&format!(
            "{PROGRAM} does not name the program; `make test` builds it"
        ));
    };
    let started = Command::new(&program).arg(part).spawn();
    let mut process =
        Guarded(started.unwrap_or_else(|error| panic!("{program:?} cannot be started: {error}")));
    let status = process.0.wait().expect("it was started");
    assert!(status.success(), "{part} ended with {status}");
}

#[test]
fn the_client_of_the_state_store_works_unmodified() {
    run("state-store");
}

#[test]
fn a_service_account_logs_in_with_the_token_that_is_in_its_file() {
    run("service-account");
}
