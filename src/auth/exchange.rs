//! The bounds of an exchange, whatever its mechanism.

use super::{Denial, Method, Negotiation, Step};
use crate::base::limits;
use crate::codec::ReasonCode;

/// One exchange with one client, ended when it takes too many steps or too many bytes. Its time is for the connection
/// to bound.
pub struct Exchange {
    negotiation: Box<dyn Negotiation>,
    method: Method,
    steps: usize,
    bytes: usize,
}

/// A refusal says what the method is.
fn of_method(step: Step, method: Method) -> Step {
    match step {
        Step::Refused(denial) => Step::Refused(denial.of(method)),
        Step::Pending(later) => {
            Step::Pending(Box::pin(async move { of_method(later.await, method) }))
        }
        step => step,
    }
}

impl Exchange {
    pub(super) fn new(negotiation: Box<dyn Negotiation>, method: Method) -> Exchange {
        Exchange {
            negotiation,
            method,
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
        of_method(self.negotiation.step(data), self.method)
    }

    /// The name that the client claims, see [`Negotiation::claimed`].
    pub fn claimed(&self) -> Option<&str> {
        self.negotiation.claimed()
    }

    /// How a success is refused that may not be one, see [`Negotiation::refusal`].
    pub fn refusal(&self, detail: &'static str) -> Denial {
        self.negotiation.refusal(detail).of(self.method)
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
        let mut exchange = Exchange::new(Box::new(Endless), Method::Scram);
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
