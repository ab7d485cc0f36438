use super::*;
use crate::codec::QoS;
use crate::session::Sequence;

const QOS_0: NewPacket<'_> = NewPacket {
    qos: QoS::AtMostOnce,
    expiry_s: None,
    body: None,
    is_direct: false,
    is_asked_for: false,
    is_answer: false,
};

#[test]
fn everybody_who_asks_for_a_hand_over_waits_until_it_is_done() {
    let mailbox = Mailbox::new(
        ConnectionId(1),
        Version::V5,
        u32::MAX,
        0,
        OutboxLimits::of(100),
    );
    let (asks, mut first) = oneshot::channel();
    mailbox.ask_for_hand_over(asks);
    let (asks, mut second) = oneshot::channel();
    mailbox.ask_for_hand_over(asks);
    for asked in [&mut first, &mut second] {
        let waits = asked.try_recv();
        assert_eq!(waits, Err(oneshot::error::TryRecvError::Empty));
    }
    assert!(mailbox.is_asked_for_hand_over());
    mailbox.begin_hand_over();
    // What the client has sent before this one asks may have come after it was read.
    let (asks, mut third) = oneshot::channel();
    mailbox.ask_for_hand_over(asks);
    mailbox.handed_over();
    for asked in [&mut first, &mut second] {
        let done = asked.try_recv();
        assert_eq!(done, Err(oneshot::error::TryRecvError::Closed));
    }
    let waits = third.try_recv();
    assert_eq!(waits, Err(oneshot::error::TryRecvError::Empty));
    assert!(mailbox.is_asked_for_hand_over(), "the third goes on");
    mailbox.begin_hand_over();
    mailbox.handed_over();
    let done = third.try_recv();
    assert_eq!(done, Err(oneshot::error::TryRecvError::Closed));
    assert!(!mailbox.is_asked_for_hand_over());
}

#[test]
fn a_topic_is_named_by_its_alias_once_the_client_has_seen_both() {
    let mailbox = Mailbox::new(
        ConnectionId(1),
        Version::V5,
        u32::MAX,
        1,
        OutboxLimits::of(100),
    );
    let push = |topic: &str, refuse: bool| {
        let mut seen = None;
        let pushed = mailbox.push_qos_0(topic, QOS_0, |out, alias| {
            seen = alias.map(|alias| (alias.alias.get(), alias.send_topic));
            out.push(0);
            if refuse {
                Err(Refused::TooLarge)
            } else {
                Ok(())
            }
        });
        assert_eq!(pushed.is_err(), refuse);
        seen
    };
    assert_eq!(push("a", true), Some((1, true)));
    assert_eq!(
        push("a", false),
        Some((1, true)),
        "the first was never sent"
    );
    assert_eq!(push("a", false), Some((1, false)));
    assert_eq!(push("b", false), None, "[MQTT-3.1.2-26]");
    mailbox.take(&mut Contents::default());
    assert_eq!(push("a", false), Some((1, false)));
    let without = Mailbox::new(
        ConnectionId(2),
        Version::V5,
        u32::MAX,
        0,
        OutboxLimits::of(100),
    );
    let pushed = without.push_qos_0("a", QOS_0, |_, alias| {
        assert_eq!(alias, None);
        Ok(())
    });
    assert!(pushed.is_ok());
}

/// Whoever may not be sent anything any more is not sent what comes afterwards.
#[test]
fn nothing_is_put_in_behind_an_end() {
    let limits = OutboxLimits::of(1_000);
    let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
    let encode = |out: &mut Vec<u8>| {
        out.push(0);
        Ok(())
    };
    mailbox.push_packet(QOS_0, encode).expect("before it");
    mailbox.push_item(Item::End(End::Unavailable));
    assert_eq!(
        mailbox.push_packet(QOS_0, encode).err(),
        Some(Refused::Ended)
    );
    let pushed = mailbox.push_qos_0("t", QOS_0, |out, _| encode(out));
    assert_eq!(pushed, Err(Refused::Ended));
    let granted = Withheld {
        sequence: Sequence(1),
        dup: false,
    };
    assert_eq!(
        mailbox.push_granted(NewPacket::of(QoS::AtLeastOnce), granted, encode),
        Ok(false)
    );
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    assert_eq!(contents.packets.len(), 1);
}

/// The client waits in vain for an answer that has no room: with QoS 0 it is taken for as long as with QoS 1, up to the
/// memory of the connection.
#[test]
fn answers_with_qos_0_are_taken_above_the_limit() {
    for limits in [OutboxLimits::of, OutboxLimits::dropping] {
        take_answers(limits);
    }
}

