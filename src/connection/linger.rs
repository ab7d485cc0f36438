//! The end of a connection that the server has ended: the client gets to read why.
//!
//! A socket that is closed while bytes of the client have not been read is reset, and the reset throws away what the
//! client has not read yet: the DISCONNECT or CONNACK with the reason. So the server's half is shut down, and what the
//! client still sends is read and dropped until it closes its half.
//!
//! Invariant: this is bounded in time and in bytes.

use std::time::Duration;

use super::output::OutputBuffers;
use super::socket::{READ_BUFFER, flush, is_transient, write_all};
use crate::base::limits;
use crate::transport::Stream;

/// How long the last packets, with DISCONNECT or CONNACK, may take to leave.
const LAST_PACKETS_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the client may take to close its half.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that are read meanwhile: more than a client has under way that stops when it sees the end.
const LINGER_BYTES: usize = 16 << 20;

/// Sends the last packets, within a bound of time; the connection ends whether they arrive or not.
pub(super) async fn write_last(stream: &mut Stream, bytes: &[u8]) {
    // A client that does not read its last packets loses them.
    let _ = tokio::time::timeout(LAST_PACKETS_TIMEOUT, write_all(stream, bytes)).await;
}

/// The same for what a connection has left. It is written from where it is: there may be much of it, and many
/// connections may end at once.
pub(super) async fn write_output(stream: &mut Stream, output: &mut OutputBuffers) {
    let write = async {
        while output.unsent() > 0 && stream.writable().await.is_ok() {
            match output.write_to(stream, limits::TURN_WRITTEN_BYTES) {
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(_) => return,
            }
        }
        let _ = flush(stream).await;
    };
    let _ = tokio::time::timeout(LAST_PACKETS_TIMEOUT, write).await;
}

/// Tells the client that nothing more comes.
pub(super) async fn end_stream(stream: &mut Stream) {
    stream.close();
    if stream.is_unsent() {
        let _ = tokio::time::timeout(LAST_PACKETS_TIMEOUT, flush(stream)).await;
    }
    stream.shutdown();
}

/// Reads and drops what the client sends, until it closes its half.
pub(super) async fn linger(stream: &mut Stream) {
    // A client that goes on loses the reason.
    let _ = tokio::time::timeout(LINGER_TIMEOUT, drop_input(stream)).await;
}

async fn drop_input(stream: &mut Stream) {
    let mut bytes = 0;
    while bytes < LINGER_BYTES && stream.readable().await.is_ok() {
        match READ_BUFFER.with_borrow_mut(|buffer| stream.try_read(buffer)) {
            Ok(0) => return,
            Ok(read) => bytes += read,
            Err(error) if is_transient(&error) => {}
            Err(_) => return,
        }
        // A client that sends fast must not keep others waiting.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Without lingering the reset would come before the client reads.
    #[tokio::test]
    async fn a_client_under_load_reads_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let client = tokio::spawn(async move {
            let mut client = TcpStream::connect(address).await.expect("listening");
            let chunk = vec![0; 64 << 10];
            for _ in 0..32 {
                client.write_all(&chunk).await.expect("the server reads");
            }
            let mut reason = Vec::new();
            client.read_to_end(&mut reason).await.expect("no reset");
            reason
        });
        let (stream, _) = listener.accept().await.expect("a client");
        let mut stream = Stream::of_tcp(stream);
        stream.readable().await.expect("it sends");
        write_last(&mut stream, b"reason").await;
        end_stream(&mut stream).await;
        linger(&mut stream).await;
        drop(stream);
        assert_eq!(client.await.expect("no panic"), b"reason");
    }

    #[tokio::test]
    async fn lingering_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let _client = TcpStream::connect(address).await.expect("listening");
        let (stream, _) = listener.accept().await.expect("a client");
        let start = Instant::now();
        linger(&mut Stream::of_tcp(stream)).await;
        assert!(start.elapsed() < 2 * LINGER_TIMEOUT);
    }
}
