//! What is proposed, when, and in which order.

use super::*;
use crate::mailbox::{End, Item, RequestId};
use command::command::Kind;

fn kind() -> Kind {
    Kind::NodeDown(command::NodeDown {
        node: 1,
        incarnation: 1,
    })
}

#[test]
fn an_incarnation_begins_with_an_empty_proposal_numbered_one() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    let first = proposer.next(&mut cursor).expect("the registration");
    assert_eq!(
        (first.incarnation, first.sequence, first.commands.len()),
        (Incarnation(7), 1, 0)
    );
    assert!(proposer.next(&mut cursor).is_none());
}

#[test]
fn commands_share_a_proposal_while_as_many_proposals_as_allowed_are_on_their_way() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    proposer.next(&mut cursor).expect("the registration");
    for _ in 1..limits::PROPOSALS_IN_FLIGHT {
        proposer.submit(kind(), ReplyTo::Nobody).expect("room");
        proposer.next(&mut cursor).expect("room");
    }
    proposer.submit(kind(), ReplyTo::Nobody).expect("room");
    proposer.submit(kind(), ReplyTo::Nobody).expect("room");
    assert!(proposer.next(&mut cursor).is_none());
    proposer.applied(Incarnation(7), 1);
    let next = proposer.next(&mut cursor).expect("the open one");
    assert_eq!(next.sequence, limits::PROPOSALS_IN_FLIGHT as u64 + 1);
    assert!(next.commands.len() > 8, "both commands are in one proposal");
}

#[test]
fn a_deferred_command_goes_with_the_next_command() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    proposer.next(&mut cursor).expect("the registration");
    proposer.submit_deferred(kind());
    proposer.submit_deferred(kind());
    assert!(proposer.next(&mut cursor).is_none());
    proposer.submit(kind(), ReplyTo::Nobody).expect("room");
    let all = proposer
        .next(&mut cursor)
        .expect("a command that is sent at once");
    assert_eq!(proposer.depth().queued, 0);
    proposer.applied(Incarnation(7), 1);
    proposer.submit(kind(), ReplyTo::Nobody).expect("room");
    let one = proposer.next(&mut cursor).expect("room");
    assert_eq!(all.commands.len(), 3 * one.commands.len());
    proposer.submit_deferred(kind());
    assert!(
        proposer.next(&mut cursor).is_none(),
        "what follows is deferred again"
    );
}

#[tokio::test]
async fn a_deferred_command_goes_alone_when_nothing_else_comes() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    proposer.next(&mut cursor).expect("the registration");
    proposer.changed().await;
    let waits = async {
        proposer.changed().await;
        proposer.next(&mut cursor)
    };
    let submits = async { proposer.submit_deferred(kind()) };
    let (sent, ()) = tokio::join!(waits, submits);
    assert_eq!(sent.map(|sent| sent.sequence), Some(2));
}

#[test]
fn no_proposal_is_much_larger_than_allowed_and_the_order_is_kept() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    proposer.next(&mut cursor).expect("the registration");
    let command = |value: u8| {
        Kind::StoreWrite(command::StoreWrite {
            value: vec![value; limits::PROPOSAL_BYTES / 3].into(),
            ..Default::default()
        })
    };
    for value in 0..10 {
        proposer
            .submit(command(value), ReplyTo::Nobody)
            .expect("room");
    }
    assert_eq!(proposer.depth().queued, 10);
    let mut all = BytesMut::new();
    for sequence in 2.. {
        for _ in 0..proposer.depth().in_flight {
            let of = (Incarnation(7), sequence - 1);
            proposer.replied(of, Reply::Done, None, &mut WakeList::default());
        }
        proposer.applied(Incarnation(7), sequence - 1);
        let Some(next) = proposer.next(&mut cursor) else {
            break;
        };
        assert_eq!(next.sequence, sequence);
        assert!(next.commands.len() < 2 * limits::PROPOSAL_BYTES);
        all.extend_from_slice(&next.commands);
    }
    let mut expected = BytesMut::new();
    for value in 0..10 {
        let command = command::Command {
            kind: Some(command(value)),
        };
        let encoded = command.encode_length_delimited(&mut expected);
        encoded.expect("a BytesMut grows");
    }
    assert!(all == expected, "{} of {}", all.len(), expected.len());
    assert_eq!(
        proposer.depth(),
        Depth {
            queued: 0,
            in_flight: 0
        }
    );
}

