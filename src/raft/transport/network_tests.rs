use futures::FutureExt;
use futures::channel::mpsc;

use super::*;
use crate::raft::core::encoding::log_id;

#[tokio::test]
async fn a_stream_whose_reader_waits_is_ended_from_outside() {
    let (sender, receiver) = mpsc::unbounded::<u8>();
    let (mut stream, end) = endable(receiver);
    sender.unbounded_send(1).expect("it is read");
    assert_eq!(stream.next().await, Some(1));
    let mut waiting = tokio::spawn(async move { stream.next().await });
    assert!((&mut waiting).now_or_never().is_none());
    tokio::task::yield_now().await;
    drop(end);
    assert!(sender.is_closed(), "what it holds has gone");
    assert_eq!(waiting.await.expect("it was woken"), None);
}

fn request(previous: u64) -> AppendEntriesRequest<TypeConfig> {
    AppendEntriesRequest {
        vote: Vote::new_committed(1, 1),
        prev_log_id: (previous > 0).then(|| log_id(1, previous)),
        entries: Vec::new(),
        leader_commit: None,
    }
}

#[test]
fn a_peer_can_not_have_less_than_when_the_stream_began() {
    let asked = Asked::new();
    assert_eq!(asked.matched.load(Relaxed), UNKNOWN);
    asked.note(&request(7));
    asked.note(&request(9));
    assert_eq!(asked.matched.load(Relaxed), 7, "nothing was answered");
    let answer = |index| asked.answer(&Ok(Some(log_id(1, index))));
    assert!(answer(8).is_ok());
    assert!(answer(9).is_ok());
    assert_eq!(asked.matched.load(Relaxed), 9);
    assert_eq!(asked.unanswered.load(Relaxed), 0);
    assert!(answer(6).is_err());
    assert_eq!(asked.unanswered.load(Relaxed), 0);
}

#[test]
fn a_peer_that_has_nothing_may_say_so() {
    let asked = Asked::new();
    asked.note(&request(0));
    asked.note(&request(5));
    assert!(asked.answer(&Ok(None)).is_ok());
    assert_eq!(asked.matched.load(Relaxed), 0);
}
