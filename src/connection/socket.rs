//! Stream operations that the handshake and the connection's task share.

use std::cell::RefCell;
use std::io;

use zeroize::Zeroize as _;

use crate::base::{limits, wiped};
use crate::transport::Stream;

thread_local! {
    /// Takes what is read from any stream of this thread, so that an idle connection holds no buffer.
    pub(super) static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; limits::READ_BUFFER_BYTES]);
}

/// Whether the operation may be tried again.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Waits for bytes and appends them to `into`, with no copy left behind.
///
/// # Errors
/// When the stream is closed.
pub(super) async fn read_some(stream: &mut Stream, into: &mut Vec<u8>) -> io::Result<()> {
    loop {
        stream.readable().await?;
        let read = READ_BUFFER.with_borrow_mut(|buffer| {
            let read = stream.try_read(buffer)?;
            // What comes before the session may have a password.
            wiped::append(into, &buffer[..read]);
            buffer[..read].zeroize();
            Ok(read)
        });
        match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            // Where there was something, and nothing of it for MQTT, the socket is still ready: nobody else of the
            // thread, nor a time-out, would have its turn.
            Err(error) if is_transient(&error) => tokio::task::yield_now().await,
            Err(error) => return Err(error),
        }
    }
}

/// Writes all of `bytes`.
///
/// # Errors
/// When the stream is closed.
pub(super) async fn write_all(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
    flush(stream).await
}

/// Waits until the socket has everything that the stream has taken.
///
/// # Errors
/// When the stream is closed.
pub(super) async fn flush(stream: &mut Stream) -> io::Result<()> {
    while stream.is_unsent() {
        stream.writable().await?;
        match stream.flush() {
            Err(error) if !is_transient(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
