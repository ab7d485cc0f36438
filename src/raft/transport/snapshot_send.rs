//! Sends a snapshot, file by file, to a follower that lags too far behind.
//!
//! Invariant: at most a few chunks ([`READ_AHEAD`]) are in memory. Files that the follower has from an attempt that
//! broke off are not sent again.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::channels::RaftClient;
use crate::base::proto::raft::{self as pb, snapshot_part::Part, snapshot_step::Step};
use crate::raft::core::state_machine::SnapshotData;
use crate::storage::Snapshot;

/// Bytes of a file in one message.
const CHUNK: usize = 1 << 20;
/// Chunks read ahead of the network.
const READ_AHEAD: usize = 4;
/// Longest wait for any message of the receiver.
const RECEIVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a snapshot was not sent to the end.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("{0}")]
    Rpc(#[from] tonic::Status),
    #[error("reading the snapshot: {0}")]
    Read(#[from] std::io::Error),
    #[error("the receiver was silent for {} s", RECEIVER_TIMEOUT.as_secs())]
    Silent,
    #[error("the receiver ended the transfer")]
    Ended,
    #[error("only a snapshot kept on this node can be sent")]
    NotKept,
}

/// Sends `data` and returns the receiver's vote. `begin.id` names this node's data directory.
pub async fn send(
    mut client: RaftClient,
    mut begin: pb::SnapshotBegin,
    data: SnapshotData,
) -> Result<pb::Vote, SendError> {
    let SnapshotData::Kept(snapshot) = data else {
        return Err(SendError::NotKept);
    };
    begin.id = format!("{}-{}", begin.id, snapshot.id);
    let files = snapshot.files()?;
    begin.files = files
        .iter()
        .map(|file| pb::SnapshotFile {
            name: file.name.clone(),
            bytes: file.bytes,
            crc32c: file.crc,
        })
        .collect();
    let listed = begin.files.clone();
    let (parts, queue) = mpsc::channel(READ_AHEAD);
    let first = pb::SnapshotPart {
        part: Some(Part::Begin(begin)),
    };
    parts.send(first).await.map_err(|_| SendError::Ended)?;
    let mut steps = client
        .snapshot(ReceiverStream::new(queue))
        .await?
        .into_inner();
    let have = match next(&mut steps).await? {
        Step::Have(have) => have.files,
        Step::Finished(vote) => return Ok(vote),
        Step::Received(_) => Vec::new(),
    };
    let sent = send_files(parts, snapshot, listed, have);
    let finished = async {
        loop {
            if let Step::Finished(vote) = next(&mut steps).await? {
                return Ok::<_, SendError>(vote);
            }
        }
    };
    tokio::pin!(finished);
    tokio::select! {
        sent = sent => {
            sent?;
            finished.await
        }
        vote = &mut finished => vote,
    }
}

async fn next(steps: &mut tonic::Streaming<pb::SnapshotStep>) -> Result<Step, SendError> {
    let step = tokio::time::timeout(RECEIVER_TIMEOUT, steps.message());
    let step = step.await.map_err(|_| SendError::Silent)??;
    step.and_then(|step| step.step).ok_or(SendError::Ended)
}

/// Sends the content of all files but those at the positions `have`.
async fn send_files(
    parts: mpsc::Sender<pb::SnapshotPart>,
    snapshot: Snapshot,
    files: Vec<pb::SnapshotFile>,
    have: Vec<u32>,
) -> Result<(), SendError> {
    let put = async |part| {
        let part = pb::SnapshotPart { part: Some(part) };
        parts.send(part).await.map_err(|_| SendError::Ended)
    };
    for (position, file) in (0u32..).zip(&files) {
        if have.contains(&position) {
            continue;
        }
        let (mut offset, mut whole) = (0, 0);
        while offset < file.bytes {
            let (source, name) = (snapshot.clone(), file.name.clone());
            let read = tokio::task::spawn_blocking(move || source.read(&name, offset, CHUNK));
            let data = read.await.map_err(std::io::Error::other)??;
            if data.is_empty() {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            let crc = crc32c::crc32c(&data);
            whole = crc32c::crc32c_combine(whole, crc, data.len());
            let chunk = pb::SnapshotChunk {
                file: position,
                offset,
                crc32c: crc,
                data,
            };
            offset += chunk.data.len() as u64;
            put(Part::Chunk(chunk)).await?;
        }
        snapshot.note_checksum(&file.name, whole)?;
        let end = pb::SnapshotFileEnd {
            file: position,
            crc32c: whole,
        };
        put(Part::End(end)).await?;
    }
    put(Part::Done(pb::SnapshotDone {})).await
}