/// A few bytes may have every node deliver 10,000 copies while everybody waits for apply.
#[test]
fn commands_that_weigh_more_than_they_have_share_a_proposal_with_fewer_others() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    proposer.next(&mut cursor).expect("the registration");
    let weight = limits::PROPOSAL_BYTES / 2;
    let mut taken = 0;
    while proposer
        .submit_weighing(kind(), ReplyTo::Nobody, weight)
        .is_ok()
    {
        taken += 1;
    }
    let room = limits::PROPOSAL_QUEUE_BYTES / weight;
    assert!(taken <= room && taken >= room / 2, "{taken}");
    assert_eq!(proposer.submit(kind(), ReplyTo::Nobody), Err(Overloaded));
    let command = command::Command { kind: Some(kind()) };
    let two = 2 * command.encode_length_delimited_to_vec().len();
    for sequence in 2..10 {
        for _ in 0..proposer.depth().in_flight {
            let of = (Incarnation(7), sequence - 1);
            proposer.replied(of, Reply::Done, None, &mut WakeList::default());
        }
        proposer.applied(Incarnation(7), sequence - 1);
        let next = proposer.next(&mut cursor).expect("a proposal");
        assert!(next.commands.len() <= two, "{sequence}");
    }
    assert_eq!(
        proposer.submit(kind(), ReplyTo::Nobody),
        Ok(()),
        "room again"
    );
}

#[test]
fn what_is_not_applied_is_sent_again() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    assert_eq!(
        proposer.next(&mut cursor).map(|found| found.sequence),
        Some(1)
    );
    assert!(proposer.next(&mut cursor).is_none());
    proposer.resend();
    assert_eq!(
        proposer.next(&mut cursor).map(|found| found.sequence),
        Some(1)
    );
    assert_eq!(
        proposer
            .next(&mut Cursor::default())
            .map(|found| found.sequence),
        Some(1)
    );
    proposer.applied(Incarnation(7), 1);
    assert!(proposer.next(&mut Cursor::default()).is_none());
}

#[test]
fn what_is_urgent_finds_room_when_others_have_to_wait() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let large = || {
        Kind::StoreWrite(command::StoreWrite {
            value: vec![0; limits::PROPOSAL_QUEUE_BYTES].into(),
            ..Default::default()
        })
    };
    assert_eq!(proposer.submit(large(), ReplyTo::Nobody), Ok(()));
    assert_eq!(proposer.submit(kind(), ReplyTo::Nobody), Err(Overloaded));
    assert_eq!(proposer.submit_urgent(large(), ReplyTo::Nobody), Ok(()));
    assert_eq!(
        proposer.submit_urgent(kind(), ReplyTo::Nobody),
        Err(Overloaded)
    );
    proposer.submit_always(kind(), ReplyTo::Nobody);
}

#[tokio::test]
async fn replies_come_in_order() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    proposer.applied(Incarnation(7), 1);
    let (first, first_reply) = oneshot::channel();
    let (second, second_reply) = oneshot::channel();
    proposer.submit(kind(), ReplyTo::Task(first)).expect("room");
    proposer
        .submit(kind(), ReplyTo::Task(second))
        .expect("room");
    proposer.next(&mut Cursor::default()).expect("both");
    let mut wake = WakeList::default();
    let of = (Incarnation(7), 2);
    proposer.replied(of, Reply::Done, None, &mut wake);
    proposer.replied(of, Reply::NotOwner, None, &mut wake);
    proposer.applied(Incarnation(7), 2);
    assert!(matches!(first_reply.await, Ok(Reply::Done)));
    assert!(matches!(second_reply.await, Ok(Reply::NotOwner)));
}

