//! Messages that follow logged ones, and messages that a silent node gets through the log.

use super::*;

#[test]
fn p5_a_message_waits_for_a_logged_one_before_it() {
    let mut nodes = Nodes::new();
    nodes.log();
    nodes.publish();
    nodes.request();
    assert_eq!(nodes.arrived, [0; 0], "the first one is not applied there");
    nodes.apply();
    assert_eq!(nodes.arrived, [1, 2]);
    nodes.answer();
    nodes.answer();
    nodes.publish();
    nodes.request();
    assert_eq!(nodes.arrived, [1, 2, 3]);
    let known = nodes.outbox.next_after(0, Incarnation(1));
    assert_eq!(
        known.map(|batch| batch.after),
        Some(0),
        "it costs nothing any more"
    );
}

#[test]
fn what_a_silent_node_does_not_confirm_goes_through_the_log() {
    let mut nodes = Nodes::new();
    nodes.publish();
    nodes.request();
    nodes.connect();
    nodes.publish();
    nodes.relay();
    assert!(nodes.acks.values().all(|ack| *ack == Ack::Pending));
    nodes.commit();
    assert!(
        nodes.acks.values().all(|ack| *ack == Ack::Due),
        "the log is sure"
    );
    nodes.publish();
    nodes.request();
    assert_eq!(nodes.arrived, [1], "the third follows the second");
    nodes.apply();
    assert_eq!(nodes.arrived, [1], "it was there");
    nodes.apply();
    assert_eq!(nodes.arrived, [1, 2, 3]);
    nodes.finish();
}

/// Also where no stream to the node can be opened, so that nothing has a number.
#[test]
fn a_node_that_answers_is_not_silent_and_one_that_does_not_is() {
    let nodes = Nodes::new();
    let relay = |nodes: &Nodes| nodes.outbox.begin_relay(OTHER, Incarnation(1));
    assert!(relay(&nodes).is_none(), "nothing waits");
    let mut nodes = nodes;
    nodes.publish();
    assert!(relay(&nodes).is_none(), "not for long");
    nodes.outbox.set_overdue();
    let found = relay(&nodes).expect("nobody answers");
    assert_eq!((found.batches.len(), found.through), (1, 1));
    nodes.outbox.end_relay(1, Some(LogIndex(1)));
    nodes.look();
    assert!(nodes.acks.values().all(|ack| *ack == Ack::Due));
}
