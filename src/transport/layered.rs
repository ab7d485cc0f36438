//! A stream with something between the socket and MQTT: TLS, WebSocket, or both.
//!
//! What is read passes the socket, TLS, and frames, in buffers that belong to the thread; a connection keeps only what
//! is not whole, and what its socket has not taken.
//!
//! Invariant: at most one write of [`WRITE_BYTES`] waits for the socket, and answers of the layers themselves (alerts,
//! tickets, pongs): more is taken only when that is gone.
//! Invariant: a read ends after [`READS_AT_ONCE`] reads of the socket, also when a client sends nothing but pings.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::socket::Socket;
use super::stream_end::StreamEnd;
use super::tls::Session;
use super::websocket::Frames;
use crate::base::limits;

/// Bytes that are taken at once: four full TLS records.
const WRITE_BYTES: usize = 64 << 10;

/// How often the socket is read for one read of MQTT, while what it has is for the layers alone: pings, empty frames,
/// parts of records.
const READS_AT_ONCE: usize = 4;

/// Bytes that one read of a handshake takes of the socket.
const HANDSHAKE_READ_BYTES: usize = 16 << 10;

thread_local! {
    /// Takes what is read from the socket of any stream of this thread.
    static INPUT: RefCell<Vec<u8>> = RefCell::new(vec![0; limits::READ_BUFFER_BYTES]);
    /// What is to be written, in one piece.
    static CONTENT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The same, encrypted.
    static RECORDS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A stream through layers.
#[derive(Debug)]
pub(crate) struct Layered {
    socket: Socket,
    tls: Option<Session>,
    frames: Option<Frames>,
    /// What came out of TLS and was not read yet; frames are still in it.
    content: Vec<u8>,
    /// Bytes for the socket, of which so many are sent.
    output: Vec<u8>,
    sent: usize,
    /// Nothing more comes.
    is_ended: bool,
    /// The other end was told that nothing more comes.
    is_closed: bool,
}

/// Whether the operation may be tried again.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Layered {
    /// The layers of a connection that begins.
    pub(super) fn new(socket: Socket, tls: Option<Session>) -> Layered {
        Layered {
            socket,
            tls,
            frames: None,
            content: Vec::new(),
            output: Vec::new(),
            sent: 0,
            is_ended: false,
            is_closed: false,
        }
    }

    /// Takes what was read out of TLS, with as much as came behind the handshake's.
    fn decrypt(
        &mut self,
        input: &mut [u8],
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<()> {
        let content = &mut self.content;
        let mut put = |bytes: &[u8]| {
            let room = match content.is_empty() {
                true => bytes.len().min(buffer.len() - *filled),
                false => 0,
            };
            buffer[*filled..*filled + room].copy_from_slice(&bytes[..room]);
            *filled += room;
            content.extend_from_slice(&bytes[room..]);
        };
        match &mut self.tls {
            Some(tls) => {
                let received = tls.receive(input, put, &mut self.output);
                self.is_ended = tls.is_closed();
                received.map_err(broken)
            }
            None => {
                put(input);
                Ok(())
            }
        }
    }

    /// Reads the socket once. What comes out goes into the buffer, and what has no room there is kept. Returns how much
    /// went into the buffer; the end is noted.
    fn fill(
        &mut self,
        buffer: &mut [u8],
        most: usize,
        read: &mut impl FnMut(&mut Socket, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        INPUT.with_borrow_mut(|input| {
            let kept = self.tls.as_ref().map_or(&[][..], Session::input);
            let length = kept.len();
            input[..length].copy_from_slice(kept);
            let end = input.len().min(length + most);
            let read = ready!(read(&mut self.socket, &mut input[length..end]))?;
            if read == 0 {
                self.is_ended = true;
                return Poll::Ready(Ok(0));
            }
            let mut filled = 0;
            let taken = self.decrypt(&mut input[..length + read], buffer, &mut filled);
            if !self.output.is_empty() {
                // Otherwise it is sent with what comes next.
                let _ = self.flush();
            }
            match taken {
                Err(_) if filled > 0 => {
                    // What came before the record that is wrong was proved, and is read. Then it is over.
                    self.is_ended = true;
                }
                taken => taken?,
            }
            Poll::Ready(Ok(filled))
        })
    }

    /// Takes frames off what is in the buffer.
    fn unframe(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(frames) = &mut self.frames else {
            return Ok(bytes.len());
        };
        let received = frames.receive(bytes);
        self.is_ended |= frames.is_closed();
        let answered = self.send_answers();
        let length = received.map_err(broken)?;
        // Whoever sends something and closes the stream behind it is heard.
        match length {
            0 => answered.map(|()| 0),
            _ => Ok(length),
        }
    }

    /// Sends what the frames have to answer.
    fn send_answers(&mut self) -> io::Result<()> {
        let answers = match &mut self.frames {
            Some(frames) if !frames.answers.is_empty() => std::mem::take(&mut frames.answers),
            _ => return Ok(()),
        };
        match &mut self.tls {
            Some(tls) => tls.encrypt(&answers, &mut self.output).map_err(broken)?,
            None => self.output.extend_from_slice(&answers),
        }
        match self.flush() {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads until there is something for MQTT, or nothing more now, or the socket was asked `most` times. 0 is the
    /// end; `None`: what was read had nothing for MQTT, and there may be more.
    fn read_with(
        &mut self,
        buffer: &mut [u8],
        most: usize,
        mut read: impl FnMut(&mut Socket, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<Option<usize>>> {
        for _ in 0..most {
            let filled = if !self.content.is_empty() {
                let room = self.content.len().min(buffer.len());
                buffer[..room].copy_from_slice(&self.content[..room]);
                self.content.drain(..room);
                if self.content.is_empty() {
                    self.content = Vec::new();
                }
                room
            } else if self.is_ended {
                return Poll::Ready(Ok(Some(0)));
            } else if self.tls.is_none() {
                let filled = ready!(read(&mut self.socket, buffer))?;
                self.is_ended = filled == 0;
                filled
            } else {
                ready!(self.fill(buffer, usize::MAX >> 1, &mut read))?
            };
            let length = self.unframe(&mut buffer[..filled])?;
            if length > 0 {
                return Poll::Ready(Ok(Some(length)));
            }
        }
        Poll::Ready(Ok(None))
    }

    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.initialize_unfilled();
        let read = self.read_with(room, READS_AT_ONCE, |socket, bytes| {
            let mut bytes = ReadBuf::new(bytes);
            ready!(socket.poll_read(context, &mut bytes))?;
            Poll::Ready(Ok(bytes.filled().len()))
        });
        match ready!(read)? {
            Some(length) => {
                buffer.advance(length);
                Poll::Ready(Ok(()))
            }
            None => {
                // The others of the thread have their turns first.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    pub(super) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = |socket: &mut Socket, bytes: &mut [u8]| Poll::Ready(socket.try_read(bytes));
        at_once(self.read_with(buffer, READS_AT_ONCE, read)).and_then(or_later)
    }

    pub(super) fn read_now(&mut self, buffer: &mut [u8], reads: &mut usize) -> io::Result<usize> {
        let most = *reads;
        let read = |socket: &mut Socket, bytes: &mut [u8]| {
            *reads = reads.saturating_sub(1);
            Poll::Ready(socket.read_now(bytes))
        };
        at_once(self.read_with(buffer, most, read)).and_then(or_later)
    }

    pub(super) async fn readable(&mut self) -> io::Result<()> {
        match self.content.is_empty() && !self.is_ended {
            true => self.socket.readable().await,
            false => Ok(()),
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Takes bytes of MQTT, and gives the socket what it takes of them.
    pub(super) fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        if self.is_closed || self.frames.as_ref().is_some_and(Frames::has_sent_close) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        CONTENT.with_borrow_mut(|content| match (slices, &self.frames) {
            ([slice], None) => self.send(&slice[..slice.len().min(WRITE_BYTES)]),
            _ => {
                content.clear();
                let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
                let length = length.min(WRITE_BYTES);
                if let Some(frames) = &self.frames {
                    frames.write_binary_header(content, length);
                }
                let end = content.len() + length;
                for slice in slices {
                    let room = slice.len().min(end - content.len());
                    content.extend_from_slice(&slice[..room]);
                }
                self.send(content).map(|_| length)
            }
        })
    }

    /// Sends bytes through TLS. All are taken.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => RECORDS.with_borrow_mut(|records| {
                records.clear();
                tls.encrypt(bytes, records).map_err(broken)?;
                write(&self.socket, records, &mut self.output)
            })?,
            None => write(&self.socket, bytes, &mut self.output)?,
        }
        Ok(bytes.len())
    }

    pub(super) fn is_unsent(&self) -> bool {
        !self.output.is_empty()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            self.sent += self.socket.try_write(&self.output[self.sent..])?;
        }
        self.output = Vec::new();
        self.sent = 0;
        Ok(())
    }

    pub(super) fn held_bytes(&self) -> usize {
        let tls = self.tls.as_ref().map_or(0, Session::held_bytes);
        let frames = self.frames.as_ref().map_or(0, Frames::held_bytes);
        size_of::<Layered>() + tls + frames + self.content.capacity() + self.output.capacity()
    }

    /// How the other end has ended its half.
    pub(super) fn end(&self) -> StreamEnd {
        match &self.frames {
            Some(frames) if frames.is_violated() => StreamEnd::Violated,
            Some(frames) if frames.is_closed() => StreamEnd::Closed,
            _ => StreamEnd::Lost,
        }
    }

    /// Says in each layer that nothing more comes.
    pub(super) fn close(&mut self) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        if let Some(frames) = &mut self.frames {
            frames.close(1000);
        }
        // What can't be sent is lost with the connection.
        let _ = self.send_answers();
        if let Some(tls) = &mut self.tls {
            let _ = tls.close(&mut self.output);
        }
        let _ = self.flush();
    }
}

/// The handshakes.
impl Layered {
    /// Waits for more of the other end's handshake.
    async fn more(&mut self) -> io::Result<()> {
        self.flush_all().await?;
        let mut read = |socket: &mut Socket, bytes: &mut [u8]| Poll::Ready(socket.try_read(bytes));
        loop {
            self.socket.readable().await?;
            match at_once(self.fill(&mut [], HANDSHAKE_READ_BYTES, &mut read)) {
                Ok(_) if self.is_ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the socket has everything.
    pub(super) async fn flush_all(&mut self) -> io::Result<()> {
        loop {
            match self.flush() {
                Err(error) if is_transient(&error) => self.socket.writable().await?,
                done => return done,
            }
        }
    }

    /// Shakes hands until `done` is true of the session.
    pub(super) async fn shake_hands(
        &mut self,
        mut has_room: impl FnMut(usize) -> bool,
    ) -> io::Result<()> {
        while self.tls.as_ref().is_some_and(Session::is_handshaking) {
            if !has_room(self.held_bytes()) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.more().await?;
        }
        self.flush_all().await
    }

    /// The session, when its handshake is over.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        self.tls.as_mut()
    }

    /// Reads the head of an HTTP message, as `judge` says how long it is; what is behind it stays.
    pub(super) async fn head<T, E>(
        &mut self,
        mut has_room: impl FnMut(usize) -> bool,
        mut judge: impl FnMut(&[u8]) -> Result<Option<(usize, T)>, E>,
    ) -> io::Result<Result<T, E>> {
        loop {
            if !self.content.is_empty() {
                match judge(&self.content) {
                    Ok(Some((length, head))) => {
                        self.content.drain(..length);
                        return Ok(Ok(head));
                    }
                    Ok(None) => {}
                    Err(error) => return Ok(Err(error)),
                }
            }
            if !has_room(self.held_bytes()) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.more().await?;
        }
    }

    /// Sends bytes before there are frames.
    pub(super) async fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.flush_all().await?;
        self.send(bytes)?;
        self.flush_all().await
    }

    /// From here on there are frames.
    pub(super) fn begin_frames(&mut self, frames: Frames) {
        self.frames = Some(frames);
    }
}

/// The answer of a read that does not wait.
fn at_once<T>(read: Poll<io::Result<T>>) -> io::Result<T> {
    match read {
        Poll::Ready(read) => read,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// What was read, if anything was for MQTT.
fn or_later(read: Option<usize>) -> io::Result<usize> {
    read.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Writes what the socket takes and keeps the rest.
fn write(socket: &Socket, bytes: &[u8], rest: &mut Vec<u8>) -> io::Result<()> {
    let written = match socket.try_write(bytes) {
        Ok(written) => written,
        Err(error) if is_transient(&error) => 0,
        Err(error) => return Err(error),
    };
    rest.extend_from_slice(&bytes[written..]);
    Ok(())
}

#[cfg(test)]
#[path = "layered_tests.rs"]
mod tests;