#[tokio::test]
async fn whoever_waits_for_a_refused_proposal_is_told_and_the_next_one_follows() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    proposer.applied(Incarnation(7), 1);
    let mut cursor = Cursor::default();
    let (first, first_reply) = oneshot::channel();
    let (second, second_reply) = oneshot::channel();
    let wait = ReplyTo::Task(first);
    proposer.submit(kind(), wait).expect("room");
    assert_eq!(proposer.next(&mut cursor).map(|it| it.sequence), Some(2));
    let wait = ReplyTo::Task(second);
    proposer.submit(kind(), wait).expect("room");
    assert_eq!(proposer.next(&mut cursor).map(|it| it.sequence), Some(3));
    let mut wake = WakeList::default();
    proposer.refused(Incarnation(6), 2, &mut wake);
    proposer.refused(Incarnation(7), 2, &mut wake);
    proposer.applied(Incarnation(7), 2);
    proposer.replied((Incarnation(7), 3), Reply::Done, None, &mut wake);
    proposer.applied(Incarnation(7), 3);
    assert!(matches!(first_reply.await, Ok(Reply::Undecodable)));
    assert!(matches!(second_reply.await, Ok(Reply::Done)));
}

fn mailbox(connection: u64) -> Arc<Mailbox> {
    use crate::base::ids::ConnectionId;
    use crate::codec::Version;
    use crate::mailbox::back_pressure::OutboxLimits;
    let limits = OutboxLimits {
        bytes: 1 << 20,
        stall: Duration::ZERO,
        full: crate::config::OutboxPolicy::Disconnect,
        metrics: Arc::default(),
        connection_bytes: 1 << 20,
        memory: crate::mailbox::memory::NodeMemory::new(1 << 30),
    };
    let version = Version::V5;
    Mailbox::new(
        ConnectionId(connection),
        version,
        1 << 20,
        0,
        Arc::new(limits),
    )
}

/// What the items in a mailbox are: replies by their request, and ends.
fn items(mailbox: &Mailbox) -> Vec<Option<RequestId>> {
    let mut contents = crate::mailbox::Contents::default();
    mailbox.take(&mut contents);
    let items = contents.items.iter().map(|item| match item {
        Item::Reply(request, _) => Some(*request),
        Item::End(End::Unavailable) => None,
        other => panic!("{other:?}"),
    });
    items.collect()
}

/// Two proposals are on their way. A snapshot holds the first one, so its replies never come.
#[test]
fn a_reply_never_goes_to_a_command_that_a_snapshot_has_passed_over() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    proposer.applied(Incarnation(7), 1);
    let mailboxes = [mailbox(1), mailbox(2)];
    let mut cursor = Cursor::default();
    for (mailbox, request) in mailboxes.iter().zip(1..) {
        let reply_to = ReplyTo::Connection(mailbox.clone(), request);
        proposer.submit(kind(), reply_to).expect("room");
        proposer.next(&mut cursor).expect("room in flight");
    }
    let mut wake = WakeList::default();
    proposer.replied((Incarnation(7), 3), Reply::Done, None, &mut wake);
    assert_eq!(items(&mailboxes[0]), [None], "its outcome is unknown");
    assert_eq!(items(&mailboxes[1]), [Some(2)]);
    // What comes late is nobody's.
    proposer.replied((Incarnation(7), 2), Reply::Done, None, &mut wake);
    proposer.replied((Incarnation(6), 3), Reply::Done, None, &mut wake);
    proposer.applied(Incarnation(7), 3);
    assert_eq!(proposer.depth().in_flight, 0);
}

#[test]
fn whoever_waits_is_told_when_the_incarnation_ends() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let mut cursor = Cursor::default();
    let mailboxes = [mailbox(1), mailbox(2), mailbox(3)];
    proposer.next(&mut cursor).expect("the registration");
    for mailbox in &mailboxes {
        let reply_to = ReplyTo::Connection(mailbox.clone(), 1);
        proposer.submit(kind(), reply_to).expect("room");
        proposer.next(&mut cursor);
    }
    proposer.begin(Incarnation(8));
    for mailbox in &mailboxes {
        assert_eq!(items(mailbox), [None]);
    }
}