fn take_answers(limits: fn(usize) -> Arc<OutboxLimits>) {
    const LIMIT: usize = 100;
    let limits = OutboxLimits {
        connection_bytes: 8 * LIMIT,
        ..Arc::into_inner(limits(LIMIT)).expect("just made")
    };
    let limits = Arc::new(limits);
    let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
    let push = |is_asked_for: bool| {
        let packet = NewPacket {
            is_direct: true,
            is_asked_for,
            is_answer: is_asked_for,
            ..QOS_0
        };
        mailbox.push_qos_0("a", packet, |out, _| {
            out.extend_from_slice(&[0; 10]);
            Ok(())
        })
    };
    let mut taken = 0;
    while taken < LIMIT {
        push(false).expect("it fits");
        taken += 10;
    }
    assert_eq!(push(false), Err(Refused::Full), "messages of others");
    while push(true).is_ok() {
        taken += 10;
        assert!(taken <= 16 * LIMIT, "there is no bound");
    }
    assert!(taken > 4 * LIMIT, "{taken}");
    assert_eq!(push(true), Err(Refused::Full));
}

/// [MQTT-3.3.2-5] drops it, and later packets would use an alias that the client never saw.
#[test]
fn a_packet_that_may_expire_does_not_assign_an_alias() {
    let limits = OutboxLimits::of(100);
    let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 1, limits);
    let push = |expiry_s: Option<u32>| {
        let mut seen = None;
        let packet = NewPacket { expiry_s, ..QOS_0 };
        let pushed = mailbox.push_qos_0("a", packet, |out, alias| {
            seen = alias.map(|alias| alias.send_topic);
            out.push(0);
            Ok(())
        });
        pushed.expect("it fits");
        seen
    };
    assert_eq!(push(Some(1)), None);
    assert_eq!(push(None), Some(true), "nothing was assigned");
    assert_eq!(push(Some(1)), Some(false), "the client knows it");
}

pub(super) fn mailbox(limits: &Arc<OutboxLimits>) -> Arc<Mailbox> {
    Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits.clone())
}

pub(super) fn push(mailbox: &Mailbox, bytes: usize) -> Result<Put, Refused> {
    mailbox.push_packet(NewPacket::of(QoS::AtLeastOnce), |out| {
        out.resize(out.len() + bytes, 0);
        Ok(())
    })
}

pub(super) fn push_qos_0(mailbox: &Mailbox, bytes: usize) -> Result<bool, Refused> {
    mailbox.push_qos_0("t", QOS_0, |out, _| {
        out.resize(out.len() + bytes, 0);
        Ok(())
    })
}

/// Takes everything out, of which `unsent` bytes stay unsent together with what was unsent before.
pub(super) fn take(mailbox: &Mailbox, unsent: usize) {
    mailbox.take(&mut Contents::default());
    mailbox.progress(unsent, &mut WakeList::default());
}

/// Request ids that were released since the last call.
fn released(publisher: &Mailbox) -> Vec<RequestId> {
    let mut contents = Contents::default();
    publisher.take(&mut contents);
    let request_ids = contents.items.into_iter().map(|item| match item {
        Item::AckReleased(request_id) => request_id,
        other => panic!("unexpected {other:?}"),
    });
    request_ids.collect()
}

fn defer(mailbox: &Mailbox, publisher: &Arc<Mailbox>, request_id: RequestId, end: u64) -> bool {
    let ack = DeferredAck::Local(publisher.clone(), request_id);
    mailbox.defer_ack(end, ack, &mut WakeList::default())
}

#[test]
fn a_publisher_waits_while_more_than_the_mark_is_ahead() {
    let limits = OutboxLimits::of(1_000);
    let (slow, publisher) = (mailbox(&limits), mailbox(&limits));
    assert_eq!(push(&slow, 500).expect("it fits").throttled, None);
    for (request_id, bytes) in [(1, 200), (2, 100)] {
        let end = push(&slow, bytes).expect("it fits").throttled;
        assert!(defer(
            &slow,
            &publisher,
            request_id,
            end.expect("above the mark")
        ));
    }
    assert_eq!(slow.state(), BackPressureState::Throttled);
    take(&slow, 601);
    assert_eq!(
        released(&publisher),
        [0; 0],
        "500 of its 700 bytes must be near"
    );
    slow.progress(600, &mut WakeList::default());
    assert_eq!(released(&publisher), [1]);
    assert_eq!(slow.state(), BackPressureState::Throttled);
    slow.progress(500, &mut WakeList::default());
    assert_eq!(released(&publisher), [2]);
    assert_eq!(slow.state(), BackPressureState::Normal);
    // What was put in above the mark and sent before anybody could wait.
    let end = push(&slow, 100)
        .expect("it fits")
        .throttled
        .expect("600 wait");
    take(&slow, 0);
    assert!(!defer(&slow, &publisher, 3, end));
    assert_eq!(slow.limits.metrics.acknowledgements_deferred.get(), 2);
}

