//! Transfers from senders that go away.

use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::raft::metrics::LogMetrics;

/// Installations that have begun: the files, and how each is told to end.
type Installations = mpsc::Receiver<(PathBuf, oneshot::Sender<()>)>;

/// A receiver whose installations wait for the test, and end without having moved the files.
fn receiver(data: &std::path::Path) -> (Arc<SnapshotReceiver>, Installations) {
    let (begun, installations) = mpsc::channel(8);
    let install: Install = Box::new(move |_, _, database| {
        let begun = begun.clone();
        Box::pin(async move {
            let (end, ended) = oneshot::channel();
            begun.send((database, end)).await.map_err(internal)?;
            ended.await.map_err(internal)?;
            Ok(pb::Vote::default())
        })
    });
    let snapshots = Arc::new(Snapshots::open(data).expect("an empty directory"));
    let metrics = Arc::new(Metrics::new(Arc::new(LogMetrics::default())));
    (
        SnapshotReceiver::new(install, snapshots, metrics),
        installations,
    )
}

/// A whole snapshot of one file.
fn parts(id: &str) -> ReceiverStream<Result<pb::SnapshotPart, Status>> {
    let data = bytes::Bytes::from_static(b"rows");
    let crc = crc32c::crc32c(&data);
    let begin = pb::SnapshotBegin {
        id: id.to_owned(),
        vote: Some(encoding::vote_to(&Vote::new_committed(1, 2))),
        files: vec![pb::SnapshotFile {
            name: "1.sst".to_owned(),
            bytes: data.len() as u64,
            crc32c: None,
        }],
        ..pb::SnapshotBegin::default()
    };
    let chunk = pb::SnapshotChunk {
        file: 0,
        offset: 0,
        crc32c: crc,
        data,
    };
    let end = pb::SnapshotFileEnd {
        file: 0,
        crc32c: crc,
    };
    let (sender, parts) = mpsc::channel(4);
    for part in [
        Part::Begin(begin),
        Part::Chunk(chunk),
        Part::End(end),
        Part::Done(pb::SnapshotDone {}),
    ] {
        let part = pb::SnapshotPart { part: Some(part) };
        sender.try_send(Ok(part)).expect("there is room");
    }
    ReceiverStream::new(parts)
}

#[tokio::test]
async fn an_installation_keeps_its_files_when_the_sender_is_gone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (receiver, mut installations) = receiver(dir.path());
    let (steps, answers) = mpsc::channel(8);
    let first = tokio::spawn({
        let receiver = Arc::clone(&receiver);
        async move { receiver.run(parts("first"), steps).await }
    });
    let (database, end) = installations.recv().await.expect("it is whole");
    drop(answers);
    first.await.expect("it has not panicked");

    // Another leader sends another snapshot meanwhile.
    let (steps, mut answers) = mpsc::channel(8);
    let second = tokio::spawn({
        let receiver = Arc::clone(&receiver);
        async move { receiver.run(parts("second"), steps).await }
    });
    // Long enough for what must not happen to happen.
    let early = tokio::time::timeout(Duration::from_millis(200), answers.recv());
    assert!(early.await.is_err(), "it waits for its turn");
    assert!(database.join("1.sst").exists());

    end.send(()).expect("it goes on without its sender");
    let (other, end) = installations.recv().await.expect("it is whole");
    assert_ne!(other, database);
    end.send(()).expect("it waits for this");
    second.await.expect("it has not panicked");
    let mut last = None;
    while let Some(step) = answers.recv().await {
        last = step.expect("all is well").step;
    }
    assert!(matches!(last, Some(Step::Finished(_))));
    for ignored in [database, other] {
        assert!(!ignored.exists(), "nobody wanted it");
    }
}
