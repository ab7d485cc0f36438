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
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for a client that is ended because it reads slowly: what it has not read is ahead of the reason. It is as
/// much as [`crate::transport`] lets the kernel hold back, and the rest of one packet.
pub(super) const SLOW_LINGER_TIMEOUT: Duration = Duration::from_secs(10);

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
pub(super) async fn linger(stream: &mut Stream, within: Duration) {
    // A client that goes on loses the reason.
    let _ = tokio::time::timeout(within, drop_input(stream)).await;
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::transport::Socket;

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
        linger(&mut stream, LINGER_TIMEOUT).await;
        drop(stream);
        assert_eq!(client.await.expect("no panic"), b"reason");
    }

    #[tokio::test]
    async fn lingering_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let _client = TcpStream::connect(address).await.expect("listening");
        let (stream, _) = listener.accept().await.expect("a client");
        let within = Duration::from_millis(100);
        linger(&mut Stream::of_tcp(stream), within).await;
    }

    /// The kernel holds the last bytes for a client that reads nothing, and they are there when it reads again.
    #[tokio::test]
    async fn the_last_bytes_do_not_wait_for_a_client_that_is_slow() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(address).await.expect("listening");
        let (stream, _) = listener.accept().await.expect("a client");
        let socket = Socket::Tcp(stream);
        socket.prepare(Duration::ZERO).expect("the options exist");
        let mut stream = Stream::Plain(socket);
        let (mut sent, chunk) = (0, [7; 16 << 10]);
        // Until the kernel takes nothing for a while.
        let a_while = Duration::from_millis(200);
        while let Ok(writable) = tokio::time::timeout(a_while, stream.writable()).await {
            writable.expect("it is open");
            while let Ok(written) = stream.try_write(&chunk) {
                sent += written;
            }
        }
        // The rest of a packet, and the reason.
        let rest = vec![7; 200_000];
        let mut output = OutputBuffers::new([&rest[..], b"reason"].concat());
        stream.take_at_once();
        write_output(&mut stream, &mut output).await;
        assert_eq!(output.unsent(), 0, "the kernel has not taken it");
        end_stream(&mut stream).await;
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("no reset");
        assert_eq!(received.len(), sent + rest.len() + 6);
        assert!(received.ends_with(b"reason"));
    }
}
