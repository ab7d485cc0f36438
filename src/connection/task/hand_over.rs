//! What the socket has is read without waiting: before a session is handed over to the connection that takes it over,
//! and when a connection ends.

use tokio::time::Instant;

use super::{READ_BUFFER, Task, is_transient};
use crate::base::limits;
use crate::base::pulse::{Phase, busy};
use crate::connection::end::Ended;
use crate::connection::input::Turn;

impl Task {
    /// Goes on with a hand-over, if one is asked for: whoever takes the session over waits until what the client has
    /// sent is handled, within a bound of time. It goes on turn by turn, as other packets do.
    pub(super) fn hand_over(&mut self) -> Result<Turn, Ended> {
        if !self.connection.is_handing_over() {
            return Ok(Turn::Done);
        }
        let now = Instant::now();
        let until = match &self.hand_over_until {
            Some(until) => **until,
            None => {
                // Whatever keeps the client from being read otherwise.
                self.connection.begin_hand_over();
                self.read_at_once(now)?;
                let until = now + limits::HAND_OVER_HANDLED_WITHIN;
                self.hand_over_until = Some(Box::new(until));
                until
            }
        };
        let offered = busy(Phase::Packets, || {
            self.input.offer_again(&mut self.connection)
        })?;
        self.note_arrival(now);
        if offered == Turn::Done || now >= until {
            self.input.disconnect_first(&mut self.connection)?;
            self.connection.hand_over();
            self.hand_over_until = None;
        }
        // If it is over, the answers are sent in the next turn.
        Ok(Turn::Over)
    }

    /// Takes what the socket has. Whoever asks for very many hand-overs is read beyond its rate only once.
    fn read_at_once(&mut self, now: Instant) -> Result<(), Ended> {
        let at = now.into_std();
        if let Some(rates) = &mut self.rates
            && !rates.may_be_read_at_once(at)
        {
            return Ok(());
        }
        let read = self.read_now();
        if let Some(rates) = &mut self.rates {
            rates.was_read_at_once(at);
        }
        read
    }

    /// Reads what the socket has when the connection has ended. A client that writes a DISCONNECT and closes its socket
    /// may end the connection by that before it is read, because the node can't write any more.
    pub(super) fn read_rest(&mut self) {
        if !self.input.is_settled() {
            // The connection has ended anyway.
            let _ = busy(Phase::Packets, || self.read_now());
        }
    }

    /// Takes what the socket has, without waiting for more. It is handled turn by turn.
    fn read_now(&mut self) -> Result<(), Ended> {
        let (mut taken, mut reads) = (0, limits::HAND_OVER_READS);
        while taken < limits::HAND_OVER_BYTES {
            let read = READ_BUFFER.with_borrow_mut(|buffer| {
                // The kernel is asked: the runtime may not have noticed yet that there is something.
                let read = match self.stream.read_now(buffer, &mut reads) {
                    // What came before the end is handled first.
                    Ok(0) => return self.input.close(self.stream.end()).map(|()| 0),
                    Ok(read) => read,
                    Err(error) if is_transient(&error) => return Ok(0),
                    Err(_) => return self.input.close(self.stream.end()).map(|()| 0),
                };
                self.input.keep(&buffer[..read]);
                self.count_received(read);
                Ok(read)
            })?;
            if read == 0 {
                break;
            }
            taken += read;
        }
        Ok(())
    }
}
