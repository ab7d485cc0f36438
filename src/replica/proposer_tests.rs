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
        proposer
            .submit(Share::Common, kind(), ReplyTo::Nobody)
            .expect("room");
        proposer.next(&mut cursor).expect("room");
    }
    proposer
        .submit(Share::Common, kind(), ReplyTo::Nobody)
        .expect("room");
    proposer
        .submit(Share::Common, kind(), ReplyTo::Nobody)
        .expect("room");
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
    proposer
        .submit(Share::Common, kind(), ReplyTo::Nobody)
        .expect("room");
    let all = proposer
        .next(&mut cursor)
        .expect("a command that is sent at once");
    assert_eq!(proposer.depth().queued, 0);
    proposer.applied(Incarnation(7), 1);
    proposer
        .submit(Share::Common, kind(), ReplyTo::Nobody)
        .expect("room");
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
            .submit(Share::Common, command(value), ReplyTo::Nobody)
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
        .submit_weighing(Share::Common, kind(), ReplyTo::Nobody, weight)
        .is_ok()
    {
        taken += 1;
    }
    let room = limits::PROPOSAL_QUEUE_BYTES / weight;
    assert!(taken <= room && taken >= room / 2, "{taken}");
    assert_eq!(
        proposer.submit(Share::Common, kind(), ReplyTo::Nobody),
        Err(Overloaded)
    );
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
        proposer.submit(Share::Common, kind(), ReplyTo::Nobody),
        Ok(()),
        "room again"
    );
}

/// However much twins weigh, and however often their writers come again: others find room, and so do those that have
/// nothing to do with the first.
#[test]
fn twins_have_a_share_of_the_room() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let weight = limits::PROPOSAL_BYTES;
    let fill = |share| {
        let submit = || proposer.submit_weighing(share, kind(), ReplyTo::Nobody, weight);
        (0..1_000).take_while(|_| submit().is_ok()).count()
    };
    let most = limits::PROPOSAL_QUEUE_TWINS_BYTES / weight;
    assert_eq!(fill(Share::Devices), most);
    assert_eq!(fill(Share::BackEnds), most);
    let device = mailbox(1);
    assert!(!proposer.has_room_for(Share::Devices, &device) && !device.take_offer());
    assert!(proposer.has_room(Share::Common), "a CONNECT");
    assert_eq!(fill(Share::Common), 4 * most);
    assert!(!proposer.has_room(Share::Common) && proposer.has_room(Share::Urgent));
    // All of it leaves in its order, and what waits for each is woken when there is room for it.
    let publisher = mailbox(2);
    proposer.await_room(Share::Common, &publisher);
    let mut cursor = Cursor::default();
    let (mut proposals, mut woken) = (0, Vec::new());
    for sequence in 1.. {
        while proposer.next(&mut cursor).is_some() {
            proposals += 1;
        }
        woken.push((publisher.take_offer(), device.take_offer()));
        if proposer.depth().queued == 0 {
            break;
        }
        for _ in 0..u64::from(sequence > 1) {
            let of = (Incarnation(7), sequence);
            proposer.replied(of, Reply::Done, None, &mut WakeList::default());
        }
        proposer.applied(Incarnation(7), sequence);
    }
    assert_eq!(proposals, 6 * most + 1, "each by itself");
    let first = |of: fn(&(bool, bool)) -> bool| woken.iter().position(of);
    // The first of its own leaves behind those of the twins.
    assert_eq!(first(|woken| woken.0), Some(2 * most));
    assert_eq!(first(|woken| woken.1), Some(0));
    assert_eq!(fill(Share::Devices), most, "nothing is left behind");
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

/// Takes all room of a share with one command.
fn fill(proposer: &Proposer, share: Share) {
    let weight = share.bound();
    let filled = proposer.submit_weighing(share, kind(), ReplyTo::Nobody, weight);
    assert_eq!(filled, Ok(()), "{share:?}");
    let more = proposer.submit(share, kind(), ReplyTo::Nobody);
    assert_eq!(more, Err(Overloaded), "{share:?} is full");
}

