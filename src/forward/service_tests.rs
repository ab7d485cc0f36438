//! What a node answers that has not applied what a batch follows.

use super::*;
use crate::forward::outbox::Outboxes;

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

/// Apply comes round all the time, and is behind for longer than the other node waits for an answer.
#[tokio::test]
async fn a_node_that_catches_up_answers_while_a_batch_waits() {
    let (applying, applied) = watch::channel(LogIndex(0));
    let (answers, mut answered) = mpsc::channel(ANSWERS);
    let (requests, stream) = mpsc::channel(4);
    let receiving = Receiving {
        applied,
        router: Router::new(NodeId(1), Arc::default(), Arc::new(Outboxes::default())),
        inboxes: Arc::default(),
        answers,
        inbound: None,
        awaited_index: 0,
        waiting: None,
        answered_at: Instant::now(),
    };
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