#[test]
fn what_is_under_way_may_pass_the_bound_while_publishers_wait() {
    let limits = OutboxLimits::dropping(100);
    let slow = mailbox(&limits);
    push(&slow, 99).expect("it fits");
    assert_eq!(slow.state(), BackPressureState::Normal);
    push(&slow, 1).expect("it fits");
    assert_eq!(slow.state(), BackPressureState::Full);
    assert_eq!(push_qos_0(&slow, 1), Err(Refused::Full));
    for _ in 0..3 {
        push(&slow, 100).expect("it was under way");
    }
    assert_eq!(push(&slow, 1), Err(Refused::Full), "four times the bound");
    let dropped = &limits.metrics.messages_dropped;
    assert_eq!(dropped.of(DropReason::OutboxFull).get(), 1);
    slow.count_refused(Refused::Full);
    assert_eq!(dropped.of(DropReason::OutboxFull).get(), 2);
    take(&slow, 99);
    assert_eq!(slow.state(), BackPressureState::Normal);
}

#[test]
fn nobody_waits_for_a_stalled_client_until_it_has_drained() {
    let limits = OutboxLimits::dropping(100);
    let (slow, publisher) = (mailbox(&limits), mailbox(&limits));
    let end = push(&slow, 100).expect("it fits").throttled.expect("above");
    assert!(defer(&slow, &publisher, 1, end));
    slow.stall(&mut WakeList::default());
    assert_eq!(released(&publisher), [1]);
    assert_eq!(slow.state(), BackPressureState::Stalled);
    assert_eq!(push(&slow, 1), Err(Refused::Full));
    take(&slow, 99);
    assert_eq!(slow.state(), BackPressureState::Stalled);
    let put = push(&slow, 1).expect("one byte is free");
    assert_eq!(put.throttled, None, "stalled");
    take(&slow, 51);
    assert_eq!(slow.state(), BackPressureState::Stalled);
    slow.progress(50, &mut WakeList::default());
    assert_eq!(slow.state(), BackPressureState::Normal);
    assert!(push(&slow, 1).expect("it fits").throttled.is_some());
}

#[test]
fn a_stalled_client_is_ended_once_by_what_does_not_fit() {
    let slow = mailbox(&OutboxLimits::of(100));
    push(&slow, 100).expect("it fits");
    slow.stall(&mut WakeList::default());
    assert!(!slow.is_ending());
    assert_eq!(push(&slow, 1), Err(Refused::Ended));
    assert_eq!(push(&slow, 1), Err(Refused::Ended));
    assert!(slow.is_ending());
    let mut contents = Contents::default();
    slow.take(&mut contents);
    assert!(matches!(contents.items[..], [Item::End(End::OutboxFull)]));
}

#[test]
fn nobody_waits_when_no_time_is_given() {
    let limits = Arc::new(OutboxLimits {
        stall: std::time::Duration::ZERO,
        ..Arc::into_inner(OutboxLimits::dropping(100)).expect("just made")
    });
    let slow = mailbox(&limits);
    assert_eq!(push(&slow, 100).expect("it fits").throttled, None);
    assert_eq!(slow.state(), BackPressureState::Normal);
    assert_eq!(push(&slow, 1), Err(Refused::Full));
}

#[test]
fn the_end_of_a_connection_releases_everybody() {
    let limits = OutboxLimits::of(100);
    let (slow, publisher) = (mailbox(&limits), mailbox(&limits));
    let end = push(&slow, 60).expect("it fits").throttled.expect("above");
    assert!(defer(&slow, &publisher, 7, end));
    slow.close(&mut WakeList::default());
    assert_eq!(released(&publisher), [7]);
    assert!(!defer(&slow, &publisher, 8, end));
    assert_eq!(push(&slow, 1), Err(Refused::Ended));
    assert_eq!(push_qos_0(&slow, 1), Err(Refused::Ended));
    assert!(!slow.push_item(Item::AckReleased(1)));
}