/// Whatever all others have waiting: publications, twins, writes that are called urgent, what ends connections.
#[test]
fn each_share_takes_a_command_while_all_others_are_full() {
    for share in Share::ALL {
        let proposer = Proposer::default();
        proposer.begin(Incarnation(7));
        for other in Share::ALL.into_iter().filter(|other| *other != share) {
            fill(&proposer, other);
        }
        let taken = proposer.submit(share, kind(), ReplyTo::Nobody);
        assert_eq!(taken, Ok(()), "{share:?}");
    }
}

/// What is never refused takes the room of what clients ask for, and of nothing else.
#[test]
fn what_is_always_taken_counts_among_what_clients_ask_for() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let large = Kind::StoreWrite(command::StoreWrite {
        value: vec![0; limits::PROPOSAL_QUEUE_BYTES].into(),
        ..Default::default()
    });
    proposer.submit_always(large, ReplyTo::Nobody, 0);
    proposer.submit_always(kind(), ReplyTo::Nobody, 0);
    proposer.submit_deferred(kind());
    for share in Share::ALL {
        assert_eq!(proposer.has_room(share), share != Share::Common);
    }
}

/// Each connection is woken when there is room in the share that it waits for, whether there is room in others or not.
#[test]
fn who_waits_is_woken_by_the_room_of_its_share() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    let waiting = Share::ALL.map(|share| {
        fill(&proposer, share);
        let connection = mailbox(share as u64 + 1);
        assert!(!proposer.has_room_for(share, &connection));
        connection
    });
    // The registration of the incarnation is on its way; each command is a proposal by itself.
    let mut cursor = Cursor::default();
    let mut next = || proposer.next(&mut cursor).map(|next| next.sequence);
    assert_eq!(next(), Some(1));
    for (place, sequence) in (0..waiting.len()).zip(2..) {
        assert_eq!(next(), Some(sequence));
        let woken: Vec<bool> = waiting.iter().map(|one| one.take_offer()).collect();
        let expected: Vec<bool> = (0..waiting.len()).map(|at| at == place).collect();
        assert_eq!(woken, expected, "{place}");
        proposer.applied(Incarnation(7), sequence - 1);
        let of = (Incarnation(7), sequence);
        proposer.replied(of, Reply::Done, None, &mut WakeList::default());
    }
}

/// What was not taken is told from what may have been carried out, and whoever waits for all others is not refused.
#[tokio::test]
async fn who_finds_no_room_is_told_so() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    for share in [Share::Administration, Share::Common] {
        fill(&proposer, share);
        let refused = proposer.propose(share, kind()).await;
        assert!(matches!(refused, Err(ProposeError::Overloaded(_))));
    }
    let proposed = proposer.propose(Share::Urgent, kind());
    let ends = async {
        assert_eq!(
            proposer.depth().queued,
            4,
            "two that fill, and two that wait"
        );
        proposer.begin(Incarnation(8));
    };
    let (lost, passed, ()) = tokio::join!(proposed, proposer.pass(), ends);
    assert!(matches!(lost, Err(ProposeError::Lost)) && !passed);
}

#[tokio::test]
async fn replies_come_in_order() {
    let proposer = Proposer::default();
    proposer.begin(Incarnation(7));
    proposer.applied(Incarnation(7), 1);
    let (first, first_reply) = oneshot::channel();
    let (second, second_reply) = oneshot::channel();
    proposer
        .submit(Share::Common, kind(), ReplyTo::Task(first))
        .expect("room");
    proposer
        .submit(Share::Common, kind(), ReplyTo::Task(second))
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
    proposer.submit(Share::Common, kind(), wait).expect("room");
    assert_eq!(proposer.next(&mut cursor).map(|it| it.sequence), Some(2));
    let wait = ReplyTo::Task(second);
    proposer.submit(Share::Common, kind(), wait).expect("room");
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
        proposer
            .submit(Share::Common, kind(), reply_to)
            .expect("room");
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
        proposer
            .submit(Share::Common, kind(), reply_to)
            .expect("room");
        proposer.next(&mut cursor);
    }
    proposer.begin(Incarnation(8));
    for mailbox in &mailboxes {
        assert_eq!(items(mailbox), [None]);
    }
}
