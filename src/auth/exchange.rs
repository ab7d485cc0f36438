//! The bounds of an exchange, whatever its mechanism.

use super::{Denial, Negotiation, Step};
use crate::base::limits;
use crate::codec::ReasonCode;

/// One exchange with one client, ended when it takes too many steps or too many bytes. Its time is for the connection
/// to bound.
pub struct Exchange {
    negotiation: Box<dyn Negotiation>,
    steps: usize,
    bytes: usize,
}

impl Exchange {
    pub(super) fn new(negotiation: Box<dyn Negotiation>) -> Exchange {
        Exchange {
            negotiation,
            steps: 0,
            bytes: 0,
        }
    }

    /// Takes the Authentication Data of CONNECT or AUTH, `None` when the packet had none.
    pub fn step(&mut self, data: Option<&[u8]>) -> Step {
        let data = data.unwrap_or_default();
        self.steps += 1;
        self.bytes += data.len();
        if self.steps > limits::AUTHENTICATION_STEPS || self.bytes > limits::AUTHENTICATION_BYTES {
            let text = "the authentication takes too many packets or bytes";
            return Step::Refused(Denial::plain(ReasonCode::NotAuthorized, text));
        }
        self.negotiation.step(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless;

    impl Negotiation for Endless {
        fn step(&mut self, data: &[u8]) -> Step {
            Step::Continue(data.to_vec())
        }
    }

    fn steps_of(data: &[u8]) -> usize {
        let mut exchange = Exchange::new(Box::new(Endless));
        (0..1000)
            .take_while(
                |_| matches!(exchange.step(Some(data)), Step::Continue(sent) if sent == data),
            )
            .count()
    }

    #[test]
    fn an_exchange_ends_after_so_many_steps_and_bytes() {
        assert_eq!(steps_of(b""), limits::AUTHENTICATION_STEPS);
        let half = vec![0; limits::AUTHENTICATION_BYTES / 2];
        assert_eq!(steps_of(&half), 2);
        assert_eq!(steps_of(&vec![0; limits::AUTHENTICATION_BYTES + 1]), 0);
    }
}