proptest::proptest! {
    /// Whatever happens in whichever order, everybody who waits is released once: not while more than the mark is ahead
    /// of their message, and at once when it is not any more.
    #[test]
    fn everybody_is_released_in_time(
        steps in proptest::collection::vec((0u8..8, 1usize..60), 1..200),
    ) {
        let limits = OutboxLimits::of(200);
        let (slow, publisher) = (mailbox(&limits), mailbox(&limits));
        let (mut put, mut taken, mut request_id) = (0u64, 0u64, 0);
        let mut waiting: Vec<(u64, RequestId)> = Vec::new();
        let mut late: Option<u64> = None;
        let mut stalled = false;
        for (step, size) in steps {
            match step {
                0..=3 => if let Ok(pushed) = push(&slow, size) {
                    put += size as u64;
                    let level = put - taken + slow.unsent() as u64;
                    proptest::prop_assert!(level < 4 * 200 + 60);
                    proptest::prop_assert_eq!(pushed.throttled.is_some(), level > 100 && !stalled);
                    // Some come to wait only after the next step.
                    let end = if size % 5 == 0 { late.replace(pushed.throttled.unwrap_or(0)) } else { pushed.throttled };
                    if let Some(end) = end.filter(|end| *end > 0) {
                        request_id += 1;
                        if defer(&slow, &publisher, request_id, end) {
                            waiting.push((end, request_id));
                        }
                    }
                },
                4 => if push_qos_0(&slow, size).is_ok() {
                    put += size as u64;
                },
                5 => {
                    slow.take(&mut Contents::default());
                    taken = put;
                }
                6 => {
                    let unsent = slow.unsent().saturating_sub(size);
                    slow.progress(unsent, &mut WakeList::default());
                }
                _ => if size > 50 {
                    slow.stall(&mut WakeList::default());
                    stalled = true;
                },
            }
            let level = put - taken + slow.unsent() as u64;
            stalled &= level > 100;
            let near = if stalled { u64::MAX } else { taken + 100 - (slow.unsent() as u64).min(taken + 100) };
            let mut expected: Vec<RequestId> = Vec::new();
            waiting.sort_unstable();
            waiting.retain(|(end, request_id)| {
                let over = *end <= near;
                if over {
                    expected.push(*request_id);
                }
                !over
            });
            let mut found = released(&publisher);
            found.sort_unstable();
            expected.sort_unstable();
            proptest::prop_assert_eq!(found, expected);
            let state = slow.state();
            proptest::prop_assert_eq!(state == BackPressureState::Stalled, stalled);
            if state == BackPressureState::Normal {
                proptest::prop_assert!(waiting.is_empty());
            }
        }
    }
}

/// Counts a thread that has ended, also with a panic.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Publishes with a window, and waits for every release.
fn publish_many(slow: &Mailbox, messages: RequestId, window: u32) {
    let own = mailbox(&OutboxLimits::of(100));
    let mut waits = 0;
    let collect = |waits: &mut u32, most: u32| {
        let mut since = std::time::Instant::now();
        while *waits > most {
            let came = released(&own).len() as u32;
            *waits -= came;
            if came > 0 {
                since = std::time::Instant::now();
            }
            let lost = since.elapsed() > std::time::Duration::from_secs(60);
            assert!(!lost, "{waits} are not released: {slow:?}");
            std::thread::yield_now();
        }
    };
    for request_id in 0..messages {
        let put = push(slow, 10).expect("windows bound what is under way");
        if let Some(end) = put.throttled
            && defer(slow, &own, request_id, end)
        {
            waits += 1;
        }
        collect(&mut waits, window - 1);
    }
    collect(&mut waits, 0);
}

/// Many publishers at once, and a client that reads in pieces: no release is lost between the task that sends and those
/// that put in, and nothing passes the bound by more than what was under way.
#[test]
fn publishers_of_many_threads_are_all_released() {
    const PUBLISHERS: usize = 4;
    const WINDOW: u32 = 8;
    let limits = OutboxLimits::of(400);
    let slow = mailbox(&limits);
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PUBLISHERS {
            scope.spawn(|| {
                let _ended = Ended(&ended);
                publish_many(&slow, 3_000, WINDOW);
            });
        }
        let mut most = 0;
        let mut sizes = [1usize, 7, 30, 100, 333].into_iter().cycle();
        while ended.load(Ordering::Acquire) < PUBLISHERS {
            slow.take(&mut Contents::default());
            most = most.max(slow.unsent());
            let sent = sizes.next().unwrap_or_default();
            let unsent = slow.unsent().saturating_sub(sent);
            slow.progress(unsent, &mut WakeList::default());
            std::thread::yield_now();
        }
        // Below the mark nobody waits; above, a window of each may be there.
        let bound = 200 + PUBLISHERS * WINDOW as usize * 10 + PUBLISHERS * 10;
        assert!(most <= bound, "{most} bytes waited, {bound} may");
    });
    assert!(limits.metrics.acknowledgements_deferred.get() > 0);
}
