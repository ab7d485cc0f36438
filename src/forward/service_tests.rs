//! What a node answers that has not applied what a batch follows.

use super::*;
use crate::base::ids::{ConnectionId, Owner, SessionId};
use crate::codec::{QoS, Version};
use crate::forward::outbox::Outboxes;
use crate::machine::subscriptions::{Queueing, SubscriptionIndex};
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Mailbox};
use crate::router::{Message, Recipients};
use crate::telemetry::labels::DropReason;
use crate::telemetry::metrics::Metrics;

/// A batch of the other node that follows the entry `after` of the log.
fn request(sequence: u64, after: u64) -> Result<DeliverRequest, Status> {
    Ok(DeliverRequest {
        node: 2,
        incarnation: 1,
        sequence,
        after,
        ..DeliverRequest::default()
    })
}

fn receiving(
    router: Arc<Router>,
    inboxes: Arc<Inboxes>,
    applied: watch::Receiver<LogIndex>,
    answers: mpsc::Sender<Result<DeliverResponse, Status>>,
) -> Receiving {
    Receiving {
        applied,
        router,
        inboxes,
        answers,
        inbound: None,
        awaited_index: 0,
        waiting: VecDeque::new(),
        answered_at: Instant::now(),
    }
}

/// Apply comes round all the time, and is behind for longer than the other node waits for an answer.
#[tokio::test]
async fn a_node_that_catches_up_answers_while_a_batch_waits() {
    let (applying, applied) = watch::channel(LogIndex(0));
    let (answers, mut answered) = mpsc::channel(ANSWERS);
    let (requests, stream) = mpsc::channel(4);
    let router = Router::new(NodeId(1), Arc::default(), Arc::new(Outboxes::default()));
    let receiving = receiving(router, Arc::default(), applied, answers);
    let receiving = tokio::spawn(receiving.run(ReceiverStream::new(stream)));
    for request in [request(0, 0), request(1, u64::MAX)] {
        requests.send(request).await.expect("it runs");
    }
    let catching_up = tokio::spawn(async move {
        for index in 1.. {
            applying.send_replace(LogIndex(index));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    for number in 0..5 {
        let answer = tokio::time::timeout(limits::FORWARD_TIMEOUT, answered.recv()).await;
        let answer = answer.unwrap_or_else(|_| panic!("silent after {number} answers"));
        let answer = answer.expect("it runs").expect("an answer");
        assert_eq!(answer.sequence, 0, "the batch waits");
    }
    catching_up.abort();
    drop(requests);
    receiving.await.expect("it has not panicked");
}

/// Batches that wait are read, or nobody would know how long: as many as the other node sends without an answer.
#[tokio::test]
async fn what_comes_behind_a_batch_that_waits_is_read() {
    let (applying, applied) = watch::channel(LogIndex(0));
    let (answers, mut answered) = mpsc::channel(ANSWERS);
    let (requests, stream) = mpsc::channel(1);
    let router = Router::new(NodeId(1), Arc::default(), Arc::new(Outboxes::default()));
    let receiving = receiving(router, Arc::default(), applied, answers);
    let receiving = tokio::spawn(receiving.run(ReceiverStream::new(stream)));
    tokio::spawn(async move { while answered.recv().await.is_some() {} });
    let batches = Outbox::BATCHES_IN_FLIGHT as u64;
    // One more is in the channel.
    for sequence in 1..=batches + 1 {
        let sent = requests.send(request(sequence, u64::MAX));
        let sent = tokio::time::timeout(limits::FORWARD_TIMEOUT, sent).await;
        let sent = sent.unwrap_or_else(|_| panic!("batch {sequence} is not read"));
        sent.expect("it runs");
    }
    let one_more = requests.send(request(batches + 2, u64::MAX));
    let one_more = tokio::time::timeout(ANSWER_INTERVAL, one_more).await;
    assert!(one_more.is_err(), "the bound");
    drop(applying);
    receiving.await.expect("it has not panicked");
}

/// What a batch says of waiting is kept as long as the batch is, and counts.
#[tokio::test]
async fn how_long_messages_have_waited_is_bounded_as_the_messages_are() {
    let (_applying, applied) = watch::channel(LogIndex(0));
    let (answers, _answered) = mpsc::channel(ANSWERS);
    let router = Router::new(NodeId(1), Arc::default(), Arc::new(Outboxes::default()));
    let mut receiving = receiving(router, Arc::default(), applied, answers);
    let message = Message {
        publisher: None,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "",
        properties: &[],
        expiry: Some(9),
        direct: false,
        payload: &[],
    };
    let mut one = bytes::BytesMut::new();
    wire::encode(&message, Recipients::default(), &mut one);
    let mut arrive = |messages: usize, waited: usize| {
        let mut request = request(1, u64::MAX).expect("it is none");
        request.messages = one.repeat(messages).into();
        request.waited_ms = vec![7; waited];
        receiving.read(request);
        let kept = receiving.waiting.back().expect("just read");
        let kept = kept.request.waited_ms.capacity();
        (kept, receiving.has_room())
    };
    assert_eq!(arrive(0, 1 << 20), (0, true));
    assert_eq!(arrive(3, 1 << 20), (3, true));
    // Almost as much as may be read ahead: what the messages have waited is the rest.
    let most = READ_AHEAD_BYTES / one.len() - 8;
    assert_eq!(arrive(most, 0), (0, true));
    receiving.waiting.clear();
    let mut request = request(1, u64::MAX).expect("it is none");
    request.messages = one.repeat(most).into();
    request.waited_ms = vec![7; most];
    receiving.read(request);
    assert!(!receiving.has_room());
}

/// Both the batch that waits for the log and the one behind it.
#[tokio::test]
async fn mqtt_3_3_2_6_the_time_that_batches_wait_for_the_log_counts() {
    let (metrics, index) = (
        Arc::<Metrics>::default(),
        Arc::<SubscriptionIndex>::default(),
    );
    let router = Router::new(NodeId(1), index.clone(), Arc::new(Outboxes::default()));
    let (connection, limits) = (ConnectionId(1), OutboxLimits::of(4096));
    let mailbox = Mailbox::new(connection, Version::V5, u32::MAX, 0, limits);
    router.register(mailbox.clone());
    let owner = Owner {
        node: NodeId(1),
        incarnation: Incarnation(1),
        connection,
    };
    index.put(SessionId(1), Some(owner), Queueing::default(), &["t"]);
    let (applying, applied) = watch::channel(LogIndex(0));
    let (answers, mut answered) = mpsc::channel(ANSWERS);
    let inboxes = Arc::new(Inboxes::new(metrics.clone()));
    let mut receiving = receiving(router, inboxes, applied, answers);
    for (sequence, after) in [(1, 5), (2, 0)] {
        let mut messages = bytes::BytesMut::new();
        for expiry in [3, 10] {
            let message = Message {
                publisher: None,
                qos: QoS::AtMostOnce,
                retain: false,
                topic: "t",
                properties: &[],
                expiry: Some(expiry),
                direct: false,
                payload: b"",
            };
            wire::encode(&message, Recipients::default(), &mut messages);
        }
        let request = DeliverRequest {
            messages: messages.freeze(),
            ..request(sequence, after).expect("just made")
        };
        let at = Instant::now().checked_sub(Duration::from_secs(4));
        let at = at.expect("the machine runs for longer");
        receiving.waiting.push_back(Arrived { request, at });
    }
    let (_requests, stream) = mpsc::channel(1);
    let receiving = tokio::spawn(receiving.run(ReceiverStream::new(stream)));
    applying.send_replace(LogIndex(5));
    loop {
        let answer = answered.recv().await.expect("it runs").expect("an answer");
        if answer.sequence == 2 {
            break;
        }
    }
    receiving.abort();
    assert_eq!(metrics.messages_dropped.of(DropReason::Expired).get(), 2);
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    assert_eq!(contents.counts[0], 2);
    // Of each, the interval is the first property.
    let interval = [2, 0, 0, 0, 6];
    let packets = contents.packets.bytes.windows(interval.len());
    assert_eq!(packets.filter(|bytes| *bytes == interval).count(), 2);
}
